//! The session of a thread in a store: its slot, and its sessions of the log, the pool and the
//! locks.

use core::cell::{Cell, RefCell};
use core::fmt;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use latchwork_lockmgr::Session as Locks;
use latchwork_log::{Flags, Head, Lsn, Record, Session as LogSession};
use latchwork_machine::ConstMachine;
use latchwork_pool::Handle;
use latchwork_region::Thread;
use latchwork_tree::Batch;

use crate::Error;
use crate::files::empty::EmptyLeaf;
use crate::files::inner::StoreInner;
use crate::files::kinds::END;
use crate::files::meter::Locked;
use crate::files::undo_ownership::State;
use crate::user::User;
use crate::wakers::locked;

/// Upper bound of the bytes of a record without a payload.
pub(crate) const SMALL: u64 = 128;
/// The number of commits of a thread after which it tries to raise `low`, at least and at most: as
/// many as there are slots to check. The log keeps 63 commits of each slot.
const COMMITS_A_LOOK: (u32, u32) = (16, 48);

/// The owner of a worker's thread slot.
enum Place<M: ConstMachine> {
    /// The session of the lock manager.
    Locks(Rc<Locks<M>>),
    /// A sweeper, which takes no locks.
    Sweeper(Rc<Thread<M>>),
}

/// The fate of a worker's slot when the worker is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// The next thread can use it.
    Free,
    /// A transaction of it could not be rolled back: the slot is left to a sweep.
    Abandoned,
    /// A transaction of it is prepared: the slot is left to the thread that decides.
    Retained,
}

/// The thread slot of a worker.
struct Own<M: ConstMachine> {
    place: Place<M>,
    leave: Cell<Leave>,
}

impl<M: ConstMachine> Own<M> {
    fn thread(&self) -> &Thread<M> {
        match &self.place {
            Place::Locks(locks) => locks.thread(),
            Place::Sweeper(thread) => thread,
        }
    }
}

impl<M: ConstMachine> Drop for Own<M> {
    /// Dropped after the worker's handle and its session of the log, and before its session of the
    /// locks.
    fn drop(&mut self) {
        match self.leave.get() {
            Leave::Free => {}
            Leave::Abandoned => self.thread().abandon(),
            Leave::Retained => self.thread().retain(),
        }
    }
}

/// A thread's session in a store. It occupies a thread slot of the region until it is dropped.
pub(crate) struct StoreSession<M: ConstMachine> {
    /// Belongs to the slot in `own`, and is dropped before it.
    pub(crate) handle: Handle<'static, M>,
    pub(crate) log: LogSession<M>,
    own: Own<M>,
    pub(crate) home: Arc<StoreInner<M>>,
    /// How many migrations had begun when the tables of its transaction were looked up.
    pub(crate) tables_at: Cell<u64>,
    /// Whether a snapshot uses its slot's line, or may.
    pub(crate) reads: Cell<bool>,
    /// Which thread uses its transaction.
    pub(crate) user: Arc<User<M>>,
    /// The position of the slot's last commit.
    pub(crate) last_commit: Cell<u64>,
    /// Whether its slot has an intent on a root whose transaction has ended.
    pub(crate) roots_left: Cell<bool>,
    commits: Cell<u32>,
    /// The counts of its locks that it has published: `meter.rs`.
    pub(crate) locked: Cell<Locked>,
    /// `low` and the log's end before the thread's last read. Transactions that had ended then had
    /// also ended for that read.
    read_at: Cell<(u64, u64)>,
    /// Buffers for the next log record and its payload.
    pub(crate) record: RefCell<Record>,
    pub(crate) payload: RefCell<Vec<u8>>,
    /// Buffer for the next scan.
    pub(crate) batch: Cell<Batch>,
    /// Leaves that may be empty.
    pub(crate) empty: RefCell<VecDeque<EmptyLeaf>>,
    /// How many were noted since some were last checked.
    pub(crate) emptied: Cell<usize>,
}

impl<M: ConstMachine> StoreInner<M> {
    /// Creates a session of the calling thread.
    pub(crate) fn worker(self: &Arc<Self>) -> Result<StoreSession<M>, Error> {
        StoreSession::new(self.clone(), self.manager.session()?)
    }
}

impl<M: ConstMachine> StoreSession<M> {
    pub(crate) fn new(home: Arc<StoreInner<M>>, locks: Locks<M>) -> Result<Self, Error> {
        Self::on(home, Place::Locks(Rc::new(locks)), Leave::Free)
    }

    /// Creates a session on the slot of a prepared transaction. The drop leaves the slot as it is,
    /// unless [`leave`](Self::leave) changes that.
    pub(crate) fn of_retained(home: Arc<StoreInner<M>>, thread: Thread<M>) -> Result<Self, Error> {
        let locks = home.manager.session_on(thread);
        Self::on(home, Place::Locks(Rc::new(locks)), Leave::Retained)
    }

    /// Creates a session that rolls back transactions of other slots.
    pub(crate) fn of_sweeper(home: Arc<StoreInner<M>>, thread: Thread<M>) -> Result<Self, Error> {
        Self::on(home, Place::Sweeper(Rc::new(thread)), Leave::Free)
    }

