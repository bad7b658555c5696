//! Reads at a position of the log, without locks of transactions.

use core::ops::{Bound, RangeBounds};

use latchwork_tree::{Batch, Header};

use crate::Error;
use crate::engine::{Engine, Version};
use crate::long::{PIECES, whole};
use crate::seen::View;
use crate::stamp::Stamp;

/// The callback of a scan, called with each key and value. The scan continues while it returns
/// `true`.
pub type EachRecord<'e> = dyn FnMut(&[u8], &[u8]) -> Result<bool, Error> + 'e;

/// The state of all tables at one position of the log. That is the state between two transactions
/// of a serial order.
///
/// A snapshot holds no lock. The log's history from its position on is kept until it is dropped. If
/// its process dies, the sweep of the slot releases it.
pub struct Snapshot<'e, E: Engine> {
    engine: &'e E,
    slot: u16,
    view: View,
}

impl<'e, E: Engine> Snapshot<'e, E> {
    /// Takes a snapshot for the thread that has this slot. A slot has one snapshot at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`].
    pub fn new(engine: &'e E, slot: u16) -> Result<Self, Error> {
        let (at, low) = engine.remember(slot)?;
        Ok(Self { engine, slot, view: View::new(at, low) })
    }

    /// Takes a snapshot that contains all commits, durable or not; `None` if the slot has another
    /// one.
    pub(crate) fn newest(engine: &'e E, slot: u16) -> Result<Option<Self>, Error> {
        let taken = engine.remember_newest(slot)?;
        Ok(taken.map(|(at, low)| Self { engine, slot, view: View::new(at, low) }))
    }

    /// Returns whether the newest version of a record, of any transaction, is the one that this
    /// snapshot sees. Replaces the contents of `value`.
    pub(crate) fn is_newest(
        &self,
        tree: u32,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        self.view.sees(self.engine.newest(tree, key, value)?.stamp, self.engine)
    }

    /// Moves the snapshot up, so that it contains all commits up to a position, durable or not.
    pub(crate) fn moved_up(mut self, to: u64) -> Self {
        self.view = View::new(self.view.at.max(to), self.view.low);
        self
    }

    /// Looks up the last commits of all slots below this number. Called for a snapshot object:
    /// later the lookup takes longer, or the log no longer contains them.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`].
    pub(crate) fn learn(&self, slots: u32) -> Result<(), Error> {
        let slots = (0..slots).filter_map(|slot| u16::try_from(slot).ok());
        slots.into_iter().try_for_each(|slot| self.view.learn(slot, self.engine))
    }

    /// Returns its position in the log.
    pub fn at(&self) -> u64 {
        self.view.at
    }

    /// Reads a record into `value`, replacing its contents. Returns whether the record exists.
    /// O(log n), and one read of the log for each newer version.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`], [`Error::Engine`].
    #[inline]
    pub fn get_into(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let there = self.record(tree, key, value)?;
        if there {
            self.whole(tree, key, value)?;
        }
        Ok(there)
    }

    /// Reads a record as stored in the tree, now or at the snapshot's position.
    #[inline]
    fn record(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let newest = self.engine.newest(tree, key, value)?;
        match self.view.sees(newest.stamp, self.engine)? {
            true => Ok(newest.there),
            false => self.older(tree, key, newest, value),
        }
    }

    /// Completes a record's value if it is a long one.
    #[inline]
    fn whole(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<(), Error> {
        let max = self.engine.record_max();
        whole(max, (tree, key), value, &mut |key, piece| self.record(PIECES, key, piece))
    }

    /// Reads a record; see [`get_into`](Self::get_into).
    ///
    /// # Errors
    ///
    /// Those of [`get_into`](Self::get_into).
    #[cfg(feature = "internals")]
    pub fn get_raw(&self, tree: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(tree, key, &mut value)?.then_some(value))
    }

    /// Goes back from a version that this snapshot does not see, whose value is in `value`, to a
    /// visible version.
    #[cold]
    fn older(
        &self,
        tree: u32,
        key: &[u8],
        mut version: Version,
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        while !self.view.sees(version.stamp, self.engine)? {
            let before = self.engine.before(tree, key, version.stamp, value);
            version = before.map_err(|why| match why {
                Error::SnapshotTooOld { .. } => Error::SnapshotTooOld { at: self.view.at },
                other => other,
            })?;
        }
        Ok(version.there)
    }

    /// Reads some records of a range as this snapshot sees them, the first ones or the last ones.
    /// Records that do not exist in the snapshot are ghosts.
    pub(crate) fn some(
        &self,
        tree: u32,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        back: bool,
        limit: usize,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let start = if back { range.1 } else { range.0 };
        if !batch.take_left()? {
            if !batch.go_on(back, limit) {
                self.engine.scan(tree, start, back, limit, batch)?;
            }
            if batch.is_to_pass() {
                let end = if back { range.0 } else { range.1 };
                if end == Bound::Unbounded
                    || batch.last_to_pass().is_some_and(|key| is_inside(key, range, back))
                {
                    return Ok(());
                }
                batch.take_left()?;
            }
        }
        cut(batch, range, back);
        let max = self.engine.record_max();
        // Usually all are visible, and none is a long value.
        if batch.newest() < self.view.low && batch.longest() < max {
            return Ok(());
        }
        let (mut from, mut value) = (0, Vec::new());
        // If the lookup fails, `see` reports the error.
        let is_seen = |header| self.view.sees(stamp(header), self.engine).is_ok_and(|seen| seen);
        while let Some(index) =
            batch.position(from, |header, bytes| !is_seen(header) || bytes == max)
        {
            self.see(tree, index, &mut value, batch)?;
            if value.len() > AHEAD {
                batch.stop_behind(index, back);
            }
            from = index + 1;
        }
        Ok(())
    }

