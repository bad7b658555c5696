//! Ranges of a keyspace that has stripes: a claim in each stripe that a range meets, taken in the
//! order of keys. See `range/stripes.rs`.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::handle::Owner;
use crate::options::Wait;
use crate::range::kinds::{KeyRange, RangeKind, Span};
use crate::range::stripes::Stripes;

impl<M: ConstMachine> Owner<'_, M> {
    /// Takes a lock on a range of a keyspace that has stripes, waiting as told: as
    /// [`lock_range`](Self::lock_range), with a claim, and a latch, in each stripe that the range
    /// meets. All that releases ranges releases these, each claim by itself.
    ///
    /// A range over several stripes is not taken at one instant. While it waits in one stripe it
    /// has those before, and deadlocks through them are found as any are; a request that fails
    /// gives them back, and meanwhile others may have met them. Each claim is one lock of its
    /// owner. A part that the owner has already in this kind, as a part of another range, is
    /// counted there. Costs as many times a range as it meets stripes.
    ///
    /// # Errors
    ///
    /// As for `lock_range`. Then of this range nothing is held that was not held before.
    pub fn lock_striped(
        &self,
        stripes: &Stripes,
        range: KeyRange<'_>,
        kind: RangeKind,
        wait: Wait,
    ) -> Result<(), Error> {
        let span = Span::of(range)?;
        for (taken, (keyspace, part)) in stripes.parts(&span).enumerate() {
            let end = self.request_span(keyspace, &part, kind, wait).and_then(|r| r.finish());
            if let Err(error) = end {
                let before = stripes.parts(&span).take(taken);
                for (keyspace, part) in before {
                    self.unlock_span(keyspace, &part, kind)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives such a range back once, by the same range and kind; the last time releases it.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if a part of it is not held; others as for
    /// [`unlock_range`](Self::unlock_range).
    pub fn unlock_striped(
        &self,
        stripes: &Stripes,
        range: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<(), Error> {
        let span = Span::of(range)?;
        if stripes.parts(&span).nth(1).is_some()
            && self.holds_striped(stripes, range, kind)?.is_none()
        {
            return Err(Error::NotHeld);
        }
        let mut parts = stripes.parts(&span);
        parts.try_for_each(|(keyspace, part)| self.unlock_span(keyspace, &part, kind))
    }

    /// Whether an owner holds all of such a range in this kind, and how often it took it.
    ///
    /// # Errors
    ///
    /// As for [`holds_range`](Self::holds_range).
    pub fn holds_striped(
        &self,
        stripes: &Stripes,
        range: KeyRange<'_>,
        kind: RangeKind,
    ) -> Result<Option<u32>, Error> {
        let span = Span::of(range)?;
        let mut least = None;
        for (keyspace, part) in stripes.parts(&span) {
            let Some(count) = self.holds_span(keyspace, &part, kind)? else { return Ok(None) };
            least = Some(least.map_or(count, |least: u32| least.min(count)));
        }
        Ok(least)
    }
}
