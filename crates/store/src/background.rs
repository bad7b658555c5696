//! What is left to threads of the store: to undo what a crash found open, and for tasks to wait for
//! the disk and to make checkpoints.
//!
//! The flusher begins with the first commit that waits for the disk, and ends when for a second
//! none did. Commits that come while it syncs are the next *batch*: it is made durable by one call,
//! as the commits of many threads are by a leader (`log/src/flush.rs`). All threads end before
//! the store does.

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

/// After so long without a commit the flusher ends.
const IDLE: Duration = Duration::from_secs(1);
/// With fewer thread slots than this there are none for threads of the store.
const SLOTS: u32 = 8;
/// How often the dead are looked for at most behind transactions that were given up, in
/// nanoseconds: a look reads a word of each thread slot.
const LOOK_EVERY: u64 = 10_000_000;
/// The same while one of them could not be undone: to try again costs a thread, and reads the disk.
const TRY_EVERY: u64 = 1_000_000_000;

/// Commits that become durable together.
pub(crate) struct Batch {
    state: Mutex<BatchState>,
    /// Of which process: in the child of a fork a thread that is not there may have the mutex.
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

/// A task that waits for the end of its batch: [`Error::CommitUnknown`] if it failed.
pub(crate) struct Ended {
    of: Arc<Batch>,
    number: Option<u64>,
}

impl Batch {
    /// Ready when they are durable.
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

/// How far a batch wants the log to be.
#[derive(Clone, Copy, Default)]
struct Wanted {
    /// The last commit that is to be synced, and the last that is to be written.
    synced: Option<Lsn>,
    written: Option<Lsn>,
    /// The log is to be synced if it was not for this long.
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
    /// It is there, and will look again.
    flushes: bool,
    checkpointer: Option<JoinHandle<()>>,
    /// Why the last checkpoint failed.
    failed: Option<Error>,
    over: bool,
}

impl State {
    fn makes_checkpoint(&self) -> bool {
        self.checkpointer.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

/// The threads of a store, in this process.
pub(crate) struct Background<M: ConstMachine> {
    home: Arc<StoreInner<M>>,
    sessions: Arc<Sessions<M>>,
    state: Arc<(Mutex<State>, Condvar)>,
    /// Locked by a thread that waits for its end.
    sweeper: Mutex<Option<JoinHandle<()>>>,
    /// When a transaction that was given up last had the dead looked for.
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

    /// Has a commit made as durable as the mode says. It is so when the batch that is returned has
    /// ended: at once if there is none.
    ///
    /// # Errors
    ///
    /// Those of a thread that cannot begin: then nothing was done, and the caller waits itself.
    pub(crate) fn settle(&self, at: Lsn, mode: Mode) -> Result<Option<Arc<Batch>>, Error> {
        match mode {
            Mode::None => Ok(None),
            Mode::Full if self.home.log.flushed() > at => Ok(None),
            // Its commits do not wait.
            Mode::Periodic(period) => {
                if self.home.log.is_due(period) {
                    self.ask(at, mode)?;
                }
                Ok(None)
            }
            _ => self.ask(at, mode).map(Some),
        }
    }

    /// Puts a commit into the next batch.
    fn ask(&self, at: Lsn, mode: Mode) -> Result<Arc<Batch>, Error> {
        let (lock, changed) = &*self.state;
        let (mut state, mut spare) = (locked(lock), None);
        if !state.flushes {
            drop(state);
            let session = self.session();
            state = locked(lock);
            if state.flushes {
                // Another thread was quicker.
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

    /// A session for a thread of the store. Not with the state locked, for others wait for that:
    /// where no slot is left it sweeps the dead, which may take as long as they have to undo.
    fn session(&self) -> Result<Lone<M>, Error> {
        if self.home.sizes.threads < SLOTS {
            return Err(Error::Engine("too few thread slots".to_owned()));
        }
        self.sessions.take(&self.home)
    }

    /// Has a checkpoint made, if one is due. Without a thread for it, or behind one that failed,
    /// this one makes it.
    ///
    /// # Errors
    ///
    /// Those of the parts.
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

    /// Whether a thread makes a checkpoint.
    fn has_checkpoint_made(&self) -> Result<bool, Error> {
        let mut state = locked(&self.state.0);
        if state.makes_checkpoint() {
            return Ok(true);
        }
        // Why that one failed may be over by now: the calling thread tries, and says how it went.
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

    /// Has the dead swept, if there are any. Without a thread for it they are swept by those who
    /// meet their locks, or need their slots: false then.
    pub(crate) fn sweep_if_needed(&self) -> bool {
        let mut sweeper = match self.sweeper.try_lock() {
            Ok(sweeper) => sweeper,
            Err(TryLockError::Poisoned(sweeper)) => sweeper.into_inner(),
            // It runs, and another thread waits for its end, which may be long.
            Err(TryLockError::WouldBlock) => return true,
        };
        let runs = sweeper.as_ref().is_some_and(|thread| !thread.is_finished());
        if runs || !self.home.manager.region().has_dead() {
            return true;
        }
        let home = self.home.clone();
        // What could not be undone is noted.
        let body = move || drop(home.sweep());
        *sweeper = self.thread("latchwork-undo", body).ok();
        sweeper.is_some()
    }

    /// The same behind a transaction that was given up, now and then: a lock that it did not get in
    /// time may be a dead thread's, and each that asks for it may be too impatient to look.
    #[cold]
    pub(crate) fn after_failure(&self) {
        // In the child of a fork there is no memory to look at.
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

    /// The same, by this thread where no other can begin: what the dead have keeps the log, and
    /// nobody may ever meet it.
    pub(crate) fn sweep_before_checkpoint(&self) {
        if !self.sweep_if_needed() {
            // What cannot be undone is told by those who want it.
            let _ = self.home.sweep();
        }
    }

    /// Waits for the end of that thread. Not in the child of a fork, which has none.
    pub(crate) fn wait_for_sweep(&self) {
        let mut sweeper = locked(&self.sweeper);
        // One that panicked has said so.
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

    /// Ends the threads, and waits for them.
    pub(crate) fn end(&self) {
        let (state, changed) = &*self.state;
        let mut state = locked(state);
        state.over = true;
        let threads = [state.flusher.take(), state.checkpointer.take()];
        drop(state);
        changed.notify_one();
        // The flusher itself may be here: a waker that it calls may drop the last task of a store.
        let me = thread::current().id();
        let others = threads.into_iter().flatten().filter(|thread| thread.thread().id() != me);
        // One that panicked has said so.
        others.for_each(|thread| drop(thread.join()));
        self.wait_for_sweep();
    }
}

impl<M: ConstMachine> Drop for Background<M> {
    fn drop(&mut self) {
        if self.home.manager.region().check().is_err() {
            // In the child of a fork: it has no such threads, and what the system knew of them may
            // be another's.
            let sweeper = self.sweeper.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget((sweeper.take(), core::mem::take(&mut self.state)));
        }
    }
}

/// Bytes of a thread's stack.
const STACK: usize = 2 << 20;
/// What the flusher does.
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
        // A panic is the end of nobody who waits, or comes later.
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

    /// A thread waits for the end of a sweep, which may be long: others go on.
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
