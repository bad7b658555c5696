//! Thousands of schedules of latches and of published locks on the simulated machine.
//!
//! A failure prints its seed. `LATCHWORK_SEED=n` runs only that schedule; the long form is
//! `cargo test --release -p latchwork-check --test explore latches:: -- --ignored`.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use crate::flawed::{self, Breakable, Flaw};
use latchwork_check::explore::{
    Body, Counted, Schedule, body, everybody_counts, explore, seed_in, seeds, two_by_two,
};
use latchwork_check::law::{Broken, Latch, Numbered};
use latchwork_classic::{Delegate, Kind, Lock, NAMES, SharedLock, delegate, exclusive, shared};
use latchwork_latch::{
    CompareExchange, FetchAdd, LwLatch, Outcome, Park, ParkDetached, Policy, RawCondvar, Shfl,
    ShflMutex, ShflRwLock, ShflSpin,
};
use latchwork_machine::{Deadline, Machine, Word};
use latchwork_sim::{Simulated, Simulation, work};

type U32 = <Simulated as Machine>::AtomicU32;

const SHORT: u64 = 300;
const LONG: u64 = 40_000;

/// Reserves the latch at the first loss, and has short queue sorting.
#[derive(Default)]
struct Impatient;

impl Policy for Impatient {
    const PARKS: bool = true;
    const PATIENCE: u32 = 1;
    const BATCH: u32 = 2;
}

#[derive(Default)]
struct Lw<A: latchwork_latch::Attempt>(LwLatch<A, Simulated>);

impl<A: latchwork_latch::Attempt + Default> Latch for Lw<A> {
    fn lock(&self) {
        self.0.lock_exclusive();
    }
    fn unlock(&self) {
        // SAFETY: the callers unlock only what they have locked.
        unsafe { self.0.unlock_exclusive() };
    }
    fn share(&self) {
        self.0.lock_shared();
    }
    fn unshare(&self) {
        // SAFETY: the callers release only a share that they have taken.
        unsafe { self.0.unlock_shared() };
    }
}

/// Two to four threads take a latch three times each.
fn counts<L: Latch>(seeds: impl Iterator<Item = u64>) -> Result<(), String> {
    explore(seeds, |schedule| {
        flawed::renew();
        let threads = 2 + (schedule.0 / 8 % 3) as usize;
        everybody_counts(&L::default(), threads, 3, schedule)
    })
}

fn ours(many: u64) {
    counts::<ShflSpin<Simulated>>(seeds(many)).unwrap();
    counts::<ShflMutex<Simulated>>(seeds(many)).unwrap();
    counts::<Shfl<ParkDetached, Simulated>>(seeds(many)).unwrap();
    counts::<Shfl<Impatient, Simulated>>(seeds(many)).unwrap();
    counts::<ShflRwLock<Simulated>>(seeds(many)).unwrap();
    counts::<Lw<FetchAdd>>(seeds(many)).unwrap();
    counts::<Lw<CompareExchange>>(seeds(many)).unwrap();
}

#[test]
fn our_latches_exclude() {
    ours(SHORT);
}

#[test]
#[ignore = "long"]
fn our_latches_exclude_long() {
    ours(LONG);
}

/// Threads with deadlines, which must also end.
fn some_give_up(many: u64) {
    fn law(
        schedule: Schedule,
        lock: &dyn Fn(Option<Deadline>) -> bool,
        unlock: &dyn Fn(),
    ) -> Result<(), String> {
        let (counted, taken) = (Counted::default(), Cell::new(0));
        let life = |thread: u64| {
            let (counted, taken) = (&counted, &taken);
            body(move || {
                for i in 0..3 {
                    // From zero to more than a spinner waits.
                    let soon = Duration::from_nanos((thread + i) * 1_700 % 9_000);
                    let deadline = (!(thread + i).is_multiple_of(3))
                        .then(|| Deadline::after::<Simulated>(soon));
                    if lock(deadline) {
                        counted.count();
                        taken.set(taken.get() + 1);
                        unlock();
                    }
                }
            })
        };
        schedule.run((0..3).map(life).collect()).map_err(|stuck| stuck.to_string())?;
        counted.check(taken.get())
    }
    explore(seeds(many), |schedule| {
        let latch = ShflMutex::<Simulated>::FREE;
        let lock = |deadline: Option<Deadline>| match deadline {
            Some(deadline) => latch.lock_until(deadline),
            None => (latch.lock(), true).1,
        };
        // SAFETY: the callers unlock only what they have locked.
        law(schedule, &lock, &|| unsafe { latch.unlock() })
    })
    .unwrap();
    explore(seeds(many), |schedule| {
        let latch = ShflRwLock::<Simulated>::FREE;
        let lock = |deadline: Option<Deadline>| match deadline {
            Some(deadline) => latch.lock_exclusive_until(deadline),
            None => (latch.lock_exclusive(), true).1,
        };
        // SAFETY: the callers unlock only what they have locked.
        law(schedule, &lock, &|| unsafe { latch.unlock_exclusive() })
    })
    .unwrap();
    explore(seeds(many), |schedule| {
        let latch = LwLatch::<FetchAdd, Simulated>::FREE;
        let lock = |deadline: Option<Deadline>| match deadline {
            Some(deadline) => latch.lock_exclusive_until(deadline),
            None => (latch.lock_exclusive(), true).1,
        };
        // SAFETY: the callers unlock only what they have locked.
        law(schedule, &lock, &|| unsafe { latch.unlock_exclusive() })
    })
    .unwrap();
}

