//! Snapshots of held and waiting locks, and totals.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{ConstMachine, Word};

use crate::memory::cells::{WEAK, WeakPage, cell_at, get};
use crate::memory::entry::{Entry, LENGTH_MAX};
use crate::memory::numbers::OwnerNumber;
use crate::memory::typed::Stored;
use crate::memory::{Memory, names};
use crate::meter::counters::Stats;
use crate::meter::waits::Waits;
use crate::mode::Mode;
use crate::owner::handle::label_words;
use crate::range::cells::{range_of, told};
use crate::range::kinds::RangeInfo;
use crate::{Error, OwnerId};

/// A lock that is held or waited for, in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The owner.
    pub owner: OwnerId,
    /// The owner's label.
    pub label: String,
    /// The thread slot of the owner, through which [`latchwork_region::Region::threads`] gives the
    /// process; `None` if the owner is an orphan.
    pub thread: Option<u32>,
    /// The name, or the description of a range.
    pub object: Vec<u8>,
    /// The range, if `object` describes one; `None` if its claim has ended.
    pub range: Option<RangeInfo>,
    /// The mode held.
    pub held: Option<Mode>,
    /// The mode waited for.
    pub wanted: Option<Mode>,
    /// How often it was taken.
    pub count: u32,
    /// Whether it is in the owner's own memory.
    pub weak: bool,
    /// How long it has waited, in nanoseconds; zero if it does not wait.
    pub waited_ns: u64,
}

/// The totals of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionTotals {
    /// Its number: 0 to 16,351.
    pub number: u32,
    /// Objects with requests.
    pub objects: u64,
    /// Idle objects, kept for the next name.
    pub idle: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that wait.
    pub waiting: u64,
}

/// The totals of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Objects with requests.
    pub objects: u64,
    /// Idle objects, kept for the next name.
    pub idle: u64,
    /// Requests in the table.
    pub requests: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// Weak locks in owners' pages.
    pub weak: u64,
    /// Ranges held or waited for. Each also counts as an object and a request.
    pub ranges: u64,
    /// Owners that are live.
    pub owners: u64,
    /// Owners that are orphaned.
    pub orphans: u64,
}

