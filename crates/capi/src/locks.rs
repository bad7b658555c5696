//! The lock manager: locks by name, in a region that processes share, or in one process.

use core::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

use latchwork_lockmgr::{Error, LockInfo, Manager, Mode, Modes, Options, OwnerId, Session};
use latchwork_lockmgr::{berkeley, granular, postgres, shared as shared_exclusive};
use latchwork_machine::{Native, Shared};
use latchwork_region::{Options as RegionOptions, Region};

use crate::call::{Sized_, call, options_of, path_of, place, text_of};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::failure::Failure;
use crate::handle::{self, kinds, used};
use crate::record::function;

/// A lock manager. All threads may use it at the same time.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub struct lw_locks(());

/// A manager of either kind, and a session for what is no owner's.
pub(crate) enum Locks {
    Private(Manager<Native>, Mutex<Option<Session<Native>>>),
    Shared(Manager<Shared>, Mutex<Option<Session<Shared>>>),
}

kinds! {
    lw_locks => Locks, 8, false;
}

/// The modes that locks have.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum lw_modes {
    /// Granular locks of databases: modes 0 to 5 are IS, IX, S, SIX, U, X.
    LW_MODES_GRANULAR = 0,
    /// Readers and writers: modes 0 and 1 are S and X.
    LW_MODES_SHARED = 1,
    /// Berkeley DB's: modes 0 to 8 are NG, READ, WRITE, WAIT, IWRITE, IREAD, IWR, READ_UNCOMMITTED,
    /// WWRITE, with the numbers that they have there.
    LW_MODES_BERKELEY = 2,
    /// Berkeley DB's Concurrent Data Store: modes 0 to 4 are NG, READ, WRITE, WAIT, IWRITE.
    LW_MODES_BERKELEY_CDS = 3,
    /// PostgreSQL's table locks: modes 0 to 7 are ACCESS SHARE to ACCESS EXCLUSIVE.
    LW_MODES_POSTGRES = 4,
}

/// How a lock manager is opened. Initialise it with `LW_LOCKS_OPTIONS_INIT`. A number that is 0 is
/// the default, in brackets.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct lw_locks_options {
    /// The size of this struct.
    pub size: usize,
    /// An `lw_modes` (granular). All processes of a region say the same.
    pub modes: u32,
    /// 0: for later versions.
    pub reserved: u32,
    /// How many processes may have the region open: 1 to 4,096 (256).
    pub processes: u32,
    /// How many owners and threads may use it at a time: 1 to 32,752 (2,048).
    pub threads: u32,
    /// To how many bytes it may grow, up to 2^36 (2^36); each process reserves as many addresses.
    pub limit: u64,
}

impl Sized_ for lw_locks_options {
    const INIT: Self =
        Self { size: size_of::<Self>(), modes: 0, reserved: 0, processes: 0, threads: 0, limit: 0 };
    const NAME: &'static str = "lw_locks_options";

    fn reserved(&self) -> u32 {
        self.reserved
    }
}

fn modes_of(number: u32) -> Result<Modes, Failure> {
    use lw_modes::*;
    Ok(match number {
        it if it == LW_MODES_GRANULAR as u32 => granular::modes(),
        it if it == LW_MODES_SHARED as u32 => shared_exclusive::modes(),
        it if it == LW_MODES_BERKELEY as u32 => berkeley::modes(),
        it if it == LW_MODES_BERKELEY_CDS as u32 => berkeley::concurrent(),
        it if it == LW_MODES_POSTGRES as u32 => postgres::modes(),
        other => return Err(Failure::Other(LW_OPTIONS, format!("modes {other} do not exist"))),
    })
}

/// Does the same with a manager or an owner of either kind.
macro_rules! either {
    ($of:expr, $enum:ident, $it:pat => $body:expr) => {
        match $of {
            $enum::Private($it, ..) => $body,
            $enum::Shared($it, ..) => $body,
        }
    };
}
pub(crate) use either;

impl Locks {
    pub(crate) fn modes(&self) -> &Modes {
        either!(self, Locks, manager => manager.modes())
    }

