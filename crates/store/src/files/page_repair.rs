//! Callbacks of the pool: flushing the log up to a record, and rebuilding a page that a death left
//! half changed or that the disk has lost.

use core::fmt::Display;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use latchwork_log::{Entry, Error as LogError, Flags, Head, Log, Lsn, Piece};
use latchwork_machine::ConstMachine;
use latchwork_pool::{Cause, Lost, Rebuild, WriteAhead};
use latchwork_region::Region;
use latchwork_tree::{Change, Link, chain, rebuild};

use crate::Error;
use crate::files::kinds::CHANGE;
use crate::files::shared::Shared;

/// The write-ahead rule.
pub(crate) struct Ahead<M: ConstMachine> {
    log: Log<M>,
    region: Region<M>,
}

impl<M: ConstMachine> Ahead<M> {
    pub(crate) fn new(log: &Log<M>, region: &Region<M>) -> Self {
        Self { log: log.clone(), region: region.clone() }
    }
}

fn say(why: impl Display) -> String {
    why.to_string()
}

impl<M: ConstMachine> WriteAhead for Ahead<M> {
    /// Usually only a load, because pages that are written were changed long ago. Otherwise the
    /// thread takes a slot of its own, because its session may be in use by a caller.
    fn flush(&self, lsn: u64) -> Result<(), Cause> {
        if self.log.flushed().0 > lsn {
            return Ok(());
        }
        let flush = || -> Result<(), Error> {
            let thread = self.region.sweeper()?;
            Ok(self.log.session(&thread)?.flush(Lsn(lsn))?)
        };
        flush().map_err(Cause::new)
    }

    fn reaches(&self, lsn: u64) -> bool {
        self.log.end().0 > lsn
    }
}

/// Rebuilds pages from the log.
pub(crate) struct PageRepairs<M: ConstMachine> {
    log: Log<M>,
    shared: Shared<M>,
    /// Damaged pages that the log does not contain completely after this redo point: searched for
    /// once.
    unknown: Mutex<(Lsn, BTreeSet<u64>)>,
}

impl<M: ConstMachine> PageRepairs<M> {
    pub(crate) fn new(log: &Log<M>, shared: &Shared<M>) -> Self {
        let unknown = Mutex::new((Lsn::NEVER, BTreeSet::new()));
        Self { log: log.clone(), shared: shared.clone(), unknown }
    }

