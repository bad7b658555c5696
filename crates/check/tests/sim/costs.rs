//! What an access costs, against the tables that the machine was made from.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use latchwork_check::explore::{Body, body};
use latchwork_machine::{Integer, Machine, Padded, Word};
use latchwork_sim::{Simulated, Spec};

use crate::common::{Alone, U32, ns, run, until, westmere};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Load,
    Store,
    Cas,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Modified,
    Exclusive,
    Shared,
}

/// Cycles of `op` on cpu 0, on a line that cpu `there` has in this state, and its neighbour as well
/// if it is shared.
fn cost(spec: &Spec, seed: u64, op: Op, state: State, there: usize) -> f64 {
    let word = Alone::default();
    let taken = Cell::new(0.0);
    let life = |cpu: usize| {
        let (word, taken) = (&word, &taken);
        body(move || match cpu {
            0 => {
                until(spec, 20_000.0);
                let began = ns();
                match op {
                    Op::Load => _ = word.load(Relaxed),
                    Op::Store => {
                        word.store(1, Relaxed);
                        // SeqCst: waits for the store to be seen; there is nothing to pair with.
                        Simulated::fence(SeqCst);
                    }
                    Op::Cas => _ = word.compare_exchange(0, 1, Relaxed, Relaxed),
                }
                taken.set((ns() - began) * spec.ghz);
            }
            cpu if cpu == there && state == State::Modified => word.store(0, Relaxed),
            cpu if cpu == there => _ = word.load(Relaxed),
            cpu if cpu == there + 1 && state == State::Shared => {
                until(spec, 5_000.0);
                word.load(Relaxed);
            }
            _ => {}
        })
    };
    run(spec, seed, (0..there + 2).map(life).collect());
    taken.get()
}

/// What is left to do once the line is there.
fn hit(spec: &Spec, op: Op) -> f64 {
    match op {
        Op::Load => 2.0,
        Op::Store => 1.0,
        Op::Cas => spec.costs.atomic_hit as f64,
    }
}

fn mean(of: impl Fn(u64) -> f64) -> f64 {
    (0..32).map(of).sum::<f64>() / 32.0
}

#[test]
fn latencies_are_those_of_the_table() {
    let spec = westmere();
    let (load, store, atomic) = (&spec.costs.load, &spec.costs.store, &spec.costs.atomic);
    let rows = [
        (Op::Load, State::Modified, &load.modified),
        (Op::Load, State::Exclusive, &load.exclusive),
        (Op::Load, State::Shared, &load.shared),
        (Op::Store, State::Modified, &store.modified),
        (Op::Store, State::Exclusive, &store.exclusive),
        (Op::Store, State::Shared, &store.shared),
        (Op::Cas, State::Modified, &atomic.modified),
        (Op::Cas, State::Shared, &atomic.shared),
    ];
    // A neighbour, one hop, two hops: the sockets have ten cores each.
    let mut wrong = Vec::new();
    for (op, state, row) in rows {
        for (distance, there) in [1, 10, 20].into_iter().enumerate() {
            let published = row[distance];
            // The transfer: the access itself comes after it.
            let seen = mean(|seed| cost(&spec, seed, op, state, there)) - hit(&spec, op);
            if (seen / published - 1.0).abs() > 0.07 {
                wrong.push(format!("{op:?} {state:?} at {distance}: {seen:.0} for {published}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_file_says_what_was_published() {
    // SOSP 2013, table 2.
    let costs = westmere().costs;
    assert_eq!(costs.load.modified, [109.0, 289.0, 400.0]);
    assert_eq!(costs.load.shared, [44.0, 223.0, 334.0]);
    assert_eq!(costs.store.shared, [116.0, 318.0, 428.0]);
    assert_eq!(costs.atomic.modified, [120.0, 324.0, 430.0]);
}

#[test]
fn a_store_to_a_line_that_all_share_costs_as_published() {
    let spec = westmere();
    let seen = mean(|seed| {
        let word = Alone::default();
        let taken = Cell::new(0.0);
        let life = |cpu: usize| {
            let (word, taken, spec) = (&word, &taken, &spec);
            body(move || {
                word.load(Relaxed);
                if cpu == 0 {
                    until(spec, 200_000.0);
                    let began = ns();
                    word.store(1, Relaxed);
                    // SeqCst: waits for the store to be seen; there is nothing to pair with.
                    Simulated::fence(SeqCst);
                    taken.set((ns() - began) * spec.ghz);
                }
            })
        };
        run(&spec, seed, (0..80).map(life).collect());
        taken.get()
    });
    // SOSP 2013, section 5: 445 cycles on 80 cores.
    assert!((seen / 445.0 - 1.0).abs() < 0.10, "{seen:.0} cycles for 445");
}

#[test]
fn what_a_core_has_it_need_not_fetch() {
    let spec = westmere();
    let word = Alone::default();
    let (first, second, atomic) = (Cell::new(0.0), Cell::new(0.0), Cell::new(0.0));
    let timed = |took: &Cell<f64>, access: &dyn Fn()| {
        let began = ns();
        access();
        took.set((ns() - began) * spec.ghz);
    };
    let alone = || {
        timed(&first, &|| _ = word.load(Relaxed));
        timed(&second, &|| _ = word.load(Relaxed));
        timed(&atomic, &|| _ = word.fetch_add(1, Relaxed));
    };
    run(&spec, 1, vec![body(alone)]);
    // Less the jitter, which is 3 % to both sides.
    assert!(first.get() >= 0.96 * spec.costs.load.memory[0], "from memory: {first:?}");
    assert!((second.get() - spec.costs.l1 as f64).abs() < 1.0, "a hit: {second:?}");
    assert!((atomic.get() - spec.costs.atomic_hit as f64).abs() < 1.0, "a hit: {atomic:?}");
}

/// Simulated time of two threads, on these cpus, that each count on their own of two words.
///
/// The owner gives its line up at once: else it does the more in a row the farther the other is,
/// and the costs of transfers do not show.
fn apart(spec: &Spec, words: [&U32; 2], cpus: [usize; 2]) -> f64 {
    let mut spec = spec.clone();
    spec.coherence.travel = 0.0;
    let life = |cpu: usize| {
        body(move || {
            for _ in 0..200 {
                if let Some(at) = cpus.iter().position(|c| *c == cpu) {
                    words[at].fetch_add(1, Relaxed);
                }
            }
        })
    };
    let bodies: Vec<Body<'_>> = (0..=cpus[1]).map(life).collect();
    run(&spec, 3, bodies).ns
}

#[test]
fn false_sharing_costs() {
    let spec = westmere();
    let line: Padded<[U32; 2]> = Padded::default();
    let lines: [Alone; 2] = Default::default();
    let shared = apart(&spec, [&line[0], &line[1]], [0, 10]);
    let own = apart(&spec, [&*lines[0], &*lines[1]], [0, 10]);
    assert!(shared > 5.0 * own, "{shared:.0} ns on one line, {own:.0} ns on two");
}

#[test]
fn far_transfers_cost_more_than_near_ones() {
    let spec = westmere();
    let [near, one_hop, two_hops] = [1, 10, 20].map(|there| {
        let word = Alone::default();
        apart(&spec, [&*word, &*word], [0, there])
    });
    assert!(near * 1.5 < one_hop && one_hop * 1.1 < two_hops, "{near} {one_hop} {two_hops}");
}
