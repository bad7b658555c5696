//! Processors, time slices, sleep and wake-up.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use latchwork_check::explore::{Body, body};
use latchwork_latch::{ShflMutex, ShflRwLock, ShflSpin};
use latchwork_machine::{Clock, Deadline, Integer, Machine, Padded, Place, Waited, Word};
use latchwork_sim::{Explorer, Simulated, Simulation, Spec, Stuck, work};

use crate::common::{Alone, U32, ns, run, small, until, westmere};

/// Threads take the latch in turn, more of them than processors; the latch and the number of
/// switches.
fn crowd(spec: &Spec, threads: usize, each: u32, section: impl Fn(&dyn Fn())) -> u64 {
    let word = Alone::default();
    let life = |_| {
        let (word, section) = (&word, &section);
        body(move || {
            for _ in 0..each {
                section(&|| {
                    let seen = word.load(Relaxed);
                    work(300);
                    word.store(seen + 1, Relaxed);
                });
            }
        })
    };
    let outcome = run(spec, 5, (0..threads).map(life).collect());
    assert_eq!(word.load(Relaxed), threads as u32 * each);
    outcome.switches
}

#[test]
fn more_threads_than_processors_all_come_to_an_end() {
    let spec = Spec::shipped("xeon-24t").unwrap();
    let (sleeping, spinning) = (ShflMutex::<Simulated>::FREE, ShflSpin::<Simulated>::FREE);
    let switches = crowd(&spec, 70, 30, |section| {
        sleeping.lock();
        section();
        // SAFETY: locked above.
        unsafe { sleeping.unlock() };
    });
    assert!(switches >= 46, "70 threads ran on 24 processors with {switches} switches");
    let switches = crowd(&small(2, 2, 1), 11, 30, |section| {
        spinning.lock();
        section();
        // SAFETY: locked above.
        unsafe { spinning.unlock() };
    });
    assert!(switches >= 7, "11 threads ran on 4 processors with {switches} switches");
}

/// Two threads on one processor, of which the first waits for the second as `look` does.
fn waits_for_its_neighbour(look: impl Fn(&Alone)) -> f64 {
    let word = Alone::default();
    let bodies = vec![body(|| look(&word)), body(|| word.store(1, Relaxed))];
    run(&small(1, 1, 1), 1, bodies).ns
}

#[test]
fn a_spinning_waiter_loses_its_slice() {
    let spec = small(1, 1, 1);
    let slice = spec.os.slice_us * 1000.0;
    let bare = waits_for_its_neighbour(|word| {
        while word.load(Relaxed) == 0 {
            Simulated::relax();
        }
    });
    assert!(bare >= slice, "a loop lasts for the slice: {bare} of {slice} ns");
    assert!(bare < 2.0 * slice, "and no longer: {bare} of {slice} ns");
    let verb = waits_for_its_neighbour(|word| {
        Simulated::spin_until(&**word, Relaxed, |seen| seen == 1);
    });
    assert!(verb < slice / 10.0, "who says that it waits yields: {verb} ns");
    let yields = waits_for_its_neighbour(|word| {
        while word.load(Relaxed) == 0 {
            Simulated::yield_now();
        }
    });
    assert!(yields < slice / 10.0, "and who yields does: {yields} ns");
}

#[test]
fn a_wake_up_takes_its_time() {
    let spec = westmere();
    let word = Alone::default();
    let (woke, ran) = (Cell::new(0.0), Cell::new(0.0));
    let sleeper = || {
        while word.load(Relaxed) == 0 {
            assert_eq!(Simulated::wait(&word, 0, None), Waited::Woken);
        }
        ran.set(ns());
    };
    let waker = || {
        until(&spec, 50_000.0);
        word.store(1, Relaxed);
        woke.set(ns());
        Simulated::wake(&word);
    };
    run(&spec, 1, vec![body(sleeper), body(waker)]);
    let took = ran.get() - woke.get();
    let least = spec.os.wake_us * 1000.0;
    assert!((least..least * 2.0).contains(&took), "{took} ns for a wake-up of {least}");
}

#[test]
fn a_wake_up_is_never_lost() {
    // The waker comes at any moment of the sleeper's way to sleep.
    let spec = westmere();
    for at in 0..400 {
        let word = Alone::default();
        let sleeper = || {
            while word.load(Relaxed) == 0 {
                let _ = Simulated::wait(&word, 0, None);
            }
        };
        let waker = || {
            work(at * 3);
            word.store(1, Relaxed);
            Simulated::wake(&word);
        };
        run(&spec, at, vec![body(sleeper), body(waker)]);
    }
}

