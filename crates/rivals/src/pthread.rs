//! The locks of the C library. Each object is boxed: POSIX forbids to move one in use.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;

fn check(result: c_int) {
    assert_eq!(result, 0, "pthread: error {result}");
}

struct Mutex(Box<UnsafeCell<libc::pthread_mutex_t>>);

// SAFETY: a pthread mutex may be called from any thread, and the box never moves it.
unsafe impl Send for Mutex {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for Mutex {}

impl Mutex {
    fn new(kind: c_int) -> Self {
        let mutex = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        let mut attr = MaybeUninit::uninit();
        // SAFETY: init fills the attributes.
        check(unsafe { libc::pthread_mutexattr_init(attr.as_mut_ptr()) });
        // SAFETY: they are filled; a wrong kind is an error, which is checked.
        check(unsafe { libc::pthread_mutexattr_settype(attr.as_mut_ptr(), kind) });
        // SAFETY: the mutex is unused, it lives in its box, and the attributes are filled.
        check(unsafe { libc::pthread_mutex_init(mutex.get(), attr.as_ptr()) });
        // SAFETY: the attributes are filled, and a mutex keeps none of them.
        check(unsafe { libc::pthread_mutexattr_destroy(attr.as_mut_ptr()) });
        Self(mutex)
    }

    #[inline]
    fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: the mutex is initialised and lives in its box.
        check(unsafe { libc::pthread_mutex_lock(self.0.get()) });
        let result = f();
        // SAFETY: this thread locked it above.
        check(unsafe { libc::pthread_mutex_unlock(self.0.get()) });
        result
    }
}

impl Drop for Mutex {
    fn drop(&mut self) {
        // SAFETY: an exclusive reference proves that no thread is between lock and unlock, unless a
        // closure panicked. In that case the C library refuses with EBUSY, without harm.
        unsafe { libc::pthread_mutex_destroy(self.0.get()) };
    }
}

/// A normal pthread mutex. It sleeps at once.
pub struct PthreadMutex(Mutex);

impl Default for PthreadMutex {
    fn default() -> Self {
        Self(Mutex::new(libc::PTHREAD_MUTEX_NORMAL))
    }
}

impl PthreadMutex {
    /// Runs `f` exclusively.
    #[inline]
    pub fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.exclusive(f)
    }
}

/// An adaptive pthread mutex. It spins before it sleeps.
pub struct PthreadAdaptive(Mutex);

/// glibc's `PTHREAD_MUTEX_ADAPTIVE_NP`, which the crate libc defines on some systems only.
const ADAPTIVE: c_int = 3;

impl Default for PthreadAdaptive {
    fn default() -> Self {
        Self(Mutex::new(ADAPTIVE))
    }
}

impl PthreadAdaptive {
    /// Runs `f` exclusively.
    #[inline]
    pub fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.exclusive(f)
    }
}

/// A pthread reader-writer lock with default attributes. On glibc it prefers readers.
pub struct PthreadRwLock(Box<UnsafeCell<libc::pthread_rwlock_t>>);

// SAFETY: a pthread lock may be called from any thread, and the box never moves it.
unsafe impl Send for PthreadRwLock {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for PthreadRwLock {}

impl Default for PthreadRwLock {
    fn default() -> Self {
        Self(Box::new(UnsafeCell::new(libc::PTHREAD_RWLOCK_INITIALIZER)))
    }
}

impl PthreadRwLock {
    /// Runs `f` exclusively.
    #[inline]
    pub fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: the lock is initialised and lives in its box.
        check(unsafe { libc::pthread_rwlock_wrlock(self.0.get()) });
        let result = f();
        // SAFETY: this thread locked it above.
        check(unsafe { libc::pthread_rwlock_unlock(self.0.get()) });
        result
    }

    /// Runs `f` with a shared acquisition.
    #[inline]
    pub fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: the lock is initialised and lives in its box.
        check(unsafe { libc::pthread_rwlock_rdlock(self.0.get()) });
        let result = f();
        // SAFETY: this thread locked it above.
        check(unsafe { libc::pthread_rwlock_unlock(self.0.get()) });
        result
    }
}

impl Drop for PthreadRwLock {
    fn drop(&mut self) {
        // SAFETY: an exclusive reference proves that no thread is between lock and unlock, unless a
        // closure panicked. In that case the C library refuses with EBUSY, without harm.
        unsafe { libc::pthread_rwlock_destroy(self.0.get()) };
    }
}
