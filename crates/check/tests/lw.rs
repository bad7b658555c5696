//! The laws of the shared-exclusive latch: under loom, then on real threads.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use latchwork_check::Loom;
use latchwork_check::loom_machine::{explore, objects};
use latchwork_latch::{Attempt, CompareExchange, FetchAdd, LwLatch};
use latchwork_machine::{Clock, Deadline, Machine, Native, Word, status};
use loom::cell::UnsafeCell;
use loom::thread;

/// A policy that stops newcomers at once, so that models reach that.
struct Strict<A>(A);

impl<A: Attempt> Attempt for Strict<A> {
    const BYPASSES: u32 = 1;
    const LOSSES: u32 = 1;

    fn share<M: Machine>(state: &M::AtomicU32, look: bool, bypasses: u32) -> Result<(), u32> {
        A::share::<M>(state, look, bypasses)
    }
}

const NOW: Option<Deadline> = Some(Deadline { clock: Clock::Monotonic, at: 0 });

/// A latch and what it guards, in a model.
struct Guarded<A: Attempt> {
    latch: LwLatch<A, Loom>,
    data: UnsafeCell<u32>,
    value: <Loom as Machine>::AtomicU64,
}

// SAFETY: the latch guards the data, and loom objects if it does not.
unsafe impl<A: Attempt> Sync for Guarded<A> {}

impl<A: Attempt> Guarded<A> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            latch: LwLatch::default(),
            data: UnsafeCell::new(0),
            value: Default::default(),
        })
    }

    /// Needs exclusive possession; loom objects otherwise.
    fn add(&self) {
        // SAFETY: loom objects if somebody else accesses it.
        self.data.with_mut(|data| unsafe { *data += 1 });
    }

    /// Needs a share; loom objects otherwise.
    fn get(&self) -> u32 {
        // SAFETY: loom objects if somebody else writes it.
        self.data.with(|data| unsafe { *data })
    }

    fn write(&self) {
        self.latch.lock_exclusive();
        self.add();
        // SAFETY: locked above.
        unsafe { self.latch.unlock_exclusive() };
    }

    fn read(&self) -> u32 {
        self.latch.lock_shared();
        let data = self.get();
        // SAFETY: locked above.
        unsafe { self.latch.unlock_shared() };
        data
    }

    fn write_until(&self) -> bool {
        let entered = self.latch.lock_exclusive_until(NOW.unwrap());
        if entered {
            self.add();
            // SAFETY: locked above.
            unsafe { self.latch.unlock_exclusive() };
        }
        entered
    }

    fn read_until(&self) -> bool {
        let entered = self.latch.lock_shared_until(NOW.unwrap());
        if entered {
            self.get();
            // SAFETY: locked above.
            unsafe { self.latch.unlock_shared() };
        }
        entered
    }

    /// Everybody is gone: every flag must be, too.
    fn is_idle(&self) {
        let free = LwLatch::<A, Loom>::default();
        assert_eq!(format!("{:?}", self.latch), format!("{free:?}"));
    }
}

/// Runs the closures as threads beside the first, which runs the last one; then looks.
macro_rules! threads {
    ($guarded:ident: $($other:expr),*; $first:expr) => {{
        let others = [$({
            let $guarded = $guarded.clone();
            thread::spawn(move || { let _ = $other; })
        }),*];
        let _ = $first;
        for other in others {
            other.join().unwrap();
        }
        $guarded.is_idle();
    }};
}

/// Preemptions in models of two threads, and of three.
const TWO: usize = 3;
const THREE: usize = 1;

fn writers<A: Attempt>(name: &str) {
    explore(name, TWO, || {
        let g = Guarded::<A>::new();
        threads!(g: g.write(); g.write());
        assert_eq!(g.get(), 2);
    });
    explore(name, THREE, || {
        let g = Guarded::<A>::new();
        threads!(g: g.write(), g.write(); g.write());
        assert_eq!(g.get(), 3);
    });
}

#[test]
fn loom_writers_exclude_each_other() {
    writers::<FetchAdd>("writers, add");
    writers::<CompareExchange>("writers, exchange");
    writers::<Strict<FetchAdd>>("writers, strict");
}

