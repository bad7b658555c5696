//! The exported functions.
//!
//! Each function whose caller a profile needs is a few instructions of assembly: if the object is
//! an ordinary one and the mode is the default, it jumps to the short path; otherwise it finds the
//! return address and the caller's stack and jumps to the long one. Nothing is pushed, so a
//! debugger sees the caller's frame.
//!
//! A forced unwind (a cancelled wait) passes none of these, because they jump and do not call. It
//! may begin in one, though, if a program uses asynchronous cancellation. So each has an entry in
//! the unwind table, which the compiler does not create for naked functions.

use core::arch::naked_asm;

use libc::{
    c_int, clockid_t, pthread_cond_t, pthread_condattr_t, pthread_mutex_t, pthread_mutexattr_t,
    pthread_rwlock_t, pthread_rwlockattr_t, timespec,
};

use crate::mode::MODE;
use crate::{cond, mutex, rwlock, spin};

/// An export that jumps to `$plain` if the word at `$offset` of its first argument, and the mode,
/// are zero; otherwise to `$other` with three more arguments in the registers `$x86` or `$arm`: the
/// return address, and the stack and frame pointers at this point.
macro_rules! entry {
    ($($name:ident($($arg:ident: $type:ty),*): [$offset:literal] $plain:path, $other:path,
        [$xa:literal $xs:literal $xf:literal] [$aa:literal $as:literal $af:literal];)*) => {$(
        #[doc = concat!("POSIX's `", stringify!($name), "`.")]
        ///
        /// # Safety
        ///
        /// The contract of POSIX.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                ".cfi_startproc",
                concat!("mov eax, dword ptr [rdi + ", $offset, "]"),
                "or eax, dword ptr [rip + {mode}]",
                "jne 2f",
                "jmp {plain}",
                "2:",
                concat!("mov ", $xa, ", qword ptr [rsp]"),
                concat!("mov ", $xs, ", rsp"),
                concat!("mov ", $xf, ", rbp"),
                "jmp {other}",
                ".cfi_endproc",
                mode = sym MODE, plain = sym $plain, other = sym $other,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                ".cfi_startproc",
                concat!("ldr w8, [x0, #", $offset, "]"),
                "adrp x9, {mode}",
                "ldr w9, [x9, :lo12:{mode}]",
                "orr w8, w8, w9",
                "cbnz w8, 2f",
                "b {plain}",
                "2:",
                concat!("mov ", $aa, ", x30"),
                concat!("mov ", $as, ", sp"),
                concat!("mov ", $af, ", x29"),
                "b {other}",
                ".cfi_endproc",
                mode = sym MODE, plain = sym $plain, other = sym $other,
            );
        }
    )*};
}

/// An export that jumps to `$other` with the three additional arguments.
macro_rules! entry_called {
    ($($name:ident($($arg:ident: $type:ty),*): $other:path,
        [$xa:literal $xs:literal $xf:literal] [$aa:literal $as:literal $af:literal];)*) => {$(
        #[doc = concat!("POSIX's `", stringify!($name), "`.")]
        ///
        /// # Safety
        ///
        /// The contract of POSIX.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                ".cfi_startproc",
                concat!("mov ", $xa, ", qword ptr [rsp]"),
                concat!("mov ", $xs, ", rsp"),
                concat!("mov ", $xf, ", rbp"),
                "jmp {other}",
                ".cfi_endproc",
                other = sym $other,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                ".cfi_startproc",
                concat!("mov ", $aa, ", x30"),
                concat!("mov ", $as, ", sp"),
                concat!("mov ", $af, ", x29"),
                "b {other}",
                ".cfi_endproc",
                other = sym $other,
            );
        }
    )*};
}

/// An export that is only another name of `$target`.
macro_rules! entry_jump {
    ($($name:ident($($arg:ident: $type:ty),*): $target:path;)*) => {$(
        #[doc = concat!("POSIX's `", stringify!($name), "`, or an old name of it.")]
        ///
        /// # Safety
        ///
        /// The contract of POSIX.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(".cfi_startproc", "jmp {target}", ".cfi_endproc", target = sym $target);
            #[cfg(target_arch = "aarch64")]
            naked_asm!(".cfi_startproc", "b {target}", ".cfi_endproc", target = sym $target);
        }
    )*};
}

entry! {
    pthread_mutex_lock(mutex: *mut pthread_mutex_t):
        ["16"] mutex::lock_plain, mutex::lock, ["rsi" "rdx" "rcx"] ["x1" "x2" "x3"];
    pthread_mutex_trylock(mutex: *mut pthread_mutex_t):
        ["16"] mutex::trylock_plain, mutex::trylock, ["rsi" "rdx" "rcx"] ["x1" "x2" "x3"];
    pthread_mutex_unlock(mutex: *mut pthread_mutex_t):
        ["16"] mutex::unlock_plain, mutex::unlock, ["rsi" "rdx" "rcx"] ["x1" "x2" "x3"];
    pthread_rwlock_rdlock(lock: *mut pthread_rwlock_t):
        ["28"] rwlock::rdlock_plain, rwlock::rdlock, ["rsi" "rdx" "rcx"] ["x1" "x2" "x3"];
    pthread_rwlock_wrlock(lock: *mut pthread_rwlock_t):
        ["28"] rwlock::wrlock_plain, rwlock::wrlock, ["rsi" "rdx" "rcx"] ["x1" "x2" "x3"];
    pthread_rwlock_unlock(lock: *mut pthread_rwlock_t):
        ["28"] rwlock::unlock_plain, rwlock::unlock, ["rsi" "rdx" "rcx"] ["x1" "x2" "x3"];
}

