//! Several deeds in one call, as Berkeley DB's `lock_vec` (release 5.3).

use core::fmt;

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::handle::Owner;
use crate::mode::Mode;
use crate::options::Wait;

/// A deed of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Deed<'n> {
    /// [`Owner::lock_with`].
    Lock(&'n [u8], Mode, Wait),
    /// [`Owner::unlock`].
    Unlock(&'n [u8]),
    /// [`Owner::release_object`].
    ReleaseObject(&'n [u8]),
    /// [`Owner::release_reads`].
    ReleaseReads,
    /// [`Owner::release_all`].
    ReleaseAll,
}

/// Which deed of a batch failed, and why. Those before it are done, those after it are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchError {
    /// How many were done.
    pub done: usize,
    /// What the next one said.
    pub error: Error,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} deeds: {}", self.done, self.error)
    }
}

impl core::error::Error for BatchError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Does one deed after the other, and stops at the first that fails. Others may see, and get,
    /// what lies between two deeds: a batch is no transaction.
    ///
    /// # Errors
    ///
    /// [`BatchError`], with what the deed's own method says.
    pub fn batch(&self, deeds: &[Deed<'_>]) -> Result<(), BatchError> {
        for (done, deed) in deeds.iter().enumerate() {
            let end = match *deed {
                Deed::Lock(name, mode, wait) => self.lock_with(name, mode, wait),
                Deed::Unlock(name) => self.unlock(name),
                Deed::ReleaseObject(name) => self.release_object(name),
                Deed::ReleaseReads => self.release_reads(),
                Deed::ReleaseAll => self.release_all(),
            };
            end.map_err(|error| BatchError { done, error })?;
        }
        Ok(())
    }
}
