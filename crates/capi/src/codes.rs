//! The return codes of calls.

use core::ffi::{c_char, c_int};

/// The result of a call: 0; or an answer, which is positive; or an error, which is negative.
///
/// Each code is one case that a program can act on. Text for people is in the `lw_error`. Numbers
/// do not change between versions; new ones may be added.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum lw_code {
    /// Done.
    LW_OK = 0,
    /// Answer: there is no such record, or there are no more.
    LW_NOT_FOUND = 1,
    /// Answer: a record with this key exists already. Nothing was changed.
    LW_EXISTS = 2,
    /// Answer of `lw_attempts_end`: the transaction is to run again, call `lw_attempts_next`.
    LW_AGAIN = 3,
    /// Answer of `lw_attempts_next` and `lw_done_next`: there is no more to do.
    LW_DONE = 4,
    /// Answer of `lw_owner_try_lock`: another owner holds the lock.
    LW_NOT_GRANTED = 5,

    /// The call is wrong: NULL, a handle that was closed or is of another type, a size that no
    /// memory has.
    LW_MISUSE = -1,
    /// The object belongs to the parent of this process (fork). Open the store again:
    /// `lw_store_reopen`.
    LW_FORKED = -2,
    /// A defect of the library was caught. The object of the call may be unusable; the data is
    /// safe: a transaction is rolled back.
    LW_PANIC = -3,
    /// The process has no memory.
    LW_NO_MEMORY = -4,
    /// An option has a value that it cannot have.
    LW_OPTIONS = -5,
    /// The store was opened for reading only.
    LW_READ_ONLY = -6,
    /// The calling thread is ending (a destructor of its local variables runs), and has given up
    /// its part in the store.
    LW_CLOSED = -7,
    /// Another call uses the object, on another thread or around the callback that makes this one.
    /// Nothing was done; the object is as it was.
    LW_BUSY = -8,

    /// The path cannot be opened as a store for a reason that the message gives.
    LW_OPEN = -20,
    /// There is no store at the path.
    LW_NO_STORE = -21,
    /// The system does not permit it, or the store belongs to another user.
    LW_PERMISSION = -22,
    /// The store has a format of another version of the library.
    LW_VERSION = -23,
    /// Other processes use the store or the path in a way that excludes this call; it may succeed
    /// later.
    LW_IN_USE = -24,

    /// A deadlock or a conflict; the transaction must run again. Retryable.
    LW_CONFLICT = -40,
    /// A lock was not granted in time. Retryable.
    LW_TIMEOUT = -41,
    /// The snapshot or the transaction was open for too long. Retryable.
    LW_TOO_OLD = -42,
    /// The deadline of a retry loop passed. The cause says why the last attempt failed.
    LW_DEADLINE = -43,
    /// An operator ended the transaction, or another owner's lock.
    LW_KILLED = -44,
    /// The lock is held by another transaction of the same thread: waiting for it would never end.
    LW_SELF = -45,
    /// The savepoint is of another transaction, or was rolled back over.
    LW_SAVEPOINT = -46,
    /// The table has other types or another version.
    LW_TABLE_TYPE = -47,
    /// The table is being migrated; wait for that.
    LW_MIGRATING = -48,
    /// A key, a value or a name is longer than a store can have.
    LW_TOO_LONG = -49,
    /// The bytes are no encoded key, or not of the expected form.
    LW_FORMAT = -50,
    /// No thread slot is free: end transactions, snapshots and threads, or open the store with
    /// more.
    LW_THREADS = -51,
    /// The memory for locks is full.
    LW_LOCKS_FULL = -52,

    /// The file system is full. Nothing is lost; make room and try again.
    LW_NO_SPACE = -60,
    /// Data on the disk is damaged.
    LW_DAMAGED = -61,
    /// The system or the disk refused an operation in another way.
    LW_IO = -62,
    /// Committed, but a crash of the machine may take the commit back: the disk failed.
    LW_COMMIT_UNKNOWN = -63,
    /// A crash of the machine may take back records that the transaction has read: the disk failed.
    LW_READS_UNKNOWN = -64,
    /// Prepared, but a crash of the machine may take that back: the disk failed.
    LW_PREPARE_UNKNOWN = -65,
    /// A prepared transaction has this id.
    LW_PREPARED = -66,
    /// No prepared transaction has this id.
    LW_NOT_PREPARED = -67,

    /// The owner does not hold the lock.
    LW_NOT_HELD = -80,
    /// The region has locks with other modes, or is no region of the library.
    LW_FOREIGN = -81,

    /// Anything else; the message says what.
    LW_FAILED = -100,
}