/// Sleeps for 30 microseconds on a processor that others want.
fn sleeps_until_its_deadline(simulation: Simulation) {
    let word = Alone::default();
    let (due, ended) = (Cell::new(0), Cell::new(0));
    let sleeper = || {
        let deadline = Deadline::after::<Simulated>(Duration::from_micros(30));
        due.set(deadline.at);
        assert_eq!(Simulated::wait(&word, 0, Some(deadline)), Waited::TimedOut);
        ended.set(Simulated::now(Clock::Monotonic));
        // At once, for it has passed.
        assert_eq!(Simulated::wait(&word, 0, Some(deadline)), Waited::TimedOut);
    };
    let mut bodies: Vec<Body<'_>> = vec![body(sleeper)];
    bodies.extend((0..5).map(|_| {
        let word = &word;
        body(move || {
            for _ in 0..50 {
                word.load(Relaxed);
                work(500);
            }
        })
    }));
    simulation.run(bodies).unwrap();
    assert!(ended.get() >= due.get(), "{} before {}", ended.get(), due.get());
    // The others' slices, at most, come between.
    assert!(ended.get() < due.get() + 6_000_000, "{} long after {}", ended.get(), due.get());
}

#[test]
fn a_deadline_ends_a_sleep() {
    sleeps_until_its_deadline(Simulation::new(&small(1, 2, 1), 1));
    sleeps_until_its_deadline(Simulation::new(&small(1, 2, 1), 1).unpinned());
}

#[test]
fn a_deadline_that_never_comes_harms_nobody() {
    let spec = westmere();
    for wait in [Duration::MAX, Duration::from_secs(40_000_000), Duration::from_secs(1 << 30)] {
        let word = Alone::default();
        let sleeper = || {
            let deadline = Deadline::after::<Simulated>(wait);
            while word.load(Relaxed) == 0 {
                assert_eq!(Simulated::wait(&word, 0, Some(deadline)), Waited::Woken);
            }
        };
        let waker = || {
            until(&spec, 90_000.0);
            word.store(1, Relaxed);
            Simulated::wake(&word);
        };
        let outcome = run(&spec, 1, vec![body(sleeper), body(waker)]);
        assert!(outcome.ns < 200_000.0, "{wait:?}: {} ns", outcome.ns);
    }
}

#[test]
fn who_sleeps_until_the_end_of_time_is_stuck() {
    let explorer = Explorer::random(1);
    for simulation in
        [Simulation::new(&westmere(), 1), Simulation::new(&westmere(), 1).explore(explorer)]
    {
        let word = Alone::default();
        let sleeper = |_| {
            let word = &word;
            body(move || {
                let deadline = Deadline::after::<Simulated>(Duration::MAX);
                while word.load(Relaxed) == 0 {
                    assert_eq!(Simulated::wait(word, 0, Some(deadline)), Waited::Woken);
                }
            })
        };
        let stuck = simulation.limit(100_000).run((0..2).map(sleeper).collect()).unwrap_err();
        assert!(matches!(*stuck, Stuck::Deadlock(_)), "{stuck}");
    }
}

/// Where the third of three threads on two processors ends, if the second leaves at once.
fn third_ends_on(simulation: Simulation) -> Place {
    let place = Cell::new(Place::UNKNOWN);
    let word = Alone::default();
    let busy = |_| {
        for _ in 0..5_000 {
            word.fetch_add(1, Relaxed);
            work(1_000);
        }
    };
    let bodies = vec![body(|| busy(0)), body(|| ()), body(|| place.set(Simulated::place()))];
    simulation.run(bodies).unwrap();
    place.get()
}

#[test]
fn threads_move_to_idle_processors_unless_pinned() {
    let spec = small(2, 1, 1);
    let pinned = third_ends_on(Simulation::new(&spec, 1));
    let moved = third_ends_on(Simulation::new(&spec, 1).unpinned());
    assert_eq!((pinned.node(), moved.node()), (0, 1));
}

#[test]
fn a_processor_runs_one_thread_at_a_time() {
    // Each computes without a look at memory, so that nothing but the processor is in the way.
    let spec = small(1, 1, 1);
    let ends = RefCell::new(Vec::new());
    let life = |_| {
        let ends = &ends;
        body(move || {
            work(100_000);
            ends.borrow_mut().push(ns());
        })
    };
    let outcome = run(&spec, 1, (0..3).map(life).collect());
    let ends = ends.into_inner();
    assert!(ends.windows(2).all(|w| w[1] >= w[0] + 50_000.0), "at 2 GHz: {ends:?}");
    assert!(outcome.ns >= 150_000.0);
}

