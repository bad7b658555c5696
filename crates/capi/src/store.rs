//! Opening and closing a store, and all that concerns it as a whole.

use core::ffi::{c_char, c_int};
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use latchwork_store::{MemoryPlace, Mode, Options, Store};

use crate::call::{Sized_, call, options_of, path_of, place};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::failure::Failure;
use crate::handle::{self, kinds, used};
use crate::queue::Queue;

/// An open store. All threads of the process may use it at the same time. Open each store once in
/// a process, and share the object.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub struct lw_store(());

/// The contents of an `lw_store`.
pub(crate) struct Opened {
    pub(crate) store: Store,
    path: PathBuf,
    options: Options,
    pub(crate) queue: Arc<Queue>,
}

kinds! {
    lw_store => Opened, 3, false;
}

/// When a commit returns.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum lw_mode {
    /// As the store says; for a store that is `LW_MODE_FULL`.
    LW_MODE_DEFAULT = 0,
    /// When it is durable: a crash of the machine loses nothing.
    LW_MODE_FULL = 1,
    /// When it is written to the file, which is not synced.
    LW_MODE_WRITE = 2,
    /// When it is in shared memory: it survives the death of all processes. A crash of the machine
    /// loses what was not synced; `lw_sync` does that.
    LW_MODE_NONE = 3,
    /// As `LW_MODE_NONE`, and the log is synced when `period_ms` have passed since it last was, by
    /// the next commit.
    LW_MODE_PERIODIC = 4,
}

use lw_mode::*;

/// The mode of an option.
pub(crate) fn mode_of(mode: u32, period_ms: u32) -> Result<Option<Mode>, Failure> {
    Ok(match mode {
        it if it == LW_MODE_DEFAULT as u32 => None,
        it if it == LW_MODE_FULL as u32 => Some(Mode::Full),
        it if it == LW_MODE_WRITE as u32 => Some(Mode::Write),
        it if it == LW_MODE_NONE as u32 => Some(Mode::None),
        it if it == LW_MODE_PERIODIC as u32 => {
            Some(Mode::Periodic(Duration::from_millis(u64::from(period_ms))))
        }
        other => return Err(Failure::Other(LW_OPTIONS, format!("mode {other} does not exist"))),
    })
}

/// The store must exist: `lw_open` does not create it.
pub const LW_NO_CREATE: u32 = 1;
/// The store is only read; calls that would write return `LW_READ_ONLY`.
pub const LW_READ_ONLY_STORE: u32 = 2;
/// The store may lie on a network file system: the caller knows that all its processes are on one
/// machine, and that file locks work there.
pub const LW_NETWORK: u32 = 4;
/// Sizes for a small store or a small machine, where the other options do not say otherwise: a log
/// of 4 MiB between checkpoints, 64 threads, 64 MiB of addresses for locks.
pub const LW_SMALL: u32 = 8;
/// The shared memory lies in the folder of the store, and not in `/dev/shm`.
pub const LW_MEMORY_BESIDE: u32 = 16;

/// How a store is opened. Initialise it with `LW_OPTIONS_INIT`. A size that is 0 is the default, in
/// brackets. A store that is open already, in any process, keeps the sizes of its memory, and one
/// that exists those of its files.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct lw_options {
    /// The size of this struct.
    pub size: usize,
    /// `LW_NO_CREATE`, `LW_READ_ONLY_STORE`, `LW_NETWORK`, `LW_SMALL`, `LW_MEMORY_BESIDE`, or 0.
    pub flags: u32,
    /// When commits return, unless a transaction says otherwise: an `lw_mode`.
    pub mode: u32,
    /// The period of `LW_MODE_PERIODIC`, in milliseconds.
    pub period_ms: u32,
    /// How many thread slots there are: threads, transactions and snapshots of all processes at a
    /// time, 2 to 16,000 (512).
    pub threads: u32,
    /// Bytes of the page cache at first (64 MiB).
    pub cache: u64,
    /// Bytes to which the page cache may grow (4 GiB).
    pub cache_max: u64,
    /// Bytes of a page: a power of two from 4,096 to 65,536 (8,192).
    pub page: u32,
    /// Milliseconds to wait for a process that opens or closes the store; 0 is as long as it takes.
    pub wait_ms: u32,
    /// Bytes of log between checkpoints (256 MiB).
    pub log_budget: u64,
    /// Bytes of log that old snapshots may keep (4 GiB).
    pub history: u64,
    /// Bytes of addresses for locks (16 GiB).
    pub locks: u64,
}

impl Sized_ for lw_options {
    const INIT: Self = Self {
        size: size_of::<Self>(),
        flags: 0,
        mode: 0,
        period_ms: 0,
        threads: 0,
        cache: 0,
        cache_max: 0,
        page: 0,
        wait_ms: 0,
        log_budget: 0,
        history: 0,
        locks: 0,
    };
    const NAME: &'static str = "lw_options";
}

fn put<T: Default + PartialEq>(to: &mut T, given: T) {
    if given != T::default() {
        *to = given;
    }
}

