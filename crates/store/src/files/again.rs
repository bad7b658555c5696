//! Prepared transactions after a crash of the machine: each has its slot again, with its place in
//! the log, its locks, and what is set aside for its end.
//!
//! The slot has the number that it had, for the stamps in the pages name it. What was committed
//! behind the first record of such a transaction is told by the slots' lists of commits, for `low`
//! stays before that record: so these are made again, too.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use latchwork_lockmgr::{Held, OwnerOptions};
use latchwork_log::{ASIDE_LEAST, COMMITS, EntryView, Flags, Lsn};
use latchwork_machine::ConstMachine;
use latchwork_tree::Change;

use crate::Error;
use crate::error::refused;
use crate::files::home::Home;
use crate::files::kinds::{CHANGE, END, LOCKS, PREPARE};
use crate::files::prepare::locks_of;
use crate::files::worker::{SMALL, Worker};
use crate::refusal::Refusal;

/// A transaction without an end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) first: Lsn,
    pub(crate) last: Lsn,
    pub(crate) prepared: bool,
}

/// The transactions of each slot, as the log says so far.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    pub(crate) open: BTreeMap<u16, Open>,
    /// First record and commit of the last ones.
    commits: BTreeMap<u16, VecDeque<(Lsn, Lsn)>>,
}

impl Slots {
    pub(crate) fn note(&mut self, entry: &EntryView<'_>) {
        let (flags, lsn) = (entry.head.flags, entry.lsn);
        if flags.has(Flags::LAST) || entry.head.kind == END {
            let open = self.open.remove(&entry.slot);
            if flags.has(Flags::LAST) {
                let list = self.commits.entry(entry.slot).or_default();
                if list.len() == COMMITS - 1 {
                    list.pop_front();
                }
                list.push_back((open.map_or(lsn, |open| open.first), lsn));
            }
        } else if !flags.has(Flags::SYSTEM) || flags.has(Flags::CLR) {
            let open = self.open.entry(entry.slot);
            let open = open.or_insert(Open { first: lsn, last: lsn, prepared: false });
            (open.last, open.prepared) = (lsn, entry.head.kind == PREPARE);
        }
    }

    /// Takes out those that are prepared.
    fn take_prepared(&mut self) -> Vec<(u16, Open)> {
        self.open.extract_if(.., |_, open| open.prepared).collect()
    }
}

impl<M: ConstMachine> Home<M> {
    /// Makes again what prepared transactions had, which are left out of `slots` then; returns the
    /// first record of them all.
    ///
    /// # Errors
    ///
    /// [`Refusal::Threads`]; those of the parts. Then the store is not opened.
    pub(crate) fn restore_prepared(
        self: &Arc<Self>,
        worker: &Worker<M>,
        slots: &mut Slots,
    ) -> Result<Option<Lsn>, Error> {
        let prepared = slots.take_prepared();
        // One that is only undone may be of a slot that is a sweeper's now.
        let undone = slots.open.keys().next_back().map_or(0, |slot| u32::from(*slot) + 1);
        if undone > self.log.threads() {
            return Err(refused(&self.folder, Refusal::Threads { needed: undone }));
        }
        let Some(low) = prepared.iter().map(|(_, open)| open.first).min() else { return Ok(None) };
        slots.commits.retain(|_, list| list.back().is_some_and(|(_, commit)| *commit >= low));
        let numbers = prepared.iter().map(|(slot, _)| slot).chain(slots.commits.keys());
        let needed = numbers.max().map_or(0, |slot| u32::from(*slot) + 1);
        if needed > self.sizes.threads {
            return Err(refused(&self.folder, Refusal::Threads { needed }));
        }
        for (slot, list) in &mut slots.commits {
            worker.log.restore_commits(u32::from(*slot), list.make_contiguous())?;
        }
        for (slot, open) in prepared {
            self.restore_one(worker, slot, open)?;
        }
        Ok(Some(low))
    }

    fn restore_one(
        self: &Arc<Self>,
        worker: &Worker<M>,
        slot: u16,
        open: Open,
    ) -> Result<(), Error> {
        let (held, aside) = self.read_chain(open.last)?;
        worker.log.restore_open(u32::from(slot), open.first, open.last, aside)?;
        let thread = self.manager.region().thread_at(u32::from(slot))?;
        let thread = thread.ok_or_else(|| Error::Engine(format!("slot {slot} is in use")))?;
        // Dropped, it leaves the slot as it is.
        let kept = Worker::of_retained(self.clone(), thread)?;
        let options = OwnerOptions { label: "prepared", ..OwnerOptions::default() };
        let owner = kept.locks()?.owner_with(&options)?;
        owner.keep();
        Ok(owner.take_held(&held)?)
    }

    /// What a prepared transaction has locked, and what its end may take of the log.
    fn read_chain(&self, last: Lsn) -> Result<(Held, u64), Error> {
        let (mut held, mut aside, mut at) = (Held::default(), 2 * SMALL, last);
        while at != Lsn::NEVER {
            let entry = self.log.read(at)?;
            let table = || self.table(entry.head.aux32);
            let wrong = |what| Error::Damaged { table: table(), key: Vec::new(), what };
            match entry.head.kind {
                LOCKS => {
                    let read = locks_of(&entry.payload, &mut held);
                    read.ok_or_else(|| wrong("the locks of a prepared transaction"))?;
                }
                CHANGE if !entry.head.flags.has(Flags::CLR) => {
                    let change = Change::decode(&entry.payload).ok_or_else(|| wrong("undo"))?;
                    aside += change.undo_bytes().max(ASIDE_LEAST);
                }
                _ => {}
            }
            at = entry.head.prev;
        }
        Ok((held, aside))
    }
}
