//! Prefetching: several pages by one call to the disk.
//!
//! The frames of a run are claimed and published one by one, as for a fault, then the run is read
//! as a whole. A page that cannot be read is left to the thread that reads it later and gets the
//! error. The thread waits for no latch, so two threads that prefetch the same pages do not stop
//! each other. Death: each frame is as after a fault's step 3.

use latchwork_disk::Buffer;
use latchwork_machine::ConstMachine;

use crate::life::fault::{Published, words_of};
use crate::point::point;
use crate::{Error, FileId, Handle};

/// The most pages of one call to the disk.
const RUN: usize = 16;

impl<'t, M: ConstMachine> Handle<'t, M> {
    /// Reads those of `count` pages from `page` on that are not cached, 16 by one call to the disk.
    /// Returns how many were read. Skips pages beyond the file's end, unreadable pages, and pages
    /// beyond the number of the pool's frames.
    ///
    /// The pages get no reference mark, so pages that are not read soon are evicted first.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if no frame is available; [`Error::View`], [`Error::Region`].
    pub fn prefetch(&self, file: FileId, page: u64, count: u64) -> Result<u64, Error> {
        self.writes()?;
        let count = count.min(self.pool().target()?.into());
        let end = page.saturating_add(count).min(self.pool().pages(file)?);
        let (mut at, mut read) = (page, 0);
        while at < end {
            let mut run = Vec::new();
            // Few enough to leave frames for others.
            let most = RUN.min(self.pool().target()? as usize / 4) as u64;
            let first = at;
            while at < end && at - first < most {
                match self.publish(file, at) {
                    Ok(Some(published)) => run.push(published),
                    Ok(None) => {
                        at += 1;
                        break;
                    }
                    Err(Error::Full { .. }) if !run.is_empty() => break,
                    Err(error) => {
                        return Err(error);
                    }
                }
                at += 1;
            }
            if !run.is_empty() {
                read += self.read_run(file, first, run);
            }
        }
        Ok(read)
    }

    /// Reads a run; returns how many of its pages are valid.
    fn read_run(&self, file: FileId, first: u64, run: Vec<Published<'_, 't, M>>) -> u64 {
        let (pool, size) = (self.pool(), file.page_bytes() as usize);
        let mut buffer = Buffer::new(run.len() * size);
        let bytes = &mut buffer[..run.len() * size];
        let told = pool.opened(file.number).and_then(|opened| {
            opened.file.read(first * size as u64, bytes)?;
            point("ahead.read");
            // After the read, as in `read_in`.
            match pool.has_failed(file)? {
                true => Err(Error::SyncFailed { file: file.number }),
                false => Ok(()),
            }
        });
        let mut read = 0;
        for ((page, one), bytes) in (first..).zip(run).zip(bytes.chunks_exact(size)) {
            let sound = told.is_ok() && pool.believe(file, page, bytes).is_ok();
            if !sound || self.fill(file, one.frame, one.desc, words_of(bytes)).is_err() {
                continue;
            }
            one.is_filled(0);
            self.count(|counts| &counts.prefetched);
            read += 1;
        }
        read
    }
}
