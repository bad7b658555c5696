//! Background threads of a store: one rolls back what a crash left open; for tasks, one syncs the
//! log and one makes checkpoints.
//!
//! The flusher starts with the first commit of a task that waits for the disk, and ends after a
//! second without one. Commits that arrive while it syncs form the next *batch*, which one sync
//! makes durable, as a leader does for the commits of many threads (`log/src/flush.rs`). All
//! threads end before the store does.

use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Context, Poll};
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread::{self, Builder, JoinHandle};

use latchwork_log::{Lsn, Mode};
use latchwork_machine::{Clock, ConstMachine, Word};

use crate::Error;
use crate::files::inner::StoreInner;
use crate::files::session::StoreSession;
use crate::idle::{Lone, Sessions};
use crate::wakers::{Wakers, call, locked};

/// The flusher ends after this long without a commit.
const IDLE: Duration = Duration::from_secs(1);
/// A store with fewer thread slots than this has no background threads.
const SLOTS: u32 = 8;
/// Minimum interval, in nanoseconds, between searches for dead threads after aborted transactions:
/// a search reads a word of each thread slot.
const LOOK_EVERY: u64 = 10_000_000;
/// The interval while a rollback has failed: another attempt costs a thread and reads the disk.
const TRY_EVERY: u64 = 1_000_000_000;

/// Commits that become durable together.
pub(crate) struct Batch {
    state: Mutex<BatchState>,
    /// The process that created it: in the child of a fork, the mutex may be held by a thread that
    /// does not exist there.
    process: u32,
}

impl Default for Batch {
    fn default() -> Self {
        Self { state: Mutex::default(), process: std::process::id() }
    }
}

#[derive(Default)]
struct BatchState {
    end: Option<Result<(), Error>>,
    waiting: Wakers,
}

/// A task that waits for the end of its batch. Returns [`Error::CommitUnknown`] if the sync failed.
pub(crate) struct Ended {
    of: Arc<Batch>,
    number: Option<u64>,
}

impl Batch {
    /// Returns a future that is ready when the commits are durable.
    pub(crate) fn ended(self: Arc<Self>) -> Ended {
        Ended { of: self, number: None }
    }

    fn end(&self, end: Result<(), Error>) {
        let mut state = locked(&self.state);
        state.end = Some(end);
        let waiting = state.waiting.take();
        drop(state);
        waiting.for_each(call);
    }
}

impl Future for Ended {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.of.process != std::process::id() {
            return Poll::Ready(Err(Error::Region(latchwork_region::Error::Forked)));
        }
        let waker = cx.waker().clone();
        let mut state = locked(&this.of.state);
        if let Some(end) = &state.end {
            return Poll::Ready(end.clone().map_err(Error::commit_unknown));
        }
        let before = state.waiting.put(&mut this.number, waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(number) = self.number.filter(|_| self.of.process == std::process::id()) {
            let waker = locked(&self.of.state).waiting.remove(number);
            drop(waker);
        }
    }
}

/// How far a batch needs the log.
#[derive(Clone, Copy, Default)]
struct Wanted {
    /// The last commit that must be synced, and the last that must be written.
    synced: Option<Lsn>,
    written: Option<Lsn>,
    /// The log must be synced if its last sync is older than this.
    period: Option<Duration>,
}

impl Wanted {
    fn add(&mut self, at: Lsn, mode: Mode) {
        match mode {
            Mode::Full => self.synced = self.synced.max(Some(at)),
            Mode::Periodic(period) => self.period = Some(period),
            _ => self.written = self.written.max(Some(at)),
        }
    }

    fn is_nothing(&self) -> bool {
        self.synced.is_none() && self.written.is_none() && self.period.is_none()
    }

    fn make<M: ConstMachine>(&self, worker: &StoreSession<M>) -> Result<(), Error> {
        let modes = [
            (self.synced, Mode::Full),
            (self.written, Mode::Write),
            (self.period.map(|_| Lsn::NEVER), Mode::Periodic(self.period.unwrap_or_default())),
        ];
        let wanted = modes.into_iter().filter_map(|(at, mode)| at.map(|at| (at, mode)));
        let mut end = Ok(());
        for (at, mode) in wanted {
            end = end.and(worker.log.commit(at, mode).map_err(Error::from));
        }
        end
    }
}

#[derive(Default)]
struct State {
    wanted: Wanted,
    batch: Arc<Batch>,
    flusher: Option<JoinHandle<()>>,
    /// The flusher runs, and will check for work again.
    flushes: bool,
    checkpointer: Option<JoinHandle<()>>,
    /// The error of the last checkpoint.
    failed: Option<Error>,
    over: bool,
}

