//! Claims on ranges against a writer of a leaf: two scans of a transaction return the same rows.
//! The transactions are the store's; the tree is one leaf with one row.

use std::ops::Bound;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use latchwork_check::overlaid::{Flaw, together};
use latchwork_check::{Overlaid, models};
use latchwork_latch::{Holder, HolderNumber, OptLatch};
use latchwork_lockmgr::{Manager, Options, Session, granular};
use latchwork_machine::{ConstMachine, Machine, Word};
use latchwork_region::Region;
use latchwork_store::internals::{
    Commits, Engine, Stamp, Txn, UndoChain, Version, WriteOptions, WriteOutcome,
};
use latchwork_store::{Error, Level};
use latchwork_tree::{Batch, Header, Row};

/// The work of a thread in a model.
type Part<'a> = Box<dyn FnOnce() + 'a>;

const TREE: u32 = 1;
const SPACE: [u8; 4] = TREE.to_be_bytes();

type Number = <Overlaid as Machine>::AtomicU64;

/// A leaf with room for one row, and the session that uses it.
struct Leaf<'l> {
    place: &'l Place,
    session: &'l Session<Overlaid>,
    number: HolderNumber,
}

/// The state of the leaf, shared by the threads.
struct Place {
    latch: OptLatch<Overlaid>,
    /// The row's value, and its writer's slot; 0 if the row does not exist.
    value: Number,
    slot: Number,
    /// Whether the writer has committed.
    committed: Number,
}

impl Holder<Overlaid> for Leaf<'_> {
    fn number(&self) -> HolderNumber {
        self.number
    }

    fn name(&self, _: &OptLatch<Overlaid>) -> u64 {
        1
    }

    fn is_dead(&self, _: HolderNumber) -> bool {
        false
    }
}

impl Leaf<'_> {
    /// The row's value and its writer's slot, read optimistically.
    fn row(&self) -> (Option<u8>, Stamp) {
        loop {
            let Ok(version) = self.place.latch.read(self) else { panic!("a dead holder") };
            // Relaxed, both: validated.
            let (slot, value) = (self.place.slot.load(Relaxed), self.place.value.load(Relaxed));
            if self.place.latch.validate(version) {
                return ((value != 0).then_some(value as u8), Stamp::new(slot as u16, 16));
            }
        }
    }
}

impl Commits for Leaf<'_> {
    fn last_commit(&self, _: u16, _: u64) -> Result<u64, Error> {
        Ok(0)
    }

    fn is_finished(&self, stamp: Stamp) -> bool {
        // Relaxed: an outdated "no" is allowed.
        stamp.slot() == 0 || self.place.committed.load(Relaxed) != 0
    }
}

impl Engine for Leaf<'_> {
    fn newest(&self, _: u32, _: &[u8], to: &mut Vec<u8>) -> Result<Version, Error> {
        let (value, stamp) = self.row();
        to.clear();
        to.extend(value);
        Ok(Version { stamp, there: value.is_some() })
    }

    fn scan(
        &self,
        _: u32,
        _: Bound<&[u8]>,
        _: bool,
        _: usize,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let (value, stamp) = self.row();
        let (header, ghost) = (Header::from_bits(stamp.get()), value.is_none());
        batch.clear();
        batch.push(Row { key: b"k", value: value.as_slice(), header, ghost });
        Ok(())
    }

    fn before(&self, _: u32, _: &[u8], _: Stamp, _: &mut Vec<u8>) -> Result<Version, Error> {
        Ok(Version::default())
    }

    fn write(
        &self,
        chain: &mut UndoChain,
        _: u32,
        _: &[u8],
        value: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<WriteOutcome, Error> {
        let Ok(latched) = self.place.latch.lock(self) else { panic!("a dead holder") };
        if !options.cleared {
            // As the store's engine does while it holds a leaf (`TreeJournal::may_write`).
            Overlaid::fence(SeqCst);
            if self.session.keyspace_claims(&SPACE)?.count()? != 0 {
                latched.unchanged();
                return Ok(WriteOutcome::Claimed);
            }
        }
        self.place.value.store(value.map_or(0, |value| u64::from(value[0])), Relaxed);
        self.place.slot.store(chain.slot.into(), Relaxed);
        chain.last = 16;
        drop(latched);
        Ok(WriteOutcome::Done)
    }

    fn undo(&self, _: &mut UndoChain, _: u64) -> Result<u64, Error> {
        Ok(0)
    }

    fn commit(&self, chain: &mut UndoChain) -> Result<u64, Error> {
        self.place.committed.store(1, Relaxed);
        chain.last = 0;
        Ok(32)
    }

    fn ended(&self, chain: &mut UndoChain) -> Result<(), Error> {
        chain.last = 0;
        Ok(())
    }

    fn remember(&self, _: u16) -> Result<(u64, u64), Error> {
        Ok((0, 0))
    }

    fn forget(&self, _: u16) {}
}

