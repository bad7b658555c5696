//! What a holder of an [`OptLatch`] has in hand.

use core::fmt;
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering::{Relaxed, Release};

use latchwork_machine::{Machine, Native, Word};

use super::{CALLS, CHANGE, EXCLUSIVE, Holder, OptLatch, VERSION, Version};

/// Exclusive possession. Dropped, it counts a change and releases the latch.
///
/// Forgotten, it leaves the latch held; [`OptLatch::take_over`] finds it again.
#[must_use = "dropped at once, it guards nothing"]
pub struct Exclusive<'a, H: Holder<M>, M: Machine = Native> {
    latch: &'a OptLatch<M>,
    holder: &'a H,
    /// The latch's word, without waiters.
    held: u64,
}

impl<'a, H: Holder<M>, M: Machine> Exclusive<'a, H, M> {
    #[inline]
    pub(super) fn new(latch: &'a OptLatch<M>, holder: &'a H, held: u64) -> Self {
        // Release: synchronizes with the Acquire fence in `validate`: who reads a word that is
        // stored from here on sees that the latch is held, or has been.
        M::fence(Release);
        Self { latch, holder, held }
    }

    /// The version that the data had before this possession.
    pub fn version(&self) -> Version {
        Version(self.held & VERSION)
    }

    /// Releases the latch and restores its version: readers who began before go on as if nothing
    /// had been. **The caller has stored nothing to the data**, or the same bytes.
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

/// A share, which keeps writers out. Dropped, it releases the latch.
#[must_use = "dropped at once, it keeps nobody out"]
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

    /// The version of the data.
    pub fn version(&self) -> Version {
        Version(self.held & VERSION)
    }

    /// Makes of the share exclusive possession: no writer comes in between. None if one has, for a
    /// waiter that was stopped took this share for that of the slot's last owner, which is dead.
    pub fn upgrade(self) -> Option<Exclusive<'a, H, M>> {
        let this = ManuallyDrop::new(self);
        let held = this.held | EXCLUSIVE;
        let mut seen = this.held;
        loop {
            // Relaxed: the share has synchronized with the last holder, and for readers there is
            // the fence in `Exclusive::new`.
            match this.latch.word.compare_exchange(seen, held | seen & CALLS, Relaxed, Relaxed) {
                Ok(_) => return Some(Exclusive::new(this.latch, this.holder, held)),
                // Somebody waits, or waited: so much may differ.
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
