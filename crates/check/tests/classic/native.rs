//! The published locks on real threads, and on an invented topology.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use latchwork_check::Scattered;
use latchwork_check::law::{self, Numbered};
use latchwork_classic::{
    Bytes, Delegate, Kind, Lock, NAMES, Name, SharedLock, delegate, exclusive, shared,
};
use latchwork_machine::{Machine, Native};

const OPERATIONS: u64 = if cfg!(debug_assertions) { 2_000 } else { 8_000 };

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

/// A lock that runs operations, and the thread that serves it, if it needs one.
struct Delegated {
    lock: Arc<Box<dyn Delegate>>,
    server: Option<JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

impl Delegated {
    fn new(lock: Box<dyn Delegate>) -> Self {
        let (lock, over) = (Arc::new(lock), Arc::new(AtomicBool::new(false)));
        let server = lock.has_server().then(|| {
            let (lock, over) = (lock.clone(), over.clone());
            std::thread::spawn(move || lock.serve(&|| over.load(Relaxed)))
        });
        Self { lock, server, over }
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }
}

impl Numbered for Delegated {
    fn alone(&self, me: usize, section: &mut (dyn FnMut() + Send)) {
        // Number zero is the server's.
        // SAFETY: the law gives each thread a number of its own.
        unsafe { self.lock.with(me + 1, section) };
    }
}

fn of_kind(kind: Kind) -> impl Iterator<Item = &'static Name> {
    NAMES.iter().filter(move |name| name.kind == kind)
}

fn made<M: Machine>(name: &Name, threads: usize) -> Option<Box<dyn Numbered>> {
    Some(match name.kind {
        Kind::Exclusive => Box::new(Exclusively(exclusive::<M>(name.short, threads)?)),
        Kind::Shared => Box::new(Shared(shared::<M>(name.short, threads)?)),
        Kind::Delegation => Box::new(Delegated::new(delegate::<M>(name.short, threads + 1)?)),
    })
}

/// Each lock of the crate, with some threads on some nodes.
fn everybody_counts<M: Machine>(crowds: &[usize], prepare: impl Fn(usize) + Sync) {
    for name in NAMES {
        for threads in crowds.iter().copied().filter(|threads| *threads <= name.threads_max) {
            let lock = made::<M>(name, threads).unwrap_or_else(|| panic!("no {}", name.short));
            law::everybody_counts(&*lock, threads, OPERATIONS / threads as u64, 3, &prepare)
                .unwrap_or_else(|e| panic!("{} with {threads} threads: {e}", name.short));
        }
    }
}

#[test]
fn latches_exclude_on_real_threads() {
    everybody_counts::<Native>(&[1, 2, 3, 8], |_| ());
}

#[test]
fn locks_exclude_on_three_nodes() {
    everybody_counts::<Scattered>(&[2, 5, 8], |thread| Scattered::stand_on(thread as u32 % 3));
}

/// Unlocks too early: everything else is a lock of this crate.
struct Leaky(Box<dyn Lock>);

impl Numbered for Leaky {
    fn alone(&self, me: usize, section: &mut (dyn FnMut() + Send)) {
        self.0.lock(me);
        self.0.unlock(me);
        section();
    }
}

#[test]
fn an_early_release_is_detected() {
    let caught = (0..200).any(|_| {
        let lock = Leaky(exclusive::<Native>("ttas", 8).unwrap());
        law::everybody_counts(&lock, 8, 20_000, 0, |_| ()).is_err()
    });
    assert!(caught, "the law of exclusion cannot fail");
}

/// Rounds after which every lock has begun to sort its waiters: `cna-kernel` lets 128 pass.
const UNSORTED: usize = 200;

/// The share of hand-overs that stay on the holder's node, where all others always wait. The first
/// [`UNSORTED`] rounds are not counted.
///
/// A thread announces itself before it queues; a holder waits for all announcements, and a little
/// longer.
fn stays(name: &str, threads: usize, nodes: usize, rounds: usize) -> f64 {
    let lock = exclusive::<Scattered>(name, threads).unwrap();
    let (come, served, local) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let last = AtomicUsize::new(usize::MAX);
    std::thread::scope(|scope| {
        for me in 0..threads {
            let (lock, come, served, local, last) = (&lock, &come, &served, &local, &last);
            scope.spawn(move || {
                let node = me % nodes;
                Scattered::stand_on(node as u32);
                loop {
                    come.fetch_add(1, Relaxed);
                    lock.lock(me);
                    // All but `come` is guarded by the lock.
                    let round = served.fetch_add(1, Relaxed);
                    if round >= rounds {
                        lock.unlock(me);
                        return;
                    }
                    while come.load(Relaxed) < round + threads {
                        std::thread::yield_now();
                    }
                    std::thread::sleep(Duration::from_micros(100));
                    let stayed = last.swap(node, Relaxed) == node && round >= UNSORTED;
                    local.fetch_add(usize::from(stayed), Relaxed);
                    lock.unlock(me);
                }
            });
        }
    });
    local.into_inner() as f64 / (rounds - UNSORTED) as f64
}

