//! Why a call failed: a code for programs, and an object with text for people.

use core::ffi::{c_char, c_int, c_void};
use std::ffi::CString;

use latchwork_lockmgr::{Error as LockError, Reason};
use latchwork_region::Error as RegionError;
use latchwork_store::{Error, Refusal};

use crate::codes::lw_code;
use crate::codes::lw_code::*;
use crate::handle::{self, kinds};

/// Why a call failed.
pub(crate) enum Failure {
    Store(Error),
    Lock(LockError),
    Forked,
    Other(lw_code, String),
    /// What a function of the caller's returned.
    Callers(c_int),
}

impl From<Error> for Failure {
    fn from(why: Error) -> Self {
        Self::Store(why)
    }
}

impl From<LockError> for Failure {
    fn from(why: LockError) -> Self {
        Self::Lock(why)
    }
}

impl From<RegionError> for Failure {
    fn from(why: RegionError) -> Self {
        Self::Lock(LockError::Region(why))
    }
}

#[cold]
pub(crate) fn misuse(text: impl Into<String>) -> Failure {
    Failure::Other(LW_MISUSE, text.into())
}

impl Failure {
    pub(crate) fn code(&self) -> c_int {
        match self {
            Self::Store(why) => code_of(why) as c_int,
            Self::Lock(why) => code_of_lock(why) as c_int,
            Self::Forked => LW_FORKED as c_int,
            Self::Other(code, _) => *code as c_int,
            Self::Callers(code) => *code,
        }
    }

    /// Gives the caller an object that says why, if there is a place for it; returns the code.
    ///
    /// # Safety
    ///
    /// `error` is null, or a place for a pointer.
    #[cold]
    pub(crate) unsafe fn report(self, error: *mut *mut lw_error) -> c_int {
        let code = self.code();
        let object = match self {
            // The caller knows more of it than the library.
            Self::Callers(_) => core::ptr::null_mut(),
            _ if error.is_null() => core::ptr::null_mut(),
            Self::Store(why) => object_of(&why),
            Self::Lock(why) => handle::new(Report::new(code, why.to_string())),
            Self::Forked => handle::new(Report::new(code, FORKED.to_owned())),
            Self::Other(_, text) => handle::new(Report::new(code, text)),
        };
        if !error.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *error = object };
        }
        code
    }
}

const FORKED: &str = "the object belongs to the parent of this process (fork): open the store \
                      again with lw_store_reopen, and free this object";

/// The code of an error of the store.
pub(crate) fn code_of(why: &Error) -> lw_code {
    use latchwork_store::Error as E;
    if why.is_no_space() {
        return LW_NO_SPACE;
    }
    match why {
        E::Lock { why, .. } | E::Locks(why) => code_of_lock(why),
        E::Region(why) => code_of_region(why),
        E::OwnTransaction { .. } => LW_SELF,
        E::Deadline { .. } => LW_DEADLINE,
        E::SnapshotTooOld { .. } | E::TransactionTooOld => LW_TOO_OLD,
        E::Migrated => LW_CONFLICT,
        E::Aborted { why } => code_of(why),
        E::Panicked => LW_PANIC,
        E::Exists { .. } => LW_EXISTS,
        E::Savepoint => LW_SAVEPOINT,
        E::KeyTooLong { .. } | E::NameTooLong { .. } | E::ValueTooLong { .. } | E::Gid { .. } => {
            LW_TOO_LONG
        }
        E::Key { .. } | E::Value { .. } => LW_FORMAT,
        E::TableType { .. } => LW_TABLE_TYPE,
        E::Migrating { .. } => LW_MIGRATING,
        E::Threads { .. } => LW_THREADS,
        E::CommitUnknown { .. } => LW_COMMIT_UNKNOWN,
        E::ReadsUnknown { .. } => LW_READS_UNKNOWN,
        E::PrepareUnknown { .. } => LW_PREPARE_UNKNOWN,
        E::Prepared { .. } => LW_PREPARED,
        E::NotPrepared { .. } => LW_NOT_PREPARED,
        E::ReadOnly => LW_READ_ONLY,
        E::Options(_) => LW_OPTIONS,
        E::Open { why, .. } => code_of_refusal(why),
        _ if is_forked(why) => LW_FORKED,
        _ if why.is_damage() => LW_DAMAGED,
        E::Log(_) | E::Disk(_) | E::Pool(_) | E::Tree(_) => LW_IO,
        _ => LW_FAILED,
    }
}

