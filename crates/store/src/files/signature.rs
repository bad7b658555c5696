//! To which log a file of pages belongs, and how far.
//!
//! After a clean close nothing is redone, so no page is compared with the log: a file `data` that
//! was lost, or is an older copy, or another store's, would pass for the store. So each checkpoint
//! signs the pages before it has them written: a record of the catalog has the log's number, and
//! where it ended. The control file has the same position. Pages that have none, or another log's,
//! or an earlier one are refused.

use latchwork_log::Lsn;
use latchwork_machine::ConstMachine;

use crate::engine::Engine;
use crate::error::refused;
use crate::files::home::Home;
use crate::files::scribe::Part;
use crate::files::worker::Worker;
use crate::long::PIECES;
use crate::tables::{CATALOG, SIGNATURE};
use crate::{Error, Refusal};

/// What a checkpoint leaves in the catalog.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Signature {
    /// The log's number.
    log: u128,
    /// Where it ended.
    at: Lsn,
}

impl Signature {
    fn to_bytes(self) -> Vec<u8> {
        [&self.log.to_le_bytes()[..], &self.at.0.to_le_bytes()].concat()
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let (log, at) = bytes.split_first_chunk()?;
        let at = Lsn(u64::from_le_bytes(at.try_into().ok()?));
        Some(Self { log: u128::from_le_bytes(*log), at })
    }
}

impl<M: ConstMachine> Home<M> {
    /// Signs the pages, before a checkpoint's mark, and returns the position that it has signed. If
    /// nothing was logged since the last one that counts still.
    pub(crate) fn sign(&self, worker: &Worker<M>) -> Result<Lsn, Error> {
        let covered = self.log.marked().max(self.log.redo());
        let end = self.log.end();
        if end <= covered
            && let Some(last) = worker.signature()?
        {
            return Ok(last.at);
        }
        let signature = Signature { log: self.log.id(), at: end }.to_bytes();
        worker.with(CATALOG, Part::System, |tree| {
            tree.alter(SIGNATURE, &|_| Some(signature.clone()))
        })?;
        Ok(end)
    }

    /// Refuses a file of pages that has not even the roots that each checkpoint wrote.
    pub(crate) fn has_roots(&self) -> Result<(), Error> {
        let begun = self.log.recovered().redo > Lsn::FIRST;
        // The catalog's comes before it.
        match begun && self.pool.pages(self.file)? <= u64::from(PIECES) {
            true => self.not_its_pages("it is not there, or cut off, and the log is"),
            false => Ok(()),
        }
    }

    /// Refuses pages that are not signed for the last checkpoint. What the log has was redone.
    pub(crate) fn is_signed(&self, worker: &Worker<M>) -> Result<(), Error> {
        let checkpoint = self.log.recovered().checkpoint;
        if checkpoint == Lsn::NEVER {
            return Ok(());
        }
        match worker.signature()? {
            Some(signed) if signed.log != self.log.id() => {
                self.not_its_pages("it is another store's, by the log beside it")
            }
            Some(signed) if signed.at >= checkpoint => Ok(()),
            _ => self.not_its_pages("it is older than the log beside it: a copy of before"),
        }
    }

    fn not_its_pages(&self, what: &'static str) -> Result<(), Error> {
        Err(refused(&self.folder, Refusal::Damaged { file: "data", what }))
    }
}

impl<M: ConstMachine> Worker<M> {
    fn signature(&self) -> Result<Option<Signature>, Error> {
        let mut bytes = Vec::new();
        let found = self.newest(CATALOG, SIGNATURE, &mut bytes)?;
        Ok(Signature::of(&bytes).filter(|_| found.there))
    }
}
