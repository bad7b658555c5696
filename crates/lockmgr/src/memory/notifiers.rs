//! The words by which processes are told that a request of theirs was decided: one for each.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use latchwork_machine::{ConstMachine, Integer, Machine, Word};
use latchwork_region::{Offset, Plain};

use crate::Error;
use crate::memory::cells::{Request, get};
use crate::memory::inner::Inner;
use crate::memory::{Memory, roots};

/// Bells: more than there are processes, so that each has one.
const BELLS: usize = 16_366;

/// The bells of all processes.
#[repr(C)]
pub(crate) struct Bells<M: Machine> {
    words: [M::AtomicU32; BELLS],
}

// SAFETY: it is made of words of a machine, and nothing else.
unsafe impl<M: ConstMachine> Plain for Bells<M> {}

impl<M: ConstMachine> Inner<M> {
    pub(crate) fn bell(&self, process: u32) -> Result<Option<&M::AtomicU32>, Error> {
        // Acquire: synchronizes with the exchange in `have_bell`.
        let at = self.region.root(roots::BELLS)?.load(Acquire) as u32;
        if at == 0 {
            return Ok(None);
        }
        let bells: &Bells<M> = self.region.resolve(Offset::from_raw(at))?;
        Ok(Some(&bells.words[process as usize % BELLS]))
    }

    pub(crate) fn ring(&self, process: u32) -> Result<(), Error> {
        if let Some(bell) = self.bell(process)? {
            // Release: synchronizes with the Acquire in `keep_watch`, which then finds decided
            // what was decided before.
            bell.fetch_add(1, Release);
            M::wake(bell);
        }
        Ok(())
    }
}

impl<M: ConstMachine> Memory<M> {
    /// Makes the bells, if there are none, and returns what an owner's cell says of its own.
    pub(crate) fn have_bell(&self) -> Result<u16, Error> {
        let inner = self.inner();
        let (process, _) = inner.region.process()?;
        if inner.bell(process)?.is_none() {
            let cell = self.thread.alloc::<Bells<M>>()?;
            let (word, at) = (inner.region.root(roots::BELLS)?, cell.offset().raw());
            // AcqRel: synchronizes with the Acquire in `bell`.
            if word.compare_exchange(0, u64::from(at), AcqRel, Acquire).is_ok() {
                self.point("bells made");
                cell.publish();
            }
        }
        // No truncation: a region has 4,096 processes at most.
        Ok(process as u16 + 1)
    }

    /// Rings for the owner of a request that was decided, if it waits without a thread. The request
    /// may have become another by now: then it rings for nothing.
    #[inline]
    pub(crate) fn ring_for(&self, request: &Request<M>) -> Result<(), Error> {
        match self.owner_cell(get(&request.owner))?.map_or(0, |cell| get(&cell.bell)) {
            0 => Ok(()),
            process => {
                self.point("about to ring");
                self.inner().ring(u32::from(process) - 1)
            }
        }
    }
}
