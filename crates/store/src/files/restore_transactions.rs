//! Restores transactions without an end after a crash of the machine. Each gets back its slot, its
//! place in the log, its locks, and its reservation for its end. A prepared transaction is restored
//! completely. Any other is treated as a dead thread's, which the next sweep rolls back. So the
//! store opens before the rollback, and a record that cannot be rolled back affects only the
//! transactions that need it.
//!
//! A transaction keeps its slot number, because the stamps in the pages name it. `low` stays before
//! its first record, and for commits after that record visibility depends on the slots' lists of
//! commits, so those are restored as well.
//!
//! A prepared transaction has logged its locks. A transaction that must be rolled back needs the
//! locks of its changes, which its records name. It is rolled back at once if this is not possible:
//!
//! - its slot, or the slot of a later commit, is not available to threads now;
//! - it has created a table: page intents are resolved next, according to the catalog;
//! - it was writing the pieces of a long value: the record that refers to them is locked, but only
//!   the records after the pieces name it;
//! - shorter transactions already occupy a quarter of all thread slots, or have written
//!   [`LEFT_RECORDS`] records: new threads must find slots and room for locks, and wait only
//!   briefly;
//! - the lock manager has no room for its locks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use latchwork_lockmgr::granular::X;
use latchwork_lockmgr::{Error as LockError, Held, OwnerOptions};
use latchwork_log::{ASIDE_LEAST, COMMITS, EntryView, Flags, Lsn};
use latchwork_machine::ConstMachine;
use latchwork_region::Error as RegionError;
use latchwork_tree::Change;

use crate::Error;
use crate::error::{of_tree, refused};
use crate::files::inner::StoreInner;
use crate::files::kinds::{CHANGE, END, LOCKS, PREPARE};
use crate::files::prepare::locks_of;
use crate::files::session::{Leave, SMALL, StoreSession};
use crate::lock_name::{LOCK_NAME, lock_name};
use crate::long::PIECES;
use crate::refusal::Refusal;
use crate::tables::CATALOG;

/// How many records the transactions may have written in total that are left to a sweep. Their
/// rollback takes half a second, and their locks some 13 MB.
const LEFT_RECORDS: usize = 100_000;

/// How many changes of a transaction are recorded separately: a megabyte.
const CHANGES: usize = 1 << 16;

/// A transaction without an end, as far as the log was read.
#[derive(Debug)]
pub(crate) struct Open {
    first: Lsn,
    last: Lsn,
    prepared: bool,
    had: Had,
}

/// The state of a transaction according to its records.
#[derive(Debug, Default)]
struct Had {
    /// How many records it has written, with repetitions.
    records: usize,
    /// The names of their locks, and the lengths of the names; no more than can be left to a sweep.
    written: Vec<([u8; LOCK_NAME], u8)>,
    /// The payloads of its lock records.
    locks: Vec<Vec<u8>>,
    /// Its changes that are not rolled back, some of them merged, and how much log their rollback
    /// may take.
    changes: Vec<(Lsn, u64)>,
    made_table: bool,
    /// Whether its last change is one of a piece of a long value.
    at_pieces: bool,
}

impl Had {
    fn clear(&mut self) {
        self.written.clear();
        self.locks.clear();
        self.changes.clear();
        self.records = 0;
        (self.made_table, self.at_pieces) = (false, false);
    }