    /// Does something with a session that is no owner's.
    fn with<R>(
        &self,
        private: impl FnOnce(&Session<Native>) -> Result<R, Error>,
        shared: impl FnOnce(&Session<Shared>) -> Result<R, Error>,
    ) -> Result<R, Failure> {
        fn kept<M: latchwork_machine::ConstMachine, R>(
            manager: &Manager<M>,
            session: &Mutex<Option<Session<M>>>,
            work: impl FnOnce(&Session<M>) -> Result<R, Error>,
        ) -> Result<R, Failure> {
            let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
            let session = match &mut *session {
                Some(session) => session,
                none => none.insert(manager.session()?),
            };
            Ok(work(session)?)
        }
        match self {
            Self::Private(manager, session) => kept(manager, session, private),
            Self::Shared(manager, session) => kept(manager, session, shared),
        }
    }
}

pub(crate) fn mode_of(modes: &Modes, number: c_int) -> Result<Mode, Failure> {
    let at = usize::try_from(number).unwrap_or(usize::MAX);
    let no = || Failure::Other(LW_OPTIONS, format!("mode {number} does not exist in this set"));
    // Not `nth`, which walks.
    if at >= modes.len() {
        return Err(no());
    }
    modes.each().nth(at).ok_or_else(no)
}

/// Opens a lock manager in a region: a file in `/dev/shm` or on another file system of this
/// machine, which is created if it does not exist, and stays. If `path` is NULL it is a private one
/// of this process. `options` may be NULL.
///
/// # Errors
///
/// `LW_FOREIGN` if the file is something else, or has locks with other modes; `LW_PERMISSION`,
/// `LW_VERSION`, `LW_NO_SPACE`, `LW_THREADS`, `LW_OPTIONS`, `LW_DAMAGED`, `LW_IO`.
///
/// # Safety
///
/// `path` is NULL or ends with a zero; the options were initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_locks_open(
    path: *const c_char,
    options: *const lw_locks_options,
    locks: *mut *mut lw_locks,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let locks = place(locks, core::ptr::null_mut(), "lock manager")?;
            let given = options_of(options)?;
            let modes = modes_of(given.modes)?;
            let mut region = RegionOptions::default();
            for (to, given) in
                [(&mut region.processes, given.processes), (&mut region.threads, given.threads)]
            {
                if given != 0 {
                    *to = given;
                }
            }
            if given.limit != 0 {
                region.limit = given.limit;
            }
            let options = Options::default();
            let opened = if path.is_null() {
                let region = Region::private(&region)?;
                Locks::Private(Manager::new(region, modes, options)?, Mutex::default())
            } else {
                let region = Region::<Shared>::open_or_create(path_of(path)?, &region)?;
                Locks::Shared(Manager::new(region, modes, options)?, Mutex::default())
            };
            *locks = handle::new(opened);
            Ok(LW_OK)
        })
    }
}

/// Closes a lock manager. Its owners stay valid: each holds the region until it is freed. NULL is
/// allowed.
///
/// # Errors
///
/// `LW_BUSY` if a call of another thread uses it, or the call in whose callback this one is;
/// `LW_MISUSE`.
///
/// # Safety
///
/// The manager is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_locks_close(locks: *mut lw_locks) -> c_int {
    // SAFETY: the caller's promise; no place for an error.
    unsafe {
        call(core::ptr::null_mut(), || {
            handle::or_given_up(locks, |locks| handle::close(locks))?;
            Ok(LW_OK)
        })
    }
}

/// Finds the number of a mode by its name: "S", "X", "READ", ..
///
/// # Errors
///
/// `LW_NOT_FOUND`.
///
/// # Safety
///
/// The manager is alive; the name ends with a zero; `mode` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_locks_mode(
    locks: *mut lw_locks,
    name: *const c_char,
    mode: *mut c_int,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let mode = place(mode, -1, "mode")?;
            let (locks, name) = (used(locks)?, text_of(name, "name of a mode")?);
            let modes = locks.modes();
            match modes.each().position(|one| modes.name(one) == name) {
                Some(at) => {
                    *mode = at as c_int;
                    Ok(LW_OK)
                }
                None => Ok(LW_NOT_FOUND),
            }
        })
    }
}

/// Looks for deadlocks among all owners that wait, and ends each by aborting one of them: its call
/// returns `LW_CONFLICT`. `*broken` is how many there were. Owners that wait do this by themselves.
///
/// # Errors
///
/// `LW_THREADS`, `LW_IO`.
///
/// # Safety
///
/// The manager is alive; `broken` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_locks_detect(
    locks: *mut lw_locks,
    broken: *mut u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let count = used(locks)?.with(Session::detect, Session::detect)?;
            if !broken.is_null() {
                *broken = count as u64;
            }
            Ok(LW_OK)
        })
    }
}

