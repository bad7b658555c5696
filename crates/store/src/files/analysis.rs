//! The analysis pass of recovery: the transactions without an end, the pages that may have had
//! intents, and the free pages.

use std::collections::BTreeMap;

use latchwork_log::{EntryView, Flags, Lsn};
use latchwork_pool::Error as PoolError;
use latchwork_tree::Change;

use crate::Error;
use crate::error::of_tree;
use crate::files::kinds::CHANGE;
use crate::files::restore_transactions::Slots;
use crate::files::space::{GROUP, first_of, free_of};
use crate::tables::CATALOG;

/// A page whose state before a record differs from what the log expects.
pub(crate) struct Stale {
    /// The position of the record.
    pub(crate) at: Lsn,
    /// The tree of the page, if it can be read and is older; `None` if it cannot be read.
    pub(crate) of: Option<u32>,
}

/// The state of the log as read so far.
#[derive(Default)]
pub(crate) struct Analysis {
    /// The transactions of each slot.
    pub(crate) slots: Slots,
    /// By group of pages: the last record that says that a page is free.
    freed: BTreeMap<u64, Box<[Lsn]>>,
    /// Pages that were created or unlinked, and to which no later record links, with their trees.
    pub(crate) in_hand: BTreeMap<u64, u32>,
}

impl Analysis {
    /// Processes a record. Its bytes may be damaged, which is found when it is redone.
    pub(crate) fn note(&mut self, entry: &EntryView<'_>) {
        let flags = entry.head.flags;
        self.slots.note(entry);
        if entry.head.kind == CHANGE && flags.has(Flags::SYSTEM) {
            self.note_page(entry);
        }
    }

    /// Updates which pages may have intents.
    fn note_page(&mut self, entry: &EntryView<'_>) {
        let (tree, page) = (entry.head.aux, entry.head.page);
        match Change::decode(entry.payload) {
            Some(Change::Image { .. }) if entry.head.page_prev == Lsn(0) => {
                self.in_hand.insert(page, tree);
            }
            Some(Change::Split { right, .. }) => _ = self.in_hand.remove(&right),
            Some(Change::Grow { left, right, .. }) => {
                self.in_hand.remove(&left);
                self.in_hand.remove(&right);
            }
            Some(Change::Absorb { gone, .. }) => {
                self.in_hand.insert(gone, tree);
                self.note_freed(gone, entry.lsn);
            }
            Some(Change::Insert { key, value, .. }) if tree == CATALOG => {
                self.note_map(key, &[], value, entry.lsn);
            }
            Some(Change::Replace { key, before, value, .. }) if tree == CATALOG => {
                self.note_map(key, before, value, entry.lsn);
            }
            _ => {}
        }
    }

    /// Updates which pages were taken, and which are free.
    fn note_map(&mut self, key: &[u8], before: &[u8], value: &[u8], lsn: Lsn) {
        let Some(first) = first_of(key) else { return };
        // Nearly all of the free pages were free before. Both are compared in order, so that only
        // the pages that the record changes need work.
        let mut free = free_of(first, value).peekable();
        for page in free_of(first, before) {
            while free.next_if(|next| *next < page).is_some() {}
            if free.peek() != Some(&page) {
                self.in_hand.insert(page, CATALOG);
            }
        }
        free_of(first, value).for_each(|page| self.note_freed(page, lsn));
    }

    fn note_freed(&mut self, page: u64, lsn: Lsn) {
        let none = || vec![Lsn::NEVER; GROUP as usize].into_boxed_slice();
        let group = self.freed.entry(page / GROUP).or_insert_with(none);
        group[(page % GROUP) as usize] = lsn;
    }

    /// Returns the error of the first page that is not as the log left it at its end.
    pub(crate) fn is_sound(&self, stale: &BTreeMap<u64, Stale>, file: u16) -> Result<(), Error> {
        let freed =
            |page: u64| self.freed.get(&(page / GROUP)).map(|of| of[(page % GROUP) as usize]);
        let is_somebodys = |(page, stale): &(&u64, &Stale)| freed(**page) < Some(stale.at);
        match stale.iter().find(is_somebodys) {
            None => Ok(()),
            Some((page, Stale { of: None, .. })) => {
                Err(PoolError::Checksum { file, page: *page }.into())
            }
            Some((_, Stale { of: Some(tree), .. })) => {
                Err(wrong(*tree, "a page is not as the log left it: a write of it was lost"))
            }
        }
    }
}

pub(crate) fn wrong(tree: u32, what: &'static str) -> Error {
    Error::Damaged { table: of_tree(tree), key: Vec::new(), what }
}
