//! What an owner does with the ranges that it holds: weaker kinds, other owners, parts and wholes;
//! and what a writer asks before it looks.
//!
//! All of it is made of locks and unlocks of the owner's own claims, in an order that leaves no
//! window: the new claim is held before the old one goes. What an owner holds stops no claim of its
//! own, and a waiting request that what it holds stops is passed by (rule 2 of `range/claims.rs`),
//! so the new claim is had at once wherever the old one said at least as much.
//!
//! A claim is on keys, not on pages or records: when a page splits, or a key goes, it covers what
//! it covered. To part a claim and to join two is for an owner that wants to give a part of it
//! back.

use core::time::Duration;

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::handle::Owner;
use crate::options::Wait;
use crate::range::cells::ticket;
use crate::range::kinds::{KeyRange, RangeKind};

impl<M: ConstMachine> Owner<'_, M> {
    /// Takes a lock on a range if that is possible at once.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranted`]; others as for [`lock_range`](Self::lock_range).
    pub fn try_lock_range(
        &self,
        keyspace: &[u8],
        range: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<(), Error> {
        self.lock_range(keyspace, range, kind, Wait::Never)
    }

    /// Takes a lock on a range, or gives up after a while.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`]; others as for [`lock_range`](Self::lock_range).
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

    /// Exchanges the kind of a held range for a weaker one, with its count. The owners that wait
    /// for it look again.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if the range is not held in the kind `held`, or if that does not
    /// [cover](RangeKind::covers) `kind`; others as for [`try_lock_range`](Self::try_lock_range).
    /// Then it is held as before.
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

    /// Parts a held range in two, at a key that begins the second one: both are held in its kind,
    /// with its count.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`]; [`Error::EmptyRange`] if the key is not inside the range; others as for
    /// [`try_lock_range`](Self::try_lock_range). Then it is held as before.
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

    /// Joins two held ranges, of which the second begins where the first ends: the whole is held in
    /// their kind, as often as the one that was taken more often.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if one of them is not held in this kind, or they do not meet; others as
    /// for [`try_lock_range`](Self::try_lock_range). Then they are held as before.
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

    /// Takes a range so many times, or not at all.
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

    /// Gives a held range to another owner of the same session, with its count; no third owner can
    /// come in between. If that one holds the same range in the same kind it has two claims then,
    /// and gives each back by itself.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`]; others as for [`trade`](Self::trade), and as for
    /// [`holds_range`](Self::holds_range). Then it is held as before.
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
