//! Changes of ranges that an owner holds: weaker kinds, transfers, splits and merges.
//!
//! Each change is made of locks and unlocks of the owner's own claims, in an order that leaves no
//! gap: the new claim is held before the old one is released. An owner's claims do not conflict
//! with each other, and a request ignores a waiting claim that is blocked by one of its own (rule 2
//! of `range/claims.rs`). So the new claim is granted immediately if the old one covered it.
//!
//! A claim covers keys, not pages or records: a page split or the removal of a key does not change
//! it. Splitting and merging claims serves an owner that wants to release a part of a range.

use core::time::Duration;

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::handle::Owner;
use crate::options::Wait;
use crate::range::cells::ticket;
use crate::range::kinds::{KeyRange, RangeKind};

impl<M: ConstMachine> Owner<'_, M> {
    /// Locks a range if that is possible without waiting.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranted`], and the errors of [`lock_range`](Self::lock_range).
    pub fn try_lock_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<(), Error> {
        self.lock_range(keyspace, range, kind, Wait::Never)
    }

    /// Locks a range, or fails after a timeout.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], and the errors of [`lock_range`](Self::lock_range).
    pub fn lock_range_timeout(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
        wait: Duration,
    ) -> Result<(), Error> {
        let deadline = self.memory.after(wait);
        self.lock_range(keyspace, range, kind, Wait::Until(deadline))
    }

    /// Replaces the kind of a held range by a weaker one, with the same count. Owners that wait for
    /// the range search again.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if the range is not held in the kind `held`, or if that does not
    /// [cover](RangeKind::covers) `kind`; the errors of [`try_lock_range`](Self::try_lock_range).
    /// At an error the range is held as before.
    pub fn downgrade_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        held: RangeKind,
        kind: RangeKind,
    ) -> Result<(), Error> {
        if held == kind || !held.covers(kind) {
            let same = held == kind && self.holds_range(keyspace, range, held)?.is_some();
            return if same { Ok(()) } else { Err(Error::NotHeld) };
        }
        let count = self.holds_range(keyspace, range, held)?.ok_or(Error::NotHeld)?;
        self.take_range(keyspace, range, kind, count)?;
        self.drop_range(keyspace, range, held, count)
    }

    /// Splits a held range in two, at the first key of the second part. Both parts are held in its
    /// kind and with its count.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`]; [`Error::EmptyRange`] if the key is not inside the range; the errors of
    /// [`try_lock_range`](Self::try_lock_range). At an error the range is held as before.
    pub fn split_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
        at: &[u8],
    ) -> Result<(), Error> {
        use core::ops::Bound::{Excluded, Included};

        let parts = [
            KeyRange { from: range.from, to: Excluded(at) },
            KeyRange { from: Included(at), to: range.to },
        ];
        let count = self.holds_range(keyspace, range, kind)?.ok_or(Error::NotHeld)?;
        self.take_range(keyspace, parts[0], kind, count)?;
        if let Err(error) = self.take_range(keyspace, parts[1], kind, count) {
            self.drop_range(keyspace, parts[0], kind, count)?;
            return Err(error);
        }
        self.drop_range(keyspace, range, kind, count)
    }

    /// Merges two held ranges, if the second begins where the first ends. The merged range is held
    /// in their kind, with the larger of their counts.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if one of them is not held in this kind, or if they are not adjacent; the
    /// errors of [`try_lock_range`](Self::try_lock_range). At an error the ranges are held as
    /// before.
    pub fn merge_ranges(
        &self,
        keyspace: &[u8],
        first: KeyRange<'_>,
        second: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<(), Error> {
        if !first.meets(second)? {
            return Err(Error::NotHeld);
        }
        let before = self.holds_range(keyspace, first, kind)?.ok_or(Error::NotHeld)?;
        let after = self.holds_range(keyspace, second, kind)?.ok_or(Error::NotHeld)?;
        let whole = KeyRange { from: first.from, to: second.to };
        self.take_range(keyspace, whole, kind, before.max(after))?;
        self.drop_range(keyspace, first, kind, before)?;
        self.drop_range(keyspace, second, kind, after)
    }

    /// Locks a range `count` times, or not at all.
    fn take_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
        count: u32,
    ) -> Result<(), Error> {
        for taken in 0..count {
            if let Err(error) = self.try_lock_range(keyspace, range, kind) {
                self.drop_range(keyspace, range, kind, taken)?;
                return Err(error);
            }
        }
        Ok(())
    }

    fn drop_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
        count: u32,
    ) -> Result<(), Error> {
        (0..count).try_for_each(|_| self.unlock_range(keyspace, range, kind))
    }

    /// Transfers a held range to another owner of the same session, with its count. No third owner
    /// can get it in between. If the other owner holds the same range in the same kind, it then has
    /// two claims and releases each by itself.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`]; the errors of [`trade`](Self::trade) and of
    /// [`holds_range`](Self::holds_range). At an error the range is held as before.
    pub fn trade_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
        to: &Owner<'_, M>,
    ) -> Result<(), Error> {
        let memory = self.memory;
        if !core::ptr::eq(memory, to.memory) {
            return Err(Error::Family);
        }
        self.at_rest()?;
        to.at_rest()?;
        let id = self.held_claim(keyspace, range, kind)?.ok_or(Error::NotHeld)?;
        if self.index == to.index {
            return Ok(());
        }
        let name = ticket(memory.region(), id.0, id.1);
        let spot = memory.spot(memory.named(&name)?.hash);
        let latched = memory.latch(spot.partition)?;
        let at = self.find_held(&latched, &memory.named(&name)?, spot)?;
        drop(latched);
        if at.is_null() {
            return Err(Error::NotHeld);
        }
        let handed_over = self.hand_over_range(at, to)?;
        self.trade(&name, to)?;
        handed_over.stays();
        self.count_down();
        Ok(())
    }
}
