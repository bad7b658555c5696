//! When memory is short: what is kept for the next one is freed, and what was half done is undone.
//!
//! A partition keeps objects idle whose names come back, for the next request with a name of their
//! chain. Where a region cannot grow these may be all that it has: so a request that finds no
//! room frees them, in all partitions, and asks once more. Giving back never needs room.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::error::{corrupt_list, is_short};
use crate::memory::Memory;
use crate::memory::cells::{get, put};
use crate::memory::latch::Latched;
use crate::table::objects::{CHAIN_MAX, first_of};

impl<M: ConstMachine> Memory<M> {
    /// Does something, and if there was no room for it once more, after idle objects were freed. No
    /// latch may be held.
    #[inline(always)]
    pub(crate) fn with_room<T>(
        &self,
        operation: impl Fn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match operation() {
            Err(error) if is_short(&error) => self.again(error, operation),
            end => end,
        }
    }

    #[cold]
    #[inline(never)]
    fn again<T>(&self, error: Error, operation: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let mut freed = 0;
        for number in self.blocks.each() {
            // What somebody is at work in is passed by.
            if let Some(latched) = self.try_latch(number)? {
                freed += latched.free_idle()?;
            }
        }
        if freed == 0 { Err(error) } else { operation() }
    }
}

impl<M: ConstMachine> Latched<'_, M> {
    /// Frees the objects that have no requests, and returns how many they were.
    fn free_idle(&self) -> Result<u32, Error> {
        let mut freed = 0;
        for chain in self.heads()? {
            let (mut link, mut at, mut steps) = (chain, first_of(chain), 0);
            while !at.is_null() {
                let object = self.memory.object(at)?;
                let next = get(&object.next);
                if get(&object.head).is_null() {
                    self.memory.note_object(at, self.number)?;
                    put(link, next.raw());
                    put(&self.objects, get(&self.objects).wrapping_sub(1));
                    self.memory.point("object unlinked");
                    self.memory.free_object(at, object.name_length())?;
                    freed += 1;
                } else {
                    link = &object.next.word;
                }
                at = next;
                steps += 1;
                if steps == CHAIN_MAX {
                    return corrupt_list();
                }
            }
        }
        Ok(freed)
    }
}