    /// Returns how much log its end may take.
    fn aside(&self) -> u64 {
        2 * SMALL + self.changes.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Returns the locks that it has logged; a prepared transaction has logged all.
    fn logged(&self) -> Result<Held, Error> {
        let mut held = Held::default();
        let what = "the locks of a prepared transaction";
        let wrong = || Error::Damaged { table: of_tree(CATALOG), key: Vec::new(), what };
        for part in &self.locks {
            locks_of(part, &mut held).ok_or_else(wrong)?;
        }
        Ok(held)
    }

    fn note(&mut self, entry: &EntryView<'_>) {
        let tree = entry.head.aux;
        match entry.head.kind {
            LOCKS => self.locks.push(entry.payload.to_vec()),
            CHANGE if !entry.head.flags.has(Flags::CLR) => {
                // Damage is reported when the record is redone.
                let undo = Change::decode(entry.payload).and_then(|change| change.undo());
                let bytes = undo.as_ref().map_or(0, Change::bytes).max(ASIDE_LEAST);
                self.note_change(entry.lsn, bytes);
                self.made_table |= tree == CATALOG;
                self.at_pieces = tree == PIECES;
                self.records += 1;
                if let Some(key) = undo.and_then(|undo| undo.record_key())
                    && tree != PIECES
                {
                    self.note_lock(tree, key);
                }
            }
            // It points to the next record to roll back; all later ones are rolled back.
            CHANGE => {
                let undone = |(lsn, _): &mut (Lsn, u64)| *lsn > entry.head.prev;
                while self.changes.pop_if(undone).is_some() {}
            }
            _ => {}
        }
    }

    fn note_change(&mut self, lsn: Lsn, bytes: u64) {
        if self.changes.len() == CHANGES {
            // Merge pairs. A pair counts until both changes are rolled back.
            let pair = |two: &[(Lsn, u64)]| (two[0].0, two.iter().map(|(_, bytes)| bytes).sum());
            self.changes = self.changes.chunks(2).map(pair).collect();
        }
        self.changes.push((lsn, bytes));
    }

    fn note_lock(&mut self, tree: u32, key: &[u8]) {
        if self.records <= LEFT_RECORDS {
            let mut name = [0; LOCK_NAME];
            let length = lock_name(tree, key, &mut name);
            self.written.push((name, length as u8));
        }
    }
}

/// The transactions of each slot, as far as the log was read.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    open: BTreeMap<u16, Open>,
    /// First record and commit of the last transactions.
    commits: BTreeMap<u16, VecDeque<(Lsn, Lsn)>>,
    /// Buffers for reuse.
    spare: Vec<Had>,
}

impl Slots {
    pub(crate) fn note(&mut self, entry: &EntryView<'_>) {
        let (flags, lsn) = (entry.head.flags, entry.lsn);
        if flags.has(Flags::LAST) || entry.head.kind == END {
            let open = self.open.remove(&entry.slot);
            let first = open.as_ref().map_or(lsn, |open| open.first);
            self.spare.extend(open.map(|open| open.had));
            if flags.has(Flags::LAST) {
                let list = self.commits.entry(entry.slot).or_default();
                if list.len() == COMMITS - 1 {
                    list.pop_front();
                }
                list.push_back((first, lsn));
            }
        } else if !flags.has(Flags::SYSTEM) || flags.has(Flags::CLR) {
            let open = self.open.entry(entry.slot).or_insert_with(|| {
                let mut had = self.spare.pop().unwrap_or_default();
                had.clear();
                Open { first: lsn, last: lsn, prepared: false, had }
            });
            (open.last, open.prepared) = (lsn, entry.head.kind == PREPARE);
            open.had.note(entry);
        }
    }

    /// Removes and returns the transactions that are, or are not, prepared.
    fn take(&mut self, prepared: bool) -> Vec<(u16, Open)> {
        self.open.extract_if(.., |_, open| open.prepared == prepared).collect()
    }

    /// Returns how many thread slots these transactions need: theirs, and those of the commits
    /// after the first of them.
    fn needed(&self, open: &[(u16, Open)]) -> u32 {
        let Some(low) = first_of(open) else { return 0 };
        let since = |list: &VecDeque<(Lsn, Lsn)>| list.back().is_some_and(|last| last.1 >= low);
        let committed = self.commits.iter().filter(|(_, list)| since(list)).map(|(slot, _)| slot);
        let last = committed.chain(open.iter().map(|(slot, _)| slot)).max();
        last.map_or(0, |slot| u32::from(*slot) + 1)
    }
}

