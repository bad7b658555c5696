//! The first of two phases.

use core::time::Duration;

use latchwork_lockmgr::Error as LocksError;
use latchwork_lockmgr::granular::X;
use latchwork_machine::ConstMachine;

use crate::engine::Engine;
use crate::error::GID_MAX;
use crate::{Error, Txn};

/// No tree's number: a tree is a page, and these have 48 bits in the log, 31 here.
pub(crate) const IDS: u32 = u32::MAX;

/// How long an id that another has is waited for: some naps, after which the dead are looked for.
const SWEPT_WITHIN: Duration = Duration::from_millis(50);

impl<E: Engine, M: ConstMachine> Txn<'_, E, M> {
    /// Prepares it, under an id that no other undecided one has: returns where the log says so. It
    /// keeps all its locks; whether the record is on the disk is the caller's to wait for. The
    /// session of the locks is to be left as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Gid`], [`Error::Prepared`]; [`Error::Aborted`];
    /// [`Error::Engine`]. Then it was rolled back.
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
            // Perhaps of a dead thread, that had prepared nothing yet or had decided: the wait has
            // it swept.
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