fn readers<A: Attempt>(name: &str) {
    explore(name, TWO, || {
        let g = Guarded::<A>::new();
        threads!(g: g.read(); g.write());
        assert_eq!(g.get(), 1);
    });
    explore(name, THREE, || {
        let g = Guarded::<A>::new();
        threads!(g: g.read(), g.read(); g.write());
        assert_eq!(g.get(), 1);
    });
}

#[test]
fn loom_readers_exclude_a_writer() {
    readers::<FetchAdd>("readers, add");
    readers::<CompareExchange>("readers, exchange");
    readers::<Strict<FetchAdd>>("readers, strict");
}

/// The founding mail's second race: a reader that backs out has made a writer fail, while the
/// holder's release saw the reader and woke nobody.
#[test]
fn loom_reader_that_backs_out_wakes_the_writer() {
    fn model<A: Attempt>(name: &str) {
        explore(name, THREE, || {
            let g = Guarded::<A>::new();
            g.latch.lock_exclusive();
            let (one, other) = (g.clone(), g.clone());
            let reader = thread::spawn(move || one.read());
            let writer = thread::spawn(move || other.write());
            g.add();
            // SAFETY: locked above.
            unsafe { g.latch.unlock_exclusive() };
            reader.join().unwrap();
            writer.join().unwrap();
            g.is_idle();
        });
    }
    model::<FetchAdd>("backing out, add");
    model::<Strict<FetchAdd>>("backing out, strict");
}

/// A try that fails because of a reader about to back out does not fail for ever.
#[test]
fn loom_try_exclusive_succeeds_in_the_end() {
    explore("try", TWO, || {
        let g = Guarded::<FetchAdd>::new();
        g.latch.lock_exclusive();
        let other = g.clone();
        let reader = thread::spawn(move || other.latch.try_lock_shared());
        // SAFETY: locked above.
        unsafe { g.latch.unlock_exclusive() };
        let early = g.latch.try_lock_exclusive();
        let shared = reader.join().unwrap();
        if !early {
            assert_eq!(g.latch.try_lock_exclusive(), !shared);
        }
    });
}

#[test]
fn loom_starved_waiters_stop_newcomers() {
    explore("starved writer", THREE, || {
        let g = Guarded::<Strict<FetchAdd>>::new();
        threads!(g: (g.read(), g.read()), g.write(); g.read());
    });
    explore("starved reader", TWO, || {
        let g = Guarded::<Strict<CompareExchange>>::new();
        threads!(g: g.read(); (g.write(), g.write(), g.write()));
    });
}

fn timed<A: Attempt>(name: &str) {
    explore(name, TWO, || {
        let g = Guarded::<A>::new();
        threads!(g: g.write_until(); g.write());
    });
    explore(name, TWO, || {
        let g = Guarded::<A>::new();
        threads!(g: g.read_until(); g.write());
    });
}

fn timed_among_three<A: Attempt>(name: &str) {
    explore(name, THREE, || {
        let g = Guarded::<A>::new();
        threads!(g: g.write_until(), g.write(); g.read());
    });
    explore(name, THREE, || {
        let g = Guarded::<A>::new();
        threads!(g: g.read_until(), g.write(); g.write());
    });
}

/// At every point at which a waiter may give up: nobody else loses a wake-up by it.
#[test]
fn loom_waiters_that_give_up_pass_the_call_on() {
    timed::<FetchAdd>("timed, add");
    timed::<CompareExchange>("timed, exchange");
    timed::<Strict<FetchAdd>>("timed, strict");
    timed_among_three::<FetchAdd>("timed among three");
}

/// A writer that gives up at the head of the list lets the readers behind it go with the holder.
#[test]
fn loom_writer_that_gives_up_bars_nobody() {
    explore("gives up", TWO, || {
        let g = Guarded::<Strict<FetchAdd>>::new();
        g.latch.lock_shared();
        let inside = Arc::new(loom::sync::Notify::new());
        let other = g.clone();
        let writer = thread::spawn(move || assert!(!other.write_until()));
        let (other, told) = (g.clone(), inside.clone());
        let reader = thread::spawn(move || {
            other.read();
            other.read();
            told.notify();
        });
        // The reader must come and go although this share is kept.
        inside.wait();
        writer.join().unwrap();
        // SAFETY: locked above.
        unsafe { g.latch.unlock_shared() };
        reader.join().unwrap();
        g.is_idle();
    });
}

