//! One seed decides all, and who can go no further is named.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_check::explore::{Schedule, body, two_by_two};
use latchwork_classic::{Lock, exclusive};
use latchwork_latch::ShflMutex;
use latchwork_machine::{Clock, Machine, Padded, Word};
use latchwork_sim::{Explorer, Misses, Simulated, Simulation, Spec, Stuck, ThreadState, work};

use crate::common::{Alone, U32, ns, run, small, westmere};

/// Who was in the section when, and what the run told.
#[derive(Debug, PartialEq)]
struct Trace {
    turns: Vec<(usize, f64)>,
    ns: f64,
    accesses: u64,
    switches: u64,
    misses: Vec<(String, Misses)>,
}

fn trace(mut simulation: Simulation, threads: usize) -> Trace {
    let latch = Padded(ShflMutex::<Simulated>::FREE);
    let count = Alone::default();
    simulation.label(&*latch, "latch");
    simulation.label(&*count, "count");
    let turns = RefCell::new(Vec::new());
    let life = |thread: usize| {
        let (latch, count, turns) = (&latch, &count, &turns);
        body(move || {
            for _ in 0..20 {
                latch.lock();
                turns.borrow_mut().push((thread, ns()));
                count.store(count.load(Relaxed) + 1, Relaxed);
                // SAFETY: locked above.
                unsafe { latch.unlock() };
                work(200);
            }
        })
    };
    let outcome = simulation.run((0..threads).map(life).collect()).unwrap();
    assert_eq!(count.load(Relaxed), threads as u32 * 20);
    Trace {
        turns: turns.into_inner(),
        ns: outcome.ns,
        accesses: outcome.accesses,
        switches: outcome.switches,
        misses: outcome.misses,
    }
}

#[test]
fn a_seed_decides_all() {
    let (large, small) = (westmere(), small(1, 3, 2));
    let two = two_by_two();
    let kinds: [&dyn Fn(u64) -> Trace; 5] = [
        &|seed| trace(Simulation::new(&large, seed), 30),
        &|seed| trace(Simulation::new(&small, seed), 20),
        &|seed| trace(Simulation::new(&small, seed).unpinned(), 20),
        &|seed| trace(Simulation::new(&two, 1).explore(Explorer::random(seed)), 4),
        &|seed| trace(Simulation::new(&two, 1).explore(Explorer::pct(seed, 3, 2_000)), 4),
    ];
    for (kind, trace) in kinds.iter().enumerate() {
        for seed in 0..3 {
            let first = trace(seed);
            let again = std::thread::scope(|_| trace(seed));
            assert_eq!(first, again, "kind {kind}, seed {seed}");
            assert_ne!(first.turns, trace(seed + 10).turns, "kind {kind}, seed {seed}");
        }
    }
}

#[test]
fn a_seed_decides_all_on_another_thread_of_the_host() {
    let here = trace(Simulation::new(&westmere(), 7), 24);
    // The heap of another thread is another one.
    let there = std::thread::spawn(|| {
        let _other: Vec<Box<[u8; 24]>> = (0..7).map(|_| Box::default()).collect();
        trace(Simulation::new(&westmere(), 7), 24)
    });
    assert_eq!(here, there.join().unwrap());
}

fn states(stuck: &Stuck) -> &[ThreadState] {
    match stuck {
        Stuck::Deadlock(states) | Stuck::Endless(states) => states,
        other => panic!("{other:?}"),
    }
}

/// Two threads that take two locks, one in the opposite order.
fn embrace(mut simulation: Simulation, kind: &str) -> Result<(), Box<Stuck>> {
    let locks = [0, 1].map(|_| exclusive::<Simulated>(kind, 2).unwrap());
    let bytes = locks[0].bytes(8).lock;
    for (lock, name) in locks.iter().zip(["first", "second"]) {
        let start = core::ptr::from_ref(&**lock).cast::<u8>().addr();
        simulation.label_at(start, bytes, name);
    }
    let life = |me: usize| {
        let locks: [&dyn Lock; 2] = [&*locks[me], &*locks[1 - me]];
        body(move || {
            for lock in locks {
                lock.lock(me);
                work(10_000);
            }
            for lock in locks {
                lock.unlock(me);
            }
        })
    };
    simulation.run(vec![life(0), life(1)]).map(drop)
}