#[test]
fn hardware_threads_of_one_core_see_each_others_exchanges() {
    // Two look while a third, on the same core as one of them, fights over the line with a fourth.
    let spec = small(1, 2, 2);
    for seed in 0..300 {
        let (word, done) = (Alone::default(), Alone::default());
        let writer = |bit: u32, pause: u64| {
            let (word, done) = (&word, &done);
            move || {
                for round in 0..6 {
                    work(pause + seed % 97 * 5);
                    word.fetch_or(bit << round, Relaxed);
                }
                done.fetch_add(1, Relaxed);
            }
        };
        let reader = || {
            for round in 0..6 {
                let bit = 1 << round;
                Simulated::spin_until(&*word, Relaxed, |seen| seen & bit != 0);
            }
        };
        let bodies =
            vec![body(writer(1, 40)), body(writer(1 << 16, 61)), body(reader), body(reader)];
        run(&spec, seed, bodies);
    }
}

/// Two words on a line, and what a hardware thread does with one of them.
type Pair = Padded<[U32; 2]>;

/// The cycles that the second hardware thread of core 0 needs, ten after the first has asked for a
/// line that core 1 has.
fn beside(spec: &Spec, first: fn(&Pair), second: fn(&Pair)) -> f64 {
    let (pair, took) = (Pair::default(), Cell::new(0.0));
    let asks = || {
        until(spec, 10_000.0);
        first(&pair);
    };
    let had_it = || pair[0].store(1, Relaxed);
    let follows = || {
        until(spec, 10_005.0);
        let began = ns();
        second(&pair);
        took.set((ns() - began) * spec.ghz);
    };
    run(spec, 1, vec![body(asks), body(had_it), body(follows)]);
    took.get()
}

#[test]
fn hardware_threads_of_one_core_wait_for_the_line_that_one_of_them_asked_for() {
    let spec = small(1, 2, 2);
    let write = |pair: &Pair| pair[0].store(2, Relaxed);
    let swap = |pair: &Pair| _ = pair[0].swap(2, Relaxed);
    let read = |pair: &Pair| _ = pair[1].load(Relaxed);
    for first in [write as fn(&Pair), swap] {
        for second in [read as fn(&Pair), swap] {
            let took = beside(&spec, first, second);
            assert!((90.0..170.0).contains(&took), "{took:.0} cycles");
        }
    }
    // And one thread for what it has itself asked for: its store is still in the buffer.
    let both = |pair: &Pair| {
        pair[0].store(3, Relaxed);
        let began = ns();
        pair[1].load(Relaxed);
        assert!((ns() - began) * 2.0 > 90.0, "{:.0} ns", ns() - began);
    };
    beside(&spec, both, |_| ());
}

#[test]
fn who_looks_while_a_line_is_on_its_way_is_told_of_the_exchange() {
    // The line belongs to the core of both as soon as it is granted, the exchange comes later.
    let spec = small(1, 2, 2);
    for late in 0..300 {
        let word = Alone::default();
        let exchanges = || {
            until(&spec, 10_000.0);
            word.swap(1, Relaxed);
        };
        let had_it = || word.store(0, Relaxed);
        let looks = || {
            until(&spec, 10_000.0);
            work(late);
            Simulated::spin_until(&*word, Relaxed, |seen| seen == 1);
        };
        run(&spec, 1, vec![body(exchanges), body(had_it), body(looks)]);
    }
}

#[test]
fn seven_hundred_and_sixty_eight_threads_fit() {
    let spec = Spec::shipped("broadwell-ex-192").unwrap();
    let (latch, shared) = (ShflMutex::<Simulated>::FREE, ShflRwLock::<Simulated>::FREE);
    let mut simulation = Simulation::new(&spec, 1);
    simulation.label(&latch, "latch");
    let count = Alone::default();
    let life = |_| {
        let (latch, shared, count) = (&latch, &shared, &count);
        body(move || {
            for _ in 0..4 {
                latch.lock();
                count.store(count.load(Relaxed) + 1, Relaxed);
                // SAFETY: locked above.
                unsafe { latch.unlock() };
                shared.lock_shared();
                work(500);
                // SAFETY: a share was taken above.
                unsafe { shared.unlock_shared() };
            }
        })
    };
    simulation.run((0..768).map(life).collect()).unwrap_or_else(|stuck| panic!("{stuck}"));
    assert_eq!(count.load(Relaxed), 768 * 4);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 512 << 10, "{kib} KiB at the peak");
}

#[test]
fn a_crowd_on_one_processor_that_waits_for_nothing_is_endless() {
    let words: [Alone; 3] = Default::default();
    let life = |word| body(move || _ = Simulated::spin_until(word, Relaxed, |seen| seen == 1));
    let simulation = Simulation::new(&small(1, 1, 1), 1).limit(10_000);
    let ended = simulation.run(words.iter().map(|word| life(&**word)).collect());
    assert!(matches!(*ended.unwrap_err(), Stuck::Endless(_)));
}
