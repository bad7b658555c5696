//! Memory of the caller's that the library fills.

use core::ffi::{c_int, c_void};

use crate::call::call;
use crate::codes::lw_code::*;
use crate::failure::{Failure, misuse};

/// Bytes that the library has written: initialise it with `LW_BUF_INIT`, use it for any number of
/// calls, and free it with `lw_buf_free`. A call replaces what it has, and grows it if it must, so
/// that a loop that uses one buffer allocates nothing.
///
/// `data` comes from `malloc`, so a caller may also keep it, free it with `free`, and initialise
/// the buffer again.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Debug)]
#[repr(C)]
pub struct lw_buf {
    /// The bytes; NULL as long as there never were any.
    pub data: *mut c_void,
    /// How many bytes there are.
    pub len: usize,
    /// How many bytes there is room for.
    pub capacity: usize,
}

/// A buffer of the caller's, that was checked.
pub(crate) struct Buf<'b>(&'b mut lw_buf);

#[cold]
fn no_buf(why: &str) -> Failure {
    misuse(why)
}

impl<'b> Buf<'b> {
    /// # Safety
    ///
    /// It is null, or an initialised buffer that no other thread uses.
    #[inline]
    pub(crate) unsafe fn new(at: *mut lw_buf) -> Result<Self, Failure> {
        if at.is_null() || !at.is_aligned() {
            return Err(no_buf("the lw_buf is NULL or misaligned"));
        }
        // SAFETY: the caller's promise.
        let buf = unsafe { &mut *at };
        if buf.len > buf.capacity || (buf.data.is_null() && buf.capacity > 0) {
            return Err(no_buf("the lw_buf is not initialised: use LW_BUF_INIT"));
        }
        Ok(Self(buf))
    }

    /// Replaces what it has.
    pub(crate) fn set(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.copy(bytes).then_some(()).ok_or_else(full)
    }

    /// Replaces what it has; false if there is no memory for it.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> bool {
        let buf = &mut *self.0;
        buf.len = 0;
        if bytes.len() > buf.capacity && !grow(buf, bytes.len()) {
            return false;
        }
        if !bytes.is_empty() {
            // SAFETY: there is room for so many; the caller's memory is not the store's.
            unsafe {
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.data.cast(), bytes.len());
            };
        }
        buf.len = bytes.len();
        true
    }

    /// Takes bytes away at the end: they stay behind it.
    pub(crate) fn cut(&mut self, bytes: usize) {
        self.0.len = self.0.len.saturating_sub(bytes);
    }

    /// The address of a byte that it has, or of the end.
    pub(crate) fn address(&self, at: usize) -> *const c_void {
        self.0.data.cast::<u8>().wrapping_add(at).cast_const().cast()
    }
}

#[cold]
pub(crate) fn full() -> Failure {
    Failure::Other(LW_NO_MEMORY, "no memory for a buffer".to_owned())
}

/// Makes room for more bytes; false if there is no memory.
#[cold]
fn grow(buf: &mut lw_buf, more: usize) -> bool {
    let Some(needed) = buf.len.checked_add(more) else { return false };
    let wanted = needed.checked_next_power_of_two().unwrap_or(needed).max(64);
    // SAFETY: it is null or came from `malloc`, as the caller's initialised buffer says.
    let data = unsafe { libc::realloc(buf.data, wanted) };
    if data.is_null() {
        return false;
    }
    (buf.data, buf.capacity) = (data, wanted);
    true
}

/// Frees the bytes of a buffer, which is then empty and can be used again. NULL is allowed.
///
/// # Safety
///
/// The buffer is NULL or initialised, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_buf_free(buf: *mut lw_buf) {
    // SAFETY: the caller's promise.
    let Ok(Buf(buf)) = (unsafe { Buf::new(buf) }) else { return };
    // SAFETY: it is null or came from `malloc`.
    unsafe { libc::free(buf.data) };
    *buf = lw_buf { data: core::ptr::null_mut(), len: 0, capacity: 0 };
}

/// Makes room in a buffer for this many bytes in all; its contents stay.
///
/// # Errors
///
/// `LW_NO_MEMORY`, `LW_MISUSE`.
///
/// # Safety
///
/// The buffer is initialised, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_buf_reserve(buf: *mut lw_buf, bytes: usize) -> c_int {
    // SAFETY: the caller's promise; no place for an error.
    unsafe {
        call(core::ptr::null_mut(), || {
            let Buf(buf) = Buf::new(buf)?;
            if bytes > isize::MAX as usize {
                return Err(misuse("no memory has so many bytes"));
            }
            match bytes <= buf.capacity || grow(buf, bytes - buf.len) {
                true => Ok(LW_OK),
                false => Err(full()),
            }
        })
    }
}
