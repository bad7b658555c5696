//! Records, by way of a tree and of the log: what transactions and snapshots ask for.

use core::ops::Bound;

use latchwork_log::{Error as LogError, Flags, Head, Lsn};
use latchwork_machine::ConstMachine;
use latchwork_tree::{Change, Error as TreeError, Header, Row, Tree};

use crate::engine::{Batch, Chain, Engine, Found, How, Wrote};
use crate::files::kinds::COMMIT;
use crate::files::scribe::{Part, Scribe};
use crate::files::worker::Worker;
use crate::{Commits, Error, Stamp};

/// How many records a scan takes from a leaf at a time.
const BATCH: usize = 64;

impl<M: ConstMachine> Worker<M> {
    /// Does something with a tree, whose changes are logged so.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        tree: u32,
        part: Part,
        work: impl FnOnce(&Tree<'_, 'static, Scribe<'_, M>, M>) -> R,
    ) -> R {
        let scribe = Scribe { worker: self, tree, part };
        work(&Tree::open(&self.handle, self.home.file, u64::from(tree), &scribe))
    }
}

/// A record that snapshots and transactions look at.
fn found(header: Header, value: Option<Vec<u8>>) -> Found {
    Found { stamp: Stamp::from_word(header.to_bits()), value }
}

fn row(row: Row) -> (Vec<u8>, Found) {
    let value = (!row.ghost).then_some(row.value);
    (row.key, found(row.header, value))
}

impl<M: ConstMachine> Commits for Worker<M> {
    fn last_commit(&self, slot: u16, at: u64) -> u64 {
        let log = self.log.log();
        let mut oldest = 0;
        let kept = log.commits_of(u32::from(slot), |_, commit| {
            oldest = commit.0;
            (commit.0 <= at).then_some(commit.0)
        });
        match kept {
            Ok(Some(commit)) => return commit,
            Ok(None) if oldest != 0 => {}
            _ => return 0,
        }
        // Longer ago than the slot remembers: each commit leads to the one before.
        while let Ok(entry) = log.read(Lsn(oldest)) {
            if entry.head.older.0 <= at {
                return entry.head.older.0;
            }
            oldest = entry.head.older.0;
        }
        0
    }

    fn is_finished(&self, stamp: Stamp) -> bool {
        let at = stamp.at();
        if self.home.shared.low().is_ok_and(|low| at < low) {
            return true;
        }
        let inside = |first: Lsn, commit: Lsn| match () {
            () if commit.0 < at => Some(false),
            () if first.0 <= at => Some(true),
            () => None,
        };
        let kept = self.log.log().commits_of(u32::from(stamp.slot()), inside);
        kept.is_ok_and(|inside| inside == Some(true))
    }
}

impl<M: ConstMachine> Engine for Worker<M> {
    fn newest(&self, tree: u32, key: &[u8]) -> Result<Found, Error> {
        let newest = self.with(tree, Part::System, |tree| tree.newest(key))?;
        Ok(newest.map_or_else(Found::default, |newest| found(newest.header, newest.value)))
    }

    fn scan(&self, tree: u32, bound: Bound<&[u8]>, back: bool) -> Result<Batch, Error> {
        let mut after = Vec::new();
        let key: Option<&[u8]> = match bound {
            Bound::Included(key) if !back => Some(key),
            Bound::Excluded(key) if back => Some(key),
            // The least key that is greater.
            Bound::Included(key) | Bound::Excluded(key) => {
                after.extend_from_slice(key);
                after.push(0);
                Some(&after)
            }
            Bound::Unbounded => None,
        };
        let batch = self.with(tree, Part::System, |tree| match back {
            false => tree.scan(key.unwrap_or(&[]), BATCH),
            true => tree.scan_back(key, BATCH),
        })?;
        let rows = batch.rows.into_iter().map(row).collect();
        let next =
            batch.next.map(|key| if back { Bound::Excluded(key) } else { Bound::Included(key) });
        Ok(Batch { rows, next })
    }

    fn before(&self, tree: u32, key: &[u8], stamp: Stamp) -> Result<Found, Error> {
        let lost = |what| Err(Error::Damaged { tree, key: key.to_vec(), what });
        let entry = match self.log.log().read(Lsn(stamp.at())) {
            Ok(entry) => entry,
            Err(LogError::Gone { .. }) => return Err(Error::SnapshotTooOld { at: stamp.at() }),
            Err(why) => return Err(why.into()),
        };
        let (of, was, value) = match Change::decode(&entry.payload) {
            Some(Change::Insert { key, was, .. }) => (key, was, None),
            Some(
                Change::Replace { key, before, was, .. } | Change::Delete { key, before, was },
            ) => (key, was, Some(before.to_vec())),
            _ => return lost("its stamp leads to no write"),
        };
        if entry.head.aux32 != tree || of != key {
            return lost("its stamp leads to another record's write");
        }
        Ok(found(was, value))
    }

    fn write(
        &self,
        chain: &mut Chain,
        tree: u32,
        key: &[u8],
        value: Option<&[u8]>,
        how: How,
    ) -> Result<Wrote, Error> {
        let part = Part::Write { prev: chain.last, last: how.last, cleared: how.cleared };
        let written = self.with(tree, part, |tree| match value {
            Some(value) => tree.put(key, value),
            None => tree.delete(key),
        });
        let written = match written {
            Err(TreeError::Refused) => return Ok(Wrote::Claimed),
            // A key that is not there needs no record of its own to be removed.
            Err(TreeError::Missing) if value.is_none() && !how.last => return Ok(Wrote::Done),
            Err(TreeError::Missing) if value.is_none() => {
                if chain.last != 0 {
                    self.commit(chain)?;
                }
                return Ok(Wrote::Done);
            }
            other => other?,
        };
        chain.last = if how.last { 0 } else { written.lsn };
        if how.last {
            chain.committed = written.lsn;
            self.committed(written.lsn)?;
        }
        Ok(Wrote::Done)
    }

    fn undo(&self, chain: &mut Chain, at: u64) -> Result<u64, Error> {
        let entry = self.log.log().read(Lsn(at))?;
        let next = entry.head.prev.0;
        if entry.head.flags.has(Flags::CLR) {
            return Ok(next);
        }
        let damaged = Error::Damaged { tree: entry.head.aux32, key: Vec::new(), what: "undo" };
        let change = Change::decode(&entry.payload).ok_or(damaged)?;
        let part = Part::Undo { slot: chain.slot, next };
        chain.last = self.with(entry.head.aux32, part, |tree| tree.undo(&change))?.lsn;
        Ok(next)
    }

    fn commit(&self, chain: &mut Chain) -> Result<u64, Error> {
        let (prev, older) = (Lsn(chain.last), Lsn(self.last_commit.get()));
        let head = Head { kind: COMMIT, flags: Flags::LAST, prev, older, ..Head::default() };
        let at = self.note(chain.slot, &head)?;
        chain.last = 0;
        self.committed(at.0)?;
        Ok(at.0)
    }

    fn ended(&self, chain: &mut Chain) -> Result<(), Error> {
        chain.last = 0;
        self.end(chain.slot)
    }

    fn remember(&self, slot: u16) -> Result<(u64, u64), Error> {
        self.home.shared.remember(slot)
    }

    fn forget(&self, slot: u16) {
        self.home.shared.forget(slot);
    }
}