use lw_code::*;

/// All codes, with their names.
const NAMES: &[(lw_code, &core::ffi::CStr)] = &[
    (LW_OK, c"LW_OK"),
    (LW_NOT_FOUND, c"LW_NOT_FOUND"),
    (LW_EXISTS, c"LW_EXISTS"),
    (LW_AGAIN, c"LW_AGAIN"),
    (LW_DONE, c"LW_DONE"),
    (LW_NOT_GRANTED, c"LW_NOT_GRANTED"),
    (LW_MISUSE, c"LW_MISUSE"),
    (LW_FORKED, c"LW_FORKED"),
    (LW_PANIC, c"LW_PANIC"),
    (LW_NO_MEMORY, c"LW_NO_MEMORY"),
    (LW_OPTIONS, c"LW_OPTIONS"),
    (LW_READ_ONLY, c"LW_READ_ONLY"),
    (LW_CLOSED, c"LW_CLOSED"),
    (LW_BUSY, c"LW_BUSY"),
    (LW_OPEN, c"LW_OPEN"),
    (LW_NO_STORE, c"LW_NO_STORE"),
    (LW_PERMISSION, c"LW_PERMISSION"),
    (LW_VERSION, c"LW_VERSION"),
    (LW_IN_USE, c"LW_IN_USE"),
    (LW_CONFLICT, c"LW_CONFLICT"),
    (LW_TIMEOUT, c"LW_TIMEOUT"),
    (LW_TOO_OLD, c"LW_TOO_OLD"),
    (LW_DEADLINE, c"LW_DEADLINE"),
    (LW_KILLED, c"LW_KILLED"),
    (LW_SELF, c"LW_SELF"),
    (LW_SAVEPOINT, c"LW_SAVEPOINT"),
    (LW_TABLE_TYPE, c"LW_TABLE_TYPE"),
    (LW_MIGRATING, c"LW_MIGRATING"),
    (LW_TOO_LONG, c"LW_TOO_LONG"),
    (LW_FORMAT, c"LW_FORMAT"),
    (LW_THREADS, c"LW_THREADS"),
    (LW_LOCKS_FULL, c"LW_LOCKS_FULL"),
    (LW_NO_SPACE, c"LW_NO_SPACE"),
    (LW_DAMAGED, c"LW_DAMAGED"),
    (LW_IO, c"LW_IO"),
    (LW_COMMIT_UNKNOWN, c"LW_COMMIT_UNKNOWN"),
    (LW_READS_UNKNOWN, c"LW_READS_UNKNOWN"),
    (LW_PREPARE_UNKNOWN, c"LW_PREPARE_UNKNOWN"),
    (LW_PREPARED, c"LW_PREPARED"),
    (LW_NOT_PREPARED, c"LW_NOT_PREPARED"),
    (LW_NOT_HELD, c"LW_NOT_HELD"),
    (LW_FOREIGN, c"LW_FOREIGN"),
    (LW_FAILED, c"LW_FAILED"),
];

/// Returns the name of a code, such as "LW_CONFLICT", or "unknown". The text is static. Never
/// fails.
#[unsafe(no_mangle)]
pub extern "C" fn lw_code_name(code: c_int) -> *const c_char {
    let found = NAMES.iter().find(|(of, _)| *of as c_int == code);
    found.map_or(c"unknown", |(_, name)| *name).as_ptr()
}

/// Returns 1 if the same transaction may succeed when it runs again, and 0 if not. A retry loop
/// (`lw_write`, `lw_attempts_new`) runs it again by itself. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn lw_is_retryable(code: c_int) -> c_int {
    c_int::from([LW_CONFLICT, LW_TIMEOUT, LW_TOO_OLD].iter().any(|of| *of as c_int == code))
}

/// Returns 1 if the code says that the file system, or shared memory, is full, and 0 if not: make
/// room, nothing is lost. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn lw_is_no_space(code: c_int) -> c_int {
    c_int::from(code == LW_NO_SPACE as c_int)
}

/// Returns 1 if the code says that data is damaged, and 0 if not: restore a copy, or salvage what
/// can be read with `latchwork store salvage`. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn lw_is_damage(code: c_int) -> c_int {
    c_int::from(code == LW_DAMAGED as c_int)
}
