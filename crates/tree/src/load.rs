//! Bulk load: builds a tree from sorted records.
//!
//! Pages are filled from left to right, level by level, in memory. A full page gets its right
//! fence, is logged whole, and is not touched again. So a record costs its bytes in one image, and
//! no search. Until the last page is written, the root leads only to the first page of the highest
//! level.
//!
//! ```text
//!   level 1      │ 5 9 ..          next key and child are added at the right
//!   level 0   1-4│5-8│9 ..         full pages are out; the last one of each level is open
//! ```
//!
//! A death or an error leaves a tree whose pages are all found by the first one of each level and
//! the links to the right (`dismantle`), and at most two pages in hand.

use core::mem::take;

use latchwork_machine::ConstMachine;

use crate::change::Change;
use crate::edit::{self, Record, make};
use crate::held::{image_bytes, log_and_do};
use crate::journal::Journal;
use crate::layout::{LEAF_WORDS, Limits, SLOTS};
use crate::node::Fences;
use crate::root::{Tree, empty_leaf};
use crate::split::separator;
use crate::words::words_of;
use crate::{Error, Header, Kind};

/// The share of a page that is left free.
const FREE_SHARE: usize = 16;

/// The page of a level that is being filled.
#[derive(Default)]
struct Open {
    /// Its number, once another page leads to it.
    number: Option<u64>,
    low: Vec<u8>,
    first_child: u64,
    records: Vec<Record>,
    /// The length of the common beginning of its keys and its lower fence, and the words of its
    /// records.
    prefix: usize,
    words: usize,
}

fn alike(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

fn words_with(record: &Record, prefix: usize) -> usize {
    1 + LEAF_WORDS + words_of(record.key.len() - prefix.min(record.key.len()) + record.capacity)
}

impl Open {
    fn add(&mut self, record: Record) {
        let prefix = alike(&self.low, &record.key);
        if self.records.is_empty() || prefix < self.prefix {
            self.prefix = prefix;
            self.words = self.records.iter().map(|record| words_with(record, prefix)).sum();
        }
        self.words += words_with(&record, self.prefix);
        self.records.push(record);
    }

    /// Whether it has as many records as it should have, in a page of `words` words.
    fn is_full(&self, words: usize) -> bool {
        let fences = words_of(self.low.len()) + words_of(self.low.len() + 8);
        self.records.len() > 2 && SLOTS + fences + self.words > words - words / FREE_SHARE
    }
}

/// A tree that is being built.
struct Load<'l, 'h, 't, J: Journal, M: ConstMachine> {
    tree: &'l Tree<'h, 't, J, M>,
    words: usize,
    levels: Vec<Open>,
}

impl<J: Journal, M: ConstMachine> Tree<'_, '_, J, M> {
    /// Fills an empty tree that no other thread knows with records in ascending order of their
    /// keys, each with this header. Returns their number. O(records).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfOrder`]; [`Error::KeyTooLong`], [`Error::RecordTooLong`]; [`Error::Pool`],
    /// [`Error::Journal`]; errors of the records. The tree can then only be
    /// [dismantled](Self::dismantle).
    pub fn load<E: From<Error>>(
        &self,
        header: Header,
        records: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), E>>,
    ) -> Result<u64, E> {
        let words = self.file.page_bytes() as usize / 8;
        let limits = Limits::of(words);
        let mut load = Load { tree: self, words, levels: vec![Open::default()] };
        let mut count = 0;
        for record in records {
            let (key, value) = record?;
            // A page that is begun takes the last record of the one before.
            if load.levels[0].records.last().is_some_and(|last| last.key >= key) {
                return Err(Error::OutOfOrder { key }.into());
            }
            if key.len() > limits.key {
                let (length, limit) = (key.len(), limits.key);
                return Err(Error::KeyTooLong { length, limit }.into());
            }
            if key.len() + value.len() > limits.record {
                let (length, limit) = (key.len() + value.len(), limits.record);
                return Err(Error::RecordTooLong { length, limit }.into());
            }
            let (first, capacity) = (header.to_bits(), value.len());
            load.add(0, Record { key, ghost: false, first, value, capacity })?;
            count += 1;
        }
        load.end()?;
        Ok(count)
    }
}