/// A starved reader that got in lets in the readers that its bar had stopped.
#[test]
fn loom_starved_reader_lets_others_follow() {
    explore("follow", 2, || {
        let g = Guarded::<Strict<FetchAdd>>::new();
        g.latch.lock_exclusive();
        let inside = Arc::new(loom::sync::Notify::new());
        let (other, told) = (g.clone(), inside.clone());
        let first = thread::spawn(move || {
            other.latch.lock_shared();
            told.wait();
            // SAFETY: locked above.
            unsafe { other.latch.unlock_shared() };
        });
        let other = g.clone();
        let second = thread::spawn(move || {
            other.latch.lock_shared();
            inside.notify();
            // SAFETY: locked above.
            unsafe { other.latch.unlock_shared() };
        });
        // SAFETY: locked above.
        unsafe { g.latch.unlock_exclusive() };
        if g.latch.try_lock_exclusive() {
            // SAFETY: locked above.
            unsafe { g.latch.unlock_exclusive() };
        }
        first.join().unwrap();
        second.join().unwrap();
        g.is_idle();
    });
}

#[test]
fn loom_downgrade_lets_readers_in() {
    explore("downgrade", TWO, || {
        let g = Guarded::<FetchAdd>::new();
        g.latch.lock_exclusive();
        let other = g.clone();
        let inside = Arc::new(loom::sync::Notify::new());
        let told = inside.clone();
        let reader = thread::spawn(move || {
            other.latch.lock_shared();
            assert_eq!(other.get(), 1);
            told.notify();
            // SAFETY: locked above.
            unsafe { other.latch.unlock_shared() };
        });
        g.add();
        // SAFETY: locked above.
        unsafe { g.latch.downgrade() };
        // The reader must come in although the share is kept.
        inside.wait();
        // SAFETY: downgraded above.
        unsafe { g.latch.unlock_shared() };
        reader.join().unwrap();
        g.is_idle();
    });
}

#[test]
fn loom_acquire_or_wait_sees_what_the_holder_did() {
    fn model<A: Attempt>(name: &str, readers: bool) {
        explore(name, if readers { THREE } else { TWO }, move || {
            let g = Guarded::<A>::new();
            g.latch.lock_exclusive();
            let other = g.clone();
            let waiter = thread::spawn(move || {
                let acquired = other.latch.acquire_or_wait();
                // Nobody writes after the first holder, so this is no race, if it is seen.
                assert_eq!(other.get(), 1);
                if acquired {
                    // SAFETY: acquired just now.
                    unsafe { other.latch.unlock_exclusive() };
                }
            });
            let other = g.clone();
            let reader = readers.then(|| thread::spawn(move || other.read()));
            g.add();
            // SAFETY: locked above.
            unsafe { g.latch.unlock_exclusive() };
            waiter.join().unwrap();
            if let Some(reader) = reader {
                reader.join().unwrap();
            }
            g.is_idle();
        });
    }
    model::<FetchAdd>("acquire or wait", false);
    model::<FetchAdd>("acquire or wait, beside a reader", true);
}

fn value(name: &str, rival: bool) {
    explore(name, if rival { THREE } else { TWO }, move || {
        let g = Guarded::<FetchAdd>::new();
        g.latch.lock_exclusive();
        let other = g.clone();
        let waiter = thread::spawn(move || {
            match other.latch.wait_for_value(&other.value, 0) {
                Some(new) => assert_eq!(new, 7),
                None => {}
            }
            // Written before the value was moved.
            other.get()
        });
        let other = g.clone();
        let writer = rival.then(|| {
            thread::spawn(move || {
                other.latch.lock_exclusive();
                assert_eq!(other.value.load(Relaxed), 0);
                // SAFETY: locked above.
                unsafe { other.latch.unlock_and_clear_value(&other.value) };
            })
        });
        g.add();
        g.latch.update_value(&g.value, 7);
        if !rival {
            // The waiter must come back although the latch is kept.
            assert_eq!(waiter.join().unwrap(), 1);
            // SAFETY: locked above.
            unsafe { g.latch.unlock_and_clear_value(&g.value) };
        } else {
            // SAFETY: locked above.
            unsafe { g.latch.unlock_and_clear_value(&g.value) };
            assert_eq!(waiter.join().unwrap(), 1);
        }
        if let Some(writer) = writer {
            writer.join().unwrap();
        }
        g.is_idle();
    });
}

#[test]
fn loom_value_moves_wake_waiters() {
    value("value", false);
}

