//! The signature of the file of pages: which log it belongs to, and up to which position.
//!
//! After a clean close nothing is redone, so no page is compared with the log. Without a signature,
//! a file `data` that was lost, or is an older copy, or belongs to another store, would be
//! accepted. So each checkpoint signs the pages before they are written: a record of the catalog
//! contains the log's number, the end of the log, and the length of the file. The control file
//! contains the same position. Pages are refused if they have no signature, another log's, or an
//! earlier one, or if the file is shorter. If a checkpoint has no room in the log, on a full disk,
//! it keeps the previous signature; pages that are older than this checkpoint, but not older than
//! the previous one, are accepted then.
//!
//! The signature is checked twice. The first check reads the file itself before redo, because redo
//! rebuilds the record if its leaf was changed since. At this point the pages may be those of a
//! crash: some as the checkpoint wrote them, and some later ones, whose children may never have
//! been written and whose place may contain something else. So a leaf is trusted if it has the
//! signature of the last checkpoint itself, if it is the root, which never has another use, or if
//! no page on the path to it was changed since the checkpoint. The second check follows redo, when
//! every page is in the state of the log.

use latchwork_disk::{Buffer, Open};
use latchwork_log::Lsn;
use latchwork_machine::ConstMachine;
use latchwork_tree::{Kind, Node};

use crate::engine::Engine;
use crate::error::refused;
use crate::files::inner::StoreInner;
use crate::files::session::StoreSession;
use crate::files::tree_journal::ChangeOrigin;
use crate::long::PIECES;
use crate::tables::{CATALOG, SIGNATURE};
use crate::{Error, Refusal};

/// The signature that a checkpoint leaves in the catalog.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Signature {
    /// The log's number.
    log: u128,
    /// The end of the log.
    at: Lsn,
    /// Length of the file of pages in bytes, which the checkpoint has made durable.
    bytes: u64,
}

/// The contents of the file of pages, independent of the log.
struct OnDisk {
    /// `None` if there is no such record.
    signed: Option<Signature>,
    /// The last change of a page on the path to the record.
    newest: u64,
    /// Whether the leaf is the root.
    root: bool,
    /// Bytes of the file.
    bytes: u64,
}

/// Maximum number of levels of a catalog.
const LEVELS: usize = 16;

impl Signature {
    fn to_bytes(self) -> Vec<u8> {
        let words = [self.at.0.to_le_bytes(), self.bytes.to_le_bytes()];
        [&self.log.to_le_bytes()[..], words.as_flattened()].concat()
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let (log, words) = bytes.split_first_chunk()?;
        let ([at, bytes], []) = words.as_chunks() else { return None };
        let (at, bytes) = (Lsn(u64::from_le_bytes(*at)), u64::from_le_bytes(*bytes));
        Some(Self { log: u128::from_le_bytes(*log), at, bytes })
    }
}

impl<M: ConstMachine> StoreInner<M> {
    /// Signs the pages before a checkpoint's mark. Returns the signed position. If nothing was
    /// logged since the last signature, it still applies.
    pub(crate) fn sign(&self, worker: &StoreSession<M>) -> Result<Lsn, Error> {
        let (end, marked) = (self.log.end(), self.log.marked());
        // The mark of new memory does not belong to a checkpoint.
        let is_covered = end <= marked && marked > self.log.recovered().end;
        if (is_covered || end <= self.log.redo())
            && let Some(last) = worker.signature()?
        {
            return Ok(last.at);
        }
        let bytes = self.disk.open(&self.folder.join("data"), Open::READ)?.length()?;
        let signature = Signature { log: self.log.id(), at: end, bytes }.to_bytes();
        worker.with(CATALOG, ChangeOrigin::System, |tree| {
            tree.alter(SIGNATURE, &|_| Some(signature.clone()))
        })?;
        Ok(end)
    }

