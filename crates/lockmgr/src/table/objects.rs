//! The table: a map from names to objects, in partitions that grow one by one.
//!
//! The chains of a partition fill a cell. When it has two objects per chain, it gets as many chains
//! as fill the next larger cell. Growing moves one object at a time to the new chains; `moving`
//! names the object in between. So if the holder of the latch dies during growth, the partition can
//! be repaired and the growth completed.
//!
//! An object without requests is freed, unless its session released the same name recently
//! (`meter/released.rs`). Then it stays, idle, if its chain has no other idle object or the
//! partition has no more objects than chains. The next new name of this chain takes it over. So
//! there are fewer than two idle objects per chain.

use latchwork_machine::{ConstMachine, Machine};
use latchwork_region::Offset;

use crate::Error;
use crate::error::{corrupt_list, is_short};
use crate::memory::cells::{Heads, Object, ObjectAt, Small, Table, chains_at, get, put};
use crate::memory::latch::Latched;
use crate::memory::masks::Masks;
use crate::memory::names::Name;
use crate::memory::{Memory, names};

/// The number of chains of a table, by tier: as many as fit a cell of 48, 128, 256 bytes and so on
/// to 4,096, and a whole block. Beyond that, chains become longer.
const CHAINS: [usize; 8] = [10, 30, 62, 126, 254, 510, 1022, 16_366];

/// With more objects than this, a chain keeps at most one idle object, regardless of the number of
/// chains.
const IDLE_MAX: u32 = 1022;

/// Calls a macro with the number of chains of a tier.
macro_rules! by_tier {
    ($tier:expr, $do:ident) => {
        match $tier {
            0 => $do!({ CHAINS[0] }),
            1 => $do!({ CHAINS[1] }),
            2 => $do!({ CHAINS[2] }),
            3 => $do!({ CHAINS[3] }),
            4 => $do!({ CHAINS[4] }),
            5 => $do!({ CHAINS[5] }),
            6 => $do!({ CHAINS[6] }),
            _ => $do!({ CHAINS[7] }),
        }
    };
}

/// A longer chain is corrupt.
pub(crate) const CHAIN_MAX: u32 = 1 << 24;

/// Returns the number of chains of a table.
#[inline(always)]
pub(crate) fn chains_of(table: Table) -> u32 {
    CHAINS[(table.tier as usize).min(CHAINS.len() - 1)] as u32
}

/// Returns the first object of a chain.
#[inline(always)]
pub(crate) fn first_of<M: Machine>(chain: &M::AtomicU32) -> ObjectAt<M> {
    Offset::from_raw(get(chain))
}

/// Returns the index of a hash's chain among so many.
#[inline(always)]
pub(crate) fn place_of(hash: u32, chains: usize) -> usize {
    ((u64::from(hash) * chains as u64) >> 32) as usize
}