/// PostgreSQL 7039760114 (2015): the value changed between look and queue; the value was not reset
/// for the next holder.
#[test]
fn loom_bug_2015_value_is_reset_at_release() {
    value("value, next holder", true);
}

/// PostgreSQL 82d4b262d9 (2012): one waits for a release at the head, and an exclusive waiter behind
/// it is not woken.
#[test]
fn loom_bug_2012_exclusive_behind_wait_until_free() {
    explore("2012", THREE, || {
        let g = Guarded::<FetchAdd>::new();
        threads!(g: g.write(), {
            if g.latch.acquire_or_wait() {
                // SAFETY: acquired just now.
                unsafe { g.latch.unlock_exclusive() };
            }
        }; g.write());
    });
}

/// PostgreSQL e0d97d77bf (2014): one queues for a value while a call is under way, so that the
/// release does not wake it.
#[test]
fn loom_bug_2014_value_waiter_queues_during_a_call() {
    explore("2014", THREE, || {
        let g = Guarded::<FetchAdd>::new();
        threads!(g: g.write(), g.latch.wait_for_value(&g.value, 0); (g.write(), g.write()));
    });
}

/// PostgreSQL 81f7738953 (2025): whether waiters are left was read off the wrong list, so that the
/// flag was cleared with waiters left: the third of these is not woken.
#[test]
fn loom_bug_2025_waiters_flag_follows_the_latchs_own_list() {
    explore("2025", THREE, || {
        let g = Guarded::<CompareExchange>::new();
        g.latch.lock_exclusive();
        let others = [(); 2].map(|()| {
            let g = g.clone();
            thread::spawn(move || g.write())
        });
        // SAFETY: locked above.
        unsafe { g.latch.unlock_exclusive() };
        for other in others {
            other.join().unwrap();
        }
        g.is_idle();
    });
}

/// PostgreSQL 333f586372 (2026): a try for what I hold myself must fail, and nothing else.
#[test]
fn bug_2026_try_for_what_i_hold() {
    let latch = LwLatch::new();
    latch.lock_shared();
    assert!(!latch.try_lock_exclusive());
    assert!(latch.try_lock_shared());
    // SAFETY: two shares are held.
    unsafe { latch.unlock_shared() };
    // SAFETY: one share is held.
    unsafe { latch.unlock_shared() };
    latch.lock_exclusive();
    assert!(!latch.try_lock_exclusive());
    assert!(!latch.try_lock_shared());
    assert!(!latch.lock_shared_until(NOW.unwrap()));
    assert!(!latch.lock_exclusive_until(NOW.unwrap()));
    // SAFETY: locked above.
    unsafe { latch.unlock_exclusive() };
    assert!(latch.try_lock_exclusive());
}

/// The controls: what is wrong must be caught.
#[test]
fn loom_objects_to_broken_latches() {
    // Sharers that write.
    assert!(objects(2, || {
        let g = Guarded::<FetchAdd>::new();
        let wrong = |g: &Guarded<FetchAdd>| {
            g.latch.lock_shared();
            g.add();
            // SAFETY: locked above.
            unsafe { g.latch.unlock_shared() };
        };
        let other = g.clone();
        let thread = thread::spawn(move || wrong(&other));
        wrong(&g);
        thread.join().unwrap();
    }));
    // A latch without the third phase: the release comes between attempt and queue.
    assert!(objects(2, || {
        #[derive(Default)]
        struct TwoPhases {
            held: <Loom as Machine>::AtomicU32,
            waiter: <Loom as Machine>::AtomicU32,
        }
        let latch = Arc::new(TwoPhases::default());
        latch.held.store(1, Relaxed);
        let other = latch.clone();
        let thread = thread::spawn(move || {
            let slots = Loom::slots(&other.held);
            let me = slots.mine();
            let slot = slots.at(me);
            while other.held.swap(1, SeqCst) != 0 {
                slot.status.store(status::PARKED, SeqCst);
                other.waiter.swap(me, SeqCst);
                Loom::wait(&slot.status, status::PARKED, None);
            }
        });
        latch.held.swap(0, SeqCst);
        let waiter = latch.waiter.swap(0, SeqCst);
        if waiter != 0 {
            let slot = Loom::slots(&latch.held).at(waiter);
            slot.status.store(status::FREE, SeqCst);
            Loom::wake(&slot.status);
        }
        thread.join().unwrap();
    }));
}

