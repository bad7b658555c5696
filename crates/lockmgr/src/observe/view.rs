//! Inspecting a manager without using it: no slot, no latch, no store.
//!
//! A [`View`] reads the region in its current state, including the state that a dead process left.
//! Each partition is read until two consecutive readings agree, including cell generations. If they
//! never do, the last reading is used, and [`Snapshot::restless`] counts the partition. Partitions
//! are read in rounds, each over the partitions that have not agreed. Lists are followed no further
//! than the region has room for cells. For a file, each reading uses a new copy (`refresh`).

mod busy;
mod deadlocks;
mod edge;
mod ranges;
mod verify;

use core::fmt;
use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{Clock, ConstMachine, Native, Word};
use latchwork_region::{Offset, Region};

pub use self::busy::PartitionInfo;
pub use self::deadlocks::{Deadlock, ThreadRef, Waiter};
pub use self::edge::Edge;
pub use self::verify::Verified;
use crate::error::corrupt_list;
use crate::memory::blocks::Blocks;
use crate::memory::cells::{
    Directory, Object, ObjectAt, OwnerCell, OwnerPage, Small, Table, WEAK, cell_at, chains_at,
    generation_at,
};
use crate::memory::entry::WEAK_WORDS;
use crate::memory::numbers::{OwnerNumber, PartitionNumber};
use crate::memory::roots::READY;
use crate::memory::state::State;
use crate::memory::typed::Stored;
use crate::memory::{names, roots};
use crate::range::cells::{range_of, told};
use crate::range::kinds::RangeInfo;
use crate::{Error, LockInfo, Modes, OwnerId};

/// The largest number of readings of a partition.
const TRIES: u32 = 16;

/// A manager that is inspected without using it.
pub struct View<M: ConstMachine = Native> {
    region: Region<M>,
    blocks: Blocks<M>,
    directory: Offset<Directory<M>>,
    fingerprint: u64,
}

impl<M: ConstMachine> fmt::Debug for View<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modes = format_args!("{:#018x}", self.fingerprint);
        f.debug_struct("View").field("modes", &modes).finish_non_exhaustive()
    }
}

/// An owner, in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerInfo {
    /// Its id.
    pub owner: OwnerId,
    /// Its label.
    pub label: String,
    /// Its thread slot, or `None` if it is an orphan.
    pub thread: Option<u32>,
    /// The slot of its parent.
    pub parent: Option<u32>,
    /// Victims are chosen among the owners of the lowest priority.
    pub priority: u32,
    /// Whether it was aborted.
    pub aborted: bool,
    /// When it began, or the first attempt of the same work, by the monotonic clock, in
    /// nanoseconds: see [`OwnerOptions::age`](crate::OwnerOptions::age).
    pub began: u64,
}

/// A snapshot of a manager.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Locks held and waited for. Those of one object are adjacent, in the order of their queue.
    /// Locks in owners' own memory come last.
    pub rows: Vec<LockInfo>,
    /// Owners that have not ended.
    pub owners: Vec<OwnerInfo>,
    /// Objects with requests.
    pub objects: u64,
    /// Idle objects, kept for the next name.
    pub idle: u64,
    /// Partitions whose readings never agreed, because they changed continuously.
    pub restless: u32,
    /// Owners that ever began, including the current ones. Each slot's count wraps after 2^32.
    pub owners_ever: u64,
    /// Waits that ever began. Each slot's count wraps after 2^32.
    pub waits_ever: u64,
}

/// A request, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    at: u32,
    generation: u32,
    owner: OwnerNumber,
    of: u32,
    state: State,
    count: u32,
    since: u64,
    object: Vec<u8>,
    range: Option<RangeInfo>,
}

/// An owner's page and cell.
type Owned<'a, M> = (&'a OwnerPage<M>, &'a OwnerCell<M>);

/// The contents of a partition: requests, number of objects with requests, number without.
type Contents = (Vec<Found>, u64, u64);

/// Loads a word that other threads write.
fn seen<W: Word>(word: &W) -> W::Value {
    // Acquire: synchronizes with the Release in `put`, so that a cell to which a number leads is no
    // older.
    word.load(Acquire)
}

/// Loads the first object of a chain.
fn seen_object<M: ConstMachine>(chain: &M::AtomicU32) -> ObjectAt<M> {
    Offset::from_raw(seen(chain))
}

impl<M: ConstMachine> View<M> {
    /// Opens a view of the manager in a region, which may itself be a [view](Region::view). Returns
    /// `None` if the region has no manager.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if the region's description of itself is inconsistent.
    pub fn new(region: Region<M>) -> Result<Option<Self>, Error> {
        if seen(region.root(roots::STATE)?) != READY {
            return Ok(None);
        }
        let view = Self {
            blocks: Blocks::read(&region)?,
            directory: Offset::from_raw(seen(region.root(roots::DIRECTORY)?) as u32),
            fingerprint: seen(region.root(roots::MODES)?),
            region,
        };
        cell_at(&view.region, view.directory)?;
        Ok(Some(view))
    }

    /// Returns the region.
    pub fn region(&self) -> &Region<M> {
        &self.region
    }

