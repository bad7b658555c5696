//! The functions of RocksDB's C library used here. Releases from 7 on have them.

use core::ffi::{CStr, c_char, c_int, c_uchar};
use std::sync::OnceLock;

use super::symbols::{Library, functions};
use super::{StoreError, StoreResult};

/// A structure of the library.
#[repr(C)]
pub(super) struct Opaque([u8; 0]);

pub(super) type Ptr = *mut Opaque;
type Fault = *mut *mut c_char;

functions!(Rocks {
    rocksdb_options_create: fn() -> Ptr;
    rocksdb_options_destroy: fn(Ptr);
    rocksdb_options_set_create_if_missing: fn(Ptr, c_uchar);
    rocksdb_options_set_create_missing_column_families: fn(Ptr, c_uchar);
    rocksdb_options_set_compression: fn(Ptr, c_int);
    rocksdb_options_set_block_based_table_factory: fn(Ptr, Ptr);
    rocksdb_block_based_options_create: fn() -> Ptr;
    rocksdb_block_based_options_set_filter_policy: fn(Ptr, Ptr);
    rocksdb_block_based_options_set_block_cache: fn(Ptr, Ptr);
    rocksdb_filterpolicy_create_bloom_full: fn(f64) -> Ptr;
    rocksdb_cache_create_lru: fn(usize) -> Ptr;
    rocksdb_transactiondb_options_create: fn() -> Ptr;
    rocksdb_transaction_options_create: fn() -> Ptr;
    rocksdb_transaction_options_set_deadlock_detect: fn(Ptr, c_uchar);
    rocksdb_transactiondb_open_column_families: fn(
        Ptr, Ptr, *const c_char, c_int, *const *const c_char, *const Ptr, *mut Ptr, Fault,
    ) -> Ptr;
    rocksdb_transactiondb_close: fn(Ptr);
    rocksdb_column_family_handle_destroy: fn(Ptr);
    rocksdb_readoptions_create: fn() -> Ptr;
    rocksdb_readoptions_destroy: fn(Ptr);
    rocksdb_readoptions_set_snapshot: fn(Ptr, Ptr);
    rocksdb_writeoptions_create: fn() -> Ptr;
    rocksdb_writeoptions_set_sync: fn(Ptr, c_uchar);
    rocksdb_flushoptions_create: fn() -> Ptr;
    rocksdb_transactiondb_flush_cf: fn(Ptr, Ptr, Ptr, Fault);
    rocksdb_transactiondb_create_snapshot: fn(Ptr) -> Ptr;
    rocksdb_transactiondb_release_snapshot: fn(Ptr, Ptr);
    rocksdb_transactiondb_get_pinned_cf: fn(Ptr, Ptr, Ptr, *const u8, usize, Fault) -> Ptr;
    rocksdb_transactiondb_put_cf: fn(
        Ptr, Ptr, Ptr, *const u8, usize, *const u8, usize, Fault,
    );
    rocksdb_transactiondb_create_iterator_cf: fn(Ptr, Ptr, Ptr) -> Ptr;
    rocksdb_transaction_begin: fn(Ptr, Ptr, Ptr, Ptr) -> Ptr;
    rocksdb_transaction_commit: fn(Ptr, Fault);
    rocksdb_transaction_rollback: fn(Ptr, Fault);
    rocksdb_transaction_destroy: fn(Ptr);
    rocksdb_transaction_get_pinned_for_update_cf: fn(
        Ptr, Ptr, Ptr, *const u8, usize, c_uchar, Fault,
    ) -> Ptr;
    rocksdb_transaction_put_cf: fn(Ptr, Ptr, *const u8, usize, *const u8, usize, Fault);
    rocksdb_transaction_create_iterator_cf: fn(Ptr, Ptr, Ptr) -> Ptr;
    rocksdb_pinnableslice_value: fn(Ptr, *mut usize) -> *const u8;
    rocksdb_pinnableslice_destroy: fn(Ptr);
    rocksdb_iter_seek: fn(Ptr, *const u8, usize);
    rocksdb_iter_valid: fn(Ptr) -> c_uchar;
    rocksdb_iter_next: fn(Ptr);
    rocksdb_iter_key: fn(Ptr, *mut usize) -> *const u8;
    rocksdb_iter_value: fn(Ptr, *mut usize) -> *const u8;
    rocksdb_iter_destroy: fn(Ptr);
    rocksdb_free: fn(*mut c_char);
});

/// The library, opened on first use.
pub(super) fn rocks() -> StoreResult<&'static Rocks> {
    static ROCKS: OnceLock<Option<Rocks>> = OnceLock::new();
    const NAMES: [&CStr; 3] = [c"librocksdb.so.7.8", c"librocksdb.so.8", c"librocksdb.so"];
    let missing = StoreError::Missing("RocksDB's library is not installed (Debian: librocksdb7.8)");
    ROCKS.get_or_init(|| Rocks::find(&Library::open(&NAMES)?)).as_ref().ok_or(missing)
}

impl Rocks {
    /// The error of a call, if any.
    #[inline]
    pub(super) fn check(&self, call: &'static str, fault: *mut c_char) -> StoreResult {
        if fault.is_null() { Ok(()) } else { Err(self.failure(call, fault)) }
    }

    #[cold]
    fn failure(&self, call: &'static str, fault: *mut c_char) -> StoreError {
        // SAFETY: the library's texts end in zero.
        let text = unsafe { CStr::from_ptr(fault) }.to_string_lossy().into_owned();
        // SAFETY: the library allocated it, and it is not used afterwards.
        unsafe { (self.rocksdb_free)(fault) };
        // The C interface reports errors as text only. These mean a lock timeout or a deadlock.
        let again = ["Operation timed out", "Resource busy", "Operation aborted"];
        if again.iter().any(|sign| text.starts_with(sign)) {
            StoreError::Again
        } else {
            StoreError::Failed(call, text)
        }
    }
}
