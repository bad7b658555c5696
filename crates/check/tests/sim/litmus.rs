//! Which outcomes two to four threads can see: those of x86-TSO, all of them and no other.
//!
//! Sewell, Sarkar, Owens, Nardelli and Myreen, "x86-TSO", CACM 2010, has the tests by these names.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use latchwork_check::explore::{Body, Schedule, body};
use latchwork_machine::{Machine, Word};
use latchwork_sim::Simulated;

use crate::common::{Alone, run, until, westmere};

const SEEDS: u64 = 600;

type Seen = Cell<u32>;

/// How the threads of a test come to meet.
#[derive(Clone, Copy)]
enum Mode {
    Exploring,
    Timed,
}

/// Words and registers of one run.
#[derive(Default)]
struct Run {
    x: Alone,
    y: Alone,
    seen: [Seen; 4],
    first: [Alone; 4],
}

/// The outcomes of many runs. In timed mode all have read both words before, and have a store under
/// way that others have to wait behind.
fn outcomes(mode: Mode, threads: &[fn(&Run)]) -> BTreeSet<[u32; 4]> {
    let spec = westmere();
    let one = |seed| {
        let state = Run::default();
        let life = |(number, thread): (usize, &fn(&Run))| {
            let (state, spec, thread) = (&state, &spec, *thread);
            body(move || {
                if matches!(mode, Mode::Timed) {
                    state.x.load(Relaxed);
                    state.y.load(Relaxed);
                    // At once, or each a little later than the one before.
                    until(spec, 5_000.0 + (seed * 13 % 400) as f64 * number as f64);
                    state.first[number].store(1, Relaxed);
                }
                thread(state);
            })
        };
        let bodies: Vec<Body<'_>> = threads.iter().enumerate().map(life).collect();
        match mode {
            Mode::Exploring => Schedule(seed).run(bodies).map(|_| ()).unwrap(),
            Mode::Timed => drop(run(&spec, seed, bodies)),
        }
        state.seen.each_ref().map(Cell::get)
    };
    (0..SEEDS).map(one).collect()
}

fn both(threads: &[fn(&Run)]) -> [BTreeSet<[u32; 4]>; 2] {
    [outcomes(Mode::Exploring, threads), outcomes(Mode::Timed, threads)]
}

#[test]
fn store_buffering_is_seen() {
    let [explored, timed] = both(&[
        |run| {
            run.x.store(1, Relaxed);
            run.seen[0].set(run.y.load(Relaxed));
        },
        |run| {
            run.y.store(1, Relaxed);
            run.seen[1].set(run.x.load(Relaxed));
        },
    ]);
    assert!(timed.contains(&[0, 0, 0, 0]), "a store waits in a buffer: {timed:?}");
    assert_eq!(explored.len(), 4, "{explored:?}");
}

#[test]
fn fences_and_exchanges_end_store_buffering() {
    let fenced: [fn(&Run); 2] = [
        |run| {
            run.x.store(1, Relaxed);
            // SeqCst: pairs with that of the other thread.
            Simulated::fence(SeqCst);
            run.seen[0].set(run.y.load(Relaxed));
        },
        |run| {
            run.y.store(1, Relaxed);
            // SeqCst: pairs with that of the other thread.
            Simulated::fence(SeqCst);
            run.seen[1].set(run.x.load(Relaxed));
        },
    ];
    let exchanged: [fn(&Run); 2] = [
        |run| {
            run.x.swap(1, Relaxed);
            run.seen[0].set(run.y.load(Relaxed));
        },
        |run| {
            run.y.swap(1, Relaxed);
            run.seen[1].set(run.x.load(Relaxed));
        },
    ];
    let stored: [fn(&Run); 2] = [
        |run| {
            // SeqCst: as the fence.
            run.x.store(1, SeqCst);
            run.seen[0].set(run.y.load(Relaxed));
        },
        |run| {
            // SeqCst: as the fence.
            run.y.store(1, SeqCst);
            run.seen[1].set(run.x.load(Relaxed));
        },
    ];
    let asymmetric: [fn(&Run); 2] = [
        |run| {
            run.x.store(1, Relaxed);
            Simulated::light_barrier();
            run.seen[0].set(run.y.load(Relaxed));
        },
        |run| {
            run.y.store(1, Relaxed);
            assert!(Simulated::heavy_barrier());
            run.seen[1].set(run.x.load(Relaxed));
        },
    ];
    for threads in [fenced, exchanged, stored, asymmetric] {
        let [explored, timed] = both(&threads);
        assert!(!explored.contains(&[0, 0, 0, 0]), "{explored:?}");
        assert!(!timed.contains(&[0, 0, 0, 0]), "{timed:?}");
        assert_eq!(explored.len(), 3, "all others are seen: {explored:?}");
    }
}