    /// Replaces a record of a batch by the version that this snapshot sees.
    #[cold]
    fn see(
        &self,
        tree: u32,
        index: usize,
        value: &mut Vec<u8>,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let Some(row) = batch.get(index) else { return Ok(()) };
        let newest = Version { stamp: stamp(row.header), there: !row.ghost };
        row.value.clone_into(value);
        let there = match self.view.sees(newest.stamp, self.engine)? {
            true => newest.there,
            false => self.older(tree, row.key, newest, value)?,
        };
        if there {
            self.whole(tree, row.key, value)?;
        }
        batch.replace(index, there.then_some(&value[..]));
        Ok(())
    }

    /// Calls `each` for the records of a range, in order or backwards, until it returns `false`.
    /// O(log n) for each batch of records.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`], [`Error::Engine`]; what `each` returns.
    pub fn scan_raw<'k>(
        &self,
        tree: u32,
        range: impl RangeBounds<&'k [u8]>,
        back: bool,
        each: &mut EachRecord<'_>,
    ) -> Result<(), Error> {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        let mut batch = self.engine.spare();
        batch.set_to_pass();
        let plain = Some((self.view.low, self.engine.record_max()));
        let fetch: &mut Fetch<'_> =
            &mut |range, limit, batch| self.some(tree, range, back, limit, batch);
        let walked = walk(range, back, &mut batch, plain, fetch, each);
        self.engine.keep(batch);
        walked
    }
}

fn stamp(header: Header) -> Stamp {
    Stamp::from_word(header.to_bits())
}

impl<E: Engine> Drop for Snapshot<'_, E> {
    fn drop(&mut self) {
        self.engine.forget(self.slot);
    }
}

/// How many records a scan reads from a leaf at first; later reads are larger.
pub(crate) const FEW: usize = 16;

/// A scan does not read ahead beyond a value of more bytes: the caller may stop there, and only one
/// such value is in memory at a time.
pub(crate) const AHEAD: usize = 64 << 10;

/// The rest of a scan's range.
pub(crate) type Slices<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// Reads up to a number of records of a range.
pub(crate) type Fetch<'f> = dyn FnMut(Slices<'_>, usize, &mut Batch) -> Result<(), Error> + 'f;

/// Calls `each` for the existing records of a range, until it returns `false`. `batch` is a buffer.
/// Records that were written before the first number of `plain`, and are shorter than the second,
/// are passed to `each` directly from the page, if the batch allows it.
pub(crate) fn walk(
    range: Slices<'_>,
    back: bool,
    batch: &mut Batch,
    plain: Option<(u64, usize)>,
    fetch: &mut Fetch<'_>,
    each: &mut EachRecord<'_>,
) -> Result<(), Error> {
    let mut passed = 0;
    let mut next: Option<Vec<u8>> = None;
    loop {
        let left = match (&next, back) {
            (None, _) => range,
            (Some(next), false) => (Bound::Included(&next[..]), range.1),
            (Some(next), true) => (range.0, Bound::Excluded(&next[..])),
        };
        let wanted = batch.wanted(passed);
        fetch(left, wanted, batch)?;
        let mut goes_on = true;
        if let Some(plain) = plain.filter(|_| batch.is_to_pass()) {
            goes_on = batch.pass(plain, &mut passed, each)?;
            if goes_on && batch.is_to_pass() {
                // The next record cannot be passed directly, so read it and the following ones.
                fetch(left, wanted, batch)?;
            }
        }
        for row in batch.iter() {
            passed += 1;
            if !row.ghost && !each(row.key, row.value)? {
                goes_on = false;
                break;
            }
        }
        batch.set_passed(passed);
        let Some(from) = batch.next().filter(|_| goes_on) else { return Ok(()) };
        let next = next.get_or_insert_default();
        next.clear();
        next.extend_from_slice(from);
    }
}

/// Returns whether a key lies before the end of a range.
fn is_inside(key: &[u8], range: Slices<'_>, back: bool) -> bool {
    match back {
        false => match range.1 {
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
            Bound::Unbounded => true,
        },
        true => match range.0 {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        },
    }
}

/// Cuts a batch at the end of the range.
pub(crate) fn cut(batch: &mut Batch, range: Slices<'_>, back: bool) {
    let inside = |key: &[u8]| is_inside(key, range, back);
    // They are in order: if the last one is inside, all are.
    let Some(last) = batch.len().checked_sub(1) else { return };
    if batch.get(last).is_some_and(|row| inside(row.key)) {
        return;
    }
    let end = (0..=last).find(|index| !batch.get(*index).is_some_and(|row| inside(row.key)));
    batch.end_at(end.unwrap_or(last));
}