    fn on(home: Arc<StoreInner<M>>, place: Place<M>, leave: Leave) -> Result<Self, Error> {
        let own = Own { place, leave: Cell::new(leave) };
        let thread: *const Thread<M> = own.thread();
        // SAFETY: the thread lies in an `Rc`, which does not move it, and lives as long as the
        // worker, which drops the handle first and lends it for its own lifetime only.
        let thread: &'static Thread<M> = unsafe { &*thread };
        let handle = home.pool.handle(thread)?;
        let log = home.log.session(thread)?;
        if matches!(own.place, Place::Locks(_)) {
            // The word may be left by a transaction of the slot's last owner.
            let turn = home.shared.turn(log.slot() as u16)?;
            let _ = turn.pass(State::Ended, State::Idle) || turn.pass(State::Left, State::Idle);
        }
        let last = home.log.commits_of(log.slot(), |_, commit| Some(commit.0))?.unwrap_or(0);
        let migrations = home.shared.migrations()?;
        let user = Arc::<User<M>>::default();
        locked(&home.users).insert(log.slot(), user.clone());
        let worker = Self {
            handle,
            log,
            own,
            home,
            tables_at: Cell::new(migrations),
            reads: Cell::new(false),
            user,
            last_commit: Cell::new(last),
            roots_left: Cell::new(false),
            commits: Cell::new(0),
            locked: Cell::default(),
            read_at: Cell::new((0, 0)),
            record: RefCell::default(),
            payload: RefCell::default(),
            batch: Cell::default(),
            empty: RefCell::default(),
            emptied: Cell::default(),
        };
        // Resolve page intents that the slot's last owner, or a sweep, could not resolve.
        let _ = worker.settle_all(worker.slot(), true);
        Ok(worker)
    }

    /// Returns how many bytes of log credit it keeps while idle.
    #[inline]
    pub(crate) fn kept_credit(&self) -> u64 {
        self.log.log().portion()
    }

    pub(crate) fn slot(&self) -> u16 {
        // A region has at most 32,768 slots.
        self.log.slot() as u16
    }

    /// Returns its session of the lock manager.
    pub(crate) fn locks(&self) -> Result<&Locks<M>, Error> {
        match &self.own.place {
            Place::Locks(locks) => Ok(locks),
            Place::Sweeper(_) => Err(Error::Engine("a sweeper locks nothing".to_owned())),
        }
    }

    /// Records that a transaction of the slot could not be rolled back: the worker begins no other
    /// one, and when it is dropped its slot is left to a sweep, like that of a dead thread.
    pub(crate) fn give_up(&self) {
        self.leave(Leave::Abandoned);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.own.leave.get() == Leave::Abandoned
    }

    /// Sets what happens to the slot.
    pub(crate) fn leave(&self, leave: Leave) {
        self.own.leave.set(leave);
    }

    /// Returns whether the next thread can use the slot when the worker is dropped.
    pub(crate) fn is_free(&self) -> bool {
        self.own.leave.get() == Leave::Free
    }

    /// Called before the thread reads records and asks which of their writers have ended. A
    /// transaction that is rolled back between the two has ended then, although the read data was
    /// not committed.
    pub(crate) fn about_to_read(&self) -> Result<(), Error> {
        let low = self.home.shared.low()?;
        self.read_at.set((low, self.home.log.end().0));
        Ok(())
    }

    pub(crate) fn read_at(&self) -> (u64, u64) {
        self.read_at.get()
    }

    /// Records that the tables of the transaction have just been looked up.
    pub(crate) fn tables_are_found(&self) -> Result<(), Error> {
        self.tables_at.set(self.home.shared.migrations()?);
        Ok(())
    }

    /// Returns whether transactions hold ranges of a tree.
    pub(crate) fn has_claims(&self, tree: u32) -> Result<bool, Error> {
        Ok(self.locks()?.keyspace_claims(&tree.to_be_bytes())?.count()? != 0)
    }

    /// Appends a log record that is not a change of a page.
    pub(crate) fn note(&self, slot: u16, head: &Head) -> Result<Lsn, Error> {
        self.log.reserve(SMALL)?;
        let mut record = self.record.borrow_mut();
        self.log.rebuild_for(&mut record, u32::from(slot), head, &[])?;
        Ok(self.log.append(&mut record)?)
    }

    /// Returns the slot's last commit, if this worker does not know it.
    pub(crate) fn committed_since(&self) -> Result<Option<u64>, Error> {
        let newest = self.log.log().commits_of(self.log.slot(), |_, commit| Some(commit.0))?;
        Ok(newest.filter(|newest| *newest != self.last_commit.get()))
    }

    /// Called after a commit, which is in the log regardless of errors here.
    pub(crate) fn committed(&self, at: u64) {
        self.last_commit.set(at);
        let commits = self.commits.get() + 1;
        self.commits.set(commits);
        if commits >= self.home.log.slots_high().clamp(COMMITS_A_LOOK.0, COMMITS_A_LOOK.1) {
            self.commits.set(0);
            let _ = self.home.shared.raise_low();
            self.publish();
        }
    }

    /// Logs the end of the rollback of a slot's transaction, and clears its state.
    pub(crate) fn end(&self, slot: u16) -> Result<(), Error> {
        // This worker may not commit again for long.
        self.leave_notes();
        self.log.take_aside(u32::from(slot), SMALL, 0)?;
        let head = Head { kind: END, flags: Flags::SYSTEM, ..Head::default() };
        let ended = self.log.build_for(u32::from(slot), &head, &[]);
        match ended.and_then(|mut record| self.log.append(&mut record)) {
            Ok(_) => Ok(self.log.forget(u32::from(slot))?),
            Err(why) => {
                self.log.put_aside(u32::from(slot), SMALL, 0)?;
                Err(why.into())
            }
        }
    }
}

impl<M: ConstMachine> Drop for StoreSession<M> {
    fn drop(&mut self) {
        self.leave_notes();
        self.publish();
        // In the child of a fork, a thread that does not exist may hold the mutex.
        if self.home.manager.region().check().is_ok() {
            locked(&self.home.users).remove(&self.log.slot());
        }
    }
}

impl<M: ConstMachine> fmt::Debug for StoreSession<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreSession({})", self.log.slot())
    }
}
