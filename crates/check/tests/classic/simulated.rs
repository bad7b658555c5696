//! The published locks on simulated machines: on eight sockets, where turns can be counted, and
//! under schedules by chance.

use std::cell::RefCell;

use latchwork_check::explore::{everybody_counts, explore};
use latchwork_check::law::Numbered;
use latchwork_classic::{Cna, Kind, Lock, NAMES, Name, exclusive};
use latchwork_sim::{Simulated, Simulation, Spec, clock, work};

/// The sections of each thread in two simulated milliseconds, with sections of 200 cycles and about
/// `outside` cycles between them; and the socket of each section.
fn served(name: &str, threads: usize, outside: u64) -> (Vec<u64>, Vec<usize>) {
    let spec = Spec::shipped("broadwell-ex-192").unwrap();
    let lock = exclusive::<Simulated>(name, threads).unwrap();
    let turns = RefCell::new(Vec::new());
    let life = |me: usize| {
        let (lock, turns) = (&lock, &turns);
        Box::new(move || {
            while clock().is_some_and(|(_, ns)| ns < 2e6) {
                lock.lock(me);
                turns.borrow_mut().push(me);
                work(200);
                lock.unlock(me);
                work(outside);
            }
        }) as Box<dyn FnOnce()>
    };
    let bodies = (0..threads).map(life).collect();
    Simulation::new(&spec, 1).run(bodies).unwrap_or_else(|stuck| panic!("{name}: {stuck}"));
    let turns = turns.into_inner();
    let mut counts = vec![0; threads];
    turns.iter().for_each(|me| counts[*me] += 1);
    // Threads fill one socket of 24 cores after the other.
    (counts, turns.iter().map(|me| me / 24).collect())
}

/// The share of the half that got most: 0.5 is fair, 1 starves the others (SOSP 2019, 6.3).
fn fairness(counts: &[u64]) -> f64 {
    let mut counts = counts.to_vec();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let most: u64 = counts[..counts.len() / 2].iter().sum();
    most as f64 / counts.iter().sum::<u64>() as f64
}

/// The longest run of sections on one socket.
fn longest_turn(sockets: &[usize]) -> usize {
    sockets.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap_or(0)
}

#[test]
fn queues_serve_all_sockets_in_turn() {
    // Bakery looks at all threads, Dekker knows two, and each look of MCS-TP reads the clock, which
    // takes long to simulate. A Malthusian lock sends waiters away for a thousand releases, so that
    // two milliseconds say nothing of its fairness.
    let left_out = ["bakery", "dekker", "mcs-tp", "malthusian"];
    let queues = |n: &&Name| n.kind == Kind::Exclusive && n.queues;
    for name in NAMES.iter().filter(queues).filter(|n| !left_out.contains(&n.short)) {
        let (counts, sockets) = served(name.short, 48, 85);
        let (factor, turn) = (fairness(&counts), longest_turn(&sockets));
        assert!(factor < 0.6, "{}: fairness {factor}", name.short);
        // A socket's threads may stand together in the queue by chance, before a turn is counted.
        let turn_max = 24 + if name.numa { Cna::<Simulated>::TURN_MAX as usize } else { 0 };
        assert!(turn <= turn_max, "{}: {turn} sections on one socket", name.short);
    }
}

#[test]
fn a_time_published_lock_is_fair_without_preemption() {
    let (counts, _) = served("mcs-tp", 10, 85);
    assert!(fairness(&counts) < 0.6, "{counts:?}");
}

#[test]
fn spinners_of_the_stock_mutex_starve_if_its_owner_returns_at_once() {
    // The thread that watches the owner is first in a queue, and learns of a release one miss
    // later. It gets its turn if the owner stays away for longer; otherwise, as in Linux, the owner
    // overtakes it repeatedly.
    let (away, back) = (served("stock-mutex", 48, 1000).0, served("stock-mutex", 48, 85).0);
    assert!(fairness(&away) < 0.6, "{away:?}");
    assert!(fairness(&back) > 0.9, "the measure cannot fail: {back:?}");
}

struct Exclusively(Box<dyn Lock>);

impl Numbered for Exclusively {
    fn alone(&self, me: usize, section: &mut (dyn FnMut() + Send)) {
        self.0.lock(me);
        section();
        self.0.unlock(me);
    }
}

#[test]
fn under_any_schedule_everybody_counts() {
    for name in ["cna", "cna-kernel", "cst", "hmcs", "mcs-tp"] {
        let law = |schedule| {
            let lock = Exclusively(exclusive::<Simulated>(name, 4).unwrap());
            everybody_counts(&lock, 4, 6, schedule)
        };
        explore(0..300, law).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