#[test]
fn waiters_that_give_up_affect_no_other() {
    some_give_up(SHORT);
}

#[test]
#[ignore = "long"]
fn waiters_that_give_up_affect_no_other_long() {
    some_give_up(LONG);
}

/// Two threads take tokens that a third provides, one at a time or all at once.
fn tokens(many: u64) {
    explore(seeds(many), |schedule| {
        let latch = ShflMutex::<Simulated>::FREE;
        let condvar = RawCondvar::<Simulated>::FREE;
        let left = U32::default();
        // SAFETY: called by a thread that has locked.
        let unlock = || unsafe { latch.unlock() };
        let take = || {
            for _ in 0..2 {
                latch.lock();
                while left.load(Relaxed) == 0 {
                    let outcome = condvar.wait(unlock, None);
                    assert_eq!(outcome, Outcome::Notified);
                    latch.lock();
                }
                left.store(left.load(Relaxed) - 1, Relaxed);
                unlock();
            }
        };
        let give = || {
            for round in 0..4 {
                latch.lock();
                left.store(left.load(Relaxed) + 1, Relaxed);
                let within = schedule.0 / 8 % 2 == 0;
                if !within {
                    unlock();
                }
                match (schedule.0 + round) % 5 {
                    0 => _ = condvar.notify_all(),
                    _ => _ = condvar.notify_one(),
                }
                if within {
                    unlock();
                }
            }
        };
        let bodies: Vec<Body<'_>> = vec![body(take), body(take), body(give)];
        schedule.run(bodies).map_err(|stuck| stuck.to_string())?;
        match left.load(Relaxed) {
            0 => Ok(()),
            left => Err(format!("{left} tokens left")),
        }
    })
    .unwrap();
}

#[test]
fn a_notification_is_never_lost() {
    tokens(3 * SHORT);
}

#[test]
#[ignore = "long"]
fn a_notification_is_never_lost_long() {
    tokens(LONG);
}

struct Exclusively(Box<dyn Lock>);

impl Numbered for Exclusively {
    fn alone(&self, me: usize, section: &mut (dyn FnMut() + Send)) {
        self.0.lock(me);
        section();
        self.0.unlock(me);
    }
}

struct Shared(Box<dyn SharedLock>);

impl Numbered for Shared {
    fn alone(&self, me: usize, section: &mut (dyn FnMut() + Send)) {
        self.0.write(me);
        section();
        self.0.unwrite(me);
    }
    fn beside(&self, me: usize, section: &mut (dyn FnMut() + Send)) {
        self.0.read(me);
        section();
        self.0.unread(me);
    }
}

/// Two threads delegate, and a third serves if the lock needs a server.
fn delegated(lock: &dyn Delegate, schedule: Schedule) -> Result<(), String> {
    let (counted, done) = (Counted::default(), U32::default());
    let asks = |me: usize| {
        let (counted, done) = (&counted, &done);
        body(move || {
            for _ in 0..3 {
                // SAFETY: each thread has its own number.
                unsafe { lock.with(me, &mut || counted.count()) };
            }
            // Counted in order; the last thread completes the count.
            while done.compare_exchange(me as u32 - 1, me as u32, Relaxed, Relaxed).is_err() {
                Simulated::relax();
            }
        })
    };
    let serves = body(|| lock.serve(&|| done.load(Relaxed) == 2));
    let ended = schedule.run(vec![serves, asks(1), asks(2)]);
    ended.map_err(|stuck| stuck.to_string())?;
    counted.check(6)
}

