//! A tree's changes as records of the log.

use core::sync::atomic::Ordering::SeqCst;

use latchwork_log::{Flags, Head, Lsn};
use latchwork_machine::ConstMachine;
use latchwork_tree::{Change, Journal};

use crate::files::kinds::CHANGE;
use crate::files::worker::Worker;

/// What a record is to its transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// A write: behind the record `prev`, the last of the transaction perhaps.
    Write { prev: u64, last: bool, cleared: bool },
    /// It undoes a write of the transaction of `slot`; `next` is undone next.
    Undo { slot: u16, next: u64 },
    /// None of a transaction.
    System,
}

/// The log, for one change of one tree.
pub(crate) struct Scribe<'w, M: ConstMachine> {
    pub(crate) worker: &'w Worker<M>,
    pub(crate) tree: u32,
    pub(crate) part: Part,
}

impl<M: ConstMachine> Scribe<'_, M> {
    /// The slot that the record names, its marks, and what it leads to.
    fn head(&self, change: &Change<'_>) -> (u32, Head) {
        let own = self.worker.log.slot();
        let mut head =
            Head { kind: CHANGE, flags: Flags::SYSTEM, aux32: self.tree, ..Head::default() };
        match (self.part, change) {
            (
                Part::Write { prev, last, .. },
                Change::Insert { .. } | Change::Replace { .. } | Change::Delete { .. },
            ) => {
                (head.flags, head.prev) = (Flags(0), Lsn(prev));
                if last {
                    head.flags = Flags::LAST;
                    head.older = Lsn(self.worker.last_commit.get());
                }
            }
            (Part::Undo { slot, next }, Change::Ghost { .. } | Change::Restore { .. }) => {
                let other = u32::from(slot) != own;
                head.flags = if other { Flags::CLR | Flags::SYSTEM } else { Flags::CLR };
                head.prev = Lsn(next);
                return (u32::from(slot), head);
            }
            _ => {}
        }
        (own, head)
    }
}

impl<M: ConstMachine> Journal for Scribe<'_, M> {
    fn append(
        &self,
        page: u64,
        page_prev: u64,
        change: &Change<'_>,
        since: u64,
    ) -> Result<Option<u64>, String> {
        let log = &self.worker.log;
        let (slot, mut head) = self.head(change);
        (head.page, head.page_prev) = (page, Lsn(page_prev));
        let mut payload = self.worker.payload.borrow_mut();
        payload.clear();
        change.encode(&mut payload);
        let appended = log
            .build_for(slot, &head, &[&payload])
            .and_then(|mut record| log.append_since(&mut record, Lsn(since)));
        appended.map(|lsn| lsn.map(|lsn| lsn.0)).map_err(|why| why.to_string())
    }

    fn slot(&self) -> u16 {
        self.worker.slot()
    }

    fn since(&self) -> u64 {
        self.worker.log.log().marked().0
    }

    fn reserve(&self, bytes: u64) -> Result<(), String> {
        self.worker.log.reserve(bytes).map_err(|why| why.to_string())
    }

    fn has(&self, bytes: u64) -> bool {
        self.worker.log.credit() >= bytes
    }

    fn may_write(&self) -> Result<bool, String> {
        if !matches!(self.part, Part::Write { cleared: false, .. }) {
            return Ok(true);
        }
        // SeqCst: the leaf's latch before the claims; the other one is in `Txn::claim`: a scan
        // that made its claim later finds the leaf latched, or its change.
        M::fence(SeqCst);
        self.worker.has_claims(self.tree).map(|any| !any).map_err(|why| why.to_string())
    }
}