fn is_forked(why: &Error) -> bool {
    use latchwork_log::Error as Log;
    matches!(why, Error::Log(Log::Region(RegionError::Forked)))
}

fn code_of_lock(why: &LockError) -> lw_code {
    use LockError as L;
    match why {
        L::TimedOut => LW_TIMEOUT,
        L::Aborted(Reason::Killed) => LW_KILLED,
        L::Deadlock(_) | L::Died(_) | L::Aborted(_) => LW_CONFLICT,
        L::NotGranted => LW_NOT_GRANTED,
        L::NotHeld => LW_NOT_HELD,
        L::Name(_) | L::Key(_) | L::Keyspace(_) => LW_TOO_LONG,
        L::Mode(_) | L::Modes(_) => LW_OPTIONS,
        L::Foreign => LW_FOREIGN,
        L::Region(why) => code_of_region(why),
        L::Waiting | L::Family | L::Count => LW_MISUSE,
        _ => LW_FAILED,
    }
}

fn code_of_region(why: &RegionError) -> lw_code {
    use RegionError as R;
    match why {
        R::Forked => LW_FORKED,
        R::NoSpace | R::FileLimit => LW_NO_SPACE,
        R::Full(_) => LW_LOCKS_FULL,
        R::TooLarge(_) => LW_NO_MEMORY,
        R::Threads(_) | R::Processes(_) => LW_THREADS,
        R::Permission | R::ReadOnly | R::ForeignOwner(_) | R::TooOpen(_) => LW_PERMISSION,
        R::Options(_) => LW_OPTIONS,
        R::Foreign | R::Symlink | R::NotRegular | R::Endian => LW_FOREIGN,
        R::Version { .. } => LW_VERSION,
        R::Corrupt { .. } | R::Truncated { .. } => LW_DAMAGED,
        R::NotFound | R::System { .. } => LW_IO,
        _ => LW_FAILED,
    }
}

fn code_of_refusal(why: &Refusal) -> lw_code {
    match why {
        Refusal::NoStore => LW_NO_STORE,
        Refusal::Permission | Refusal::ForeignOwner { .. } | Refusal::ReadOnly => LW_PERMISSION,
        Refusal::Newer { .. } | Refusal::Older { .. } => LW_VERSION,
        Refusal::BeingMade
        | Refusal::BeingOpened { .. }
        | Refusal::InUse
        | Refusal::ReadElsewhere
        | Refusal::Processes { .. } => LW_IN_USE,
        Refusal::Damaged { .. } => LW_DAMAGED,
        Refusal::NoSpace => LW_NO_SPACE,
        _ => LW_OPEN,
    }
}

/// Why a call failed, as an object: a code, a text for people, the table and the key concerned, and
/// the error that led to this one. Plain memory: it may be used by any thread, and after a fork.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub struct lw_error(());

/// What an `lw_error` has.
pub(crate) struct Report {
    code: c_int,
    text: CString,
    table: Option<CString>,
    key: Option<Vec<u8>>,
    cause: Cause,
}

/// The error that led to another one.
struct Cause(*mut lw_error);

// SAFETY: the handle is plain memory, and belongs to the error that has it.
unsafe impl Send for Cause {}

impl Drop for Cause {
    fn drop(&mut self) {
        // SAFETY: null, or a handle that nothing else refers to.
        unsafe { handle::free(self.0) };
    }
}

kinds! {
    lw_error => Report, 1, true;
}

/// The text as C has it: without the bytes that would end it.
pub(crate) fn c_text(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes: Vec<u8> = text.into();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}

