//! Several operations in one call, like Berkeley DB's `lock_vec` (release 5.3).

use core::fmt;

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::handle::Owner;
use crate::mode::Mode;
use crate::options::Wait;

/// An operation of a batch.
#[derive(Clone, Copy, Debug)]
pub enum BatchOp<'n> {
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

/// The error of a batch: which operation failed, and why. The operations before it were done, those
/// after it were not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchError {
    /// The number of operations that were done.
    pub done: usize,
    /// The error of the next operation.
    pub error: Error,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} operations: {}", self.done, self.error)
    }
}

impl core::error::Error for BatchError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Executes operations in order, and stops at the first failure. A batch is not atomic: other
    /// owners may get locks between two operations.
    ///
    /// # Errors
    ///
    /// [`BatchError`], with the error of the operation's own method.
    pub fn batch(&self, operations: &[BatchOp<'_>]) -> Result<(), BatchError> {
        for (done, operation) in operations.iter().enumerate() {
            let end = match *operation {
                BatchOp::Lock(name, mode, wait) => self.lock_with(name, mode, wait),
                BatchOp::Unlock(name) => self.unlock(name),
                BatchOp::ReleaseObject(name) => self.release_object(name),
                BatchOp::ReleaseReads => self.release_reads(),
                BatchOp::ReleaseAll => self.release_all(),
            };
            end.map_err(|error| BatchError { done, error })?;
        }
        Ok(())
    }
}
