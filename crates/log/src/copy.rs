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
use crate::{Error, Log, Lsn, Session};

/// Bytes that are read and written in one call.
const CHUNK: u64 = 1 << 20;

impl<M: ConstMachine> Log<M> {
    /// Where redo would begin now, as the last checkpoint says.
    pub fn redo(&self) -> Lsn {
        self.shared().map_or(Lsn::NEVER, |shared| Lsn(shared.found.redo.load(Relaxed)))
    }
}

impl<M: ConstMachine> Session<M> {
    /// Makes a log in `folder`, whose redo point is `redo`, of what this one has from there on and
    /// is durable. `told` is called with the bytes of each step. Returns where the copy ends.
    ///
    /// The caller has [pinned](Self::pin) the log from `redo` on, which is or was the redo point of
    /// a checkpoint. Others may append meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Disk`]; [`Error::Gone`] if the log begins later. The folder then has no log.
    pub fn copy_to(
        &self,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        redo: Lsn,
        told: &mut dyn FnMut(u64),
    ) -> Result<Lsn, Error> {
        let (from, oldest) = (&self.log.inner.segments, self.log.oldest());
        if redo < oldest {
            return Err(Error::Gone { oldest });
        }
        let end = self.log.flushed();
        disk.make_folder(folder)?;
        let to = Segments::new(disk.clone(), folder, from.id, from.size);
        let mut bytes = vec![0; CHUNK as usize];
        // A log that ends where a segment does has the next one.
        for number in redo.0 / from.size..=end.0 / from.size {
            to.make(number, end)?;
            let stop = end.0.min((number + 1) * from.size);
            let mut at = redo.0.max(number * from.size);
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
            segment: from.size,
            checkpoint: Lsn(self.log.shared()?.found.checkpoint.load(Relaxed)),
            redo,
            flushed: end,
            clean: false,
        };
        control.write_new(disk, folder)?;
        Ok(end)
    }
}
