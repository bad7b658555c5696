//! The C library's own functions, for objects that it serves.
//!
//! Each is looked up when it is first needed, which never happens in a program without special
//! objects. Two threads that look one up find the same.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    c_int, clockid_t, pthread_cond_t as Cond, pthread_condattr_t as CondAttr,
    pthread_mutex_t as Mutex, pthread_mutexattr_t as MutexAttr, pthread_rwlock_t as Rwlock,
    pthread_rwlockattr_t as RwlockAttr, timespec,
};

/// A function of the C library.
pub(crate) struct Real {
    name: &'static CStr,
    version: Option<&'static CStr>,
    known: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr, version: Option<&'static CStr>) -> Self {
        Self { name, version, known: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Returns the function's address; null if the C library does not have it.
    fn address(&self) -> *mut c_void {
        // Relaxed: the code exists before its address can be known.
        let known = self.known.load(Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    #[inline(never)]
    fn look_up(&self) -> *mut c_void {
        let mut found = core::ptr::null_mut();
        if let Some(version) = self.version {
            // SAFETY: both are strings that end with a zero byte.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr()) };
        }
        if found.is_null() {
            // SAFETY: as above.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        }
        self.known.store(found, Relaxed);
        found
    }
}

/// The version to request where the C library has two functions of one name.
const CONDS: Option<&CStr> = if cfg!(target_arch = "x86_64") { Some(c"GLIBC_2.3.2") } else { None };

macro_rules! reals {
    ($($ours:ident = $name:literal $version:expr, ($($arg:ident: $type:ty),*);)*) => {$(
        /// Calls the C library's function of this name; `ENOSYS` if it does not exist.
        ///
        /// # Safety
        ///
        /// The contract of the C library's function.
        pub(crate) unsafe fn $ours($($arg: $type),*) -> c_int {
            static REAL: Real = Real::new($name, $version);
            let address = REAL.address();
            if address.is_null() {
                return libc::ENOSYS;
            }
            type Function = unsafe extern "C" fn($($type),*) -> c_int;
            // SAFETY: the C library's function of this name has this type.
            let real = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
            // SAFETY: the caller's promise is the same.
            unsafe { real($($arg),*) }
        }
    )*};
}

reals! {
    mutex_init = c"pthread_mutex_init" None, (m: *mut Mutex, a: *const MutexAttr);
    mutex_destroy = c"pthread_mutex_destroy" None, (m: *mut Mutex);
    mutex_lock = c"pthread_mutex_lock" None, (m: *mut Mutex);
    mutex_trylock = c"pthread_mutex_trylock" None, (m: *mut Mutex);
    mutex_clocklock = c"pthread_mutex_clocklock" None,
        (m: *mut Mutex, c: clockid_t, t: *const timespec);
    mutex_unlock = c"pthread_mutex_unlock" None, (m: *mut Mutex);
    mutex_consistent = c"pthread_mutex_consistent" None, (m: *mut Mutex);
    rwlock_init = c"pthread_rwlock_init" None, (l: *mut Rwlock, a: *const RwlockAttr);
    rwlock_destroy = c"pthread_rwlock_destroy" None, (l: *mut Rwlock);
    rwlock_rdlock = c"pthread_rwlock_rdlock" None, (l: *mut Rwlock);
    rwlock_wrlock = c"pthread_rwlock_wrlock" None, (l: *mut Rwlock);
    rwlock_tryrdlock = c"pthread_rwlock_tryrdlock" None, (l: *mut Rwlock);
    rwlock_trywrlock = c"pthread_rwlock_trywrlock" None, (l: *mut Rwlock);
    rwlock_clockrdlock = c"pthread_rwlock_clockrdlock" None,
        (l: *mut Rwlock, c: clockid_t, t: *const timespec);
    rwlock_clockwrlock = c"pthread_rwlock_clockwrlock" None,
        (l: *mut Rwlock, c: clockid_t, t: *const timespec);
    rwlock_unlock = c"pthread_rwlock_unlock" None, (l: *mut Rwlock);
    cond_init = c"pthread_cond_init" CONDS, (c: *mut Cond, a: *const CondAttr);
    cond_destroy = c"pthread_cond_destroy" CONDS, (c: *mut Cond);
    cond_signal = c"pthread_cond_signal" CONDS, (c: *mut Cond);
    cond_broadcast = c"pthread_cond_broadcast" CONDS, (c: *mut Cond);
}

/// The C library's waits, which `wait.c` calls, because a forced unwind must not meet a Rust frame.
static WAITS: [Real; 3] = [
    Real::new(c"pthread_cond_wait", CONDS),
    Real::new(c"pthread_cond_timedwait", CONDS),
    Real::new(c"pthread_cond_clockwait", None),
];

/// Returns the address of one of the C library's waits: plain, timed, by a clock.
#[unsafe(no_mangle)]
extern "C" fn latchwork_real_wait(which: usize) -> *mut c_void {
    WAITS.get(which).map_or(core::ptr::null_mut(), Real::address)
}
