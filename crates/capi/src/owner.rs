//! Owners of locks.

use core::ffi::{c_char, c_int, c_void};
use core::time::Duration;

use latchwork_lockmgr::{BatchOp, Error, Mode, Modes, OwnerOptions, StoredOwner, Wait};
use latchwork_machine::{Deadline, Native, Shared};

use crate::call::{Sized_, bytes, call, options_of, place, text_of, too_long};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::failure::{Failure, misuse};
use crate::handle::{self, alone, kinds, used};
use crate::locks::{Locks, either, lw_locks, mode_of, number_of};

/// An owner of locks: a transaction, or a task of the program. It may move between threads, with
/// its locks; one thread uses it at a time. If its process dies its locks are released.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub struct lw_owner(());

/// An owner of a manager of either kind.
enum Kinds {
    Private(StoredOwner<Native>),
    Shared(StoredOwner<Shared>),
}

/// The contents of an `lw_owner`.
pub(crate) struct Owner {
    of: Kinds,
    modes: Modes,
}

kinds! {
    lw_owner => Owner, 9, false;
}

/// The properties of an owner. Initialise it with `LW_OWNER_OPTIONS_INIT`.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct lw_owner_options {
    /// The size of this struct.
    pub size: usize,
    /// The victims of deadlocks are chosen from the owners with the lowest priority; 0 is 100.
    pub priority: u32,
    /// 0: for later versions.
    pub reserved: u32,
    /// The result of `lw_owner_age` at an earlier attempt: the owner is as old as it was then, so
    /// it is not the victim again. 0 is now.
    pub age: u64,
    /// A text for people; 32 bytes are kept. NULL is none.
    pub label: *const c_char,
}

impl Sized_ for lw_owner_options {
    const INIT: Self = Self {
        size: size_of::<Self>(),
        priority: 0,
        reserved: 0,
        age: 0,
        label: core::ptr::null(),
    };
    const NAME: &'static str = "lw_owner_options";

    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// # Safety
///
/// They are null or were initialised.
unsafe fn owner_options<'o>(at: *const lw_owner_options) -> Result<OwnerOptions<'o>, Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { options_of(at)? };
    let mut options = OwnerOptions::default();
    if given.priority != 0 {
        options.priority = given.priority;
    }
    options.age = (given.age != 0).then_some(given.age);
    if !given.label.is_null() {
        // SAFETY: the caller's promise.
        options.label = unsafe { text_of(given.label, "label")? };
    }
    Ok(options)
}

/// The longest name of a lock.
const NAME_MAX: usize = 4000;

/// # Safety
///
/// The bytes can be read.
#[inline]
unsafe fn name_of<'n>(at: *const c_void, length: usize) -> Result<&'n [u8], Failure> {
    if length > NAME_MAX && length <= isize::MAX as usize {
        return Err(too_long("lock name", length, NAME_MAX));
    }
    // SAFETY: the caller's promise.
    unsafe { bytes(at, length) }
}

impl Owner {
    #[inline]
    fn lock(&self, name: &[u8], mode: Mode, wait: Wait) -> Result<(), Error> {
        either!(&self.of, Kinds, owner => owner.get().lock_with(name, mode, wait))
    }
}

/// How a wait of this many milliseconds ends.
fn within(ms: u64) -> Wait {
    match ms {
        0 => Wait::Never,
        u64::MAX => Wait::Detect,
        ms => Wait::Until(Deadline::after::<Native>(Duration::from_millis(ms.min(1 << 40)))),
    }
}

/// Creates an owner. It takes a thread slot of the region and 20 KiB until it is freed; a program
/// with many short tasks renews one owner for each task. `options` may be NULL.
///
/// # Errors
///
/// `LW_THREADS`, `LW_LOCKS_FULL`, `LW_NO_SPACE`, `LW_OPTIONS`.
///
/// # Safety
///
/// The manager is alive; the options were initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_new(
    locks: *mut lw_locks,
    options: *const lw_owner_options,
    owner: *mut *mut lw_owner,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let owner = place(owner, core::ptr::null_mut(), "owner")?;
            let (locks, options) = (used(locks)?, owner_options(options)?);
            let of = match &*locks {
                Locks::Private(manager, _) => Kinds::Private(manager.stored_owner(&options)?),
                Locks::Shared(manager, _) => Kinds::Shared(manager.stored_owner(&options)?),
            };
            *owner = handle::new(Owner { of, modes: locks.modes().clone() });
            Ok(LW_OK)
        })
    }
}

/// Releases all locks of an owner, and makes it a new owner with another id: cheaper than freeing
/// it and creating another one. `options` may be NULL.
///
/// # Errors
///
/// Those of `lw_owner_new`: then it is the owner that it was, with its locks.
///
/// # Safety
///
/// The owner is alive; the options were initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_renew(
    owner: *mut lw_owner,
    options: *const lw_owner_options,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut owner, options) = (alone(owner)?, owner_options(options)?);
            either!(&mut owner.get().of, Kinds, owner => owner.renew(&options)?);
            Ok(LW_OK)
        })
    }
}

