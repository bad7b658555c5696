//! What a simulated thread does on what is more than a latch.

use super::lock::Kind;

/// What a thread does in one operation on one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operations {
    /// Locks an object of a lock manager, and unlocks it.
    Locks(Names),
    /// Reads a page of a pool.
    Pages(Pages),
    /// Runs a transaction of a store.
    Records(Records),
}

impl Operations {
    /// Of what kind the engine is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Locks(_) => Kind::Manager,
            Self::Pages(_) => Kind::Pool,
            Self::Records(_) => Kind::Store,
        }
    }

    /// How many objects there are, and what they are.
    pub fn objects(&self) -> (usize, &'static str) {
        match self {
            Self::Locks(names) if names.common > 0 => (names.common, "objects that all lock"),
            Self::Locks(names) => (names.own, "objects of each thread"),
            Self::Pages(pages) => (pages.pages, "pages"),
            Self::Records(Records { transfers: true, objects, .. }) => (*objects, "branches"),
            Self::Records(records) => (records.objects, "records"),
        }
    }

    /// The same with so many.
    pub fn with_objects(self, objects: usize) -> Self {
        match self {
            Self::Locks(names) => Self::Locks(names.with_objects(objects)),
            Self::Pages(pages) => Self::Pages(Pages { pages: objects, ..pages }),
            Self::Records(records) => Self::Records(Records { objects, ..records }),
        }
    }

    /// Cycles between two operations; vary at random by a quarter. What the engine's own code
    /// computes is not in it: each of its accesses to shared memory is charged, one after the
    /// other, which is more than a real core would take for all of them.
    pub fn outside(&mut self) -> &mut u64 {
        match self {
            Self::Locks(names) => &mut names.outside,
            Self::Pages(pages) => &mut pages.outside,
            Self::Records(records) => &mut records.outside,
        }
    }
}

/// What a thread does in one operation on a lock manager: it locks an object, and unlocks it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Names {
    /// Objects of its own that each thread takes, in turn, in a mode that excludes all others.
    pub own: usize,
    /// If not zero, objects that all threads take at random: the n-th is 1/n as frequent as the
    /// first (Zipf, exponent 1).
    pub common: usize,
    /// Operations in a thousand on a common object that exclude all others; the rest read, in a
    /// mode that is weak: it conflicts with none of its kind.
    pub writes: u32,
    /// If not zero, a thread's own objects are keys that it locks as ranges, of a keyspace with so
    /// many stripes.
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

/// What a thread does in one operation on a pool: it reads a word of a page, any of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pages {
    /// How many there are.
    pub pages: usize,
    /// Cycles between two operations.
    pub outside: u64,
}

/// What a thread does in one operation on a store: a transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Records {
    /// Records of 16 and 100 bytes that there are; of transfers, branches.
    pub objects: usize,
    /// Operations in a thousand that replace a record; the rest read one.
    pub writes: u32,
    /// Whether some are more frequent than others, as YCSB has it: Zipf, exponent 0.99.
    pub skewed: bool,
    /// Whether an operation is a transfer of TPC-B instead.
    pub transfers: bool,
    /// Cycles between two operations.
    pub outside: u64,
}
