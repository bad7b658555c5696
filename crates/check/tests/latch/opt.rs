//! The optimistic latch on real threads: exclusion, consistent reads, no lost call, and repair
//! after a dead holder.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use latchwork_check::scattered::Scattered;
use latchwork_latch::{
    Holder, HolderDied, HolderNumber, LocalHolder, OptCell, OptLatch, Version, Words,
};
use latchwork_machine::{Clock, Deadline, Machine, Native, Slot, SlotTable, Slots, status};

fn number(number: u32) -> HolderNumber {
    HolderNumber::new(number).unwrap()
}

/// A holder that knows which holders are dead.
struct Mortal<'a> {
    number: HolderNumber,
    dead: &'a [HolderNumber],
}

impl Holder for Mortal<'_> {
    fn number(&self) -> HolderNumber {
        self.number
    }
    fn nap(&self) -> Option<Duration> {
        Some(Duration::from_micros(100))
    }
    fn is_dead(&self, number: HolderNumber) -> bool {
        self.dead.contains(&number)
    }
}

/// A holder that is handed the latch whenever it sleeps.
struct Strict(HolderNumber);

impl Holder for Strict {
    const LOSSES: u32 = 0;

    fn number(&self) -> HolderNumber {
        self.0
    }
}

/// Threads increment words under the latch in every way, and readers check that all words are
/// equal: no update is lost and no read is torn. With `bump` false it is the control.
fn stress<H: Holder + Sync>(holders: &[H], rounds: u64, bump: bool) -> Result<(), String> {
    let latch = OptLatch::new();
    let words: [AtomicU64; 16] = Default::default();
    let (added, torn, valid) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let add = || words.iter().for_each(|word| word.store(word.load(Relaxed) + 1, Relaxed));
    let one_state = || {
        let first = words[0].load(Relaxed);
        words.iter().rev().all(|word| word.load(Relaxed) == first)
    };
    std::thread::scope(|scope| {
        for (index, me) in holders.iter().enumerate() {
            let (latch, add, one_state) = (&latch, &add, &one_state);
            let (added, torn, valid) = (&added, &torn, &valid);
            scope.spawn(move || {
                for round in 0..rounds {
                    let soon = Deadline::after::<Native>(Duration::from_micros(round % 50));
                    let held = match (round + index as u64) % 8 {
                        0 => Some(latch.lock(me).unwrap()),
                        1 => latch.lock_until(me, soon).unwrap(),
                        2 => latch.try_lock(me),
                        3 => {
                            let version = latch.read(me).unwrap();
                            latch.try_upgrade(version, me)
                        }
                        4 => {
                            latch.lock(me).unwrap().unchanged();
                            None
                        }
                        5 => {
                            let share = latch.share_until(me, soon).unwrap();
                            if share.is_some() && !one_state() {
                                torn.fetch_add(1, Relaxed);
                            }
                            None
                        }
                        _ => {
                            for _ in 0..8 {
                                let version = latch.read(me).unwrap();
                                let one = one_state();
                                if latch.validate(version) {
                                    valid.fetch_add(1, Relaxed);
                                    torn.fetch_add(u64::from(!one), Relaxed);
                                }
                            }
                            None
                        }
                    };
                    if let Some(held) = held {
                        add();
                        added.fetch_add(1, Relaxed);
                        if bump { drop(held) } else { held.unchanged() }
                    }
                }
            });
        }
    });
    assert!(latch.holder().is_none() && valid.into_inner() > 0);
    let versions = latch.try_read().unwrap().get();
    let (added, torn) = (added.into_inner(), torn.into_inner());
    if torn != 0 || !one_state() || words[0].load(Relaxed) != added || versions != added {
        return Err(format!("{added} added, {versions} versions, {torn} torn, {words:?}"));
    }
    Ok(())
}