/// Releases all locks of an owner, and frees it. NULL is allowed.
///
/// # Errors
///
/// `LW_BUSY`, `LW_MISUSE`.
///
/// # Safety
///
/// The owner is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_free(owner: *mut lw_owner) -> c_int {
    // SAFETY: the caller's promise; no place for an error.
    unsafe { call(core::ptr::null_mut(), || handle::free(owner)) }
}

/// Returns the id of an owner, which is the same in all processes.
///
/// # Errors
///
/// `LW_MISUSE`, `LW_FORKED`.
///
/// # Safety
///
/// The owner is alive; `id` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_id(
    owner: *mut lw_owner,
    id: *mut u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (id, mut owner) = (place(id, 0, "id")?, alone(owner)?);
            *id = either!(&owner.get().of, Kinds, owner => number_of(owner.get().id()));
            Ok(LW_OK)
        })
    }
}

/// Returns the age of an owner, which the next attempt of its task gets: see `lw_owner_options`.
///
/// # Errors
///
/// `LW_MISUSE`, `LW_FORKED`.
///
/// # Safety
///
/// The owner is alive; `age` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_age(
    owner: *mut lw_owner,
    age: *mut u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (age, mut owner) = (place(age, 0, "age")?, alone(owner)?);
            *age = either!(&owner.get().of, Kinds, owner => owner.get().age()?);
            Ok(LW_OK)
        })
    }
}

/// Takes a lock, and waits for it until it is granted or the owner is the victim of a deadlock. An
/// owner that holds the lock takes it once more, in the stronger of both modes. The name has 1 to
/// 4,000 bytes.
///
/// # Errors
///
/// `LW_CONFLICT`: a deadlock; the owner keeps its other locks, and must release them. `LW_KILLED`,
/// `LW_TOO_LONG`, `LW_OPTIONS` for a mode that does not exist, `LW_LOCKS_FULL`, `LW_NO_SPACE`.
///
/// # Safety
///
/// The owner is alive; the bytes of the name can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_lock(
    owner: *mut lw_owner,
    name: *const c_void,
    name_len: usize,
    mode: c_int,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut owner, name) = (alone(owner)?, name_of(name, name_len)?);
            let owner = owner.get();
            owner.lock(name, mode_of(&owner.modes, mode)?, Wait::Detect)?;
            Ok(LW_OK)
        })
    }
}

/// Takes a lock if it is free.
///
/// # Errors
///
/// `LW_NOT_GRANTED`, an answer, if it is not; those of `lw_owner_lock`.
///
/// # Safety
///
/// The owner is alive; the bytes of the name can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_try_lock(
    owner: *mut lw_owner,
    name: *const c_void,
    name_len: usize,
    mode: c_int,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut owner, name) = (alone(owner)?, name_of(name, name_len)?);
            let owner = owner.get();
            match owner.lock(name, mode_of(&owner.modes, mode)?, Wait::Never) {
                Err(Error::NotGranted) => Ok(LW_NOT_GRANTED),
                done => Ok(done.map(|()| LW_OK)?),
            }
        })
    }
}

/// Takes a lock, and waits for it for this many milliseconds at most; 0 does not wait, and
/// UINT64_MAX is no limit.
///
/// # Errors
///
/// `LW_TIMEOUT`; `LW_NOT_GRANTED` if the time is 0; those of `lw_owner_lock`.
///
/// # Safety
///
/// The owner is alive; the bytes of the name can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_lock_timeout(
    owner: *mut lw_owner,
    name: *const c_void,
    name_len: usize,
    mode: c_int,
    time_ms: u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut owner, name) = (alone(owner)?, name_of(name, name_len)?);
            let owner = owner.get();
            match owner.lock(name, mode_of(&owner.modes, mode)?, within(time_ms)) {
                Err(Error::NotGranted) => Ok(LW_NOT_GRANTED),
                done => Ok(done.map(|()| LW_OK)?),
            }
        })
    }
}

/// Releases a lock once: it is free for others when it was released as often as it was taken.
///
/// # Errors
///
/// `LW_NOT_HELD`, `LW_TOO_LONG`.
///
/// # Safety
///
/// The owner is alive; the bytes of the name can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_unlock(
    owner: *mut lw_owner,
    name: *const c_void,
    name_len: usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut owner, name) = (alone(owner)?, name_of(name, name_len)?);
            either!(&owner.get().of, Kinds, owner => owner.get().unlock(name)?);
            Ok(LW_OK)
        })
    }
}

