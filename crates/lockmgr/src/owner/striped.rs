//! Ranges of a striped keyspace: a claim in each stripe that the range meets, taken in the order of
//! keys. See `range/stripes.rs`.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::handle::Owner;
use crate::options::Wait;
use crate::range::kinds::{KeyRange, RangeKind, Span};
use crate::range::stripes::Stripes;

impl<M: ConstMachine> Owner<'_, M> {
    /// Locks a range of a striped keyspace, waiting as `wait` says: as
    /// [`lock_range`](Self::lock_range) does, with a claim and a latch in each stripe that the
    /// range meets. Every operation that releases ranges releases these claims, each by itself.
    ///
    /// A range over several stripes is not locked at one instant. While the request waits in one
    /// stripe it holds its claims in the earlier ones; deadlocks through these claims are detected.
    /// A request that fails releases them, after other owners may have waited for them. Each claim
    /// counts as one lock of its owner. If the owner already holds a part in this kind, as a part
    /// of another range, that claim is counted again. The cost is that of one range per stripe.
    ///
    /// # Errors
    ///
    /// The errors of [`lock_range`](Self::lock_range). At an error no additional part of the range
    /// is held.
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

    /// Releases a striped range once, by the same range and kind; the last release frees it.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if a part of it is not held; the errors of
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

    /// Returns how often the owner locked the whole range in this kind, or `None` if it does not
    /// hold all of it.
    ///
    /// # Errors
    ///
    /// The errors of [`holds_range`](Self::holds_range).
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