impl<'s, M: ConstMachine> Latched<'s, M> {
    /// Returns the chains of a table.
    #[inline]
    fn chains(&self, table: Table) -> Result<&'s [M::AtomicU32], Error> {
        let memory: &'s Memory<M> = self.memory;
        Ok(chains_at(memory.region(), table.at.cast(), chains_of(table))?)
    }

    fn new_chains(&self, tier: u32) -> Result<(), Error> {
        let thread = &self.memory.thread;
        macro_rules! new {
            ($n:block) => {{
                let cell = thread.alloc::<Heads<M, $n>>()?;
                put(&self.fresh, Table { at: cell.offset().cast(), tier });
                cell.publish();
            }};
        }
        by_tier!(tier, new);
        Ok(())
    }

    fn free_chains(&self, table: Table) -> Result<(), Error> {
        self.memory.free_chains(table)
    }

    /// Returns the heads of this partition's chains; empty before its first object.
    #[inline]
    pub(crate) fn heads(&self) -> Result<&'s [M::AtomicU32], Error> {
        let table = get(&self.heads);
        if table.is_none() { Ok(&[]) } else { self.chains(table) }
    }

    /// Returns the chain of a hash.
    #[inline(always)]
    fn chain(heads: &[M::AtomicU32], hash: u32) -> Result<&M::AtomicU32, Error> {
        let place = place_of(hash, heads.len());
        // Fails only in a damaged region: objects without a table.
        heads.get(place).map_or_else(corrupt_list, Ok)
    }

    /// Returns whether an object has this name.
    #[inline(always)]
    pub(crate) fn is_named(
        &self,
        at: ObjectAt<M>,
        object: &Small<M>,
        name: &Name<'_>,
    ) -> Result<bool, Error> {
        if get(&object.hash) != name.hash as u32 {
            return Ok(false);
        }
        self.memory.has_name(at, object, name.bytes)
    }

    /// Returns the object of this name, or null.
    #[inline]
    pub(crate) fn find(&self, name: &Name<'_>) -> Result<ObjectAt<M>, Error> {
        let heads = self.heads()?;
        if heads.is_empty() {
            return Ok(Offset::NULL);
        }
        let mut at = first_of(Self::chain(heads, name.hash as u32)?);
        for _ in 0..CHAIN_MAX {
            if at.is_null() {
                return Ok(Offset::NULL);
            }
            let object = self.memory.object(at)?;
            if self.is_named(at, object, name)? {
                return Ok(at);
            }
            at = get(&object.next);
        }
        corrupt_list()
    }

    /// Returns the object of this name. Creates it if it does not exist.
    #[inline]
    pub(crate) fn find_or_make(
        &self,
        name: &Name<'_>,
    ) -> Result<(ObjectAt<M>, &'s Small<M>), Error> {
        let memory: &'s Memory<M> = self.memory;
        // Skips the chains of an empty partition, which are usually in no cache.
        if get(&self.objects) != 0 {
            let mut at = first_of(Self::chain(self.heads()?, name.hash as u32)?);
            let mut idle = Offset::NULL;
            let mut steps = 0;
            while !at.is_null() {
                let object = memory.object(at)?;
                if self.is_named(at, object, name)? {
                    return Ok((at, object));
                }
                if get(&object.head).is_null() && self.fits(object, name) {
                    idle = at;
                }
                at = get(&object.next);
                steps += 1;
                if steps == CHAIN_MAX {
                    return corrupt_list();
                }
            }
            if !idle.is_null() {
                // It has no requests, and the latch excludes other threads.
                self.give_name(idle, name)?;
                return Ok((idle, memory.object(idle)?));
            }
        }
        let made = self.make(name)?;
        Ok((made, memory.object(made)?))
    }

    /// Returns whether a name needs the same size of cell as an idle object's.
    fn fits(&self, object: &Small<M>, name: &Name<'_>) -> bool {
        tier_of(object.name_length()) == tier_of(name.bytes.len())
    }

    fn give_name(&self, at: ObjectAt<M>, name: &Name<'_>) -> Result<(), Error> {
        let object = self.memory.object(at)?;
        put(&object.hash, name.hash as u32);
        put(&object.info, name.bytes.len() as u32);
        put(&object.masks, Masks::NONE);
        name.write(self.memory.name_words(at, name.words())?);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn make(&self, name: &Name<'_>) -> Result<ObjectAt<M>, Error> {
        if get(&self.heads).is_none() {
            self.new_chains(0)?;
            self.move_all()?;
        } else if get(&self.objects) >= 2 * chains_of(get(&self.heads))
            && get(&self.heads).tier < CHAINS.len() as u32 - 1
        {
            match self.new_chains(get(&self.heads).tier + 1) {
                Ok(()) => {
                    self.memory.point("larger table made");
                    self.move_all()?;
                }
                // Without room the chains become longer instead.
                Err(error) if is_short(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let thread = &self.memory.thread;
        macro_rules! new {
            ($n:literal) => {{
                let cell = thread.alloc_dirty::<Object<M, $n>>()?;
                put(&cell.head, Offset::NULL);
                put(&cell.tail, Offset::NULL);
                put(&cell.first, Offset::NULL);
                put(&cell.length, 0);
                let at = cell.offset().cast();
                self.give_name(at, name)?;
                self.push(self.heads()?, at)?;
                self.memory.point("object linked");
                cell.publish();
                at
            }};
        }
        let at = match tier_of(name.bytes.len()) {
            0 => new!(3),
            1 => new!(11),
            2 => new!(27),
            3 => new!(59),
            4 => new!(123),
            5 => new!(251),
            _ => new!(507),
        };
        put(&self.objects, get(&self.objects).wrapping_add(1));
        Ok(at)
    }

    /// Inserts an object at the head of its chain.
    pub(crate) fn push(&self, heads: &[M::AtomicU32], at: ObjectAt<M>) -> Result<(), Error> {
        let object = self.memory.object(at)?;
        let chain = Self::chain(heads, get(&object.hash))?;
        put(&object.next, first_of(chain));
        put(chain, at.raw());
        Ok(())
    }

    /// Moves all objects to the `fresh` chains and replaces the chains by them. It can be called
    /// again after a death interrupted it.
    pub(crate) fn move_all(&self) -> Result<(), Error> {
        let (old, new) = (get(&self.heads), get(&self.fresh));
        if old == new {
            return self.settle_tables();
        }
        if old.at == new.at {
            return corrupt_list();
        }
        let fresh = self.chains(new)?;
        for chain in self.heads()? {
            loop {
                let at = first_of(chain);
                if at.is_null() {
                    break;
                }
                put(&self.moving, at);
                self.memory.point("object about to move");
                put(chain, get(&self.memory.object(at)?.next).raw());
                self.memory.point("object between tables");
                self.push(fresh, at)?;
                put(&self.moving, Offset::NULL);
            }
        }
        self.settle_tables()
    }

    /// Replaces the chains by the `fresh` ones, after all objects have moved.
    pub(crate) fn settle_tables(&self) -> Result<(), Error> {
        let old = get(&self.heads);
        if old == get(&self.fresh) {
            put(&self.fresh, Table::NONE);
            return Ok(());
        }
        if !old.is_none() {
            self.memory.note_table(old, self.number)?;
        }
        put(&self.heads, get(&self.fresh));
        if !old.is_none() {
            self.memory.point("tables exchanged");
        }
        put(&self.fresh, Table::NONE);
        if !old.is_none() {
            self.free_chains(old)?;
        }
        Ok(())
    }

    /// Handles an object that has lost its last request: frees it, or keeps it idle if its session
    /// released the name recently.
    #[inline]
    pub(crate) fn retire(&self, at: ObjectAt<M>, object: &Small<M>) -> Result<(), Error> {
        put(&object.masks, Masks::NONE);
        let again = self.memory.released.again(get(&object.hash));
        if again && get(&self.objects) <= chains_of(get(&self.heads)).min(IDLE_MAX) {
            return Ok(());
        }
        let chain = Self::chain(self.heads()?, get(&object.hash))?;
        match !again && first_of(chain) == at {
            true => self.take_out(at, object, chain),
            false => self.retire_among(at, object, again),
        }
    }

    /// Handles such an object when the chain must be searched: for the link to it, and for another
    /// idle object.
    #[inline(never)]
    fn retire_among(&self, at: ObjectAt<M>, object: &Small<M>, again: bool) -> Result<(), Error> {
        let chain = Self::chain(self.heads()?, get(&object.hash))?;
        let (mut link, mut other) = (Offset::NULL, false);
        let mut seen = first_of(chain);
        let mut steps = 0;
        while !seen.is_null() {
            let it = self.memory.object(seen)?;
            let next = get(&it.next);
            if next == at {
                link = seen;
            }
            other |= seen != at && get(&it.head).is_null();
            seen = next;
            steps += 1;
            if steps == CHAIN_MAX {
                return corrupt_list();
            }
        }
        if again && !other {
            return Ok(());
        }
        let link = match link {
            none if none.is_null() && first_of(chain) == at => chain,
            none if none.is_null() => return corrupt_list(),
            link => &self.memory.object(link)?.next.word,
        };
        self.take_out(at, object, link)
    }

    /// Removes an object from the chain after `link`, and frees it.
    #[inline]
    fn take_out(
        &self,
        at: ObjectAt<M>,
        object: &Small<M>,
        link: &M::AtomicU32,
    ) -> Result<(), Error> {
        self.memory.note_object(at, self.number)?;
        put(link, get(&object.next).raw());
        put(&self.objects, get(&self.objects).wrapping_sub(1));
        self.memory.point("object unlinked");
        let length = object.name_length();
        self.memory.free_object(at, length)
    }

    /// Returns the chains of the larger table.
    pub(crate) fn fresh_heads(&self) -> Result<&[M::AtomicU32], Error> {
        self.chains(get(&self.fresh))
    }

    /// Returns all objects of the partition.
    pub(crate) fn each_object(&self) -> Result<Vec<ObjectAt<M>>, Error> {
        self.objects_of(self.heads()?)
    }

    /// Returns all objects in these chains.
    pub(crate) fn objects_of(&self, heads: &[M::AtomicU32]) -> Result<Vec<ObjectAt<M>>, Error> {
        let mut found = Vec::new();
        for chain in heads {
            let mut at = first_of(chain);
            while !at.is_null() {
                found.push(at);
                at = get(&self.memory.object(at)?.next);
                if found.len() > CHAIN_MAX as usize {
                    return corrupt_list();
                }
            }
        }
        Ok(found)
    }
}

/// Returns the size of cell that a name of this length needs.
pub(crate) fn tier_of(length: usize) -> usize {
    [24, 88, 216, 472, 984, 2008].iter().position(|room| length <= *room).unwrap_or(6)
}

impl<M: ConstMachine> Memory<M> {
    /// Returns whether an object has this name.
    #[inline(always)]
    pub(crate) fn has_name(
        &self,
        at: ObjectAt<M>,
        object: &Small<M>,
        name: &[u8],
    ) -> Result<bool, Error> {
        if object.name_length() != name.len() {
            return Ok(false);
        }
        let words = name.len().div_ceil(8);
        if words <= object.name.len() {
            return Ok(names::is_in(name, &object.name));
        }
        Ok(names::is_in(name, self.name_words(at, words)?))
    }

    /// Frees a table's chains, to which nothing links.
    pub(crate) fn free_chains(&self, table: Table) -> Result<(), Error> {
        macro_rules! free {
            ($n:block) => {
                self.free_cell(table.at.cast::<Heads<M, $n>>())?
            };
        }
        by_tier!(table.tier, free);
        Ok(())
    }

    /// Frees the cell of an object to which nothing links.
    pub(crate) fn free_object(&self, at: ObjectAt<M>, length: usize) -> Result<(), Error> {
        macro_rules! free {
            ($n:literal) => {
                self.free_cell(at.cast::<Object<M, $n>>())?
            };
        }
        match tier_of(length) {
            0 => free!(3),
            1 => free!(11),
            2 => free!(27),
            3 => free!(59),
            4 => free!(123),
            5 => free!(251),
            _ => free!(507),
        }
        Ok(())
    }
}
