//! Berkeley DB 5.3's buffer pool, used through its C interface.

use core::ffi::{c_char, c_int};
use core::fmt;
use core::ptr::NonNull;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::raw::{self, Env};
use super::{BdbError, error};

/// A `DB_MPOOLFILE`.
#[repr(C)]
struct File([u8; 0]);

type Open = unsafe extern "C" fn(
    raw::Create,
    *const c_char,
    *const c_char,
    u64,
    u32,
    *mut *mut Env,
    *mut *mut File,
) -> c_int;

/// The functions of the shim.
struct Shim {
    open: Open,
    close: unsafe extern "C" fn(*mut Env, *mut File) -> c_int,
    make: unsafe extern "C" fn(*mut File, u32, u64) -> c_int,
    read: unsafe extern "C" fn(*mut File, u32, *mut u64) -> c_int,
    add: unsafe extern "C" fn(*mut File, u32) -> c_int,
}

#[cfg(not(berkeley_db))]
fn shim() -> Option<&'static Shim> {
    None
}

#[cfg(berkeley_db)]
fn shim() -> Option<&'static Shim> {
    unsafe extern "C" {
        fn latchwork_mpool_open(
            create: raw::Create,
            home: *const c_char,
            file: *const c_char,
            cache: u64,
            page: u32,
            env: *mut *mut Env,
            out: *mut *mut File,
        ) -> c_int;
        fn latchwork_mpool_close(env: *mut Env, file: *mut File) -> c_int;
        fn latchwork_mpool_make(file: *mut File, page: u32, value: u64) -> c_int;
        fn latchwork_mpool_read(file: *mut File, page: u32, value: *mut u64) -> c_int;
        fn latchwork_mpool_add(file: *mut File, page: u32) -> c_int;
    }
    static SHIM: Shim = Shim {
        open: latchwork_mpool_open,
        close: latchwork_mpool_close,
        make: latchwork_mpool_make,
        read: latchwork_mpool_read,
        add: latchwork_mpool_add,
    };
    Some(&SHIM)
}

/// An environment with a buffer pool only, and one file in it.
pub struct BdbPool {
    library: &'static raw::Library,
    shim: &'static Shim,
    env: NonNull<Env>,
    file: NonNull<File>,
}

// SAFETY: the environment was opened with DB_THREAD, which makes its handles free-threaded.
unsafe impl Send for BdbPool {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for BdbPool {}

impl BdbPool {
    /// Opens a file of pages of `page` bytes in a pool of `cache` bytes; Berkeley DB adds a quarter
    /// to small pools for its own needs. Processes with the same `home` directory share the pool.
    /// Without `home` the pool is private.
    ///
    /// # Errors
    ///
    /// [`BdbError::NotInstalled`], [`BdbError::Failed`].
    pub fn open(home: Option<&Path>, file: &Path, cache: u64, page: u32) -> Result<Self, BdbError> {
        let (library, _) = raw::load().ok_or(BdbError::NotInstalled)?;
        let shim = shim().ok_or(BdbError::NotInstalled)?;
        let terminated = |path: &Path| {
            CString::new(path.as_os_str().as_bytes())
                .map_err(|_| BdbError::Failed("open", "the path has a zero byte".to_owned()))
        };
        let (name, home) = (terminated(file)?, home.map(terminated).transpose()?);
        let (mut env, mut opened) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: a function of the library, names with a final zero, and two places to fill.
        let code = unsafe {
            (shim.open)(
                library.create,
                home.as_ref().map_or(core::ptr::null(), |home| home.as_ptr()),
                name.as_ptr(),
                cache,
                page,
                &raw mut env,
                &raw mut opened,
            )
        };
        match (code, NonNull::new(env), NonNull::new(opened)) {
            (0, Some(env), Some(file)) => Ok(Self { library, shim, env, file }),
            _ => Err(error(library, "memp_fopen", code)),
        }
    }

    fn done(&self, call: &'static str, code: c_int) -> Result<(), BdbError> {
        if code == 0 { Ok(()) } else { Err(error(self.library, call, code)) }
    }

    /// Creates a page with a value.
    ///
    /// # Errors
    ///
    /// [`BdbError::Failed`].
    pub fn make(&self, page: u32, value: u64) -> Result<(), BdbError> {
        // SAFETY: the file is open.
        self.done("memp_fget", unsafe { (self.shim.make)(self.file.as_ptr(), page, value) })
    }

    /// Reads a page's value: `memp_fget` and `memp_fput`.
    ///
    /// # Errors
    ///
    /// [`BdbError::Failed`].
    #[inline]
    pub fn read(&self, page: u32) -> Result<u64, BdbError> {
        let mut value = 0;
        // SAFETY: the file is open; a place to fill.
        let code = unsafe { (self.shim.read)(self.file.as_ptr(), page, &raw mut value) };
        self.done("memp_fget", code).map(|()| value)
    }

    /// Adds one to the value of a page. The callers ensure that one thread uses a page at a time.
    ///
    /// # Errors
    ///
    /// [`BdbError::Failed`].
    #[inline]
    pub fn add(&self, page: u32) -> Result<(), BdbError> {
        // SAFETY: the file is open.
        self.done("memp_fget", unsafe { (self.shim.add)(self.file.as_ptr(), page) })
    }
}

impl Drop for BdbPool {
    fn drop(&mut self) {
        // SAFETY: both are open and not used again.
        unsafe { (self.shim.close)(self.env.as_ptr(), self.file.as_ptr()) };
    }
}

impl fmt::Debug for BdbPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BdbPool")
    }
}