impl lw_options {
    fn as_options(&self) -> Result<Options, Failure> {
        let all = LW_NO_CREATE | LW_READ_ONLY_STORE | LW_NETWORK | LW_SMALL | LW_MEMORY_BESIDE;
        if self.flags & !all != 0 {
            let text = format!("flags {:#x}: not all of them exist", self.flags);
            return Err(Failure::Other(LW_OPTIONS, text));
        }
        let has = |flag| self.flags & flag != 0;
        let mut options = if has(LW_SMALL) { Options::small() } else { Options::default() };
        options.create = !has(LW_NO_CREATE);
        options.read_only = has(LW_READ_ONLY_STORE);
        options.network = has(LW_NETWORK);
        if has(LW_MEMORY_BESIDE) {
            options.place = MemoryPlace::Folder;
        }
        if self.wait_ms != 0 {
            options.wait = Some(Duration::from_millis(u64::from(self.wait_ms)));
        }
        let sizes = &mut options.sizes;
        if let Some(mode) = mode_of(self.mode, self.period_ms)? {
            sizes.mode = mode;
        }
        put(&mut sizes.threads, self.threads);
        put(&mut sizes.cache, self.cache);
        put(&mut sizes.cache_max, self.cache_max);
        put(&mut sizes.page, self.page);
        put(&mut sizes.log_budget, self.log_budget);
        put(&mut sizes.history, self.history);
        put(&mut sizes.locks, self.locks);
        Ok(options)
    }
}

fn opened(path: PathBuf, options: Options) -> Result<*mut lw_store, Failure> {
    let store = Store::open_with(&path, &options)?;
    Ok(handle::new(Opened { store, path, options, queue: Queue::new() }))
}

/// Opens the store in a folder: creates it, joins the processes that have it open, or recovers it
/// after a crash. The same call in every process. `options` may be NULL.
///
/// # Errors
///
/// `LW_NO_STORE`, `LW_OPEN`, `LW_PERMISSION`, `LW_VERSION`, `LW_IN_USE`, `LW_DAMAGED`,
/// `LW_NO_SPACE`, `LW_OPTIONS`, `LW_THREADS`, `LW_IO`. The message says what to do.
///
/// # Safety
///
/// `path` ends with a zero; the options were initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_open(
    path: *const c_char,
    options: *const lw_options,
    store: *mut *mut lw_store,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let store = place(store, core::ptr::null_mut(), "store")?;
            let (path, options) = (path_of(path)?, options_of(options)?.as_options()?);
            // The child of a fork may have another working directory.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            *store = opened(path, options)?;
            Ok(LW_OK)
        })
    }
}

/// Opens the store in a folder for reading only: `lw_open` with `LW_READ_ONLY_STORE` and defaults.
/// It takes no right to write the folder, and works on read-only media.
///
/// # Errors
///
/// Those of `lw_open`.
///
/// # Safety
///
/// `path` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_open_read_only(
    path: *const c_char,
    store: *mut *mut lw_store,
    error: *mut *mut lw_error,
) -> c_int {
    let options = lw_options { flags: LW_READ_ONLY_STORE, ..lw_options::INIT };
    // SAFETY: the caller's promises.
    unsafe { lw_open(path, &raw const options, store, error) }
}

/// Opens a store again, in the child of a fork: the same path and options as those of `of`, which
/// belongs to the parent, and is left as it is: free it with `lw_close`.
///
/// # Errors
///
/// Those of `lw_open`.
///
/// # Safety
///
/// `of` is a store of this process or of its parent before the fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_store_reopen(
    of: *const lw_store,
    store: *mut *mut lw_store,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let store = place(store, core::ptr::null_mut(), "store")?;
            *store = match used(of) {
                Ok(of) => opened(of.path.clone(), of.options)?,
                Err(Failure::Forked) => {
                    let of = handle::inherited(of);
                    opened(of.path.clone(), of.options)?
                }
                Err(why) => return Err(why),
            };
            Ok(LW_OK)
        })
    }
}

/// Closes a store, and frees the object, whatever it returns but for `LW_BUSY`. Transactions,
/// snapshots and cursors that are open stay valid; the store is closed when the last of them has
/// ended. The last process that closes a store makes a checkpoint, so that the next `lw_open` is
/// quick; this may take time. In the child of a fork it frees this process's memory alone, and
/// returns `LW_OK`. NULL is allowed.
///
/// # Errors
///
/// `LW_BUSY` if a call of another thread uses the store, or the call in whose callback this one is:
/// it stays open. `LW_IO`, `LW_NO_SPACE`, `LW_DAMAGED`: it is closed, and the next `lw_open`
/// recovers the changes that could not be written.
///
/// # Safety
///
/// The store is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_close(store: *mut lw_store, error: *mut *mut lw_error) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            if let Some(opened) = handle::or_given_up(store, |store| handle::close(store))? {
                opened.store.close()?;
            }
            Ok(LW_OK)
        })
    }
}

/// Waits until all that has been committed is durable, by any process, in whatever mode. One sync
/// of the log, and none if all is durable.
///
/// # Errors
///
/// `LW_COMMIT_UNKNOWN`, `LW_READ_ONLY`, `LW_IO`.
///
/// # Safety
///
/// The store is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_sync(store: *mut lw_store, error: *mut *mut lw_error) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            used(store)?.store.sync()?;
            Ok(LW_OK)
        })
    }
}

/// Makes a checkpoint: writes the changed pages, so that a recovery is short and the log can be
/// recycled. The library also makes checkpoints by itself as the log grows.
///
/// # Errors
///
/// `LW_NO_SPACE`, `LW_IO`, `LW_READ_ONLY`.
///
/// # Safety
///
/// The store is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_checkpoint(store: *mut lw_store, error: *mut *mut lw_error) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            used(store)?.store.checkpoint()?;
            Ok(LW_OK)
        })
    }
}
