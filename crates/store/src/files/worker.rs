//! A thread at work in a store: its slot, and what it has of log, pool and locks.

use core::cell::{Cell, RefCell};
use core::fmt;
use std::rc::Rc;
use std::sync::Arc;

use latchwork_lockmgr::Session as Locks;
use latchwork_log::{Flags, Head, Lsn, Session as LogSession};
use latchwork_machine::ConstMachine;
use latchwork_pool::Handle;
use latchwork_region::Thread;

use crate::Error;
use crate::files::home::Home;
use crate::files::kinds::END;

/// Bytes of a record without a payload, and some.
const SMALL: u64 = 128;
/// After how many of its commits a thread looks whether `low` can move.
const COMMITS_A_LOOK: u32 = 16;

/// Where a worker's thread slot is.
enum Own<M: ConstMachine> {
    /// In its session of the lock manager.
    Locks(Rc<Locks<M>>),
    /// A sweeper's, which locks nothing.
    Sweeper(Rc<Thread<M>>),
}

/// A thread at work. It has a thread slot of the region until it is dropped.
pub(crate) struct Worker<M: ConstMachine> {
    /// Of the slot that `own` has: dropped before that.
    pub(crate) handle: Handle<'static, M>,
    pub(crate) log: LogSession<M>,
    own: Own<M>,
    pub(crate) home: Arc<Home<M>>,
    /// Where the slot committed last.
    pub(crate) last_commit: Cell<u64>,
    commits: Cell<u32>,
    pub(crate) payload: RefCell<Vec<u8>>,
}

impl<M: ConstMachine> Home<M> {
    /// A thread at work.
    pub(crate) fn worker(self: &Arc<Self>) -> Result<Worker<M>, Error> {
        Worker::new(self.clone(), self.manager.session()?)
    }
}

impl<M: ConstMachine> Worker<M> {
    pub(crate) fn new(home: Arc<Home<M>>, locks: Locks<M>) -> Result<Self, Error> {
        Self::on(home, Own::Locks(Rc::new(locks)))
    }

    /// A worker that undoes what others wrote.
    pub(crate) fn of_sweeper(home: Arc<Home<M>>, thread: Thread<M>) -> Result<Self, Error> {
        Self::on(home, Own::Sweeper(Rc::new(thread)))
    }

    fn on(home: Arc<Home<M>>, own: Own<M>) -> Result<Self, Error> {
        let thread: *const Thread<M> = match &own {
            Own::Locks(locks) => locks.thread(),
            Own::Sweeper(thread) => &**thread,
        };
        // SAFETY: the thread lies in an `Rc`, which does not move it, and lives as long as the
        // worker, which drops the handle first and lends it for its own lifetime only.
        let thread: &'static Thread<M> = unsafe { &*thread };
        let handle = home.pool.handle(thread)?;
        let log = home.log.session(thread)?;
        let last = home.log.commits_of(log.slot(), |_, commit| Some(commit.0))?.unwrap_or(0);
        Ok(Self {
            handle,
            log,
            own,
            home,
            last_commit: Cell::new(last),
            commits: Cell::new(0),
            payload: RefCell::default(),
        })
    }

    pub(crate) fn slot(&self) -> u16 {
        // A region has at most 32,768 slots.
        self.log.slot() as u16
    }

    /// Its session of the lock manager.
    pub(crate) fn locks(&self) -> Result<&Locks<M>, Error> {
        match &self.own {
            Own::Locks(locks) => Ok(locks),
            Own::Sweeper(_) => Err(Error::Engine("a sweeper locks nothing".to_owned())),
        }
    }

    /// Whether transactions hold ranges of a tree.
    pub(crate) fn has_claims(&self, tree: u32) -> Result<bool, Error> {
        Ok(self.locks()?.keyspace_claims(&tree.to_be_bytes())?.count()? != 0)
    }

    /// Logs something that is no change of a page.
    pub(crate) fn note(&self, slot: u16, head: &Head) -> Result<Lsn, Error> {
        self.log.reserve(SMALL)?;
        Ok(self.log.append(&mut self.log.build_for(u32::from(slot), head, &[])?)?)
    }

    /// Does what follows a commit, which is in the log.
    pub(crate) fn committed(&self, at: u64) -> Result<(), Error> {
        self.last_commit.set(at);
        let commits = self.commits.get() + 1;
        self.commits.set(commits);
        if commits.is_multiple_of(COMMITS_A_LOOK) {
            self.home.shared.raise_low()?;
        }
        Ok(())
    }

    /// Logs that all of a slot's transaction is undone, and forgets it.
    pub(crate) fn end(&self, slot: u16) -> Result<(), Error> {
        self.note(slot, &Head { kind: END, flags: Flags::SYSTEM, ..Head::default() })?;
        Ok(self.log.forget(u32::from(slot))?)
    }
}

impl<M: ConstMachine> fmt::Debug for Worker<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker({})", self.log.slot())
    }
}
