//! Files of this process: opened at first use, possibly to write a page that another process
//! created; written and synced.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError, RwLock};

use latchwork_disk::Open;
use latchwork_machine::{ConstMachine, Integer, Word};

use crate::layout::{
    FILE_BROKEN, FILE_SYNCED, FILE_SYNCING, FILE_WRITES, KIND_DIRECT, VALUE, files_before,
    is_owned, owned, place_of,
};
use crate::opened::Opened;
use crate::point::point;
use crate::{Error, Pool};

/// How a file of the pool is opened.
pub(crate) fn way_of(direct: bool) -> Open {
    if direct { Open::WRITE.direct() } else { Open::WRITE }
}

impl<M: ConstMachine> Pool<M> {
    fn opened_in(&self, place: u16) -> &RwLock<Option<Arc<Opened>>> {
        &self.inner.opened[usize::from(place)]
    }

    /// Returns the file, opened by this process now if it was not before.
    pub(crate) fn opened(&self, file: u16) -> Result<Arc<Opened>, Error> {
        let kind = self.kind(file)?;
        let here = self.opened_in(place_of(file)).read().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = here.as_ref().filter(|here| here.before == files_before(kind)) {
            return Ok(opened.clone());
        }
        drop(here);
        let path = self.path_of(file)?;
        let opened = self.inner.disk.open(&path, way_of(kind & KIND_DIRECT != 0));
        // The path belonged to this file if the entry still does.
        if self.kind(file)? != kind {
            return Err(Error::NoFile(file));
        }
        let opened = opened?;
        // After the opening: a sync that began later reports its failure to this open file as well.
        let in_doubt = self.is_syncing(file)?;
        Ok(self.keep_open(file, Opened::new(kind, opened, in_doubt)))
    }

    /// Keeps a file that this process has opened, or returns the one that it already has open. A
    /// file that was removed in the meantime belongs to the caller alone.
    pub(crate) fn keep_open(&self, file: u16, opened: Opened) -> Arc<Opened> {
        let mut here =
            self.opened_in(place_of(file)).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(faster) = here.as_ref().filter(|here| here.before == opened.before) {
            return faster.clone();
        }
        let opened = Arc::new(opened);
        if self.kind(file).is_ok_and(|kind| files_before(kind) == opened.before) {
            *here = Some(opened.clone());
        }
        opened
    }

    /// Closes this process's files that were removed or are being removed.
    pub(crate) fn close_removed(&self) {
        for (place, number) in (0..).zip(self.numbers()) {
            let kind = number.and_then(|number| self.kind(number));
            let mut here = self.opened_in(place).write().unwrap_or_else(PoisonError::into_inner);
            let is_there = |opened: &Arc<Opened>| {
                kind.as_ref().is_ok_and(|kind| files_before(*kind) == opened.before)
            };
            *here = here.take().filter(is_there);
        }
    }

    /// Writes bytes to a file, and counts that for `sync`.
    pub(crate) fn write_bytes(&self, file: u16, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.opened(file)?.file.write(at, bytes)?;
        // Release: synchronizes with the Acquire in `sync_file`. After the write and before the
        // page counts as clean, so that a sync that finds the page clean also finds the count.
        self.file_word(file, FILE_WRITES)?.fetch_add(1, Release);
        Ok(())
    }

    /// Makes all writes to a file durable. An error is final, in all processes.
    pub(crate) fn sync_file(&self, file: u16) -> Result<(), Error> {
        // Relaxed, here and below: a broken file stays broken.
        let broken = self.file_word(file, FILE_BROKEN)?;
        let mark = u64::from(file) + 1;
        let whole = || match broken.load(Relaxed) {
            seen if seen == mark => Err(Error::SyncFailed { file }),
            _ => Ok(()),
        };
        whole()?;
        if self.is_temporary(file)? {
            return Ok(());
        }
        let (writes, synced) =
            (self.file_word(file, FILE_WRITES)?, self.file_word(file, FILE_SYNCED)?);
        // Acquire: synchronizes with the Release in `write_bytes`.
        let before = writes.load(Acquire);
        if before == synced.load(Relaxed) {
            return Ok(());
        }
        // After the load of `before`: if the file still exists, these include no writes to the next
        // file in its place.
        let opened = self.opened(file)?;
        let mut in_doubt = opened.syncs.lock().unwrap_or_else(PoisonError::into_inner);
        whole()?;
        if synced.load(Relaxed) >= before {
            // Another thread's sync began after those writes.
            return Ok(());
        }
        self.count_syncing(file, |count| count + 1)?;
        point("sync.begun");
        let done = if *in_doubt { opened.file.sync_in_doubt() } else { opened.file.sync() };
        if let Err(error) = done {
            point("sync.failed");
            let mut seen = broken.load(Relaxed);
            // Not if the next file has this place.
            while self.kind(file).is_ok() {
                match broken.compare_exchange(seen, mark, Relaxed, Relaxed) {
                    Ok(_) => break,
                    Err(now) => seen = now,
                }
            }
            self.count_syncing(file, |count| count.saturating_sub(1))?;
            return Err(error.into());
        }
        self.count_syncing(file, |count| count.saturating_sub(1))?;
        *in_doubt = false;
        point("sync.done");
        synced.store(before, Relaxed);
        whole()
    }

    /// Returns whether a thread syncs the file or died in a sync, so that its result is not known
    /// yet.
    pub(crate) fn is_syncing(&self, file: u16) -> Result<bool, Error> {
        // Acquire: synchronizes with the Release in `count_syncing`, whose sync precedes the next
        // one in the system's order: the system reports a failure before this process opens the
        // file, or after.
        let syncing = self.file_word(file, FILE_SYNCING)?.load(Acquire);
        Ok(is_owned(syncing, file) && syncing & VALUE != 0)
    }

    /// Counts the threads that sync a file, unless it was removed.
    fn count_syncing(&self, file: u16, change: impl Fn(u64) -> u64) -> Result<(), Error> {
        let word = self.file_word(file, FILE_SYNCING)?;
        let mut seen = word.load(Relaxed);
        while is_owned(seen, file) {
            let next = owned(file) | change(seen & VALUE) & VALUE;
            // Release: synchronizes with the Acquire in `is_syncing`: after a failure's mark.
            match word.compare_exchange(seen, next, Release, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        Ok(())
    }
}
