//! Operations of simulated threads on engines.

use super::lock::Kind;

/// The operation of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operations {
    /// Locks and unlocks an object of a lock manager.
    Locks(Names),
    /// Reads a page of a pool.
    Pages(Pages),
    /// Appends a record to a log.
    Appends(Appends),
    /// Runs a transaction of a store.
    Records(Records),
}

impl Operations {
    /// The kind of engine.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Locks(_) => Kind::Manager,
            Self::Pages(_) => Kind::Pool,
            Self::Appends(_) => Kind::Log,
            Self::Records(_) => Kind::Store,
        }
    }

    /// The number of objects and their name.
    pub fn objects(&self) -> (usize, &'static str) {
        match self {
            Self::Locks(names) if names.common > 0 => (names.common, "objects that all lock"),
            Self::Locks(names) => (names.own, "objects of each thread"),
            Self::Pages(pages) => (pages.pages, "pages"),
            Self::Appends(_) => (1, "log"),
            Self::Records(Records { transfers: true, objects, .. }) => (*objects, "branches"),
            Self::Records(records) => (records.objects, "records"),
        }
    }

    /// The same with another number of objects. None if the operations have no objects.
    pub fn with_objects(self, objects: usize) -> Option<Self> {
        match self {
            Self::Locks(names) => Some(Self::Locks(names.with_objects(objects))),
            Self::Pages(pages) => Some(Self::Pages(Pages { pages: objects, ..pages })),
            Self::Appends(_) => None,
            Self::Records(records) => Some(Self::Records(Records { objects, ..records })),
        }
    }

    /// Cycles between two operations; they vary at random by a quarter. The engine's own computing
    /// is not included: each of its accesses to shared memory is charged, one after the other,
    /// which is more than a real core would take.
    pub fn outside(&mut self) -> &mut u64 {
        match self {
            Self::Locks(names) => &mut names.outside,
            Self::Pages(pages) => &mut pages.outside,
            Self::Appends(appends) => &mut appends.outside,
            Self::Records(records) => &mut records.outside,
        }
    }
}

/// An operation on a lock manager: lock and unlock an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Names {
    /// Objects of each thread's own, locked in turn and exclusively.
    pub own: usize,
    /// If not zero, objects that all threads lock at random with Zipf distribution, exponent 1.
    pub common: usize,
    /// Exclusive operations per thousand on common objects. The rest read, in a weak mode, which
    /// does not conflict with itself.
    pub writes: u32,
    /// If not zero, a thread's own objects are keys, locked as ranges of a keyspace with this
    /// number of stripes.
    pub stripes: usize,
    /// Cycles between two operations.
    pub outside: u64,
}

impl Names {
    fn with_objects(self, objects: usize) -> Self {
        match self.common {
            0 => Self { own: objects, ..self },
            _ => Self { common: objects, ..self },
        }
    }
}

/// An operation on a pool: read a word of a random page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pages {
    /// Number of pages.
    pub pages: usize,
    /// Cycles between two operations.
    pub outside: u64,
}

/// An operation on a log: append a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Appends {
    /// Bytes of a record's payload.
    pub bytes: usize,
    /// Whether the thread waits until the record is durable.
    pub durable: bool,
    /// Cycles between two operations.
    pub outside: u64,
}

/// An operation on a store: a transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Records {
    /// Records, of 16 and 100 bytes; in transfers, branches.
    pub objects: usize,
    /// Operations per thousand that replace a record. The rest read one.
    pub writes: u32,
    /// Whether access is skewed as in YCSB: Zipf, exponent 0.99.
    pub skewed: bool,
    /// Whether the operation is a transfer of TPC-B instead.
    pub transfers: bool,
    /// Cycles between two operations.
    pub outside: u64,
}