    /// Returns the pages that were searched for in vain after this redo point.
    fn unknown(&self, redo: Lsn) -> MutexGuard<'_, (Lsn, BTreeSet<u64>)> {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if unknown.0 != redo {
            *unknown = (redo, BTreeSet::new());
        }
        unknown
    }

    fn link(&self, lsn: u64) -> Result<Link, String> {
        self.log.read(Lsn(lsn)).map(link).map_err(say)
    }

    /// Returns the newest record of the page: the one given, or the dead thread's last record if it
    /// concerns this page, or else the last record of the page in the log.
    fn newest(&self, lost: &Lost) -> Result<u64, String> {
        if lost.lsn != 0 {
            return Ok(lost.lsn);
        }
        match lost.dead_slot {
            Some(slot) => self.newest_by(slot, lost),
            None => self.newest_of(lost.page, lost.lsn_before).map_err(say),
        }
    }

    /// Returns the newest record of a page whose change was begun by the thread of a slot that is
    /// now dead. The thread held the page until its death, so its last record decides: if it
    /// concerns this page, it is the newest one (perhaps an image that the change did not follow).
    /// If it concerns another page, or is older than the page, nothing was logged. But if the
    /// thread died in an append, its last record is not known: it does not exist, or another
    /// thread's record is in its place.
    fn newest_by(&self, slot: u32, lost: &Lost) -> Result<u64, String> {
        let newest = self.log.newest_of(slot).map_err(say)?;
        let scan = || self.newest_of(lost.page, lost.lsn_before).map_err(say);
        // A page that is created again had no contents, but its number may have had.
        if newest == Lsn::NEVER || lost.lsn_before == 0 {
            return scan();
        }
        if newest.0 <= lost.lsn_before {
            return Ok(lost.lsn_before);
        }
        let entry = match self.log.read(newest) {
            // The record is too old.
            Err(LogError::Gone { .. }) => return scan(),
            read => read.map_err(say)?,
        };
        // A thread that rolls back for another thread names the other's slot.
        let by_another = entry.head.flags.has(Flags::CLR | Flags::SYSTEM);
        match u32::from(entry.slot) == slot && entry.head.kind == CHANGE {
            true if entry.head.page == lost.page => Ok(newest.0),
            true if !by_another => Ok(lost.lsn_before),
            _ => scan(),
        }
    }

    /// Returns the last record of the page in the log after a position, which is that of a record,
    /// or the redo point, where a record begins in any case. The page's latch is held, so no record
    /// follows the current end of the log.
    ///
    /// Each record's checksum is verified: a page that is rebuilt without one of its changes would
    /// be wrong.
    fn newest_of(&self, page: u64, known: u64) -> Result<u64, LogError> {
        let (mut newest, end) = (known, self.log.end());
        let is_its = |head: &Head| head.kind == CHANGE && head.page == page;
        let mut pieces = self.log.pieces(Lsn(known).max(self.log.redo()))?;
        let mut old = Piece::default();
        while let Some(piece) = pieces.next_piece(old)? {
            for (place, _) in piece.entries() {
                let entry = piece.entry(place)?;
                if is_its(&entry.head) {
                    newest = entry.lsn.0;
                }
            }
            old = piece;
        }
        // The part that is in no file yet.
        for entry in self.log.scan(pieces.position()) {
            let entry = entry?;
            if entry.lsn >= end {
                break;
            }
            if is_its(&entry.head) {
                newest = entry.lsn.0;
            }
        }
        Ok(newest)
    }

    /// Builds the page as of its record at `newest`, from `base` or from its last complete image in
    /// the log.
    fn made(
        &self,
        page: u64,
        newest: u64,
        base: Option<&[u64]>,
        into: &mut [u64],
    ) -> Result<u64, String> {
        let from = base.and_then(|base| base.get(1)).copied();
        let links: Vec<Link> =
            match chain(page, newest, from, |lsn| self.link(lsn).map_err(Failed::Log)) {
                Ok(links) => links,
                Err(Failed::Tree(why)) => return Err(say(why)),
                Err(Failed::Log(why)) => return Err(why),
            };
        let whole = links.first().is_some_and(|link| {
            Change::decode(&link.payload).is_some_and(|change| has_whole(&change))
        });
        let base = if whole { None } else { base };
        rebuild(page, base, &links, into).map_err(say)
    }
}

/// Converts a log record for the tree's recovery.
pub(crate) fn link(entry: Entry) -> Link {
    Link {
        lsn: entry.lsn.0,
        slot: entry.slot,
        page: entry.head.page,
        page_prev: entry.head.page_prev.0,
        payload: entry.payload,
    }
}

/// Returns whether the change contains the whole page, so that a chain can begin with it.
fn has_whole(change: &Change<'_>) -> bool {
    change.before(latchwork_tree::Role::Own, 1).is_none()
}

impl<M: ConstMachine> Rebuild for PageRepairs<M> {
    fn rebuild(&self, lost: &Lost, base: Option<&[u64]>, into: &mut [u64]) -> Result<u64, String> {
        loop {
            let redo = self.log.redo();
            match self.newest(lost).and_then(|newest| self.made(lost.page, newest, base, into)) {
                // A checkpoint has ended in between and released the records: try again.
                Err(_) if self.log.redo() != redo => {}
                made => return made,
            }
        }
    }

    /// Reads the log from the redo point. Not during recovery, which rebuilds each page that has
    /// changes in the log from them, whatever the disk contains.
    fn rebuild_damaged(&self, _: u16, page: u64, into: &mut [u64]) -> Option<u64> {
        if !self.shared.is_recovered().ok()? {
            return None;
        }
        loop {
            let redo = self.log.redo();
            if self.unknown(redo).1.contains(&page) {
                return None;
            }
            match self
                .newest_of(page, 0)
                .map_err(say)
                .and_then(|newest| self.made(page, newest, None, into))
            {
                Ok(lsn) => return Some(lsn),
                // As in `rebuild`.
                Err(_) if self.log.redo() != redo => {}
                Err(_) => {
                    self.unknown(redo).1.insert(page);
                    return None;
                }
            }
        }
    }
}

/// Why a chain could not be read.
enum Failed {
    Log(String),
    Tree(latchwork_tree::Error),
}

impl From<latchwork_tree::Error> for Failed {
    fn from(why: latchwork_tree::Error) -> Self {
        Self::Tree(why)
    }
}
