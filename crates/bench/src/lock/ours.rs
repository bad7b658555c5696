//! Our lock manager as a lock table.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use latchwork_lockmgr::shared::{S, X};
use latchwork_lockmgr::{self as lockmgr, Error, Manager, Options, Reason, Step, Wait, shared};
use latchwork_machine::{ConstMachine, Native, Shared};
use latchwork_region::Region;

use super::table::{Counted, Kind, Needs, Owner, Stop, Table, WAITERS_PER_OBJECT, name};

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::Deadlock(_) | Error::Aborted(Reason::Deadlock) => Self::Deadlock,
            other => Self::fault(other),
        }
    }
}

/// A manager, and the counters of closed sessions.
pub(crate) struct Ours<M: ConstMachine> {
    manager: Manager<M>,
    counted: Mutex<Counted>,
}

/// A machine with its kind of memory.
pub(crate) trait Home: ConstMachine {
    fn region(dir: Option<&Path>) -> Result<Region<Self>, latchwork_region::Error>;
}

impl Home for Native {
    fn region(_: Option<&Path>) -> Result<Region<Self>, latchwork_region::Error> {
        Region::private(&latchwork_region::Options::default())
    }
}

impl Home for Shared {
    fn region(dir: Option<&Path>) -> Result<Region<Self>, latchwork_region::Error> {
        let path = dir.unwrap_or(Path::new(".")).join("locks");
        Region::open_or_create(path, &latchwork_region::Options::default())
    }
}

/// Longer than any measurement: no automatic deadlock detection.
const NEVER: Duration = Duration::from_secs(24 * 3600);

impl<M: Home> Table for Ours<M> {
    type Owner<'t> = lockmgr::Owner<'t, M>;

    fn open(dir: Option<&Path>, needs: Needs) -> Result<Self, Stop> {
        let region = M::region(dir).map_err(Stop::fault)?;
        let mut options = Options::default();
        if !needs.detect {
            options.detect_after = NEVER;
        }
        let manager = Manager::new(region, shared::modes(), options)?;
        Ok(Self { manager, counted: Mutex::default() })
    }

    fn with_owner<R>(
        &self,
        action: impl FnOnce(&Self::Owner<'_>) -> Result<R, Stop>,
    ) -> Result<R, Stop> {
        let session = self.manager.session()?;
        let owner = session.owner()?;
        let end = action(&owner);
        drop(owner);
        let stats = session.stats();
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.requests += stats.requests;
        counted.fast += stats.weak;
        end
    }

    /// Waiting requests need no thread.
    fn with_waiters<R>(
        &self,
        waiters: usize,
        action: impl FnOnce() -> Result<R, Stop>,
    ) -> Result<R, Stop> {
        let session = self.manager.session()?;
        let holder = session.owner()?;
        for object in 0..waiters.div_ceil(WAITERS_PER_OBJECT) {
            holder.lock(&name(Kind::Parked, 0, object), X)?;
        }
        let mut parked = Vec::with_capacity(waiters);
        for number in 0..waiters {
            let owner = session.owner()?;
            let object = name(Kind::Parked, 0, number / WAITERS_PER_OBJECT);
            if owner.request(&object, S, Wait::Detect)? != Step::Waiting {
                return Err(Stop::fault("a reader and a writer hold it at once"));
            }
            parked.push(owner);
        }
        action()
    }

    fn waits(&self) -> Result<u64, Stop> {
        Ok(self.manager.session()?.totals()?.waiting)
    }

    fn counted(&self) -> Result<Counted, Stop> {
        Ok(*self.counted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn region_bytes(&self) -> Result<u64, Stop> {
        Ok(self.manager.region().len())
    }
}

impl<M: ConstMachine> Owner for lockmgr::Owner<'_, M> {
    type Held = ();

    #[inline]
    fn lock(&self, name: &[u8; 16], strong: bool) -> Result<(), Stop> {
        Ok(lockmgr::Owner::lock(self, name, if strong { X } else { S })?)
    }

    #[inline]
    fn unlock(&self, name: &[u8; 16], (): ()) -> Result<(), Stop> {
        Ok(lockmgr::Owner::unlock(self, name)?)
    }

    fn release_all(&self) -> Result<(), Stop> {
        Ok(lockmgr::Owner::release_all(self)?)
    }
}
