//! Copies the log's files, from a redo point to the durable end, while other threads append.
//!
//! Durable bytes do not change, and pinned bytes are not recycled. Therefore the copy reads the
//! files without the buffer and without a latch. The control file of the copy is named last and
//! records where the copy ends. An incomplete copy is either no log at all or a damaged log.

use std::path::Path;
use std::sync::Arc;

use core::sync::atomic::Ordering::Relaxed;

use latchwork_disk::Disk;
use latchwork_machine::{ConstMachine, Word};

use crate::control::Control;
use crate::segment::Segments;
use crate::{Checkpoint, Error, Log, Lsn, Session};

/// Bytes per read and write.
const CHUNK: u64 = 1 << 20;

impl<M: ConstMachine> Log<M> {
    /// Returns the redo point of the last checkpoint.
    pub fn redo(&self) -> Lsn {
        self.last_checkpoint().redo
    }

    /// Returns the last checkpoint. Concurrently with a new checkpoint, `lsn` may be of the
    /// checkpoint before it.
    pub fn last_checkpoint(&self) -> Checkpoint {
        let none = Checkpoint { lsn: Lsn::NEVER, redo: Lsn::NEVER, clean: false };
        let Ok(shared) = self.shared() else { return none };
        let found = &shared.found;
        // Relaxed: an older checkpoint is a valid result.
        let (lsn, redo) = (Lsn(found.checkpoint.load(Relaxed)), Lsn(found.redo.load(Relaxed)));
        Checkpoint { lsn, redo, clean: false }
    }
}

impl<M: ConstMachine> Session<M> {
    /// Creates a log in `folder` whose last checkpoint is `since`, and copies to it the durable
    /// part of this log from the redo point on. Calls `told` with the number of bytes after each
    /// step. Returns where the copy ends.
    ///
    /// The caller has [pinned](Self::pin) the log from the redo point on, and `since` is the last
    /// checkpoint or an earlier one. Other threads may append concurrently.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Disk`] if the disk fails, and [`Error::Gone`] if the log begins after the
    /// redo point. The folder then has no log.
    pub fn copy_to(
        &self,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        since: &Checkpoint,
        told: &mut dyn FnMut(u64),
    ) -> Result<Lsn, Error> {
        let (from, oldest, redo) = (&self.log.inner.segments, self.log.oldest(), since.redo);
        if redo < oldest {
            return Err(Error::Gone { oldest });
        }
        let end = self.log.flushed();
        disk.make_folder(folder)?;
        let to = Segments::new(disk.clone(), folder, from.id, from.spans);
        let spans = from.spans;
        let mut bytes = vec![0; CHUNK as usize];
        // A log that ends at the end of a segment also has the next segment.
        for number in spans.number(redo.0)..=spans.number(end.0) {
            to.make(number, end)?;
            let stop = end.0.min(spans.end(number));
            let mut at = redo.0.max(spans.start(number));
            while at < stop {
                let count = (stop - at).min(CHUNK);
                let chunk = &mut bytes[..count as usize];
                from.read(at, chunk)?;
                to.write(at, chunk)?;
                told(count);
                at += count;
            }
            to.file(number)?.sync()?;
        }
        let control = Control {
            id: from.id,
            sequence: 2,
            spans,
            checkpoint: since.lsn,
            redo,
            flushed: end,
            clean: false,
            clearing: false,
        };
        control.write_new(disk, folder)?;
        Ok(end)
    }
}
