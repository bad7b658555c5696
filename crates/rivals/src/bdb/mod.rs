//! Berkeley DB 5.3's lock manager, used through its C interface.
//!
//! The library is opened on first use, so a program also runs where it is missing. Each call passes
//! through a C function of this crate, which fills a structure and calls the library. This costs
//! one or two nanoseconds, which are part of the measurement.

mod mpool;
mod raw;

pub use self::mpool::BdbPool;

use core::ffi::{CStr, c_int};
use core::fmt;
use core::ptr::NonNull;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Errors of Berkeley DB.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BdbError {
    /// The library is missing, or its header was missing at build time.
    NotInstalled,
    /// The library is not release 5.3.
    WrongRelease,
    /// The locker is the victim of a deadlock.
    Deadlock,
    /// The lock is not available at once.
    NotGranted,
    /// Any other error: the call, and the message of Berkeley DB.
    Failed(&'static str, String),
}

impl fmt::Display for BdbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled => {
                f.write_str("Berkeley DB 5.3 is not installed (Debian: libdb5.3-dev)")
            }
            Self::WrongRelease => f.write_str("the library is not Berkeley DB 5.3"),
            Self::Deadlock => f.write_str("chosen to break a deadlock"),
            Self::NotGranted => f.write_str("not granted"),
            Self::Failed(call, why) => write!(f, "Berkeley DB, {call}: {why}"),
        }
    }
}

impl core::error::Error for BdbError {}

/// The capacity of an environment, which Berkeley DB needs in advance.
#[derive(Clone, Copy, Debug)]
pub struct BdbSizes {
    /// Locks held or waited for at the same time.
    pub locks: u32,
    /// Lockers at the same time.
    pub lockers: u32,
    /// Objects locked at the same time.
    pub objects: u32,
}

/// The counters of an environment.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BdbCounts {
    /// Lock requests. A request is counted again if its partition had no room.
    pub requests: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// Deadlocks found.
    pub deadlocks: u64,
    /// Bytes of its region.
    pub region_bytes: u64,
    /// Locks held or waited for now.
    pub locks: u64,
    /// Its lock partitions.
    pub partitions: u64,
}

/// An environment with a lock manager only.
pub struct Bdb {
    library: &'static raw::Library,
    shim: &'static raw::Shim,
    env: NonNull<raw::Env>,
}

// SAFETY: the environment was opened with DB_THREAD, which makes its handle free-threaded.
unsafe impl Send for Bdb {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for Bdb {}

impl Bdb {
    /// The installed release, such as `5.3.28`.
    ///
    /// # Errors
    ///
    /// [`BdbError::NotInstalled`], [`BdbError::WrongRelease`].
    pub fn release() -> Result<String, BdbError> {
        let (library, _) = raw::load().ok_or(BdbError::NotInstalled)?;
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: three integers to fill.
        unsafe { (library.version)(&raw mut major, &raw mut minor, &raw mut patch) };
        if (major, minor) != (5, 3) {
            return Err(BdbError::WrongRelease);
        }
        Ok(format!("{major}.{minor}.{patch}"))
    }

    /// Opens a private environment.
    ///
    /// # Errors
    ///
    /// [`BdbError`].
    pub fn private(sizes: BdbSizes) -> Result<Self, BdbError> {
        Self::open(None, sizes)
    }

    /// Opens the environment that processes share through files in this directory, or creates it.
    ///
    /// # Errors
    ///
    /// [`BdbError`].
    pub fn shared(home: &Path, sizes: BdbSizes) -> Result<Self, BdbError> {
        Self::open(Some(home), sizes)
    }