impl<M: ConstMachine> Memory<M> {
    /// Returns this session's counters.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.counters.read();
        // The short path of weak locks does not count requests.
        stats.requests += stats.weak;
        stats
    }

    /// Returns the durations of this session's waits, by mode. A wait is counted when it has ended.
    pub(crate) fn waits(&self) -> Waits {
        self.waits.borrow().clone()
    }

    /// Returns the number of owners, including dead ones that no sweep has found. Takes no latch.
    pub(crate) fn owners(&self) -> Result<usize, Error> {
        self.region().check()?;
        Ok(self.each_owner().filter(|(_, cell)| !get(&cell.state).is_free()).count())
    }

    /// Returns the owners that have this label, including orphans. Takes no latch.
    pub(crate) fn owners_labelled(&self, label: &str) -> Result<Vec<OwnerId>, Error> {
        self.region().check()?;
        let words = label_words(label);
        let found = self.each_owner().filter_map(|(index, cell)| {
            // Acquire: synchronizes with the Release in `owner_with`, so that the label does not
            // belong to an earlier owner in this cell.
            let generation = cell.generation.load(Acquire);
            let is_so = !get(&cell.state).is_free() && cell.label.iter().map(get).eq(words);
            is_so.then_some(index.id(generation))
        });
        Ok(found.collect())
    }

    /// Returns the totals of each partition that has objects, each at an instant of its own.
    pub(crate) fn partition_totals(&self) -> Result<Vec<PartitionTotals>, Error> {
        let mut all = Vec::new();
        for number in self.blocks.each() {
            if get(&self.partition(number)?.heads).is_none() {
                continue;
            }
            let latched = self.latch(number)?;
            let mut totals = PartitionTotals { number: number.word(), ..Default::default() };
            for at in latched.each_object()? {
                let before = totals.requests;
                for each in latched.requests(self.object(at)?) {
                    totals.requests += 1;
                    totals.waiting += u64::from(each?.2.waits());
                }
                if totals.requests == before { totals.idle += 1 } else { totals.objects += 1 }
            }
            all.push(totals);
        }
        Ok(all)
    }

    /// Returns the totals over all partitions. Each partition is counted at one instant, but all of
    /// them are not.
    pub(crate) fn totals(&self) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for partition in self.partition_totals()? {
            totals.objects += partition.objects;
            totals.idle += partition.idle;
            totals.requests += partition.requests;
            totals.waiting += partition.waiting;
        }
        totals.ranges = self.count_ranges()?;
        for (_, cell) in self.each_owner() {
            let state = get(&cell.state);
            totals.owners += u64::from(state.is_live());
            totals.orphans += u64::from(state.is_kept());
            if !get(&cell.weak).is_null() {
                let page = cell_at(self.region(), get(&cell.weak))?;
                for at in 0..WEAK {
                    totals.weak += u64::from(self.entry_that_counts(page, at)?.is_some());
                }
            }
        }
        Ok(totals)
    }

    /// Returns which owners hold and wait for which locks. Each partition is read at one instant,
    /// but all of them are not. Weak locks are read without a latch.
    pub(crate) fn snapshot(&self) -> Result<Vec<LockInfo>, Error> {
        let mut rows = Vec::new();
        let now = self.now();
        for number in self.blocks.each() {
            if get(&self.partition(number)?.heads).is_none() {
                continue;
            }
            let latched = self.latch(number)?;
            for at in latched.each_object()? {
                for each in latched.requests(self.object(at)?) {
                    let (_, request, state) = each?;
                    let mut row = self.row(get(&request.owner))?;
                    let name = self.name_of(at)?;
                    row.range = range_of(&self.inner().region, &name);
                    row.object = told(&self.inner().region, name);
                    row.held = state.holds().then_some(state.mode);
                    row.wanted = state.waits().then_some(state.want);
                    row.count = request.count();
                    if state.waits()
                        && let Some(cell) = self.owner_cell(get(&request.owner))?
                    {
                        row.waited_ns = now.saturating_sub(get(&cell.since));
                    }
                    rows.push(row);
                }
            }
        }
        for (owner, cell) in self.each_owner() {
            if get(&cell.weak).is_null() || get(&cell.state).is_free() {
                continue;
            }
            let page = cell_at(self.region(), get(&cell.weak))?;
            for at in 0..WEAK {
                if let Some(entry) = self.entry_that_counts(page, at)? {
                    let mut row = self.row(owner)?;
                    row.object = names::read::<M>(&page.names[at], entry.length);
                    (row.held, row.count, row.weak) = (Some(entry.mode), entry.count, true);
                    rows.push(row);
                }
            }
        }
        Ok(rows)
    }

    /// Returns an entry if it counts a lock that was not moved to the table.
    fn entry_that_counts(&self, page: &WeakPage<M>, at: usize) -> Result<Option<Entry>, Error> {
        let (entry, spot) = (get(&page.states[at]), self.spot(get(&page.hashes[at])));
        let bias = get(&self.biases(spot.partition)?[spot.bias as usize]);
        let counts = entry.count != 0 && entry.length <= LENGTH_MAX && entry.bias == bias;
        Ok(counts.then_some(entry))
    }

    fn row(&self, index: OwnerNumber) -> Result<LockInfo, Error> {
        let cell = self.owner_cell(index)?.ok_or(Error::Foreign)?;
        let label: Vec<u8> = cell.label.iter().flat_map(|w| get(w).to_le_bytes()).collect();
        let length = label.iter().position(|byte| *byte == 0).unwrap_or(label.len());
        let thread = self.page(index.page())?.map_or(0, |page| get(&page.thread));
        Ok(LockInfo {
            owner: index.id(get(&cell.generation)),
            label: String::from_utf8_lossy(&label[..length]).into_owned(),
            thread: get(&cell.state).thread(thread),
            object: Vec::new(),
            range: None,
            held: None,
            wanted: None,
            count: 0,
            weak: false,
            waited_ns: 0,
        })
    }
}
