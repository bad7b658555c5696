//! The first phase of a two-phase commit.

use core::time::Duration;

use latchwork_lockmgr::Error as LocksError;
use latchwork_lockmgr::granular::X;
use latchwork_machine::ConstMachine;

use crate::Error;
use crate::engine::Engine;
use crate::error::GID_MAX;
use crate::txn::Txn;

/// The number of no tree: a tree is identified by a page, and page numbers have 48 bits in the log,
/// 31 here.
pub(crate) const IDS: u32 = u32::MAX;

/// How long to wait for the lock of an id: some sleep intervals, after which the wait sweeps dead
/// threads.
const SWEPT_WITHIN: Duration = Duration::from_millis(50);

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// Prepares the transaction under an id that no other undecided transaction has. Returns the
    /// position of the log record. All locks are kept; the caller waits for the disk. The session
    /// of the locks must be left as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Gid`], [`Error::Prepared`]; [`Error::Aborted`]; [`Error::Engine`]. The transaction
    /// was rolled back.
    pub fn prepare(mut self, gid: &[u8]) -> Result<u64, Error> {
        match self.guard(|txn| txn.prepare_now(gid)) {
            Ok(at) => {
                self.over = true;
                self.owner.keep();
                self.claims.clear();
                Ok(at)
            }
            Err(why) => {
                self.undo_all()?;
                Err(why)
            }
        }
    }

    fn prepare_now(&mut self, gid: &[u8]) -> Result<u64, Error> {
        if !(1..=GID_MAX).contains(&gid.len()) {
            return Err(Error::Gid { length: gid.len() });
        }
        self.catch_up()?;
        let mut name = IDS.to_be_bytes().to_vec();
        name.extend_from_slice(gid);
        let locked = match self.owner.try_lock(&name, X) {
            // A dead thread may hold it, which had not prepared yet or had already decided; the
            // wait sweeps it.
            Err(LocksError::NotGranted) => self.owner.lock_timeout(&name, X, SWEPT_WITHIN),
            other => other,
        };
        locked.map_err(|why| match why {
            LocksError::TimedOut => Error::Prepared { gid: gid.to_vec() },
            why => why.into(),
        })?;
        let held = self.owner.holdings()?;
        self.engine.prepare(&mut self.chain, gid, &held)
    }
}