    /// Refuses a file of pages that is neither as the last checkpoint left it nor has later
    /// changes. Called before redo, or when the processes that had the store open have died.
    pub(crate) fn has_its_pages(&self) -> Result<(), Error> {
        let log = self.log.recovered();
        let checkpoint = log.checkpoint;
        // Each checkpoint wrote the roots; the catalog's precedes it.
        if log.redo > Lsn::FIRST && self.pool.pages(self.file)? <= u64::from(PIECES) {
            return self.not_its_pages("it is missing or cut off, and the log is not");
        }
        let Some(found) = self.on_disk()?.filter(|_| checkpoint != Lsn::NEVER) else {
            return Ok(());
        };
        let is_last = |signed: &Signature| signed.log == self.log.id() && signed.at == checkpoint;
        match found.signed.filter(is_last) {
            Some(signed) if found.bytes < signed.bytes => {
                self.not_its_pages("it is cut off: it was longer at the last checkpoint")
            }
            Some(_) => Ok(()),
            // No page is written before its records are durable.
            None if found.newest > self.log.end().0 => {
                self.not_its_pages("it is newer than the log next to it, which is an older copy")
            }
            None if !found.root && found.newest >= checkpoint.0 => Ok(()),
            None => self.is_for(found.signed, checkpoint),
        }
    }

    /// Refuses pages that are not signed for the last checkpoint. Called after redo.
    pub(crate) fn is_signed(&self, worker: &StoreSession<M>) -> Result<(), Error> {
        match self.log.recovered().checkpoint {
            Lsn::NEVER => Ok(()),
            checkpoint => self.is_for(worker.signature()?, checkpoint),
        }
    }

    fn is_for(&self, signed: Option<Signature>, checkpoint: Lsn) -> Result<(), Error> {
        match signed {
            Some(signed) if signed.log != self.log.id() => {
                self.not_its_pages("it belongs to another store than the log next to it")
            }
            Some(signed) if signed.at >= checkpoint => Ok(()),
            _ => self.not_its_pages("it is older than the log next to it: an older copy"),
        }
    }

    /// Reads the signature in the file; `None` if a page on the path is damaged, as after a crash.
    fn on_disk(&self) -> Result<Option<OnDisk>, Error> {
        let data = self.disk.open(&self.folder.join("data"), Open::READ)?;
        let (bytes, size) = (data.length()?, u64::from(self.file.page_bytes()));
        let mut page = Buffer::new(size as usize);
        let (mut number, mut newest) = (u64::from(CATALOG), 0);
        for level in 0..LEVELS {
            if (number + 1).checked_mul(size).is_none_or(|end| end > bytes) {
                return Ok(None);
            }
            data.read(number * size, &mut page)?;
            if latchwork_pool::sound(number, &page).is_err() {
                return Ok(None);
            }
            let Some(node) = Node::of(&page[..]) else { return Ok(None) };
            // The pool's second word: the page's LSN.
            newest =
                newest.max(page.as_chunks().0.get(1).map_or(0, |lsn| u64::from_le_bytes(*lsn)));
            if node.covers(SIGNATURE) != Some(true) {
                return Ok(None);
            }
            if node.kind() == Kind::Leaf {
                let at = node.search(SIGNATURE).and_then(Result::ok);
                let value = at.and_then(|at| node.value(at));
                let signed = value.and_then(|value| Signature::of(&value));
                return Ok(Some(OnDisk { signed, newest, root: level == 0, bytes }));
            }
            let Some(child) = node.child_of(SIGNATURE) else { return Ok(None) };
            number = child;
        }
        Ok(None)
    }

    fn not_its_pages(&self, what: &'static str) -> Result<(), Error> {
        Err(refused(&self.folder, Refusal::Damaged { file: "data", what }))
    }
}

impl<M: ConstMachine> StoreSession<M> {
    /// Returns the position that the last checkpoint has signed, if any.
    pub(crate) fn signed(&self) -> Result<Option<Lsn>, Error> {
        Ok(self.signature()?.map(|signature| signature.at))
    }

    fn signature(&self) -> Result<Option<Signature>, Error> {
        let mut bytes = Vec::new();
        let found = self.newest(CATALOG, SIGNATURE, &mut bytes)?;
        Ok(Signature::of(&bytes).filter(|_| found.there))
    }
}
