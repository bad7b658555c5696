//! Notifiers: for each process one word, which is changed when a request of one of its tasks was
//! decided.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use latchwork_machine::{ConstMachine, Integer, Machine, Word};
use latchwork_region::{Offset, Plain};

use crate::Error;
use crate::memory::cells::{Request, cell_at, get};
use crate::memory::inner::Inner;
use crate::memory::{Memory, roots};

/// Number of notifiers: more than processes, so that each has one.
const NOTIFIERS: usize = 16_366;

/// The notifiers of all processes.
#[repr(C)]
pub(crate) struct Notifiers<M: Machine> {
    words: [M::AtomicU32; NOTIFIERS],
}

// SAFETY: the type consists of words of a machine and nothing else.
unsafe impl<M: ConstMachine> Plain for Notifiers<M> {}

impl<M: ConstMachine> Inner<M> {
    pub(crate) fn notifier(&self, process: u32) -> Result<Option<&M::AtomicU32>, Error> {
        // Acquire: synchronizes with the exchange in `have_notifier`.
        let at = self.region.root(roots::NOTIFIERS)?.load(Acquire) as u32;
        if at == 0 {
            return Ok(None);
        }
        let notifiers: &Notifiers<M> = cell_at(&self.region, Offset::from_raw(at))?;
        Ok(Some(&notifiers.words[process as usize % NOTIFIERS]))
    }

    pub(crate) fn notify(&self, process: u32) -> Result<(), Error> {
        if let Some(notifier) = self.notifier(process)? {
            // Release: synchronizes with the Acquire in `keep_watch`, which then finds the requests
            // decided that were decided before.
            notifier.fetch_add(1, Release);
            M::wake(notifier);
        }
        Ok(())
    }
}

impl<M: ConstMachine> Memory<M> {
    /// Creates the notifiers if there are none, and returns the value by which an owner's cell
    /// names its own.
    pub(crate) fn have_notifier(&self) -> Result<u16, Error> {
        let inner = self.inner();
        let (process, _) = inner.region.process()?;
        if inner.notifier(process)?.is_none() {
            let cell = self.thread.alloc::<Notifiers<M>>()?;
            let (word, at) = (inner.region.root(roots::NOTIFIERS)?, cell.offset().raw());
            // AcqRel: synchronizes with the Acquire in `notifier`.
            if word.compare_exchange(0, u64::from(at), AcqRel, Acquire).is_ok() {
                self.point("notifiers made");
                cell.publish();
            }
        }
        // Not truncated: a region has 4,096 processes at most.
        Ok(process as u16 + 1)
    }

    /// Notifies the process of the owner of a decided request, if that owner waits without a
    /// thread. The request may belong to another owner now: then the notification has no effect.
    #[inline]
    pub(crate) fn notify_for(&self, request: &Request<M>) -> Result<(), Error> {
        match self.owner_cell(get(&request.owner))?.map_or(0, |cell| get(&cell.notifier)) {
            0 => Ok(()),
            process => {
                self.point("about to notify");
                self.inner().notify(u32::from(process) - 1)
            }
        }
    }
}