#[test]
fn no_update_is_lost_and_no_read_is_torn() {
    let local: Vec<_> = (1..=6).map(|n| LocalHolder::<Native>::new(number(n))).collect();
    stress(&local, 8_000, true).unwrap();
    let strict: Vec<_> = (1..=6).map(|n| Strict(number(n))).collect();
    stress(&strict, 4_000, true).unwrap();
    let mortal: Vec<_> = (1..=6).map(|n| Mortal { number: number(n), dead: &[] }).collect();
    stress(&mortal, 4_000, true).unwrap();
    let control: Vec<_> = (1..=6).map(|n| LocalHolder::<Native>::new(number(n))).collect();
    stress(&control, 4_000, false).expect_err("a latch without versions was not detected");
}

/// A release calls one sleeping thread; each of the others is called by the release of the one
/// before.
#[test]
fn sleeping_waiters_are_called_one_after_another() {
    const SLEEPERS: u32 = 5;
    let latch = std::sync::Arc::new(OptLatch::new());
    let (done, ended) = std::sync::mpsc::channel();
    let first = LocalHolder::<Native>::new(number(1));
    let held = latch.lock(&first).unwrap();
    for n in 2..2 + SLEEPERS {
        let (latch, done) = (latch.clone(), done.clone());
        std::thread::spawn(move || {
            drop(latch.lock(&LocalHolder::<Native>::new(number(n))).unwrap());
            done.send(n).unwrap();
        });
    }
    // Long enough for them to sleep; the test is weaker if they do not.
    std::thread::sleep(Duration::from_millis(100));
    drop(held);
    for came in 0..SLEEPERS {
        let other = ended.recv_timeout(Duration::from_secs(20));
        assert!(other.is_ok(), "{} were not called", SLEEPERS - came);
    }
}

/// All waiters, of every kind, learn of a dead writer. One repairs, and the others continue.
#[test]
fn a_dead_writer_is_detected_and_its_value_repaired() {
    let dead = [number(9)];
    let cell = OptCell::<[u64; 4], 4>::new([1; 4]);
    let repaired = AtomicU64::new(0);
    std::mem::forget(cell.latch().try_lock(&LocalHolder::<Native>::new(dead[0])).unwrap());
    std::thread::scope(|scope| {
        for n in 1..=6 {
            let (cell, dead, repaired) = (&cell, &dead, &repaired);
            scope.spawn(move || {
                let me = Mortal { number: number(n), dead };
                loop {
                    let ended = match n % 3 {
                        0 => cell.read(&me).map(drop),
                        1 => cell.update(&me, |words| words.map(|word| word + 1)),
                        _ => cell.latch().share(&me).map(drop),
                    };
                    match ended {
                        Ok(()) => return,
                        Err(died) => {
                            assert_eq!(died, HolderDied(dead[0]));
                            assert_eq!(died.to_string(), "holder 9 of a latch is dead");
                            let done = cell.repair(died, &me, |words| {
                                assert_eq!(words, [1; 4]);
                                [100; 4]
                            });
                            repaired.fetch_add(u64::from(done), Relaxed);
                        }
                    }
                }
            });
        }
    });
    assert_eq!(repaired.into_inner(), 1);
    let me = LocalHolder::new(number(1));
    assert_eq!(cell.read(&me), Ok([102; 4]), "two updates after the repair");
}

/// A dead sharer leaves only its number in the latch: writers continue without a repair.
#[test]
fn a_dead_sharer_blocks_no_writer() {
    let dead = [number(9)];
    let cell = OptCell::<u64, 1>::new(5);
    std::mem::forget(cell.latch().share(&LocalHolder::<Native>::new(dead[0])).unwrap());
    let me = Mortal { number: number(1), dead: &dead };
    assert_eq!(cell.read(&me), Ok(5), "a share must not block readers");
    assert!(cell.latch().try_lock(&me).is_none(), "a share must block writers");
    cell.update(&me, |value| value + 1).unwrap();
    assert_eq!(cell.read(&me), Ok(6));
    std::mem::forget(cell.latch().share(&LocalHolder::<Native>::new(dead[0])).unwrap());
    drop(cell.latch().share(&me).unwrap());
    assert!(cell.latch().holder().is_none());
    // A share that was wrongly taken for a dead holder's cannot be upgraded after a writer's
    // change.
    let stopped = LocalHolder::<Native>::new(dead[0]);
    let share = cell.latch().share(&stopped).unwrap();
    cell.update(&me, |value| value + 1).unwrap();
    assert!(share.upgrade().is_none());
    assert_eq!((cell.read(&me), cell.latch().holder()), (Ok(7), None));
}