#[test]
fn messages_are_passed_in_order() {
    for seen in both(&[
        |run| {
            run.x.store(1, Relaxed);
            run.y.store(1, Relaxed);
        },
        |run| {
            run.seen[0].set(run.y.load(Relaxed));
            run.seen[1].set(run.x.load(Relaxed));
        },
    ]) {
        assert!(!seen.contains(&[1, 0, 0, 0]), "flag without message: {seen:?}");
        assert!(seen.contains(&[1, 1, 0, 0]) && seen.contains(&[0, 0, 0, 0]), "{seen:?}");
    }
}

#[test]
fn loads_do_not_wait_for_later_stores() {
    for seen in both(&[
        |run| {
            run.seen[0].set(run.x.load(Relaxed));
            run.y.store(1, Relaxed);
        },
        |run| {
            run.seen[1].set(run.y.load(Relaxed));
            run.x.store(1, Relaxed);
        },
    ]) {
        assert!(!seen.contains(&[1, 1, 0, 0]), "{seen:?}");
        assert!(seen.contains(&[0, 0, 0, 0]), "{seen:?}");
    }
}

#[test]
fn a_thread_sees_its_own_stores_before_others_do() {
    // "n6" without its third store: both see their own, and not the other's.
    for seen in both(&[
        |run| {
            run.x.store(1, Relaxed);
            run.seen[0].set(run.x.load(Relaxed));
            run.seen[1].set(run.y.load(Relaxed));
        },
        |run| {
            run.y.store(1, Relaxed);
            run.seen[2].set(run.y.load(Relaxed));
            run.seen[3].set(run.x.load(Relaxed));
        },
    ]) {
        assert!(seen.iter().all(|s| s[0] == 1 && s[2] == 1), "its own: {seen:?}");
        assert!(seen.contains(&[1, 0, 1, 0]), "before others do: {seen:?}");
    }
}

#[test]
fn two_writers_are_seen_in_one_order() {
    for seen in both(&[
        |run| run.x.store(1, Relaxed),
        |run| run.y.store(1, Relaxed),
        |run| {
            run.seen[0].set(run.x.load(Relaxed));
            run.seen[1].set(run.y.load(Relaxed));
        },
        |run| {
            run.seen[2].set(run.y.load(Relaxed));
            run.seen[3].set(run.x.load(Relaxed));
        },
    ]) {
        assert!(!seen.contains(&[1, 0, 1, 0]), "IRIW: {seen:?}");
        assert!(seen.len() >= 3, "the threads never met: {seen:?}");
    }
}

#[test]
fn one_word_has_one_order() {
    for seen in both(&[
        |run| {
            run.x.store(1, Relaxed);
            run.x.store(2, Relaxed);
        },
        |run| {
            run.seen[0].set(run.x.load(Relaxed));
            run.seen[1].set(run.x.load(Relaxed));
        },
    ]) {
        assert!(seen.iter().all(|s| s[0] <= s[1]), "a word goes back: {seen:?}");
        assert!(seen.iter().any(|s| s[0] < s[1]), "the threads never met: {seen:?}");
    }
}