    fn open(home: Option<&Path>, sizes: BdbSizes) -> Result<Self, BdbError> {
        let (library, shim) = raw::load().ok_or(BdbError::NotInstalled)?;
        let zero = |_| BdbError::Failed("open", "a path with a zero in it".to_owned());
        let home = home.map(|home| CString::new(home.as_os_str().as_bytes())).transpose();
        let home = home.map_err(zero)?;
        let path = home.as_ref().map_or(core::ptr::null(), |home| home.as_ptr());
        let BdbSizes { locks, lockers, objects } = sizes;
        let mut env = core::ptr::null_mut();
        let (create, version) = (library.create, library.version);
        // SAFETY: the library's functions; a null home, or one with a final zero that outlives the
        // call; a pointer to fill.
        let result =
            unsafe { (shim.open)(create, version, path, locks, lockers, objects, &raw mut env) };
        check(library, "open", result)?;
        let env = NonNull::new(env).ok_or(BdbError::NotInstalled)?;
        Ok(Self { library, shim, env })
    }

    /// Enables deadlock detection whenever a request has to wait. The youngest locker is the
    /// victim.
    ///
    /// # Errors
    ///
    /// [`BdbError::Failed`].
    pub fn detect(&self) -> Result<(), BdbError> {
        // SAFETY: the environment is open.
        let result = unsafe { (self.shim.detect)(self.env.as_ptr()) };
        check(self.library, "set_lk_detect", result)
    }

    /// Reads the counters.
    ///
    /// # Errors
    ///
    /// [`BdbError::Failed`].
    pub fn counts(&self) -> Result<BdbCounts, BdbError> {
        let mut c = raw::Counts::default();
        // SAFETY: the environment is open; the counters are written; Berkeley DB allocates with
        // `malloc` by default.
        let result = unsafe { (self.shim.counts)(self.env.as_ptr(), libc::free, &raw mut c) };
        check(self.library, "lock_stat", result)?;
        let raw::Counts { requests, waits, deadlocks, region_bytes, locks, partitions } = c;
        Ok(BdbCounts { requests, waits, deadlocks, region_bytes, locks, partitions })
    }

    /// Creates a locker.
    ///
    /// # Errors
    ///
    /// [`BdbError::Failed`].
    pub fn locker(&self) -> Result<BdbLocker<'_>, BdbError> {
        let mut id = 0;
        // SAFETY: the environment is open, and there is an integer to fill.
        let result = unsafe { (self.shim.id)(self.env.as_ptr(), &raw mut id) };
        check(self.library, "lock_id", result)?;
        Ok(BdbLocker { env: self, id })
    }
}

impl Drop for Bdb {
    fn drop(&mut self) {
        // SAFETY: the environment is open, lockers borrow it, and it is not used afterwards.
        let _ = unsafe { (self.shim.close)(self.env.as_ptr()) };
    }
}

/// An owner of locks, used by one thread at a time.
pub struct BdbLocker<'e> {
    env: &'e Bdb,
    id: u32,
}

/// A held lock.
#[must_use = "a handle is what a lock is put back by"]
pub struct BdbLock(raw::Handle);

impl BdbLocker<'_> {
    /// Acquires a lock in READ or WRITE mode. If `wait` is false it does not wait.
    ///
    /// # Errors
    ///
    /// [`BdbError::Deadlock`], [`BdbError::NotGranted`], [`BdbError::Failed`].
    #[inline]
    pub fn lock(&self, name: &[u8], write: bool, wait: bool) -> Result<BdbLock, BdbError> {
        let mut lock = BdbLock(raw::Handle::default());
        let Bdb { library, shim, env } = self.env;
        let (at, length) = (name.as_ptr(), name.len() as u32);
        let (env, wait, write) = (env.as_ptr(), c_int::from(wait), c_int::from(write));
        // SAFETY: the environment is open, the name is that long, and the handle has room.
        let result = unsafe { (shim.get)(env, self.id, wait, at, length, write, &raw mut lock.0) };
        check(library, "lock_get", result)?;
        Ok(lock)
    }

    /// Releases a lock.
    ///
    /// # Errors
    ///
    /// [`BdbError::Failed`].
    #[inline]
    pub fn unlock(&self, mut lock: BdbLock) -> Result<(), BdbError> {
        let Bdb { library, shim, env } = self.env;
        // SAFETY: the environment is open, and the handle is one that it filled.
        let result = unsafe { (shim.put)(env.as_ptr(), &raw mut lock.0) };
        check(library, "lock_put", result)
    }

    /// Releases all locks of this locker.
    ///
    /// # Errors
    ///
    /// [`BdbError::Failed`].
    pub fn release_all(&self) -> Result<(), BdbError> {
        // SAFETY: the environment is open, and the locker is one of its.
        let result = unsafe { (self.env.shim.put_all)(self.env.env.as_ptr(), self.id) };
        check(self.env.library, "lock_vec", result)
    }
}