impl<J: Journal, M: ConstMachine> Load<'_, '_, '_, J, M> {
    fn add(&mut self, level: usize, record: Record) -> Result<(), Error> {
        let open = &mut self.levels[level];
        open.add(record);
        if open.is_full(self.words) { self.next_page(level) } else { Ok(()) }
    }

    /// Reserves a number for a page, which is empty until it is written: its earlier content may
    /// look like a page of this tree to which the previous one leads.
    fn number(&self) -> Result<u64, Error> {
        empty_leaf(self.tree.handle, self.tree.file, self.tree.journal)
    }

    /// Writes a level's page without its last record, and begins the next page with that.
    fn next_page(&mut self, level: usize) -> Result<(), Error> {
        let right = self.number()?;
        let known = self.levels[level].number;
        let number = match known {
            Some(number) => number,
            None => self.number()?,
        };
        if level + 1 == self.levels.len() {
            self.levels.push(Open { first_child: number, ..Open::default() });
        }
        let mut full = take(&mut self.levels[level]);
        let mut over: Vec<Record> = full.records.pop().into_iter().collect();
        let (high, page) = loop {
            let first = over.last().ok_or_else(edit::malformed)?;
            let high = match (level, full.records.last()) {
                (0, Some(last)) => separator(&last.key, &first.key).to_vec(),
                _ => first.key.clone(),
            };
            match self.page(level, &full, Some(&high), right) {
                Err(Error::Full) if full.records.len() > 1 => over.extend(full.records.pop()),
                made => break (high, made?),
            }
        };
        self.write(number, &page)?;
        if known.is_none() {
            self.lead_to(number, level)?;
        }
        // Now the root leads to the page that leads there.
        self.tree.journal.linked(right);
        let next = &mut self.levels[level];
        (next.number, next.low) = (Some(right), high.clone());
        if level != 0 {
            // The key between two inner pages moves to the parent; its child begins the right one.
            next.first_child = over.pop().ok_or_else(edit::malformed)?.first;
        }
        over.into_iter().rev().for_each(|record| next.add(record));
        let (value, capacity) = (Vec::new(), 0);
        self.add(level + 1, Record { key: high, ghost: false, first: right, value, capacity })
    }

    /// Returns a level's page.
    fn page(
        &self,
        level: usize,
        open: &Open,
        high: Option<&[u8]>,
        right: u64,
    ) -> Result<Vec<u64>, Error> {
        let kind = if level == 0 { Kind::Leaf } else { Kind::Inner };
        let number = u8::try_from(level).map_err(|_| Error::Malformed("a tree of 256 levels"))?;
        let mut page = vec![0; self.words];
        let fences = Fences { low: &open.low, high };
        make(&mut page, (kind, number, 0), fences, right, open.first_child, &open.records)?;
        Ok(page)
    }

    fn write(&self, number: u64, words: &Vec<u64>) -> Result<(), Error> {
        let tree = self.tree;
        // The page already exists, and may first be logged with its earlier content.
        tree.journal.reserve(3 * image_bytes(self.words)).map_err(Error::Journal)?;
        let image = Change::image(words).ok_or_else(edit::malformed)?;
        let page = tree.handle.write(tree.file, number)?;
        log_and_do(tree.journal, &Change::Image { image: &image }, page, None)?;
        // The next records may take long to arrive.
        tree.journal.keep_little();
        Ok(())
    }

    /// Makes the root lead to the first page of a level.
    fn lead_to(&self, first: u64, level: usize) -> Result<(), Error> {
        let root = Open { first_child: first, ..Open::default() };
        self.write(self.tree.root, &self.page(level + 1, &root, None, 0)?)?;
        self.tree.journal.linked(first);
        Ok(())
    }

    /// Writes the open pages; the last one is the root.
    fn end(mut self) -> Result<(), Error> {
        let mut level = 0;
        while level < self.levels.len() {
            let (open, top) = (&self.levels[level], level + 1 == self.levels.len());
            let number = if top { Some(self.tree.root) } else { open.number };
            match self.page(level, open, None, 0) {
                // The last page of a level has no upper fence, so its keys are stored whole.
                Err(Error::Full) if open.records.len() > 1 => self.next_page(level)?,
                page => {
                    self.write(number.ok_or_else(edit::malformed)?, &page?)?;
                    level += 1;
                }
            }
        }
        Ok(())
    }
}