    /// Returns whether the manager has these modes, with the same weak ones. Names of modes are not
    /// stored.
    pub fn has(&self, modes: &Modes) -> bool {
        modes.fingerprint() == self.fingerprint
    }

    /// Returns the partitions whose latch is held, and the thread slots of their holders.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn latched(&self) -> Result<Vec<(u32, u32)>, Error> {
        self.refresh()?;
        let mut held = Vec::new();
        for number in self.blocks.each() {
            let latch = seen(&self.blocks.partition(&self.region, number)?.latch);
            held.extend(latch.checked_sub(1).map(|thread| (number.word(), thread)));
        }
        Ok(held)
    }

    /// Returns which owners hold and wait for which locks.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if a list is still corrupt after repeated readings.
    pub fn look(&self) -> Result<Snapshot, Error> {
        let mut picture = Snapshot::default();
        let now = M::now(Clock::Monotonic);
        self.each_partition(|_, (found, objects, idle), steady| {
            picture.restless += u32::from(!steady);
            picture.objects += objects;
            picture.idle += idle;
            for found in found {
                picture.rows.push(self.row(&found, now)?);
            }
            Ok(())
        })?;
        self.each_owner(|index, (page, cell)| {
            let state = seen(&cell.state);
            picture.owners_ever += u64::from(seen(&cell.generation));
            picture.waits_ever += u64::from(seen(&cell.ticket));
            if !state.is_free() {
                let parent = self.parent_of(cell).map(Stored::word);
                picture.owners.push(OwnerInfo { parent, ..info(index, page, cell) });
                self.weak_rows(index, page, cell, &mut picture.rows)?;
            }
            Ok(())
        })?;
        Ok(picture)
    }

    /// Makes stores of other processes since the last call visible.
    fn refresh(&self) -> Result<(), Error> {
        self.region.refresh()?;
        // Blocks are accessed by pointer: this copies them to their previous place.
        Blocks::read(&self.region).map(drop)
    }

    /// Visits each partition, with whether two consecutive readings of it agreed. Two copies of a
    /// file suffice for all partitions that agree.
    fn each_partition(
        &self,
        mut show: impl FnMut(PartitionNumber, Contents, bool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.refresh()?;
        let mut read: Vec<_> =
            self.blocks.each().map(|number| (number, self.partition(number), false)).collect();
        for _ in 0..TRIES {
            // One copy serves all partitions that have not agreed yet; under full load these are
            // many.
            self.refresh()?;
            for (number, last, steady) in read.iter_mut().filter(|(_, _, steady)| !steady) {
                let again = self.partition(*number);
                *steady = again == *last;
                *last = again;
            }
            if read.iter().all(|(_, _, steady)| *steady) {
                break;
            }
        }
        read.into_iter().try_for_each(|(number, last, steady)| show(number, last?, steady))
    }

    /// Returns the largest number of cells that a list can have.
    fn cells(&self) -> u64 {
        self.region.len() / 48
    }

    fn partition(&self, number: PartitionNumber) -> Result<Contents, Error> {
        let line = self.blocks.partition(&self.region, number)?;
        let (table, fresh) = (seen(&line.heads), seen(&line.fresh));
        let mut contents = Contents::default();
        for table in [table, if fresh == table { Table::NONE } else { fresh }] {
            if !table.is_none() {
                self.read_chains(table, &mut contents)?;
            }
        }
        Ok(contents)
    }

    fn read_chains(&self, table: Table, to: &mut Contents) -> Result<(), Error> {
        let mut steps = 0;
        for chain in self.chains(table)? {
            let mut at = seen_object(chain);
            while !at.is_null() {
                let object = cell_at(&self.region, at)?;
                let before = to.0.len();
                self.read_queue(at, object, &mut to.0)?;
                if to.0.len() == before {
                    to.2 += 1
                } else {
                    to.1 += 1
                }
                at = seen(&object.next);
                steps += 1;
                if steps > self.cells() {
                    return corrupt_list();
                }
            }
        }
        Ok(())
    }

    fn read_queue(
        &self,
        of: ObjectAt<M>,
        object: &Small<M>,
        to: &mut Vec<Found>,
    ) -> Result<(), Error> {
        let mut at = seen(&object.head);
        let (mut name, mut range) = (None, None);
        let mut steps = 0;
        while !at.is_null() {
            let generation = generation_at(&self.region, at)?;
            let request = cell_at(&self.region, at)?;
            let owner = seen(&request.owner);
            let cell = self.owner(owner)?.ok_or(Error::Foreign)?.1;
            let state = seen(&request.state);
            let found = at;
            at = seen(&request.next);
            steps += 1;
            if steps > self.cells() {
                return corrupt_list();
            }
            if name.is_none() {
                let bytes = self.name_of(of, object)?;
                range = range_of(&self.region, &bytes);
                name = Some(told(&self.region, bytes));
            }
            to.push(Found {
                at: found.raw(),
                generation,
                owner,
                of: seen(&cell.generation),
                state,
                count: request.count(),
                since: seen(&cell.since),
                object: name.clone().unwrap_or_default(),
                range: range.clone(),
            });
        }
        Ok(())
    }

    fn chains(&self, table: Table) -> Result<&[M::AtomicU32], Error> {
        Ok(chains_at(&self.region, table.at.cast(), crate::table::objects::chains_of(table))?)
    }

    fn name_of(&self, at: ObjectAt<M>, object: &Small<M>) -> Result<Vec<u8>, Error> {
        let length = crate::memory::cells::length_of(seen(&object.info));
        macro_rules! read {
            ($n:literal) => {{
                let object = cell_at(&self.region, at.cast::<Object<M, $n>>())?;
                names::read::<M>(&object.name[..length.div_ceil(8).min($n)], length)
            }};
        }
        Ok(match length.div_ceil(8) {
            0..=3 => read!(3),
            4..=11 => read!(11),
            12..=27 => read!(27),
            28..=59 => read!(59),
            60..=123 => read!(123),
            124..=251 => read!(251),
            _ => read!(507),
        })
    }

    fn page(&self, place: u32) -> Result<Option<&OwnerPage<M>>, Error> {
        let directory = cell_at(&self.region, self.directory)?;
        match directory.pages.get(place as usize).map_or(Offset::NULL, seen) {
            page if page.is_null() => Ok(None),
            page => Ok(Some(cell_at(&self.region, page)?)),
        }
    }

    fn owner(&self, number: OwnerNumber) -> Result<Option<Owned<'_, M>>, Error> {
        let page = self.page(number.page())?;
        Ok(page.map(|page| (page, &page.owners[number.at()])))
    }

    /// Returns an owner's parent, unless the parent's cell has another owner now.
    fn parent_of(&self, cell: &OwnerCell<M>) -> Option<OwnerNumber> {
        let parent = seen(&cell.parent)?;
        let (_, of) = self.owner(parent).ok().flatten()?;
        (seen(&of.generation) == seen(&cell.parent_generation)).then_some(parent)
    }

    fn each_owner(
        &self,
        mut visit: impl FnMut(OwnerNumber, Owned<'_, M>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut place = 0;
        while let Some(page) = self.page(place)? {
            for (at, cell) in page.owners.iter().enumerate() {
                visit(OwnerNumber::new(place, at), (page, cell))?;
            }
            place += 1;
        }
        Ok(())
    }

    fn row(&self, found: &Found, now: u64) -> Result<LockInfo, Error> {
        let (page, cell) = self.owner(found.owner)?.ok_or(Error::Foreign)?;
        let state = found.state;
        let mut row = blank(&info(found.owner, page, cell));
        row.owner.generation = found.of;
        row.object.clone_from(&found.object);
        row.range.clone_from(&found.range);
        row.held = state.holds().then_some(state.mode);
        row.wanted = state.waits().then_some(state.want);
        row.count = found.count;
        row.waited_ns = if state.waits() { now.saturating_sub(found.since) } else { 0 };
        Ok(row)
    }

    /// Appends the locks in an owner's own memory.
    fn weak_rows(
        &self,
        index: OwnerNumber,
        page: &OwnerPage<M>,
        cell: &OwnerCell<M>,
        rows: &mut Vec<LockInfo>,
    ) -> Result<(), Error> {
        let weak = seen(&cell.weak);
        if weak.is_null() {
            return Ok(());
        }
        let weak = cell_at(&self.region, weak)?;
        for at in 0..WEAK {
            let entry = seen(&weak.states[at]);
            let spot = self.blocks.spot(seen(&weak.hashes[at]));
            let bias = seen(&self.blocks.biases(spot.partition)?[spot.bias as usize]);
            if entry.count == 0 || entry.length > WEAK_WORDS * 8 || entry.bias != bias {
                continue;
            }
            let mut row = blank(&info(index, page, cell));
            row.object = names::read::<M>(&weak.names[at], entry.length);
            (row.held, row.count, row.weak) = (Some(entry.mode), entry.count, true);
            // The lock was released while its name was read.
            if seen(&weak.states[at]) == entry {
                rows.push(row);
            }
        }
        Ok(())
    }
}

fn info<M: ConstMachine>(
    index: OwnerNumber,
    page: &OwnerPage<M>,
    cell: &OwnerCell<M>,
) -> OwnerInfo {
    let label: Vec<u8> = cell.label.iter().flat_map(|word| seen(word).to_le_bytes()).collect();
    let length = label.iter().position(|byte| *byte == 0).unwrap_or(label.len());
    let generation = seen(&cell.generation);
    OwnerInfo {
        owner: index.id(generation),
        label: String::from_utf8_lossy(&label[..length]).into_owned(),
        thread: seen(&cell.state).thread(seen(&page.thread)),
        parent: None,
        priority: seen(&cell.priority),
        aborted: cell.told(generation) != 0,
        began: seen(&cell.age),
    }
}

fn blank(info: &OwnerInfo) -> LockInfo {
    LockInfo {
        owner: info.owner,
        label: info.label.clone(),
        thread: info.thread,
        object: Vec::new(),
        range: None,
        held: None,
        wanted: None,
        count: 0,
        weak: false,
        waited_ns: 0,
    }
}
