//! The log's files copied, from a redo point to where the log is durable, while others append.
//!
//! What is durable does not change any more, and what is pinned stays: so the files are read past
//! the buffer and without a latch. The control file of the copy is named last, and says where the
//! copy ends: a copy that was cut short is no log, or one that is damaged.

use std::path::Path;
use std::sync::Arc;

use core::sync::atomic::Ordering::Relaxed;

use latchwork_disk::Disk;
use latchwork_machine::{ConstMachine, Word};

use crate::control::Control;
use crate::segment::Segments;
use crate::{Checkpoint, Error, Log, Lsn, Session};

/// Bytes that are read and written in one call.
const CHUNK: u64 = 1 << 20;

impl<M: ConstMachine> Log<M> {
    /// Where redo would begin now, as the last checkpoint says.
    pub fn redo(&self) -> Lsn {
        self.last_checkpoint().redo
    }

    /// The last checkpoint, or one of before and the redo point of the last.
    pub fn last_checkpoint(&self) -> Checkpoint {
        let none = Checkpoint { lsn: Lsn::NEVER, redo: Lsn::NEVER, clean: false };
        let Ok(shared) = self.shared() else { return none };
        let found = &shared.found;
        // Relaxed: an older one is one, too.
        let (lsn, redo) = (Lsn(found.checkpoint.load(Relaxed)), Lsn(found.redo.load(Relaxed)));
        Checkpoint { lsn, redo, clean: false }
    }
}

impl<M: ConstMachine> Session<M> {
    /// Makes a log in `folder`, whose last checkpoint is `since`, of what this one has from its
    /// redo point on and is durable. `told` is called with the bytes of each step. Returns where
    /// the copy ends.
    ///
    /// The caller has [pinned](Self::pin) the log from there on, and `since` is or was the last
    /// checkpoint. Others may append meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Disk`]; [`Error::Gone`] if the log begins later. The folder then has no log.
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
        // A log that ends where a segment does has the next one.
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