/// Many threads, all ways in, one counter that only exclusive holders move.
fn stress<A: Attempt>(threads: usize, rounds: u32) {
    struct Shared<A: Attempt> {
        latch: LwLatch<A>,
        pair: [AtomicU64; 2],
    }
    let shared = Arc::new(Shared::<A> { latch: LwLatch::FREE, pair: Default::default() });
    let moved: u64 = (0..threads as u32)
        .map(|i| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                let (latch, [a, b]) = (&shared.latch, &shared.pair);
                let soon = || Deadline::after::<Native>(Duration::from_micros(u64::from(i) * 7));
                let mut moved = 0;
                for round in 0..rounds {
                    let exclusive = match (round + i) % 16 {
                        0 => {
                            latch.lock_exclusive();
                            true
                        }
                        1 => latch.lock_exclusive_until(soon()),
                        2 => latch.try_lock_exclusive(),
                        3 => latch.acquire_or_wait(),
                        4 => {
                            if latch.lock_shared_until(soon()) {
                                assert_eq!(a.load(Relaxed), b.load(Relaxed));
                                // SAFETY: locked above.
                                unsafe { latch.unlock_shared() };
                            }
                            false
                        }
                        _ => {
                            latch.lock_shared();
                            assert_eq!(a.load(Relaxed), b.load(Relaxed));
                            // SAFETY: locked above.
                            unsafe { latch.unlock_shared() };
                            false
                        }
                    };
                    if exclusive {
                        a.store(a.load(Relaxed) + 1, Relaxed);
                        b.store(b.load(Relaxed) + 1, Relaxed);
                        moved += 1;
                        if round % 3 == 0 {
                            // SAFETY: locked above.
                            unsafe { latch.downgrade() };
                            assert_eq!(a.load(Relaxed), b.load(Relaxed));
                            // SAFETY: a share is left.
                            unsafe { latch.unlock_shared() };
                        } else {
                            // SAFETY: locked above.
                            unsafe { latch.unlock_exclusive() };
                        }
                    }
                }
                moved
            })
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    assert_eq!(shared.pair[0].load(Relaxed), moved);
    assert_eq!(format!("{:?}", shared.latch), format!("{:?}", LwLatch::<A>::default()));
}

/// Cores of this machine, as factors to test with.
fn crowds() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    vec![1, cores, 4 * cores, 16 * cores]
}

#[test]
fn stress_all_ways_in() {
    for threads in crowds() {
        let rounds = 20_000 / threads as u32;
        stress::<FetchAdd>(threads, rounds);
        stress::<CompareExchange>(threads, rounds);
        stress::<Strict<FetchAdd>>(threads, rounds / 4);
        stress::<Strict<CompareExchange>>(threads, rounds / 4);
    }
}

/// Readers that overlap never release the latch altogether; a writer gets in nevertheless, after no
/// more of them than the policy says, and one for each thread that was past the check.
#[test]
fn fairness_of_readers_that_overlap() {
    fn run<A: Attempt>() {
        const READERS: u64 = 4;
        let latch = Arc::new(LwLatch::<A>::FREE);
        let stop = Arc::new(AtomicBool::new(false));
        let entries = Arc::new(AtomicU64::new(0));
        latch.lock_shared();
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (latch, stop, entries) = (latch.clone(), stop.clone(), entries.clone());
                std::thread::spawn(move || {
                    while !stop.load(Relaxed) {
                        latch.lock_shared();
                        entries.fetch_add(1, Relaxed);
                        // SAFETY: locked above.
                        unsafe { latch.unlock_shared() };
                    }
                })
            })
            .collect();
        let writer = {
            let latch = latch.clone();
            std::thread::spawn(move || {
                latch.lock_exclusive();
                // SAFETY: locked above.
                unsafe { latch.unlock_exclusive() };
            })
        };
        // The first share is kept, so the writer cannot get in: newcomers must stop by themselves.
        while !format!("{latch:?}").contains("waiters: true") {
            std::thread::yield_now();
        }
        let before = entries.load(SeqCst);
        while !format!("{latch:?}").contains("starved: true") {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        let stopped = entries.load(SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(entries.load(SeqCst), stopped, "a newcomer passed a starved writer");
        let bound = u64::from(A::BYPASSES) + 2 * READERS;
        println!("passed by {} of at most {bound}", stopped - before);
        assert!(stopped - before <= bound);
        // SAFETY: locked above.
        unsafe { latch.unlock_shared() };
        writer.join().unwrap();
        stop.store(true, Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    }
    run::<FetchAdd>();
    run::<CompareExchange>();
    run::<Strict<FetchAdd>>();
}

/// A thread that takes and releases without a pause: a waiter loses a bounded number of races.
#[test]
fn fairness_of_a_greedy_writer() {
    let latch = Arc::new(LwLatch::new());
    let stop = Arc::new(AtomicBool::new(false));
    let inside = Arc::new(AtomicU32::new(0));
    let greedy: Vec<_> = (0..3)
        .map(|_| {
            let (latch, stop) = (latch.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    latch.lock_exclusive();
                    std::thread::yield_now();
                    // SAFETY: locked above.
                    unsafe { latch.unlock_exclusive() };
                }
            })
        })
        .collect();
    for _ in 0..50 {
        latch.lock_shared();
        inside.fetch_add(1, Relaxed);
        // SAFETY: locked above.
        unsafe { latch.unlock_shared() };
    }
    stop.store(true, Relaxed);
    for thread in greedy {
        thread.join().unwrap();
    }
    assert_eq!(inside.load(Relaxed), 50);
}

