//! Berkeley DB's lock table.

use std::path::Path;
use std::thread;
use std::time::Duration;

use latchwork_rivals::{Bdb, BdbError, BdbLock, BdbLocker, BdbSizes};

use super::child;
use super::table::{Counted, Kind, Needs, Owner, Stop, Table, WAITERS_PER_OBJECT, name};

impl From<BdbError> for Stop {
    fn from(error: BdbError) -> Self {
        match error {
            BdbError::Deadlock => Self::Deadlock,
            other => Self::fault(other),
        }
    }
}

/// An environment, with or without deadlock detection.
pub(crate) struct Rival {
    env: Bdb,
    detect: bool,
}

/// Enough for a thread that only waits.
const STACK: usize = 64 << 10;

impl Table for Rival {
    type Owner<'t> = BdbLocker<'t>;

    fn open(dir: Option<&Path>, needs: Needs) -> Result<Self, Stop> {
        let more = |count: usize| u32::try_from(count + count / 4 + 2000).unwrap_or(u32::MAX);
        let (locks, lockers) = (more(needs.locks), more(needs.owners));
        let sizes = BdbSizes { locks, lockers, objects: locks };
        let env = match dir {
            Some(dir) => Bdb::shared(dir, sizes)?,
            None => Bdb::private(sizes)?,
        };
        Ok(Self { env, detect: needs.detect })
    }

    fn with_owner<R>(
        &self,
        action: impl FnOnce(&Self::Owner<'_>) -> Result<R, Stop>,
    ) -> Result<R, Stop> {
        action(&self.env.locker()?)
    }

    /// One thread per waiter: Berkeley DB has no asynchronous request. It detects deadlocks
    /// whenever a request begins to wait, so detection is switched on once all of them wait.
    fn with_waiters<R>(
        &self,
        waiters: usize,
        action: impl FnOnce() -> Result<R, Stop>,
    ) -> Result<R, Stop> {
        let before = self.waits()?;
        thread::scope(|threads| {
            let holder = self.env.locker()?;
            for object in 0..waiters.div_ceil(WAITERS_PER_OBJECT) {
                let _ = holder.lock(&name(Kind::Parked, 0, object), true, true)?;
            }
            for number in 0..waiters {
                let park = move || -> Result<(), BdbError> {
                    let locker = self.env.locker()?;
                    let object = name(Kind::Parked, 0, number / WAITERS_PER_OBJECT);
                    let lock = locker.lock(&object, false, true)?;
                    locker.unlock(lock)
                };
                let park = move || park().unwrap_or_else(|error| child::fail(&error));
                let thread = thread::Builder::new().stack_size(STACK);
                thread.spawn_scoped(threads, park).map_err(Stop::fault)?;
            }
            while self.waits()? < before + waiters as u64 {
                thread::sleep(Duration::from_millis(1));
            }
            if self.detect {
                self.env.detect()?;
            }
            // Dropping the holder lets all waiters continue.
            action()
        })
    }

    fn waits(&self) -> Result<u64, Stop> {
        Ok(self.env.counts()?.waits)
    }

    fn counted(&self) -> Result<Counted, Stop> {
        Ok(Counted { requests: self.env.counts()?.requests, fast: 0 })
    }

    fn region_bytes(&self) -> Result<u64, Stop> {
        Ok(self.env.counts()?.region_bytes)
    }
}

impl Owner for BdbLocker<'_> {
    type Held = BdbLock;

    #[inline]
    fn lock(&self, name: &[u8; 16], strong: bool) -> Result<BdbLock, Stop> {
        Ok(BdbLocker::lock(self, name, strong, true)?)
    }

    #[inline]
    fn unlock(&self, _: &[u8; 16], held: BdbLock) -> Result<(), Stop> {
        Ok(BdbLocker::unlock(self, held)?)
    }

    fn release_all(&self) -> Result<(), Stop> {
        Ok(BdbLocker::release_all(self)?)
    }
}
