//! The functions of the shim, and the two functions of the library that are not pointers in a
//! structure.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// A `DB_ENV`.
#[repr(C)]
pub(super) struct Env([u8; 0]);

/// A `DB_LOCK`. The shim asserts its size.
#[repr(C, align(8))]
#[derive(Default)]
pub(super) struct Handle([u64; 4]);

/// The shim's `struct counts`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) waits: u64,
    pub(super) deadlocks: u64,
    pub(super) region_bytes: u64,
    pub(super) locks: u64,
    pub(super) partitions: u64,
}

/// The library and the headers are of different releases.
pub(super) const OPEN_VERSION: c_int = -1;
/// Berkeley DB's `DB_LOCK_NOTGRANTED`.
pub(super) const NOT_GRANTED: c_int = -30992;
/// Berkeley DB's `DB_LOCK_DEADLOCK`.
pub(super) const DEADLOCK: c_int = -30993;

pub(super) type Release = unsafe extern "C" fn(*mut c_void);
pub(super) type Create = unsafe extern "C" fn(*mut *mut Env, u32) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int) -> *const c_char;
type Strerror = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions of the library.
#[derive(Clone, Copy)]
pub(super) struct Library {
    pub(super) create: Create,
    pub(super) version: Version,
    pub(super) strerror: Strerror,
}

/// The functions of the shim.
pub(super) struct Shim {
    pub(super) open:
        unsafe extern "C" fn(Create, Version, *const c_char, u32, u32, u32, *mut *mut Env) -> c_int,
    pub(super) close: unsafe extern "C" fn(*mut Env) -> c_int,
    pub(super) detect: unsafe extern "C" fn(*mut Env) -> c_int,
    pub(super) id: unsafe extern "C" fn(*mut Env, *mut u32) -> c_int,
    pub(super) id_free: unsafe extern "C" fn(*mut Env, u32) -> c_int,
    pub(super) get:
        unsafe extern "C" fn(*mut Env, u32, c_int, *const u8, u32, c_int, *mut Handle) -> c_int,
    pub(super) put: unsafe extern "C" fn(*mut Env, *mut Handle) -> c_int,
    pub(super) put_all: unsafe extern "C" fn(*mut Env, u32) -> c_int,
    pub(super) counts: unsafe extern "C" fn(*mut Env, Release, *mut Counts) -> c_int,
}

/// The library and the shim. `None` if either is missing.
pub(super) fn load() -> Option<(&'static Library, &'static Shim)> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(open_library).as_ref()?;
    Some((library, shim()?))
}

fn open_library() -> Option<Library> {
    // SAFETY: a name with a final zero; the library's initialisers are those of the system's
    // package.
    let handle = unsafe { libc::dlopen(c"libdb-5.3.so".as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return None;
    }
    let symbol = |name: &CStr| {
        // SAFETY: the handle stays open; the name ends in zero.
        let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    };
    let create = symbol(c"db_env_create")?;
    let version = symbol(c"db_version")?;
    let strerror = symbol(c"db_strerror")?;
    Some(Library {
        // SAFETY: the function of this name has this type in every release 5.
        create: unsafe { core::mem::transmute::<*mut c_void, Create>(create) },
        // SAFETY: the same as for `create`.
        version: unsafe { core::mem::transmute::<*mut c_void, Version>(version) },
        // SAFETY: the same as for `create`.
        strerror: unsafe { core::mem::transmute::<*mut c_void, Strerror>(strerror) },
    })
}

#[cfg(not(berkeley_db))]
fn shim() -> Option<&'static Shim> {
    None
}

#[cfg(berkeley_db)]
fn shim() -> Option<&'static Shim> {
    unsafe extern "C" {
        fn latchwork_bdb_open(
            create: Create,
            version: Version,
            home: *const c_char,
            locks: u32,
            lockers: u32,
            objects: u32,
            out: *mut *mut Env,
        ) -> c_int;
        fn latchwork_bdb_close(env: *mut Env) -> c_int;
        fn latchwork_bdb_detect(env: *mut Env) -> c_int;
        fn latchwork_bdb_id(env: *mut Env, id: *mut u32) -> c_int;
        fn latchwork_bdb_id_free(env: *mut Env, id: u32) -> c_int;
        fn latchwork_bdb_get(
            env: *mut Env,
            id: u32,
            wait: c_int,
            name: *const u8,
            length: u32,
            write: c_int,
            handle: *mut Handle,
        ) -> c_int;
        fn latchwork_bdb_put(env: *mut Env, handle: *mut Handle) -> c_int;
        fn latchwork_bdb_put_all(env: *mut Env, id: u32) -> c_int;
        fn latchwork_bdb_counts(env: *mut Env, release: Release, out: *mut Counts) -> c_int;
    }
    static SHIM: Shim = Shim {
        open: latchwork_bdb_open,
        close: latchwork_bdb_close,
        detect: latchwork_bdb_detect,
        id: latchwork_bdb_id,
        id_free: latchwork_bdb_id_free,
        get: latchwork_bdb_get,
        put: latchwork_bdb_put,
        put_all: latchwork_bdb_put_all,
        counts: latchwork_bdb_counts,
    };
    Some(&SHIM)
}
