//! Several operations in one call, as Berkeley DB's `lock_vec` (release 5.3).

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

/// Which operation of a batch failed, and why. Those before it are done, those after it are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchError {
    /// How many were done.
    pub done: usize,
    /// What the next one said.
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
    /// Does one operation after the other, and stops at the first that fails. Others may see, and
    /// get, what lies between two operations: a batch is no transaction.
    ///
    /// # Errors
    ///
    /// [`BatchError`], with what the operation's own method says.
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
