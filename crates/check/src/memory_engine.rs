//! Trees and a log in ordinary memory under one mutex: a test engine for transactions, and the
//! reference model of the real trees and log.
//!
//! It can have a planted bug, which the oracle must find.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};

use latchwork_store::Error;
use latchwork_store::internals::{
    Commits, Engine, Stamp, UndoChain, Version, WriteOptions, WriteOutcome,
};
use latchwork_tree::{Batch, Header, Row};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// No bug.
    None,
    /// Undo leaves the record as it was written.
    UndoKeepsValue,
    /// Writers ignore locks on ranges.
    ClaimsIgnored,
    /// Snapshots treat everything written before them as committed.
    LowTooHigh,
    /// A snapshot that finds an invisible version reads nothing instead of the version before.
    NoOldVersions,
}

/// A version of a record.
#[derive(Clone, Debug, Default)]
struct Found {
    stamp: Stamp,
    value: Option<Vec<u8>>,
}

impl Found {
    fn give(&self, to: &mut Vec<u8>) -> Version {
        to.clear();
        to.extend_from_slice(self.value.as_deref().unwrap_or_default());
        Version { stamp: self.stamp, there: self.value.is_some() }
    }
}

/// A record of the log. Its position is its index plus one, times 16.
enum Entry {
    Write { tree: u32, key: Vec<u8>, old: Found, prev: u64 },
    Undone { next: u64 },
    Commit,
    End,
}

#[derive(Default)]
struct State {
    log: Vec<Entry>,
    trees: HashMap<u32, BTreeMap<Vec<u8>, Found>>,
    claims: HashMap<u32, u64>,
    commits: HashMap<u16, Vec<u64>>,
    /// Writes of each slot's transaction that were not undone, and of all committed ones.
    writes: HashMap<u16, Vec<u64>>,
    sealed: HashSet<u64>,
    /// The first record of each slot's unfinished transaction.
    open: HashMap<u16, u64>,
}

impl State {
    fn append(&mut self, entry: Entry) -> u64 {
        self.log.push(entry);
        self.log.len() as u64 * 16
    }

    fn committed(&mut self, slot: u16, at: u64) {
        self.open.remove(&slot);
        self.commits.entry(slot).or_default().push(at);
        let writes = self.writes.remove(&slot).unwrap_or_default();
        self.sealed.extend(writes);
    }
}

/// The trees and the log.
pub struct Memory {
    state: Mutex<State>,
    bug: Bug,
}

impl Memory {
    /// Empty trees.
    pub fn new(bug: Bug) -> Self {
        Self { state: Mutex::new(State::default()), bug }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics under the mutex")
    }

    /// The position of the log's last record.
    pub fn end(&self) -> u64 {
        self.state().log.len() as u64 * 16
    }

    /// Unfinished transactions.
    pub fn open(&self) -> usize {
        self.state().open.len()
    }
}

impl Commits for Memory {
    fn last_commit(&self, slot: u16, at: u64) -> Result<u64, Error> {
        let state = self.state();
        let commits = state.commits.get(&slot).map_or(&[][..], Vec::as_slice);
        let before = &commits[..commits.partition_point(|commit| *commit <= at)];
        Ok(before.last().copied().unwrap_or(0))
    }

    fn is_finished(&self, stamp: Stamp) -> bool {
        stamp == Stamp::NOBODY || self.state().sealed.contains(&stamp.at())
    }
}