#[test]
fn numa_locks_stay_on_their_node() {
    // Six threads on two nodes: in any fixed order two of six hand-overs at least cross.
    let fair = stays("mcs", 6, 2, 800);
    assert!(fair < 0.7, "a fair lock crosses, or the measure is wrong: {fair}");
    // HCLH gathers threads that arrive within microseconds, and here they arrive one at a time.
    let sorts = |name: &&Name| name.numa && name.queues && name.short != "hclh";
    for name in of_kind(Kind::Exclusive).filter(sorts) {
        let share = stays(name.short, 6, 2, 800);
        assert!(share > 0.8, "{} stays for {share} of its hand-overs", name.short);
    }
}

#[test]
fn a_turn_on_a_node_ends() {
    // Two nodes, and hand-overs for several turns: both are served, so some cross, and few.
    let rounds = [("c-bo-mcs", 900), ("cohort-ticket", 900), ("hmcs", 900), ("cst", 900)];
    for (name, rounds) in rounds.into_iter().chain([("cna", 2600), ("cna-kernel", 2600)]) {
        // Whom a turn that ended lets in is chance with back-off: on a busy machine it may be the
        // same node for a whole run, and is not five times.
        let mut shares = (0..5).map(|_| stays(name, 6, 2, rounds));
        let few = shares.any(|share| (0.95..0.9999).contains(&share));
        assert!(few, "{name} stays for nearly none or all of its hand-overs");
    }
}

#[test]
fn names_are_unique_and_made() {
    for (at, name) in NAMES.iter().enumerate() {
        assert!(NAMES[..at].iter().all(|other| other.short != name.short), "{}", name.short);
        assert!(made::<Native>(name, 2).is_some(), "{} is listed and not made", name.short);
        assert!(made::<Native>(name, name.threads_max + 1).is_none(), "{}", name.short);
    }
    assert!(exclusive::<Native>("nonesuch", 2).is_none());
}

#[test]
fn sizes_are_as_the_papers_say() {
    let bytes = |name| exclusive::<Native>(name, 8).unwrap().bytes(8);
    assert_eq!(bytes("tas"), Bytes { lock: 1, waiter: 0, holder: 0 });
    // Numbers of 4 bytes, where the papers have addresses of 8.
    assert_eq!(bytes("mcs"), Bytes { lock: 4, waiter: 8, holder: 8 });
    assert_eq!(bytes("cna"), Bytes { lock: 4, waiter: 20, holder: 20 });
    assert_eq!(bytes("qspinlock"), Bytes { lock: 4, waiter: 8, holder: 0 });
    assert_eq!(bytes("cna-kernel"), Bytes { lock: 4, waiter: 16, holder: 0 });
    assert_eq!(bytes("mcs-tp"), Bytes { lock: 16, waiter: 16, holder: 16 });
    // A line for each of eight nodes and one for all: 1152, as published.
    assert_eq!(bytes("c-bo-mcs").lock, 1152);
}

#[test]
fn a_cst_lock_allocates_per_used_node() {
    let lock = exclusive::<Scattered>("cst", 8).unwrap();
    let bytes = || lock.bytes(8);
    assert_eq!(bytes(), Bytes { lock: 16, waiter: 12, holder: 12 });
    for me in 0..8 {
        Scattered::stand_on(me as u32);
        for _ in 0..2 {
            lock.lock(me);
            lock.unlock(me);
        }
        assert_eq!(bytes().lock, 16 + 128 * (me + 1));
    }
    // The published lock has 32 bytes for what all nodes share, and 128 for each node.
    let published = NAMES.iter().find(|name| name.short == "cst").unwrap().published.unwrap();
    assert_eq!(bytes().lock, published.lock - 16);
}

#[test]
fn a_stock_mutex_is_handed_to_a_sleeper_that_was_woken_in_vain() {
    let lock: Arc<dyn Lock> = Arc::from(exclusive::<Scattered>("stock-mutex", 3).unwrap());
    let (order, comer) = (Arc::new(Mutex::new(Vec::new())), Rc::new(RefCell::new(None)));
    lock.lock(0);
    // Called when thread 1 sleeps: the owner overtakes it first. Then the owner leaves, and another
    // thread has any amount of time to overtake.
    let sleeps = {
        let (lock, order, comer) = (lock.clone(), order.clone(), comer.clone());
        move || {
            lock.unlock(0);
            if comer.borrow().is_none() {
                lock.lock(0);
                *comer.borrow_mut() = Some(None);
                return;
            }
            let (lock, order) = (lock.clone(), order.clone());
            let thread = std::thread::spawn(move || {
                lock.lock(2);
                order.lock().unwrap().push(2);
                lock.unlock(2);
            });
            *comer.borrow_mut() = Some(Some(thread));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    Scattered::instead_of_sleeping(Some(Box::new(sleeps)));
    lock.lock(1);
    Scattered::instead_of_sleeping(None);
    order.lock().unwrap().push(1);
    lock.unlock(1);
    let comer = comer.take().flatten().expect("thread 1 slept once only");
    comer.join().unwrap();
    assert_eq!(*order.lock().unwrap(), [1, 2]);
}