impl Drop for BdbLocker<'_> {
    fn drop(&mut self) {
        if self.release_all().is_ok() {
            // SAFETY: the environment is open, and the locker holds nothing.
            let _ = unsafe { (self.env.shim.id_free)(self.env.env.as_ptr(), self.id) };
        }
    }
}

#[inline]
fn check(library: &raw::Library, call: &'static str, result: c_int) -> Result<(), BdbError> {
    if result == 0 { Ok(()) } else { Err(error(library, call, result)) }
}

#[cold]
fn error(library: &raw::Library, call: &'static str, result: c_int) -> BdbError {
    match result {
        raw::DEADLOCK => BdbError::Deadlock,
        raw::NOT_GRANTED => BdbError::NotGranted,
        raw::OPEN_VERSION => BdbError::WrongRelease,
        _ => {
            // SAFETY: every number has a text, in memory of the library.
            let text = unsafe { (library.strerror)(result) };
            // SAFETY: it ends in zero and is static.
            let text = unsafe { CStr::from_ptr(text) };
            BdbError::Failed(call, text.to_string_lossy().into_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: BdbSizes = BdbSizes { locks: 5000, lockers: 100, objects: 5000 };

    /// The environment. `None`, with a message, if Berkeley DB is not installed.
    fn private() -> Option<Bdb> {
        match Bdb::private(SIZES) {
            Err(BdbError::NotInstalled) => {
                eprintln!("skipped: {}", BdbError::NotInstalled);
                None
            }
            other => Some(other.unwrap()),
        }
    }

    #[test]
    fn it_excludes_and_counts() {
        let Some(env) = private() else { return };
        assert!(Bdb::release().unwrap().starts_with("5.3."));
        let (a, b) = (env.locker().unwrap(), env.locker().unwrap());
        let held = a.lock(b"object", true, true).unwrap();
        assert_eq!(b.lock(b"object", false, false).err(), Some(BdbError::NotGranted));
        a.unlock(held).unwrap();
        let read = b.lock(b"object", false, false).unwrap();
        let beside = a.lock(b"object", false, false).unwrap();
        a.unlock(beside).unwrap();
        b.unlock(read).unwrap();
        for i in 0..1000u32 {
            let _ = a.lock(&i.to_ne_bytes(), true, true).unwrap();
        }
        assert_eq!(env.counts().unwrap().locks, 1000);
        a.release_all().unwrap();
        let counts = env.counts().unwrap();
        // A request that takes room from another partition is counted again.
        assert!(counts.requests >= 1004 && counts.locks == 0, "{counts:?}");
    }

    #[test]
    fn a_deadlock_is_told() {
        let Some(env) = private() else { return };
        env.detect().unwrap();
        let both = std::sync::Barrier::new(2);
        let take = |first: &[u8], second: &[u8]| {
            let locker = env.locker().unwrap();
            let _first = locker.lock(first, true, true).unwrap();
            both.wait();
            locker.lock(second, true, true).err()
        };
        let ends = std::thread::scope(|threads| {
            let other = threads.spawn(|| take(b"a", b"b"));
            [take(b"b", b"a"), other.join().unwrap()]
        });
        let victims = ends.iter().filter(|end| **end == Some(BdbError::Deadlock)).count();
        assert_eq!((victims, ends.iter().flatten().count()), (1, 1), "{ends:?}");
        assert_eq!(env.counts().unwrap().deadlocks, 1);
    }
}
