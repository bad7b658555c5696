//! Operations without room: idle objects are freed, and the operation is tried once more.
//!
//! A partition keeps idle objects ofrecently released names; the next request of their chain takes
//! one over. In a region that cannot grow they may occupy all of the memory. So a request that
//! finds no room frees them in all partitions and tries again. Releasing a lock never needs room.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::error::{corrupt_list, is_short};
use crate::memory::Memory;
use crate::memory::cells::{get, put};
use crate::memory::latch::Latched;
use crate::table::objects::{CHAIN_MAX, first_of};

impl<M: ConstMachine> Memory<M> {
    /// Runs an operation. If there was no room for it, frees idle objects and runs it once more.
    /// The caller must not hold a latch.
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
            // Partitions in use by other threads are skipped.
            if let Some(latched) = self.try_latch(number)? {
                freed += latched.free_idle()?;
            }
        }
        if freed == 0 { Err(error) } else { operation() }
    }
}

impl<M: ConstMachine> Latched<'_, M> {
    /// Frees the objects that have no requests, and returns their number.
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