/// Releases the locks of processes that have died; `*ended` is how many owners that were. Owners
/// that wait do this by themselves.
///
/// # Errors
///
/// `LW_THREADS`, `LW_DAMAGED`, `LW_IO`.
///
/// # Safety
///
/// The manager is alive; `ended` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_locks_sweep(
    locks: *mut lw_locks,
    ended: *mut u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let count = used(locks)?.with(Session::sweep, Session::sweep)?;
            if !ended.is_null() {
                *ended = count as u64;
            }
            Ok(LW_OK)
        })
    }
}

/// Has an owner fail: its wait, if it waits, and all its requests from now on return `LW_KILLED`.
/// It keeps its locks until it releases them. The id is that of `lw_owner_id` or `lw_locks_list`.
///
/// # Errors
///
/// `LW_NOT_FOUND` if there is no such owner; `LW_THREADS`.
///
/// # Safety
///
/// The manager is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_locks_kill(
    locks: *mut lw_locks,
    owner: u64,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let owner = id_of(owner);
            match used(locks)?.with(|of| of.kill(owner), |of| of.kill(owner)) {
                Err(Failure::Lock(Error::NoOwner(_))) => Ok(LW_NOT_FOUND),
                done => done.map(|()| LW_OK),
            }
        })
    }
}

pub(crate) fn number_of(owner: OwnerId) -> u64 {
    u64::from(owner.generation) << 32 | u64::from(owner.index)
}

fn id_of(number: u64) -> OwnerId {
    OwnerId { index: number as u32, generation: (number >> 32) as u32 }
}

/// A lock that is held or waited for, as `lw_locks_list` finds it. The pointers are valid until
/// the function that gets it returns.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct lw_lock {
    /// The size of this struct.
    pub size: usize,
    /// The id of the owner.
    pub owner: u64,
    /// The label of the owner: `label_len` bytes.
    pub label: *const c_char,
    /// Bytes of the label.
    pub label_len: usize,
    /// The name of the lock.
    pub name: *const c_void,
    /// Bytes of the name.
    pub name_len: usize,
    /// The mode that is held, or -1.
    pub held: c_int,
    /// The mode that is waited for, or -1.
    pub wanted: c_int,
    /// How often it was taken.
    pub count: u32,
    /// 0: for later versions.
    pub reserved: u32,
    /// For how many nanoseconds it has been waited for, or 0.
    pub waited_ns: u64,
}

/// A function called with each lock. It returns 0 to continue; any other number ends the call,
/// which returns it. It must not throw an exception or jump (`longjmp`) out of the call that it is
/// in.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub type lw_lock_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, lock: *const lw_lock) -> c_int>;

/// Calls `each` for every lock that is held or waited for, by any process. The list is of about one
/// moment; no lock waits for it.
///
/// # Errors
///
/// `LW_THREADS`, `LW_DAMAGED`; what `each` returns.
///
/// # Safety
///
/// The manager is alive; `each` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_locks_list(
    locks: *mut lw_locks,
    each: lw_lock_fn,
    context: *mut c_void,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let (locks, each) = (used(locks)?, function(each)?);
            let all = locks.with(Session::snapshot, Session::snapshot)?;
            let modes = locks.modes();
            for info in &all {
                let lock = lock_of(modes, info);
                match each(context, &raw const lock) {
                    0 => {}
                    said => return Err(Failure::Callers(said)),
                }
            }
            Ok(LW_OK)
        })
    }
}

fn lock_of(modes: &Modes, info: &LockInfo) -> lw_lock {
    let number = |mode: Option<Mode>| {
        let at = mode.and_then(|mode| modes.each().position(|one| one == mode));
        at.map_or(-1, |at| at as c_int)
    };
    lw_lock {
        size: size_of::<lw_lock>(),
        owner: number_of(info.owner),
        label: info.label.as_ptr().cast(),
        label_len: info.label.len(),
        name: info.object.as_ptr().cast(),
        name_len: info.object.len(),
        held: number(info.held),
        wanted: number(info.wanted),
        count: info.count,
        reserved: 0,
        waited_ns: info.waited_ns,
    }
}