/// Returns the first record of all these transactions.
fn first_of(open: &[(u16, Open)]) -> Option<Lsn> {
    open.iter().map(|(_, open)| open.first).min()
}

impl<M: ConstMachine> StoreInner<M> {
    /// Restores the transactions without an end, and rolls back at once the ones that cannot wait
    /// for a sweep. Returns the first record of the remaining ones.
    ///
    /// # Errors
    ///
    /// [`Refusal::Threads`], [`Refusal::Locks`]; errors of the store's parts. The store is not
    /// opened then.
    pub(crate) fn restore_open(
        self: &Arc<Self>,
        worker: &StoreSession<M>,
        slots: &mut Slots,
    ) -> Result<Option<Lsn>, Error> {
        let threads = |needed| refused(&self.folder, Refusal::Threads { needed });
        let mut again = slots.take(true);
        let mut at_once = slots.take(false);
        let needed = slots.needed(&again);
        if needed > self.sizes.threads {
            return Err(threads(needed));
        }
        // A transaction that is only rolled back may use a slot that now belongs to sweepers.
        let undone = at_once.iter().map(|(slot, _)| u32::from(*slot) + 1).max().unwrap_or(0);
        if undone > self.log.threads() {
            return Err(threads(undone));
        }
        at_once.sort_by_key(|(_, open)| open.had.records);
        let mut records = LEFT_RECORDS;
        let fits = |(_, open): &&(u16, Open)| {
            let left = records.checked_sub(open.had.records);
            left.inspect(|left| records = *left).is_some()
        };
        let left = at_once.iter().take(self.sizes.threads as usize / 4).take_while(fits).count();
        again.extend(at_once.drain(..left));
        if slots.needed(&again) > self.sizes.threads {
            at_once.extend(again.extract_if(.., |(_, open)| !open.prepared));
        }
        let low = first_of(&again);
        for (slot, list) in &mut slots.commits {
            if list.back().is_some_and(|last| low.is_some_and(|low| last.1 >= low)) {
                worker.log.restore_commits(u32::from(*slot), list.make_contiguous())?;
            }
        }
        for (slot, open) in again {
            if !self.restore_one(worker, slot, &open)? {
                at_once.push((slot, open));
            }
        }
        for (slot, open) in at_once {
            worker.undo_all(slot, open.last, open.last)?;
        }
        Ok(low)
    }

    /// Restores a transaction in its slot. Returns false if it must be rolled back at once.
    fn restore_one(
        self: &Arc<Self>,
        worker: &StoreSession<M>,
        slot: u16,
        open: &Open,
    ) -> Result<bool, Error> {
        let had = &open.had;
        if (had.made_table || had.at_pieces) && !open.prepared {
            return Ok(false);
        }
        worker.log.restore_open(u32::from(slot), open.first, open.last, had.aside())?;
        let thread = self.manager.region().thread_at(u32::from(slot))?;
        let thread = thread.ok_or_else(|| Error::Engine(format!("slot {slot} is in use")))?;
        // Dropping it leaves the slot as it is.
        let kept = StoreSession::of_retained(self.clone(), thread)?;
        let label = if open.prepared { "prepared" } else { "open at the crash" };
        let options = OwnerOptions { label, ..OwnerOptions::default() };
        let owner = kept.locks()?.owner_with(&options)?;
        if open.prepared {
            owner.take_held(&had.logged()?).map_err(|why| match why {
                LockError::Region(RegionError::Full(limit)) => {
                    refused(&self.folder, Refusal::Locks { limit })
                }
                why => why.into(),
            })?;
        } else if had
            .written
            .iter()
            .any(|(name, length)| owner.try_lock(&name[..usize::from(*length)], X).is_err())
        {
            kept.leave(Leave::Free);
            return Ok(false);
        } else {
            // Left like the transaction of a dead thread.
            kept.leave(Leave::Abandoned);
        }
        owner.keep();
        Ok(true)
    }
}