/// Too many shares are refused, and refusing leaves the count as it was.
#[test]
fn too_many_shares_are_refused() {
    fn run<A: Attempt>() {
        let latch = LwLatch::<A>::FREE;
        for _ in 0..1 << 18 {
            latch.lock_shared();
        }
        let full = format!("{latch:?}");
        for _ in 0..3 {
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                latch.lock_shared();
            }));
            assert!(refused.is_err());
            assert_eq!(format!("{latch:?}"), full);
        }
        for _ in 0..1 << 18 {
            // SAFETY: so many shares are held.
            unsafe { latch.unlock_shared() };
        }
        assert!(latch.try_lock_exclusive());
    }
    run::<FetchAdd>();
    run::<CompareExchange>();
}

#[test]
fn timeouts_come_no_sooner_and_leave_nothing() {
    let latch = Arc::new(LwLatch::new());
    latch.lock_exclusive();
    let others: Vec<_> = (0..6)
        .map(|i| {
            let latch = latch.clone();
            std::thread::spawn(move || {
                let deadline = Deadline::after::<Native>(Duration::from_millis(5 + i));
                let entered = if i % 2 == 0 {
                    latch.lock_shared_until(deadline)
                } else {
                    latch.lock_exclusive_until(deadline)
                };
                assert!(!entered && deadline.passed::<Native>());
            })
        })
        .collect();
    for other in others {
        other.join().unwrap();
    }
    // SAFETY: locked above.
    unsafe { latch.unlock_exclusive() };
    assert_eq!(format!("{latch:?}"), format!("{:?}", LwLatch::new()));
}

/// In a child of a fork, queues of threads that are not there are empty, and calls to them void.
#[test]
fn forked_child_forgets_ghosts() {
    let latch = Arc::new(LwLatch::new());
    latch.lock_exclusive();
    let waiter = {
        let latch = latch.clone();
        std::thread::spawn(move || {
            latch.lock_exclusive();
            // SAFETY: locked above.
            unsafe { latch.unlock_exclusive() };
        })
    };
    while !format!("{latch:?}").contains("waiters: true") {
        std::thread::yield_now();
    }
    // SAFETY: the child uses nothing but latches, threads and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        Native::table().forked();
        // SAFETY: the parent's thread locked it, and the child's copy of it is this thread.
        unsafe { latch.unlock_exclusive() };
        for _ in 0..100 {
            if !latch.lock_exclusive_until(Deadline::after::<Native>(Duration::from_secs(2))) {
                // SAFETY: ends the child.
                unsafe { libc::_exit(1) };
            }
            // SAFETY: locked above.
            unsafe { latch.unlock_exclusive() };
        }
        let idle = format!("{latch:?}") == format!("{:?}", LwLatch::new());
        // SAFETY: ends the child.
        unsafe { libc::_exit(if idle { 0 } else { 2 }) };
    }
    // SAFETY: locked above.
    unsafe { latch.unlock_exclusive() };
    waiter.join().unwrap();
    let mut status = 0;
    // SAFETY: waits for the child that was made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "in the child");
}