/// A reader whose reads always fail takes a share in the end.
#[test]
fn a_reader_that_always_fails_takes_a_share() {
    let cell = OptCell::<u64, 1>::new(0);
    let (me, other) = (LocalHolder::new(number(1)), LocalHolder::new(number(2)));
    let mut looks = 0;
    let seen = cell.read_with(&me, |view| {
        looks += 1;
        // A writer in the middle of each read. While the reader holds the share, there is none.
        if let Some(held) = cell.latch().try_lock(&other) {
            drop(held);
        }
        view.get(0)
    });
    assert_eq!((seen, looks), (Ok(Some(0)), latchwork_latch::ATTEMPTS + 1));
    assert!(cell.latch().holder().is_none());
}

#[test]
fn waiting_for_oneself_is_an_error() {
    let latch = OptLatch::new();
    let me = LocalHolder::new(number(1));
    let _held = latch.try_lock(&me).unwrap();
    let twice = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(latch.lock(&me))));
    assert!(twice().is_err());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| latch.read(&me))).is_err());
    assert_eq!(latch.holder(), Some((number(1), true)), "the holder must keep the latch");
}

/// Values of other types are only made from validated words.
#[test]
fn a_value_is_created_from_validated_words() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Range {
        from: u64,
        to: u64,
    }
    impl Words<2> for Range {
        fn to_words(self) -> [u64; 2] {
            [self.from, self.to]
        }
        fn from_words([from, to]: [u64; 2]) -> Self {
            assert!(from <= to, "a range that was never stored");
            Self { from, to }
        }
    }
    let cell = OptCell::<Range, 2>::new(Range { from: 0, to: 0 });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (cell, done) = (&cell, &done);
        scope.spawn(move || {
            let me = LocalHolder::new(number(1));
            for n in 1..20_000 {
                let next = Range { from: n * 1_000, to: n * 1_000 + 5 };
                cell.update(&me, |_| next).unwrap();
            }
            done.store(true, Relaxed);
        });
        let me = LocalHolder::new(number(2));
        while !done.load(Relaxed) {
            let range = cell.read(&me).unwrap();
            assert!(range.to - range.from <= 5);
        }
    });
    assert_eq!(Version::new(cell.latch().try_read().unwrap().get()).get(), 19_999);
}

/// A waiter that was stopped may confuse a living sharer with a dead holder of the same number.
/// Then a writer gets the latch, and the sharer's read is not consistent.
#[test]
fn a_sharing_reader_checks_its_share() {
    let cell = OptCell::<u64, 1>::new(0);
    let (me, other) = (LocalHolder::new(number(1)), LocalHolder::new(number(2)));
    let mut looks = 0;
    let seen = cell.read_with(&me, |view| {
        looks += 1;
        if looks == latchwork_latch::ATTEMPTS + 1 {
            assert!(cell.latch().forget_sharer(number(1), &other));
        }
        if let Some(held) = cell.latch().try_lock(&other) {
            drop(held);
        }
        view.get(0)
    });
    assert_eq!((seen, looks), (Ok(Some(0)), latchwork_latch::ATTEMPTS + 2));
    assert!(cell.latch().holder().is_none());
}

/// A sharer whose number is removed from the latch during its release, by a waiter that takes it
/// for dead; and a writer gets in.
struct Replaced<'a> {
    writer: &'a Strict,
    /// How many more times the latch's name is requested before that.
    calls: Cell<i32>,
}

impl Holder for Replaced<'_> {
    fn number(&self) -> HolderNumber {
        number(1)
    }

    fn name(&self, latch: &OptLatch) -> u64 {
        self.calls.set(self.calls.get() - 1);
        if self.calls.get() == 0 {
            assert!(latch.forget_sharer(self.number(), self.writer));
            std::mem::forget(latch.lock(self.writer).unwrap());
        }
        self.writer.name(latch)
    }
}