impl State {
    fn makes_checkpoint(&self) -> bool {
        self.checkpointer.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

/// The background threads of a store in this process.
pub(crate) struct Background<M: ConstMachine> {
    home: Arc<StoreInner<M>>,
    sessions: Arc<Sessions<M>>,
    state: Arc<(Mutex<State>, Condvar)>,
    /// Locked by a thread that waits for the sweeper to end.
    sweeper: Mutex<Option<JoinHandle<()>>>,
    /// When an aborted transaction last started a search for dead threads.
    looked: M::AtomicU64,
}

impl<M: ConstMachine> Background<M> {
    pub(crate) fn new(home: &Arc<StoreInner<M>>, sessions: &Arc<Sessions<M>>) -> Self {
        Self {
            home: home.clone(),
            sessions: sessions.clone(),
            state: Arc::default(),
            sweeper: Mutex::default(),
            looked: M::AtomicU64::default(),
        }
    }

    /// Requests that a commit becomes as durable as the mode says. It is when the returned batch
    /// has ended; if there is none, it already is.
    ///
    /// # Errors
    ///
    /// Those of starting a thread. Nothing was done then, and the caller must wait itself.
    pub(crate) fn settle(&self, at: Lsn, mode: Mode) -> Result<Option<Arc<Batch>>, Error> {
        match mode {
            Mode::None => Ok(None),
            Mode::Full if self.home.log.flushed() > at => Ok(None),
            // Commits in this mode do not wait.
            Mode::Periodic(period) => {
                if self.home.log.is_due(period) {
                    self.ask(at, mode)?;
                }
                Ok(None)
            }
            _ => self.ask(at, mode).map(Some),
        }
    }

    /// Adds a commit to the next batch.
    fn ask(&self, at: Lsn, mode: Mode) -> Result<Arc<Batch>, Error> {
        let (lock, changed) = &*self.state;
        let (mut state, mut spare) = (locked(lock), None);
        if !state.flushes {
            drop(state);
            let session = self.session();
            state = locked(lock);
            if state.flushes {
                // Another thread has started one first.
                spare = session.ok();
            } else {
                let (session, sessions) = (session?, self.sessions.clone());
                let shared = self.state.clone();
                let body = move || flush(session, &sessions, &shared);
                state.flusher = Some(self.thread("latchwork-flush", body)?);
                state.flushes = true;
            }
        }
        state.wanted.add(at, mode);
        changed.notify_one();
        let batch = state.batch.clone();
        drop(state);
        spare.into_iter().for_each(|spare| self.sessions.give(spare));
        Ok(batch)
    }

    /// Takes a session for a background thread. Not called with the state locked, because other
    /// threads wait for that lock: if no slot is free, this sweeps dead threads, which can take
    /// long.
    fn session(&self) -> Result<Lone<M>, Error> {
        if self.home.sizes.threads < SLOTS {
            return Err(Error::Engine("too few thread slots".to_owned()));
        }
        self.sessions.take(&self.home)
    }

    /// Starts a checkpoint if one is due. If no thread can be started, or the last checkpoint
    /// failed, this thread makes it.
    ///
    /// # Errors
    ///
    /// Errors of the store's parts.
    pub(crate) fn checkpoint_if_due(&self, worker: &StoreSession<M>) -> Result<(), Error> {
        if !self.home.is_checkpoint_due()? {
            return Ok(());
        }
        self.sweep_before_checkpoint();
        if self.has_checkpoint_made()? {
            return Ok(());
        }
        self.home.checkpoint_if_due(worker)
    }

    /// Returns whether a background thread makes a checkpoint; starts one if possible.
    fn has_checkpoint_made(&self) -> Result<bool, Error> {
        let mut state = locked(&self.state.0);
        if state.makes_checkpoint() {
            return Ok(true);
        }
        // The reason of that failure may be over. The calling thread tries, and reports the result.
        if state.failed.take().is_some() {
            return Ok(false);
        }
        drop(state);
        let Ok(session) = self.session() else { return Ok(false) };
        state = locked(&self.state.0);
        if state.makes_checkpoint() {
            drop(state);
            self.sessions.give(session);
            return Ok(true);
        }
        let (home, sessions) = (self.home.clone(), self.sessions.clone());
        let shared = self.state.clone();
        let body = move || {
            let made = home.checkpoint_if_due(&session.get().worker);
            locked(&shared.0).failed = made.err();
            sessions.give(session);
        };
        state.checkpointer = self.thread("latchwork-checkpoint", body).ok();
        Ok(state.checkpointer.is_some())
    }

    /// Starts a sweep if there are dead threads. Returns false if no thread can be started; then
    /// threads that need the locks or slots of dead threads sweep them.
    pub(crate) fn sweep_if_needed(&self) -> bool {
        let mut sweeper = match self.sweeper.try_lock() {
            Ok(sweeper) => sweeper,
            Err(TryLockError::Poisoned(sweeper)) => sweeper.into_inner(),
            // The sweep runs, and another thread waits for its end, which may take long.
            Err(TryLockError::WouldBlock) => return true,
        };
        let runs = sweeper.as_ref().is_some_and(|thread| !thread.is_finished());
        if runs || !self.home.manager.region().has_dead() {
            return true;
        }
        let home = self.home.clone();
        // The sweep records what it could not roll back.
        let body = move || drop(home.sweep());
        *sweeper = self.thread("latchwork-undo", body).ok();
        sweeper.is_some()
    }

    /// Starts a sweep after an aborted transaction, at limited intervals. The lock that it did not
    /// get in time may belong to a dead thread, and every requester may have too short a deadline
    /// to sweep.
    #[cold]
    pub(crate) fn after_failure(&self) {
        // In the child of a fork the memory is not accessible.
        if self.home.manager.region().check().is_err() {
            return;
        }
        let (now, last) = (M::now(Clock::Monotonic), &self.looked);
        // Relaxed: it orders nothing; two that look at a time do no harm.
        let seen = last.load(Relaxed);
        let since = now.wrapping_sub(seen);
        if since >= LOOK_EVERY
            && (since >= TRY_EVERY || !self.home.is_stuck())
            && last.compare_exchange(seen, now, Relaxed, Relaxed).is_ok()
        {
            self.sweep_if_needed();
        }
    }

    /// Starts a sweep before a checkpoint, or sweeps itself if no thread can be started: the
    /// transactions of dead threads retain the log, and possibly no other thread needs their locks.
    pub(crate) fn sweep_before_checkpoint(&self) {
        if !self.sweep_if_needed() {
            // Threads that need the locks report what cannot be rolled back.
            let _ = self.home.sweep();
        }
    }

    /// Waits for the end of the sweep. The child of a fork has no such thread and does not wait.
    pub(crate) fn wait_for_sweep(&self) {
        let mut sweeper = locked(&self.sweeper);
        // A panic of the thread has been reported.
        sweeper.take().into_iter().for_each(|thread| drop(thread.join()));
    }

    fn thread(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>, Error> {
        let no = |why| Error::Engine(format!("no thread {name} could begin: {why}"));
        self.home.has_room_for_thread(STACK)?;
        Builder::new().name(name.to_owned()).stack_size(STACK).spawn(body).map_err(no)
    }

    /// Ends the threads and waits for them.
    pub(crate) fn end(&self) {
        let (state, changed) = &*self.state;
        let mut state = locked(state);
        state.over = true;
        let threads = [state.flusher.take(), state.checkpointer.take()];
        drop(state);
        changed.notify_one();
        // The caller may be the flusher: a waker that it calls may drop the last task of a store.
        let me = thread::current().id();
        let others = threads.into_iter().flatten().filter(|thread| thread.thread().id() != me);
        // A panic of the thread has been reported.
        others.for_each(|thread| drop(thread.join()));
        self.wait_for_sweep();
    }
}

impl<M: ConstMachine> Drop for Background<M> {
    fn drop(&mut self) {
        if self.home.manager.region().check().is_err() {
            // In the child of a fork the threads do not exist, and their system handles may belong
            // to others.
            let sweeper = self.sweeper.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget((sweeper.take(), core::mem::take(&mut self.state)));
        }
    }
}

/// Stack size of a thread in bytes.
const STACK: usize = 2 << 20;
/// Runs the loop of the flusher.
fn flush<M: ConstMachine>(
    session: Lone<M>,
    sessions: &Sessions<M>,
    (shared, changed): &(Mutex<State>, Condvar),
) {
    let mut state = locked(shared);
    loop {
        if state.wanted.is_nothing() {
            let waits = |state: &mut State| state.wanted.is_nothing() && !state.over;
            let waited = changed.wait_timeout_while(state, IDLE, waits);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.wanted.is_nothing() {
            break;
        }
        let (wanted, batch) =
            (core::mem::take(&mut state.wanted), core::mem::take(&mut state.batch));
        drop(state);
        // A panic must not leave current or later waiters without an answer.
        let make = AssertUnwindSafe(|| wanted.make(&session.get().worker));
        let made = catch_unwind(make);
        let panicked = || Error::Engine("the thread that syncs panicked".to_owned());
        batch.end(made.unwrap_or_else(|_| Err(panicked())));
        state = locked(shared);
    }
    sessions.give(session);
    state.flushes = false;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Background;
    use crate::files::inner::stage::begin;
    use crate::idle::Sessions;
    use crate::wakers::locked;

    /// A thread waits for the end of a sweep, which may take long; other threads do not.
    #[test]
    fn nobody_else_waits_for_a_sweep_that_is_waited_for() {
        let (_region, home) = begin();
        let background = Background::new(&home, &Arc::new(Sessions::new(home.sizes.threads)));
        let waits = locked(&background.sweeper);
        assert!(background.sweep_if_needed());
        background.sweep_before_checkpoint();
        drop(waits);
    }
}
