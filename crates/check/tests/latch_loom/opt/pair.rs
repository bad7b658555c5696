//! The common parts of the models of the optimistic latch: two words that are always equal.

use std::sync::atomic::Ordering::{self, Relaxed};

use latchwork_check::Loom;
use latchwork_latch::{Holder, HolderNumber, OptLatch};
use latchwork_machine::{Chain, Clock, Deadline, Level, Machine, Place, Slots, Waited, Word};
use loom::cell::UnsafeCell;

pub(crate) fn number(number: u32) -> HolderNumber {
    HolderNumber::new(number).unwrap()
}

/// A holder in a model, created from its number.
pub(crate) trait Me: Holder<Loom> {
    fn new(number: u32) -> Self;
}

/// A holder that may lose as often as usual.
pub(crate) struct Patient(HolderNumber);
/// A holder that is handed the latch whenever it waits, so that models reach that state.
pub(crate) struct Strict(HolderNumber);

impl Patient {
    pub(crate) fn new(number: u32) -> Self {
        Self(self::number(number))
    }
}

impl Strict {
    pub(crate) fn new(number: u32) -> Self {
        Self(self::number(number))
    }
}

impl Me for Patient {
    fn new(number: u32) -> Self {
        Self::new(number)
    }
}

impl Me for Strict {
    fn new(number: u32) -> Self {
        Self::new(number)
    }
}

impl<M: Machine> Holder<M> for Patient {
    fn number(&self) -> HolderNumber {
        self.0
    }
}

impl<M: Machine> Holder<M> for Strict {
    const LOSSES: u32 = 0;

    fn number(&self) -> HolderNumber {
        self.0
    }
}

/// Two words, and a cell that loom checks, under a latch.
pub(crate) struct Pair<M: Machine> {
    pub(crate) latch: OptLatch<M>,
    words: [M::AtomicU64; 2],
    watched: UnsafeCell<u64>,
}

// SAFETY: the latch guards the cell, and loom fails otherwise.
unsafe impl<M: Machine> Sync for Pair<M> {}

impl<M: Machine> Default for Pair<M> {
    fn default() -> Self {
        let words = [M::AtomicU64::default(), M::AtomicU64::default()];
        Self { latch: OptLatch::default(), words, watched: UnsafeCell::new(0) }
    }
}

impl<M: Machine> Pair<M> {
    /// Needs exclusive access; loom fails otherwise.
    pub(crate) fn add(&self) {
        let next = self.words[0].load(Relaxed) + 1;
        self.words[0].store(next, Relaxed);
        self.words[1].store(next, Relaxed);
        // SAFETY: loom fails if another thread accesses it.
        self.watched.with_mut(|watched| unsafe { *watched = next });
    }

    /// Needs that no thread writes; loom fails otherwise.
    pub(crate) fn get(&self) -> u64 {
        // SAFETY: loom fails if another thread writes it.
        let watched = self.watched.with(|watched| unsafe { *watched });
        assert_eq!(self.words(), [watched; 2], "the words differ");
        watched
    }

    pub(crate) fn words(&self) -> [u64; 2] {
        [self.words[0].load(Relaxed), self.words[1].load(Relaxed)]
    }

    pub(crate) fn write<H: Holder<M>>(&self, me: &H) {
        let held = self.latch.lock(me).unwrap();
        self.get();
        self.add();
        drop(held);
    }

    pub(crate) fn write_until<H: Holder<M>>(&self, me: &H, deadline: Deadline) {
        if let Some(_held) = self.latch.lock_until(me, deadline).unwrap() {
            self.add();
        }
    }

    /// Locks, reads, and changes nothing.
    pub(crate) fn look<H: Holder<M>>(&self, me: &H) {
        let held = self.latch.lock(me).unwrap();
        self.get();
        held.unchanged();
    }

    /// Tries to read. Returns false if a writer was in the way.
    pub(crate) fn try_read(&self) -> bool {
        let Some(version) = self.latch.try_read() else { return false };
        let [a, b] = self.words();
        let valid = self.latch.validate(version);
        if valid {
            assert_eq!(a, b, "a reader saw two states");
            assert_eq!(a, version.get(), "a reader saw a state of another version");
        }
        valid
    }

    pub(crate) fn read<H: Holder<M>>(&self, me: &H) {
        let version = self.latch.read(me).unwrap();
        let [a, b] = self.words();
        if self.latch.validate(version) {
            assert_eq!(a, b, "a reader saw two states");
        }
    }

    pub(crate) fn share<H: Holder<M>>(&self, me: &H) {
        let share = self.latch.share(me).unwrap();
        assert_eq!(self.get(), share.version().get());
    }

    /// Shares, reads, upgrades and adds: no thread gets in between.
    pub(crate) fn share_and_add<H: Holder<M>>(&self, me: &H) {
        let share = self.latch.share(me).unwrap();
        let seen = self.get();
        let _held = share.upgrade().expect("the share belongs to this thread");
        assert_eq!(self.get(), seen, "the state changed before the upgrade");
        self.add();
    }

    pub(crate) fn share_until<H: Holder<M>>(&self, me: &H, deadline: Deadline) {
        if let Some(_share) = self.latch.share_until(me, deadline).unwrap() {
            self.get();
        }
    }

    /// Reads, and adds if the state is unchanged.
    pub(crate) fn upgrade<H: Holder<M>>(&self, me: &H) -> bool {
        let version = self.latch.read(me).unwrap();
        let [seen, _] = self.words();
        let Some(_held) = self.latch.try_upgrade(version, me) else { return false };
        assert_eq!(self.get(), seen, "the state changed before the upgrade");
        self.add();
        true
    }

    /// Takes over from a dead holder and repairs, or waits for the thread that did.
    pub(crate) fn inherit<H: Holder<M>>(&self, dead: HolderNumber, me: &H) -> bool {
        match self.latch.take_over(dead, me) {
            Some(_held) => {
                self.add();
                true
            }
            None => {
                self.look(me);
                false
            }
        }
    }
}

/// A holder other than any thread's of a model.
pub(crate) static FIRST: &Patient = &Patient(HolderNumber::new(1).unwrap());

/// Loom without fences: a control. No thread waits on it.
#[derive(Default)]
pub(crate) struct Fenceless;

impl Machine for Fenceless {
    type AtomicU8 = <Loom as Machine>::AtomicU8;
    type AtomicU16 = <Loom as Machine>::AtomicU16;
    type AtomicU32 = <Loom as Machine>::AtomicU32;
    type AtomicU64 = <Loom as Machine>::AtomicU64;

    const SPIN_NS: u64 = 0;

    fn fence(_: Ordering) {}
    fn light_barrier() {}
    fn heavy_barrier() -> bool {
        true
    }
    fn relax() {}
    fn yield_now() {}
    fn wait(_: &Self::AtomicU32, _: u32, _: Option<Deadline>) -> Waited {
        unreachable!("no thread waits")
    }
    fn wake(_: &Self::AtomicU32) {}
    fn now(_: Clock) -> u64 {
        0
    }
    fn place() -> Place {
        Place::UNKNOWN
    }
    fn spread(_: Level) -> bool {
        false
    }
    fn slots<'a>(_: *const Self::AtomicU32) -> Slots<'a, Self> {
        unreachable!("no thread waits")
    }
    fn chain(_: &Slots<'_, Self>) -> Chain {
        0
    }
    fn set_chain(_: &Slots<'_, Self>, _: Chain) {}
}