fn published(many: u64) {
    for name in NAMES {
        let law = |schedule: Schedule| {
            let threads = (2 + (schedule.0 / 8 % 3) as usize).min(name.threads_max);
            let made = "a listed lock can be created";
            match name.kind {
                Kind::Exclusive => {
                    let lock = exclusive::<Simulated>(name.short, threads).expect(made);
                    everybody_counts(&Exclusively(lock), threads, 3, schedule)
                }
                Kind::Shared => {
                    let lock = shared::<Simulated>(name.short, threads).expect(made);
                    everybody_counts(&Shared(lock), threads, 3, schedule)
                }
                Kind::Delegation => {
                    let lock = delegate::<Simulated>(name.short, 3).expect(made);
                    delegated(&*lock, schedule)
                }
            }
        };
        explore(seeds(many), law).unwrap_or_else(|error| panic!("{}: {error}", name.short));
    }
}

#[test]
fn published_locks_exclude() {
    published(SHORT / 2);
}

#[test]
#[ignore = "long"]
fn published_locks_exclude_long() {
    published(LONG / 4);
}

/// Peterson's lock for two threads: Peterson, "Myths about the mutual exclusion problem", 1981.
struct Peterson<const FENCE: bool> {
    wants: [U32; 2],
    turn: U32,
}

impl<const FENCE: bool> Numbered for Peterson<FENCE> {
    fn alone(&self, me: usize, section: &mut (dyn FnMut() + Send)) {
        self.wants[me].store(1, Relaxed);
        self.turn.store(1 - me as u32, Relaxed);
        if FENCE {
            // SeqCst: pairs with that of the other thread.
            Simulated::fence(SeqCst);
        }
        // Acquire: synchronizes with the Release below.
        while self.wants[1 - me].load(Acquire) == 1 && self.turn.load(Acquire) != me as u32 {
            Simulated::relax();
        }
        section();
        // Release: synchronizes with the Acquire above.
        self.wants[me].store(0, Release);
    }
}

fn peterson<const FENCE: bool>() -> Result<(), String> {
    explore(0..SHORT, |schedule| {
        let lock = Peterson::<FENCE> { wants: Default::default(), turn: U32::default() };
        everybody_counts(&lock, 2, 4, schedule)
    })
}

#[test]
fn a_missing_fence_is_detected() {
    peterson::<true>().unwrap();
    let error = peterson::<false>().expect_err("the missing fence was not detected");
    assert!(error.contains("written"), "{error}");
}

#[test]
fn a_lock_without_exclusion_is_detected_and_replayed() {
    let error = counts::<Broken>(0..SHORT).expect_err("the missing exclusion was not detected");
    let seed = seed_in(&error);
    assert_eq!(counts::<Broken>(std::iter::once(seed)), Err(error));
}

/// On a machine with a flaw the latch fails, and the failure reports a seed that replays it.
#[test]
fn a_lost_wake_up_is_detected() {
    let runs = |seeds| flawed::with(Flaw::Deaf, || counts::<Shfl<Park, Breakable>>(seeds));
    let deaf = runs(0..2_000).expect_err("no thread is woken");
    assert!(deaf.contains("no thread can go on") && deaf.contains("asleep"), "{deaf}");
    let seed = seed_in(&deaf);
    assert_eq!(runs(seed..seed + 1), Err(deaf));
}

#[test]
fn a_missing_barrier_is_detected() {
    // Between announcing that a thread will sleep and its last check of the latch.
    let hasty = flawed::with(Flaw::Hasty, || counts::<Shfl<Impatient, Breakable>>(0..20_000));
    let hasty = hasty.expect_err("a wake-up is lost without the barrier");
    assert!(hasty.contains("no thread can go on") && hasty.contains("asleep"), "{hasty}");
}

/// The same with costs on, and with many waiters.
#[test]
fn latches_exclude_with_costs() {
    let spec = two_by_two();
    for seed in 0..20 {
        let (latch, counted) = (Shfl::<Impatient, Simulated>::FREE, Counted::default());
        let life = |_| {
            let (latch, counted) = (&latch, &counted);
            body(move || {
                for _ in 0..20 {
                    latch.lock();
                    counted.count();
                    // SAFETY: locked above.
                    unsafe { latch.unlock() };
                    work(100);
                }
            })
        };
        let ended = Simulation::new(&spec, seed).run((0..14).map(life).collect());
        ended.unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
        counted.check(14 * 20).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}