#[test]
fn a_deadlock_is_told() {
    let stuck = embrace(Simulation::new(&westmere(), 1), "mcs").unwrap_err();
    assert!(matches!(*stuck, Stuck::Deadlock(_)), "{stuck}");
    assert_eq!(states(&stuck).len(), 2);
    assert!(states(&stuck).iter().all(|s| s.doing.starts_with("looking at")), "{stuck}");
    let text = stuck.to_string();
    assert!(text.contains("thread 0 on cpu 0") && text.contains("thread 1 on cpu 1"), "{text}");
    // It is no less one if the run has an end.
    let limited = embrace(Simulation::new(&westmere(), 1).last_ns(1e9), "mcs");
    assert_eq!(limited.unwrap_err(), stuck);
}

#[test]
fn a_deadlock_is_found_and_replayed_by_exploring() {
    let two = two_by_two();
    let explored =
        |seed| embrace(Simulation::new(&two, 1).explore(Schedule(seed).explorer()), "ticket");
    let outcomes: Vec<_> = (0..200).map(explored).collect();
    assert!(outcomes.iter().any(Result::is_ok), "some orders are good");
    let found = outcomes.iter().position(Result::is_err).expect("some order is bad");
    let again = explored(found as u64).unwrap_err();
    assert_eq!(again, *outcomes[found].as_ref().unwrap_err());
    assert!(matches!(*again, Stuck::Deadlock(_)), "{again}");
}

/// A lock whose waiters sleep. If it forgets, nobody wakes them.
struct Sleepy<const FORGETS: bool>(U32);

impl<const FORGETS: bool> Sleepy<FORGETS> {
    fn lock(&self) {
        // Acquire: synchronizes with the Release of the last holder, in `unlock`.
        while self.0.swap(2, Acquire) != 0 {
            let _ = Simulated::wait(&self.0, 2, None);
        }
    }
    fn unlock(&self) {
        // Release: synchronizes with the Acquire in `lock`.
        self.0.swap(0, Release);
        if !FORGETS {
            Simulated::wake(&self.0);
        }
    }
}

fn sleepy<const FORGETS: bool>(simulation: Simulation) -> Result<(), Box<Stuck>> {
    let lock = Padded(Sleepy::<FORGETS>(U32::default()));
    let mut simulation = simulation.limit(1_000_000);
    simulation.label(&*lock, "the lock");
    let life = |_| {
        let lock = &lock;
        body(move || {
            for _ in 0..3 {
                lock.lock();
                work(5_000);
                lock.unlock();
            }
        })
    };
    simulation.run((0..3).map(life).collect()).map(drop)
}

#[test]
fn a_lost_wake_up_is_told() {
    let exploring = |seed| Simulation::new(&two_by_two(), 1).explore(Schedule(seed).explorer());
    sleepy::<false>(Simulation::new(&westmere(), 1)).unwrap();
    (0..100).for_each(|seed| sleepy::<false>(exploring(seed)).unwrap());
    let timed = sleepy::<true>(Simulation::new(&westmere(), 1)).unwrap_err();
    let explored = (0..100).find_map(|seed| sleepy::<true>(exploring(seed)).err()).unwrap();
    for stuck in [timed, explored] {
        assert!(matches!(*stuck, Stuck::Deadlock(_)), "{stuck}");
        assert!(states(&stuck).iter().any(|s| s.doing == "asleep on the lock"), "{stuck}");
    }
}

#[test]
fn a_livelock_is_endless() {
    let explored = Simulation::new(&two_by_two(), 1).explore(Explorer::pct(1, 2, 100));
    for (simulation, threads) in [
        (Simulation::new(&westmere(), 1), 2),
        (Simulation::new(&westmere(), 1), 1),
        (Simulation::new(&small(1, 1, 1), 1), 3),
        (explored, 2),
    ] {
        let word = Alone::default();
        let life = |_| {
            let word = &word;
            body(move || {
                while word.load(Relaxed) == 0 {
                    Simulated::relax();
                }
            })
        };
        let stuck = simulation.limit(20_000).run((0..threads).map(life).collect()).unwrap_err();
        assert!(matches!(*stuck, Stuck::Endless(_)), "{stuck}");
        assert_eq!(states(&stuck).len(), threads);
        assert!(stuck.to_string().starts_with("no end in sight"), "{stuck}");
    }
}