impl Engine for Memory {
    fn newest(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<Version, Error> {
        let state = self.state();
        let found = state.trees.get(&tree).and_then(|tree| tree.get(key));
        Ok(found.cloned().unwrap_or_default().give(value))
    }

    fn scan(
        &self,
        tree: u32,
        bound: Bound<&[u8]>,
        back: bool,
        limit: usize,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let state = self.state();
        batch.clear();
        let Some(tree) = state.trees.get(&tree) else { return Ok(()) };
        // Two at a time, so that scans continue.
        let limit = limit.min(2);
        let some: Vec<_> = if back {
            tree.range::<[u8], _>((Bound::Unbounded, bound)).rev().take(limit).collect()
        } else {
            tree.range::<[u8], _>((bound, Bound::Unbounded)).take(limit).collect()
        };
        for (key, found) in &some {
            let value = found.value.as_deref();
            let header = Header::from_bits(found.stamp.get());
            let ghost = value.is_none();
            batch.push(Row { key, value: value.unwrap_or_default(), header, ghost });
        }
        let next = some.last().map(|(key, _)| match back {
            true => (*key).clone(),
            false => [key, &[0][..]].concat(),
        });
        batch.set_next(next.as_deref());
        Ok(())
    }

    fn before(
        &self,
        tree: u32,
        key: &[u8],
        stamp: Stamp,
        value: &mut Vec<u8>,
    ) -> Result<Version, Error> {
        if self.bug == Bug::NoOldVersions {
            return Ok(Version::default());
        }
        match self.state().log.get((stamp.at() / 16) as usize - 1) {
            Some(Entry::Write { tree: of, key: named, old, .. }) if *of == tree && named == key => {
                Ok(old.give(value))
            }
            _ => Err(Error::Engine("a stamp that leads to no write of its record".to_owned())),
        }
    }

    fn write(
        &self,
        chain: &mut UndoChain,
        tree: u32,
        key: &[u8],
        value: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<WriteOutcome, Error> {
        let mut state = self.state();
        let claimed = state.claims.get(&tree).is_some_and(|claims| *claims > 0);
        if claimed && !options.cleared && self.bug != Bug::ClaimsIgnored {
            return Ok(WriteOutcome::Claimed);
        }
        let old = state.trees.entry(tree).or_default().get(key).cloned().unwrap_or_default();
        let at = state.append(Entry::Write { tree, key: key.to_vec(), old, prev: chain.last });
        state.open.entry(chain.slot).or_insert(at);
        state.writes.entry(chain.slot).or_default().push(at);
        chain.last = at;
        let found = Found { stamp: Stamp::new(chain.slot, at), value: value.map(<[u8]>::to_vec) };
        state.trees.entry(tree).or_default().insert(key.to_vec(), found);
        if options.last {
            (chain.last, chain.committed) = (0, at);
            state.committed(chain.slot, at);
        }
        Ok(WriteOutcome::Done)
    }

    fn undo(&self, chain: &mut UndoChain, at: u64) -> Result<u64, Error> {
        let mut state = self.state();
        let (tree, key, old, next) = match state.log.get((at / 16) as usize - 1) {
            Some(Entry::Write { tree, key, old, prev }) => (*tree, key.clone(), old.clone(), *prev),
            Some(Entry::Undone { next }) => return Ok(*next),
            _ => return Err(Error::Engine("undo leads to no write".to_owned())),
        };
        if let Some(record) = state.trees.get_mut(&tree).and_then(|tree| tree.get_mut(&key)) {
            match self.bug {
                Bug::UndoKeepsValue => record.stamp = old.stamp,
                _ => *record = old,
            }
        }
        state.writes.entry(chain.slot).or_default().retain(|write| *write != at);
        chain.last = state.append(Entry::Undone { next });
        Ok(next)
    }

    fn commit(&self, chain: &mut UndoChain) -> Result<u64, Error> {
        let mut state = self.state();
        let at = state.append(Entry::Commit);
        state.committed(chain.slot, at);
        Ok(at)
    }

    fn ended(&self, chain: &mut UndoChain) -> Result<(), Error> {
        let mut state = self.state();
        state.append(Entry::End);
        state.open.remove(&chain.slot);
        Ok(())
    }

    fn remember(&self, _: u16) -> Result<(u64, u64), Error> {
        let state = self.state();
        let at = state.log.len() as u64 * 16;
        let first = state.open.values().copied().min().unwrap_or(at + 16);
        Ok((at, if self.bug == Bug::LowTooHigh { at + 16 } else { first }))
    }

    fn forget(&self, _: u16) {}

    fn claims(&self, tree: u32, more: bool) {
        let mut state = self.state();
        let claims = state.claims.entry(tree).or_default();
        *claims = if more { *claims + 1 } else { *claims - 1 };
    }
}
