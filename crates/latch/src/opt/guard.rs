//! The guards of an [`OptLatch`].

use core::fmt;
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering::{Relaxed, Release};

use latchwork_machine::{Machine, Native, Word};

use super::{CALLS, CHANGE, EXCLUSIVE, Holder, OptLatch, VERSION, Version};

/// Exclusive possession. Dropping it counts a change and releases the latch.
///
/// Forgetting it (`mem::forget`) leaves the latch held; [`OptLatch::take_over`] returns its guard
/// again.
#[must_use = "dropped immediately, it guards nothing"]
pub struct Exclusive<'a, H: Holder<M>, M: Machine = Native> {
    latch: &'a OptLatch<M>,
    holder: &'a H,
    /// The latch's word, without the bits of waiters.
    held: u64,
}

impl<'a, H: Holder<M>, M: Machine> Exclusive<'a, H, M> {
    #[inline]
    pub(super) fn new(latch: &'a OptLatch<M>, holder: &'a H, held: u64) -> Self {
        // Release: synchronizes with the Acquire fence in `validate`: a reader that reads a word
        // stored from here on sees that the latch is held, or was.
        M::fence(Release);
        Self { latch, holder, held }
    }

    /// Returns the version that the data had before this possession.
    pub fn version(&self) -> Version {
        Version(self.held & VERSION)
    }

    /// Releases the latch and restores its version: readers that began before are not invalidated.
    /// **The caller must not have stored anything to the data**, except the same bytes.
    #[inline]
    pub fn unchanged(self) {
        let this = ManuallyDrop::new(self);
        this.latch.release(this.held, this.held & VERSION, this.holder);
    }
}

impl<H: Holder<M>, M: Machine> Drop for Exclusive<'_, H, M> {
    #[inline]
    fn drop(&mut self) {
        self.latch.release(self.held, (self.held & VERSION).wrapping_add(CHANGE), self.holder);
    }
}

impl<H: Holder<M>, M: Machine> fmt::Debug for Exclusive<'_, H, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exclusive").field(self.latch).finish()
    }
}

/// A share, which keeps writers out. Dropping it releases the latch.
#[must_use = "dropped immediately, it keeps no writer out"]
pub struct Share<'a, H: Holder<M>, M: Machine = Native> {
    latch: &'a OptLatch<M>,
    holder: &'a H,
    held: u64,
}

impl<'a, H: Holder<M>, M: Machine> Share<'a, H, M> {
    #[inline]
    pub(super) fn new(latch: &'a OptLatch<M>, holder: &'a H, held: u64) -> Self {
        debug_assert!(held & EXCLUSIVE == 0);
        Self { latch, holder, held }
    }

    /// Returns the version of the data.
    pub fn version(&self) -> Version {
        Version(self.held & VERSION)
    }

    /// Upgrades the share to exclusive possession; no writer gets in between. Returns `None` if a
    /// writer did, because a waiter that had stopped mistook this share for that of the slot's last
    /// owner, which is dead.
    pub fn upgrade(self) -> Option<Exclusive<'a, H, M>> {
        let this = ManuallyDrop::new(self);
        let held = this.held | EXCLUSIVE;
        let mut seen = this.held;
        loop {
            // Relaxed: the share has synchronized with the last holder, and the fence in
            // `Exclusive::new` serves readers.
            match this.latch.word.compare_exchange(seen, held | seen & CALLS, Relaxed, Relaxed) {
                Ok(_) => return Some(Exclusive::new(this.latch, this.holder, held)),
                // Waiters may have set or cleared their bits.
                Err(now) if now != seen && now & !CALLS == this.held => seen = now,
                Err(_) => return None,
            }
        }
    }
}

impl<H: Holder<M>, M: Machine> Drop for Share<'_, H, M> {
    #[inline]
    fn drop(&mut self) {
        self.latch.release(self.held, self.held & VERSION, self.holder);
    }
}

impl<H: Holder<M>, M: Machine> fmt::Debug for Share<'_, H, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Share").field(self.latch).finish()
    }
}