impl Report {
    pub(crate) fn new(code: c_int, text: String) -> Self {
        let cause = Cause(core::ptr::null_mut());
        Self { code, text: c_text(text), table: None, key: None, cause }
    }
}

fn object_of(why: &Error) -> *mut lw_error {
    use latchwork_store::Error as E;
    let mut report = Report::new(code_of(why) as c_int, why.to_string());
    match why {
        E::Lock { table, key, .. }
        | E::OwnTransaction { table, key, .. }
        | E::Exists { table, key }
        | E::OutOfOrder { table, key }
        | E::Damaged { table, key, .. } => {
            report.table = Some(c_text(table.as_str()));
            report.key = Some(key.clone());
        }
        E::KeyTooLong { table, .. }
        | E::NameTooLong { table }
        | E::TableExists { table }
        | E::Key { table, .. }
        | E::Value { table, .. }
        | E::TableType { table, .. }
        | E::Migrating { table } => report.table = Some(c_text(table.as_str())),
        E::NotUndone { table, key, why, .. } => {
            report.table = Some(c_text(table.as_str()));
            report.key = Some(key.clone());
            report.cause = Cause(object_of(why));
        }
        E::Deadline { last: why, .. }
        | E::Aborted { why }
        | E::CommitUnknown { why }
        | E::ReadsUnknown { why, .. }
        | E::PrepareUnknown { why, .. } => report.cause = Cause(object_of(why)),
        _ => {}
    }
    handle::new(report)
}

unsafe fn report_of<'e>(error: *const lw_error) -> Option<&'e Report> {
    // SAFETY: the caller of the C function says that it is an error or null.
    unsafe { handle::shared(error) }.ok()
}

/// Returns the code of an error, or `LW_OK` if it is NULL. Never fails.
///
/// # Safety
///
/// The error is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_code(error: *const lw_error) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { report_of(error) }.map_or(LW_OK as c_int, |report| report.code)
}

/// Returns what happened, as text for people: UTF-8, one line. It lives as long as the error. An
/// empty text if the error is NULL. Never fails.
///
/// # Safety
///
/// The error is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_message(error: *const lw_error) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { report_of(error) }.map_or(c"".as_ptr(), |report| report.text.as_ptr())
}

/// Returns the name of the table that the error concerns, or NULL. It lives as long as the error.
/// Never fails.
///
/// # Safety
///
/// The error is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_table(error: *const lw_error) -> *const c_char {
    // SAFETY: the caller's promise.
    let report = unsafe { report_of(error) };
    report.and_then(|report| report.table.as_ref()).map_or(core::ptr::null(), |it| it.as_ptr())
}

/// Returns the bytes of the key that the error concerns, and their number in `*length`; or NULL and
/// 0. They live as long as the error. Never fails.
///
/// # Safety
///
/// The error is NULL or alive; `length` is NULL or a place for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_key(error: *const lw_error, length: *mut usize) -> *const c_void {
    // SAFETY: the caller's promise.
    let key = unsafe { report_of(error) }.and_then(|report| report.key.as_ref());
    if !length.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *length = key.map_or(0, Vec::len) };
    }
    key.map_or(core::ptr::null(), |key| key.as_ptr().cast())
}

/// Returns the error that led to this one, or NULL: why the last attempt failed, or why a commit is
/// not known to be durable. It belongs to this error: it lives as long, and must not be freed.
/// Never fails.
///
/// # Safety
///
/// The error is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_cause(error: *const lw_error) -> *const lw_error {
    // SAFETY: the caller's promise.
    let report = unsafe { report_of(error) };
    report.map_or(core::ptr::null(), |report| report.cause.0.cast_const())
}

/// Frees an error, with its cause. NULL is allowed. Never fails.
///
/// # Safety
///
/// The error is NULL or alive, and no cause of another error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_error_free(error: *mut lw_error) {
    // SAFETY: the caller's promise.
    unsafe { handle::free(error) };
}