/// A sharer does not hand the latch to a waiter while a writer holds it.
#[test]
fn a_sharer_does_not_hand_over_a_writers_latch() {
    let writer = Strict(number(3));
    // In the sharer's release, and when it hands the latch to the waiter.
    for calls in [1, 2] {
        let latch = OptLatch::new();
        let sharer = Replaced { writer: &writer, calls: Cell::new(0) };
        let share = latch.share(&sharer).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(latch.lock(&Strict(number(2))).unwrap()));
            while !format!("{latch:?}").contains("waiters: true") {
                std::thread::yield_now();
            }
            sharer.calls.set(calls);
            drop(share);
            let holder = latch.holder();
            drop(latch.take_over(writer.0, &LocalHolder::new(number(4))));
            waiter.join().unwrap();
            assert_eq!(holder, Some((writer.0, true)));
            assert!(sharer.calls.get() <= 0, "the name was requested less often");
        });
    }
}

#[test]
fn a_dead_sharers_number_is_removed_without_waiting() {
    let latch = OptLatch::new();
    let (dead, me) = (LocalHolder::<Native>::new(number(1)), LocalHolder::new(number(2)));
    let version = latch.try_read().unwrap();
    assert!(!latch.forget_sharer(number(1), &me), "the latch is free");
    std::mem::forget(latch.share(&dead).unwrap());
    assert!(latch.try_lock(&me).is_none());
    assert!(!latch.forget_sharer(number(3), &me), "another thread holds the share");
    // A waiter is called.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(latch.lock(&LocalHolder::new(number(4)))));
        while !format!("{latch:?}").contains("waiters: true") {
            std::thread::yield_now();
        }
        assert!(latch.forget_sharer(number(1), &me));
        waiter.join().unwrap();
    });
    assert!(!latch.validate(version) && !latch.is_locked());
    std::mem::forget(latch.lock(&dead).unwrap());
    assert!(!latch.forget_sharer(number(1), &me), "a writer must be repaired");
    assert_eq!(latch.holder(), Some((number(1), true)));
}

/// A holder with its own waiter slots.
struct Among(HolderNumber, Slots<'static, Scattered>);

impl Holder<Scattered> for Among {
    fn number(&self) -> HolderNumber {
        self.0
    }
    fn slots(&self, _: &OptLatch<Scattered>) -> Slots<'_, Scattered> {
        self.1
    }
}

/// The first waiter leaves while the others are examined, and waits for another latch when it is
/// called: the next waiter must be called as well.
#[test]
fn a_waiter_that_left_does_not_consume_a_call() {
    const READS: u32 = 1;
    const LOCKS: u32 = 3;
    let (table, memory): (&SlotTable<Scattered>, &[Slot<Scattered>]) =
        (Box::leak(Box::default()), Box::leak((0..9).map(|_| Slot::default()).collect()));
    let slots = Slots::new(table, memory);
    let (me, late) = (Among(number(1), slots), Among(number(9), slots));
    let latch = OptLatch::<Scattered>::default();
    let name = me.name(&latch);
    let waits = |since, mode, now| {
        let slot = slots.at(slots.mine());
        slot.latch.store(name, Relaxed);
        slot.place.store(since, Relaxed);
        slot.mode.store(mode, Relaxed);
        slot.next.store(1 + since as u32, Relaxed);
        slot.status.store(now, Relaxed);
        slot
    };
    let leaves = waits(1, LOCKS, status::ALONE);
    let reads = waits(2, READS, status::ALONE_PARKED);
    let stays = waits(3, LOCKS, status::ALONE);
    let held = latch.try_lock(&me).unwrap();
    // Marks in the latch that others wait.
    let past = Deadline { clock: Clock::Monotonic, at: 0 };
    assert!(latch.lock_until(&late, past).unwrap().is_none());
    Scattered::when_it_wakes(Box::new(move || leaves.latch.store(name + 64, Relaxed)));
    drop(held);
    assert_eq!(reads.status.load(Relaxed), status::GRANTED);
    assert_eq!(stays.status.load(Relaxed), status::GRANTED, "no waiter was called");
    Scattered::set_chain(&slots, 0);
}