/// Releases all locks of an owner. O(locks).
///
/// # Errors
///
/// `LW_MISUSE`, `LW_FORKED`, `LW_DAMAGED`.
///
/// # Safety
///
/// The owner is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_release_all(
    owner: *mut lw_owner,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let mut owner = alone(owner)?;
            either!(&owner.get().of, Kinds, owner => owner.get().release_all()?);
            Ok(LW_OK)
        })
    }
}

/// Says in which mode an owner holds a lock, and how often it took it.
///
/// # Errors
///
/// `LW_NOT_FOUND` if it does not hold it: `*mode` is -1 and `*count` 0.
///
/// # Safety
///
/// The owner is alive; the bytes of the name can be read; `mode` and `count` are NULL or places for
/// numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_holds(
    owner: *mut lw_owner,
    name: *const c_void,
    name_len: usize,
    mode: *mut c_int,
    count: *mut u32,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (mut owner, name) = (alone(owner)?, name_of(name, name_len)?);
            let owner = owner.get();
            let held = either!(&owner.of, Kinds, owner => owner.get().holds(name)?);
            let at = held.and_then(|(held, _)| owner.modes.each().position(|one| one == held));
            if !mode.is_null() {
                *mode = at.map_or(-1, |at| at as c_int);
            }
            if !count.is_null() {
                *count = held.map_or(0, |(_, count)| count);
            }
            Ok(if held.is_some() { LW_OK } else { LW_NOT_FOUND })
        })
    }
}

/// The kind of an operation in a batch.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum lw_op_kind {
    /// `lw_owner_lock_timeout` with `mode` and `time_ms`.
    LW_OP_LOCK = 0,
    /// `lw_owner_unlock`.
    LW_OP_UNLOCK = 1,
    /// Releases a lock as often as it was taken.
    LW_OP_RELEASE_NAME = 2,
    /// Releases all locks in modes that do not write.
    LW_OP_RELEASE_READS = 3,
    /// `lw_owner_release_all`.
    LW_OP_RELEASE_ALL = 4,
}

/// An operation of a batch.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct lw_op {
    /// An `lw_op_kind`.
    pub kind: u32,
    /// The mode of `LW_OP_LOCK`.
    pub mode: c_int,
    /// The name of the lock, of the first three kinds.
    pub name: *const c_void,
    /// Bytes of the name.
    pub name_len: usize,
    /// How long `LW_OP_LOCK` waits: 0 is not at all, UINT64_MAX no limit.
    pub time_ms: u64,
}

unsafe fn operation<'o>(modes: &Modes, op: &lw_op) -> Result<BatchOp<'o>, Failure> {
    use lw_op_kind::*;
    // SAFETY: the caller's promise.
    let name = || unsafe { name_of(op.name, op.name_len) };
    Ok(match op.kind {
        it if it == LW_OP_LOCK as u32 => {
            BatchOp::Lock(name()?, mode_of(modes, op.mode)?, within(op.time_ms))
        }
        it if it == LW_OP_UNLOCK as u32 => BatchOp::Unlock(name()?),
        it if it == LW_OP_RELEASE_NAME as u32 => BatchOp::ReleaseObject(name()?),
        it if it == LW_OP_RELEASE_READS as u32 => BatchOp::ReleaseReads,
        it if it == LW_OP_RELEASE_ALL as u32 => BatchOp::ReleaseAll,
        other => {
            return Err(Failure::Other(LW_OPTIONS, format!("operation {other} does not exist")));
        }
    })
}

/// Does several operations, one after the other, and stops at the first that fails; `*done` is how
/// many were done. Other owners may see, and get, what lies between two operations.
///
/// # Errors
///
/// `LW_NOT_GRANTED` and the errors of the operation that failed. `LW_OPTIONS`, `LW_MISUSE` and
/// `LW_TOO_LONG` if an operation is wrong: then none was done.
///
/// # Safety
///
/// The owner is alive; `operations` has `count` operations, whose names can be read; `done` is NULL
/// or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_owner_batch(
    owner: *mut lw_owner,
    operations: *const lw_op,
    count: usize,
    done: *mut usize,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            if !done.is_null() {
                *done = 0;
            }
            let mut owner = alone(owner)?;
            let length = count.saturating_mul(size_of::<lw_op>());
            bytes(operations.cast(), length)?;
            if !operations.is_aligned() {
                return Err(misuse("the operations are misaligned"));
            }
            let given =
                if count == 0 { &[] } else { core::slice::from_raw_parts(operations, count) };
            let owner = owner.get();
            let batch: Result<Vec<_>, _> =
                given.iter().map(|op| operation(&owner.modes, op)).collect();
            let batch = batch?;
            let ended = either!(&owner.of, Kinds, owner => owner.get().batch(&batch));
            if !done.is_null() {
                *done = ended.as_ref().map_or_else(|why| why.done, |()| count);
            }
            match ended.map_err(|why| why.error) {
                Err(Error::NotGranted) => Ok(LW_NOT_GRANTED),
                ended => Ok(ended.map(|()| LW_OK)?),
            }
        })
    }
}