entry_called! {
    pthread_mutex_timedlock(mutex: *mut pthread_mutex_t, at: *const timespec):
        mutex::timedlock, ["rdx" "rcx" "r8"] ["x2" "x3" "x4"];
    pthread_mutex_clocklock(mutex: *mut pthread_mutex_t, clock: clockid_t, at: *const timespec):
        mutex::clocklock, ["rcx" "r8" "r9"] ["x3" "x4" "x5"];
    pthread_rwlock_tryrdlock(lock: *mut pthread_rwlock_t): rwlock::tryrdlock,
        ["rsi" "rdx" "rcx"] ["x1" "x2" "x3"];
    pthread_rwlock_trywrlock(lock: *mut pthread_rwlock_t): rwlock::trywrlock,
        ["rsi" "rdx" "rcx"] ["x1" "x2" "x3"];
    pthread_rwlock_timedrdlock(lock: *mut pthread_rwlock_t, at: *const timespec):
        rwlock::timedrdlock, ["rdx" "rcx" "r8"] ["x2" "x3" "x4"];
    pthread_rwlock_timedwrlock(lock: *mut pthread_rwlock_t, at: *const timespec):
        rwlock::timedwrlock, ["rdx" "rcx" "r8"] ["x2" "x3" "x4"];
    pthread_rwlock_clockrdlock(lock: *mut pthread_rwlock_t, clock: clockid_t, at: *const timespec):
        rwlock::clockrdlock, ["rcx" "r8" "r9"] ["x3" "x4" "x5"];
    pthread_rwlock_clockwrlock(lock: *mut pthread_rwlock_t, clock: clockid_t, at: *const timespec):
        rwlock::clockwrlock, ["rcx" "r8" "r9"] ["x3" "x4" "x5"];
    pthread_spin_lock(lock: *mut c_int): spin::lock, ["rsi" "rdx" "rcx"] ["x1" "x2" "x3"];
    pthread_spin_trylock(lock: *mut c_int): spin::trylock, ["rsi" "rdx" "rcx"] ["x1" "x2" "x3"];
}

entry_jump! {
    pthread_mutex_init(mutex: *mut pthread_mutex_t, attr: *const pthread_mutexattr_t): mutex::init;
    pthread_mutex_destroy(mutex: *mut pthread_mutex_t): mutex::destroy;
    pthread_mutex_consistent(mutex: *mut pthread_mutex_t): mutex::consistent;
    pthread_mutex_consistent_np(mutex: *mut pthread_mutex_t): mutex::consistent;
    pthread_rwlock_init(lock: *mut pthread_rwlock_t, attr: *const pthread_rwlockattr_t):
        rwlock::init;
    pthread_rwlock_destroy(lock: *mut pthread_rwlock_t): rwlock::destroy;
    pthread_spin_init(lock: *mut c_int, shared: c_int): spin::init;
    pthread_spin_destroy(lock: *mut c_int): spin::destroy;
    pthread_spin_unlock(lock: *mut c_int): spin::unlock;
    pthread_cond_init(cond: *mut pthread_cond_t, attr: *const pthread_condattr_t): cond::init;
    pthread_cond_destroy(cond: *mut pthread_cond_t): cond::destroy;
    pthread_cond_signal(cond: *mut pthread_cond_t): cond::signal;
    pthread_cond_broadcast(cond: *mut pthread_cond_t): cond::broadcast;
    pthread_cond_wait(cond: *mut pthread_cond_t, mutex: *mut pthread_mutex_t):
        cond::latchwork_cond_wait;
    pthread_cond_timedwait(
        cond: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, at: *const timespec
    ): cond::latchwork_cond_timedwait;
    pthread_cond_clockwait(
        cond: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, clock: clockid_t,
        at: *const timespec
    ): cond::latchwork_cond_clockwait;
}

// Names that programs linked before glibc 2.34 may use for the same objects.
entry_jump! {
    __pthread_mutex_init(mutex: *mut pthread_mutex_t, attr: *const pthread_mutexattr_t):
        mutex::init;
    __pthread_mutex_destroy(mutex: *mut pthread_mutex_t): mutex::destroy;
    __pthread_mutex_lock(mutex: *mut pthread_mutex_t): pthread_mutex_lock;
    __pthread_mutex_trylock(mutex: *mut pthread_mutex_t): pthread_mutex_trylock;
    __pthread_mutex_unlock(mutex: *mut pthread_mutex_t): pthread_mutex_unlock;
    __pthread_rwlock_init(lock: *mut pthread_rwlock_t, attr: *const pthread_rwlockattr_t):
        rwlock::init;
    __pthread_rwlock_destroy(lock: *mut pthread_rwlock_t): rwlock::destroy;
    __pthread_rwlock_rdlock(lock: *mut pthread_rwlock_t): pthread_rwlock_rdlock;
    __pthread_rwlock_wrlock(lock: *mut pthread_rwlock_t): pthread_rwlock_wrlock;
    __pthread_rwlock_tryrdlock(lock: *mut pthread_rwlock_t): pthread_rwlock_tryrdlock;
    __pthread_rwlock_trywrlock(lock: *mut pthread_rwlock_t): pthread_rwlock_trywrlock;
    __pthread_rwlock_unlock(lock: *mut pthread_rwlock_t): pthread_rwlock_unlock;
}