/// An idle manager and its sessions. Executions begin with it and restore it.
struct Stage {
    sessions: Vec<Session<Overlaid>>,
    place: Place,
}

// SAFETY: a manager consists of atomic words and data in a mutex.
unsafe impl Send for Stage {}
// SAFETY: as above.
unsafe impl Sync for Stage {}

fn stage() -> Stage {
    let region = Region::heap(&latchwork_region::Options {
        processes: 1,
        threads: 2,
        waiters: 2,
        limit: 4 << 20,
        ..latchwork_region::Options::default()
    });
    let options = Options {
        detect_after: std::time::Duration::from_secs(1),
        keep_after: 0,
        ..latchwork_check::early::early()
    };
    let manager = Manager::new(region.unwrap(), granular::modes(), options).unwrap();
    let sessions: Vec<_> = (0..2).map(|_| manager.session().unwrap()).collect();
    // Allocates cells and the keyspace, so that an execution allocates little.
    for session in &sessions {
        let owner = session.owner().unwrap();
        let all = latchwork_lockmgr::KeyRange::all();
        let kind = latchwork_lockmgr::RangeKind::ReadNext;
        owner.lock_range(&SPACE, all, kind, latchwork_lockmgr::Wait::Never).unwrap();
    }
    let word = || <Overlaid as ConstMachine>::U64;
    let place =
        Place { latch: OptLatch::default(), value: word(), slot: word(), committed: word() };
    Stage { sessions, place }
}

/// One transaction scans twice, the other inserts and commits.
fn phantoms() -> impl Fn() + Send + Sync + 'static {
    let stage = stage();
    move || {
        let stage = &stage;
        let leaf = |me: usize| Leaf {
            place: &stage.place,
            session: &stage.sessions[me],
            number: HolderNumber::new(me as u32 + 1).unwrap(),
        };
        let begin = |me: usize| stage.sessions[me].owner().unwrap();
        let scanner: Part<'_> = Box::new(move || {
            let leaf = leaf(0);
            let mut txn = Txn::new(&leaf, begin(0), 1, Level::Serializable);
            let mut rows = || {
                let mut rows = Vec::new();
                let all = (Bound::Unbounded, Bound::Unbounded);
                let each = &mut |_: &[u8], value: &[u8]| {
                    rows.push(value.to_vec());
                    Ok(true)
                };
                txn.scan_raw(TREE, all, false, each).unwrap();
                rows
            };
            let (first, second) = (rows(), rows());
            assert_eq!(first, second, "a phantom");
            txn.commit().unwrap();
        });
        let writer: Part<'_> = Box::new(move || {
            let leaf = leaf(1);
            let mut txn = Txn::new(&leaf, begin(1), 2, Level::Serializable);
            txn.write_raw(TREE, b"k", Some(&[7])).unwrap();
            txn.commit().unwrap();
        });
        together(vec![scanner, writer]);
        assert_eq!(leaf(0).row().0, Some(7));
    }
}

models! {
    loom_claims, loom_claims_long, loom_claims_control: phantoms(), 2, 3, [Flaw::Unfenced, Flaw::Lax];
}
