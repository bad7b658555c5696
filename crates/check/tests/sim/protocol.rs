//! What the protocols of machines differ in: lines that stay with their owner, stores that are told
//! to all, and what a core can do with a line that is on its way to another.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use latchwork_check::explore::{Body, body};
use latchwork_machine::{Integer, Machine, Word};
use latchwork_sim::{Simulated, Spec, work};

use crate::common::{Alone, U32, ns, run, until};

/// The first core of the second die.
const NEXT_DIE: usize = 6;
/// Of the farthest kind of die.
const FAR_DIE: usize = 18;

fn opteron() -> Spec {
    Spec::shipped("opteron-48").unwrap()
}

/// What another cpu does to the word, and at which nanosecond.
type Before = (usize, f64, fn(&U32));

/// What a thread on cpu 0 pays, in cycles, after the others have done this at these times.
fn after(spec: &Spec, others: &[Before], access: impl Fn(&U32), cpus: usize) -> f64 {
    let once = |seed| {
        let (word, taken) = (Alone::default(), Cell::new(0.0));
        let life = |cpu: usize| -> Body<'_> {
            let (word, taken, access) = (&word, &taken, &access);
            body(move || {
                for (_, at, done) in others.iter().filter(|other| other.0 == cpu) {
                    until(spec, *at);
                    done(word);
                }
                if cpu == 0 {
                    until(spec, 40_000.0);
                    let began = ns();
                    access(word);
                    taken.set((ns() - began) * spec.ghz);
                }
            })
        };
        run(spec, seed, (0..cpus).map(life).collect());
        taken.get()
    };
    (0..16).map(once).sum::<f64>() / 16.0
}

fn write(word: &U32) {
    word.store(1, Relaxed);
    // SeqCst: waits for the store to be seen; there is nothing to pair with.
    Simulated::fence(SeqCst);
}

fn read(word: &U32) {
    word.load(Relaxed);
}

fn close(seen: f64, published: f64) -> bool {
    (seen / published - 1.0).abs() < 0.07
}

#[test]
fn an_owned_line_comes_from_its_owner_and_not_from_the_nearest_sharer() {
    let mut spec = opteron();
    // A reader on this die has a copy of what a far core has written.
    let others: [Before; 2] = [(FAR_DIE, 1_000.0, write), (1, 20_000.0, read)];
    let seen = after(&spec, &others, read, FAR_DIE + 1);
    let far = spec.topology.between(0, FAR_DIE);
    assert!(close(seen, spec.costs.load.owned[far]), "{seen:.0} from the owner");
    // Without such a state the reader's copy is as good.
    spec.coherence.owned = false;
    let seen = after(&spec, &others, read, FAR_DIE + 1);
    assert!(close(seen, spec.costs.load.shared[0]), "{seen:.0} from the neighbour");
}

#[test]
fn a_store_to_an_owned_line_costs_as_published() {
    let spec = opteron();
    for there in [1, NEXT_DIE, FAR_DIE] {
        let others: [Before; 2] = [(there, 1_000.0, write), (0, 20_000.0, read)];
        let seen = after(&spec, &others, write, there + 1);
        let published = spec.costs.store.owned[spec.topology.between(0, there)];
        assert!(close(seen, published), "{seen:.0} for {published} with cpu {there}");
    }
}

#[test]
fn what_was_written_over_is_owned_no_more() {
    let spec = opteron();
    // Owned, then written by its owner again: modified, and shared with nobody.
    let others: [Before; 3] = [(1, 1_000.0, write), (2, 10_000.0, read), (1, 20_000.0, write)];
    let seen = after(&spec, &others, write, 3);
    assert!(close(seen, spec.costs.store.modified[0]), "{seen:.0} of a modified line");
}

#[test]
fn a_line_that_was_read_is_not_handed_over_on_this_machine() {
    let spec = opteron();
    // Its owner keeps a copy: no miss when it reads again.
    let others: [Before; 2] = [(0, 1_000.0, write), (1, 20_000.0, read)];
    let seen = after(&spec, &others, read, 2);
    assert!(close(seen, spec.costs.l1 as f64), "{seen:.0} for a hit");
}