/// Who made which access, of threads that each read a word so often, the clock before each time.
fn turns(explorer: Explorer, threads: usize, each: usize) -> (Vec<usize>, usize) {
    let (word, turns) = (Alone::default(), RefCell::new(Vec::new()));
    let life = |me| {
        let (word, turns) = (&word, &turns);
        body(move || {
            for _ in 0..each {
                Simulated::now(Clock::Monotonic);
                word.load(Relaxed);
                turns.borrow_mut().push(me);
            }
        })
    };
    let simulation = Simulation::new(&two_by_two(), 1).explore(explorer);
    let outcome = simulation.run((0..threads).map(life).collect()).unwrap();
    (turns.into_inner(), outcome.changes)
}

#[test]
fn every_change_of_priority_that_is_drawn_is_made() {
    // The first access of each thread is part of its beginning, where none is made.
    for seed in 0..200 {
        for changes in 0..5 {
            let (turns, made) = turns(Explorer::pct(seed, changes, 38), 2, 20);
            assert_eq!((turns.len(), made), (40, changes), "seed {seed}");
        }
    }
}

#[test]
fn who_fell_last_may_go_on_first() {
    // Two threads fall, the third comes to its end, and either of the two is the next.
    let next = |seed| {
        let (mut turns, _) = turns(Explorer::pct(seed, 2, 12), 3, 6);
        turns.dedup();
        match turns[..] {
            [a, b, c, d, e] if a != c && (d, e) == (a, b) => Some("the first"),
            [a, b, c, d, e] if a != c && (d, e) == (b, a) => Some("the last"),
            _ => None,
        }
    };
    let next: Vec<&str> = (0..200).filter_map(next).collect();
    let last = next.iter().filter(|who| **who == "the last").count();
    assert!(next.len() > 20 && last * 4 > next.len() && last * 4 < next.len() * 3, "{last}");
}

struct Guard<'a>(&'a ShflMutex<Simulated>);

impl<'a> Guard<'a> {
    fn new(latch: &'a ShflMutex<Simulated>) -> Self {
        latch.lock();
        Self(latch)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: locked as it was made.
        unsafe { self.0.unlock() };
    }
}

#[test]
fn a_panic_in_a_thread_comes_out_of_the_run() {
    let latch = ShflMutex::<Simulated>::FREE;
    let held = ShflMutex::<Simulated>::FREE;
    let waits = || {
        let _guard = Guard::new(&held);
        // Never comes back: to unwind it would release a latch that others wait for.
        latch.lock();
        latch.lock();
    };
    let panics = || {
        work(100_000);
        panic!("as meant");
    };
    let bodies = vec![body(waits), body(|| drop(Guard::new(&held))), body(panics)];
    let result = catch_unwind(AssertUnwindSafe(|| Simulation::new(&westmere(), 1).run(bodies)));
    let payload = result.expect_err("a thread panicked");
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"as meant"));
    // And the next run is as good as any.
    run(&westmere(), 1, vec![body(|| work(1))]);
}

#[test]
fn outside_of_a_run_words_are_words_and_nobody_waits() {
    let word = Alone::default();
    word.store(3, Relaxed);
    assert_eq!((word.load(Relaxed), word.swap(4, Relaxed), word.load(Relaxed)), (3, 3, 4));
    let forever = catch_unwind(AssertUnwindSafe(|| {
        Simulated::spin_until(&*word, Relaxed, |seen| seen == 0);
    }));
    assert!(forever.is_err(), "nobody can change it");
}

#[test]
fn shipped_machines_are_good() {
    for (name, _) in latchwork_sim::SHIPPED {
        let spec = Spec::shipped(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(spec.name, *name);
        let word = Alone::default();
        let count = |_| {
            let word = &word;
            body(move || {
                let seen = word.load(Relaxed);
                word.store(seen + 1, Relaxed);
            })
        };
        let threads = spec.topology.cpus();
        let outcome = run(&spec, 1, (0..threads).map(count).collect());
        assert!(outcome.ns > 0.0 && outcome.accesses >= 2 * threads as u64, "{name}");
    }
}