#[test]
fn a_broadcast_costs_the_same_however_many_share() {
    let mut spec = opteron();
    let two: [Before; 2] = [(FAR_DIE, 1_000.0, read), (0, 20_000.0, read)];
    let all: Vec<Before> = (0..48).map(|cpu| (cpu, 1_000.0, read as fn(&U32))).collect();
    let few = after(&spec, &two, write, FAR_DIE + 1);
    let many = after(&spec, &all, write, 48);
    // SOSP 2013: 296 cycles, by two as by 48.
    assert!(close(few, 296.0) && close(many, 296.0), "{few:.0} and {many:.0}");
    // Sharers that are told one after another cost more the more they are.
    spec.coherence.broadcast = false;
    spec.coherence.invalidate_per_socket = 30;
    let told = after(&spec, &all, write, 48);
    assert!(told > many + 100.0, "{told:.0} after {many:.0}");
}

/// Operations that two threads do on one line in a while, one of them with longer pauses.
fn two_on_a_line(spec: &Spec) -> usize {
    let word = Alone::default();
    let done = Cell::new(0);
    let life = |pause: u64| {
        let (word, done) = (&word, &done);
        body(move || {
            while ns() < 20_000.0 {
                word.fetch_add(1, Relaxed);
                done.set(done.get() + 1);
                work(pause);
            }
        })
    };
    run(spec, 1, vec![life(10), life(150)]);
    done.get()
}

#[test]
fn an_owner_uses_its_line_until_the_request_has_travelled() {
    let mut spec = opteron();
    let with = two_on_a_line(&spec);
    spec.coherence.travel = 0.0;
    spec.coherence.probe = 0.0;
    let without = two_on_a_line(&spec);
    assert!(with as f64 > 1.3 * without as f64, "{with} with it and {without} without");
}

#[test]
fn a_probe_leaves_time_for_one_more_try() {
    // Many threads that read and then exchange: one that has just failed has the line, and succeeds
    // in the time that the probe takes across dies.
    let tries = |spec: &Spec| {
        let word = Alone::default();
        let done = Cell::new(0);
        let life = |_| {
            body(|| {
                while ns() < 40_000.0 {
                    let seen = word.load(Relaxed);
                    let new = word.compare_exchange(seen, seen + 1, Relaxed, Relaxed);
                    done.set(done.get() + usize::from(new.is_ok()));
                }
            })
        };
        run(spec, 1, (0..48).map(life).collect());
        done.get()
    };
    let mut spec = opteron();
    let with = tries(&spec);
    spec.coherence.probe = 0.0;
    let without = tries(&spec);
    assert!(with > 2 * without, "{with} with it and {without} without");
}

#[test]
fn a_load_after_an_atomic_operation_waits_for_it() {
    let mut spec = opteron();
    let pair = |spec: &Spec| {
        let others: [Before; 1] = [(0, 1_000.0, write)];
        let access = |word: &U32| {
            word.fetch_add(1, Relaxed);
            word.load(Relaxed);
            word.load(Relaxed);
        };
        after(spec, &others, access, 1)
    };
    let costs = &spec.costs;
    let expected = (costs.atomic_hit + costs.reload + costs.l1) as f64;
    assert!((pair(&spec) - expected).abs() < 1.0, "{} for {expected}", pair(&spec));
    let (reload, l1) = (spec.costs.reload, spec.costs.l1);
    spec.costs.reload = l1;
    assert!((pair(&spec) - (expected - (reload - l1) as f64)).abs() < 1.0);
}

#[test]
fn the_largest_latency_is_that_between_processors_in_use() {
    let spec = opteron();
    let modified = &spec.costs.atomic.modified;
    assert_eq!(spec.largest_latency(1), 0.0);
    assert_eq!(spec.largest_latency(6), modified[0]);
    assert_eq!(spec.largest_latency(12), modified[1]);
    // The third die is two hops from the first, and three from the second.
    assert_eq!(spec.largest_latency(18), modified[3]);
    assert_eq!(spec.largest_latency(48), modified[3]);
}
