//! LMDB as a store, used through its C interface.
//!
//! A session keeps one read transaction, which it resets and renews, as LMDB's manual recommends.
//! Safe wrappers do not support this.

use core::ffi::{CStr, c_int, c_uint, c_void};
use core::ptr::{null, null_mut};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use lmdb_master_sys as ffi;

use super::{Reads, Session, Store, StoreError, StoreOptions, StoreResult, Writes};

/// Size of the map: address space only, far more than a benchmark stores.
const MAP: usize = 64 << 30;

pub(super) fn release() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: three integers to fill.
    unsafe { ffi::mdb_version(&raw mut major, &raw mut minor, &raw mut patch) };
    format!("{major}.{minor}.{patch}")
}

#[inline]
fn check(call: &'static str, result: c_int) -> StoreResult {
    if result == ffi::MDB_SUCCESS as c_int { Ok(()) } else { Err(failure(call, result)) }
}

#[cold]
fn failure(call: &'static str, result: c_int) -> StoreError {
    // SAFETY: a number; the returned text is static.
    let text = unsafe { ffi::mdb_strerror(result) };
    // SAFETY: LMDB's texts end in zero.
    let text = unsafe { CStr::from_ptr(text) };
    StoreError::Failed(call, text.to_string_lossy().into_owned())
}

/// An environment and its tables.
pub(super) struct Lmdb {
    env: *mut ffi::MDB_env,
    tables: Vec<ffi::MDB_dbi>,
}

// SAFETY: LMDB's environments are thread-safe.
unsafe impl Send for Lmdb {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for Lmdb {}

impl Lmdb {
    pub(super) fn open(folder: &Path, options: &StoreOptions) -> StoreResult<Self> {
        let path = CString::new(folder.as_os_str().as_bytes())
            .map_err(|why| StoreError::failed("open")(&why))?;
        let mut env = null_mut();
        // SAFETY: a pointer to fill.
        check("mdb_env_create", unsafe { ffi::mdb_env_create(&raw mut env) })?;
        let mut lmdb = Self { env, tables: Vec::new() };
        // SAFETY: the environment was created and is not open.
        check("mdb_env_set_mapsize", unsafe { ffi::mdb_env_set_mapsize(env, MAP) })?;
        // SAFETY: the environment was created and is not open.
        check("mdb_env_set_maxdbs", unsafe {
            ffi::mdb_env_set_maxdbs(env, options.tables as c_uint)
        })?;
        // SAFETY: the environment was created and is not open.
        check("mdb_env_set_maxreaders", unsafe { ffi::mdb_env_set_maxreaders(env, 500) })?;
        let flags = ffi::MDB_NOTLS | if options.durable { 0 } else { ffi::MDB_NOSYNC };
        // SAFETY: the environment was created and is not open; the path ends in zero. No other code
        // of this process opens it.
        check("mdb_env_open", unsafe { ffi::mdb_env_open(env, path.as_ptr(), flags, 0o600) })?;
        let txn = lmdb.begin(0)?;
        for number in 0..options.tables {
            let name = CString::new(format!("t{number}")).unwrap_or_default();
            // A single table is the main database. It needs no look-up by name and no second root.
            let at = if options.tables == 1 { null() } else { name.as_ptr() };
            let mut table = 0;
            // SAFETY: the transaction is open; the name is null or ends in zero.
            check("mdb_dbi_open", unsafe {
                ffi::mdb_dbi_open(txn, at, ffi::MDB_CREATE, &raw mut table)
            })?;
            lmdb.tables.push(table);
        }
        // SAFETY: the transaction is open and ends here.
        check("mdb_txn_commit", unsafe { ffi::mdb_txn_commit(txn) })?;
        Ok(lmdb)
    }

    fn begin(&self, flags: c_uint) -> StoreResult<*mut ffi::MDB_txn> {
        let mut txn = null_mut();
        // SAFETY: the environment is open; a pointer to fill.
        check("mdb_txn_begin", unsafe {
            ffi::mdb_txn_begin(self.env, null_mut(), flags, &raw mut txn)
        })?;
        Ok(txn)
    }
}

impl Drop for Lmdb {
    fn drop(&mut self) {
        // SAFETY: the environment was created, and sessions borrow it.
        unsafe { ffi::mdb_env_close(self.env) };
    }
}

impl Store for Lmdb {
    fn session(&self) -> StoreResult<Box<dyn Session + '_>> {
        let reader = self.begin(ffi::MDB_RDONLY)?;
        // SAFETY: the transaction is open and reads.
        unsafe { ffi::mdb_txn_reset(reader) };
        Ok(Box::new(LmdbSession { lmdb: self, reader }))
    }

    fn settle(&self) -> StoreResult {
        // SAFETY: the environment is open.
        check("mdb_env_sync", unsafe { ffi::mdb_env_sync(self.env, 1) })
    }
}

struct LmdbSession<'l> {
    lmdb: &'l Lmdb,
    reader: *mut ffi::MDB_txn,
}

impl Drop for LmdbSession<'_> {
    fn drop(&mut self) {
        // SAFETY: the transaction was begun and belongs to this session.
        unsafe { ffi::mdb_txn_abort(self.reader) };
    }
}

/// An open transaction.
struct Txn<'l> {
    lmdb: &'l Lmdb,
    txn: *mut ffi::MDB_txn,
}

fn bytes(of: &[u8]) -> ffi::MDB_val {
    ffi::MDB_val { mv_size: of.len(), mv_data: of.as_ptr().cast::<c_void>().cast_mut() }
}

const NOTHING: ffi::MDB_val = ffi::MDB_val { mv_size: 0, mv_data: null_mut() };

impl Reads for Txn<'_> {
    #[inline]
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        let (mut key, mut value) = (bytes(key), NOTHING);
        let table = self.lmdb.tables[table];
        // SAFETY: the transaction is open, and the key outlives the call.
        let result = unsafe { ffi::mdb_get(self.txn, table, &raw mut key, &raw mut value) };
        if result == ffi::MDB_NOTFOUND {
            return Ok(false);
        }
        check("mdb_get", result)?;
        to.clear();
        // SAFETY: LMDB's value is valid until the transaction writes or ends.
        to.extend_from_slice(unsafe {
            core::slice::from_raw_parts(value.mv_data.cast(), value.mv_size)
        });
        Ok(true)
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        let (mut cursor, table) = (null_mut(), self.lmdb.tables[table]);
        // SAFETY: the transaction is open; a pointer to fill.
        check("mdb_cursor_open", unsafe {
            ffi::mdb_cursor_open(self.txn, table, &raw mut cursor)
        })?;
        let (mut key, mut value) = (bytes(from), NOTHING);
        let (mut count, mut step) = (0, ffi::MDB_SET_RANGE);
        let mut result = 0;
        while count < limit {
            // SAFETY: the cursor is open; the key outlives the call or was set by the cursor.
            result = unsafe { ffi::mdb_cursor_get(cursor, &raw mut key, &raw mut value, step) };
            if result != 0 {
                break;
            }
            step = ffi::MDB_NEXT;
            // SAFETY: the cursor is at a record, which is valid until a write.
            let key = unsafe { core::slice::from_raw_parts(key.mv_data.cast(), key.mv_size) };
            // SAFETY: the same as for the key.
            let value = unsafe { core::slice::from_raw_parts(value.mv_data.cast(), value.mv_size) };
            each(key, value);
            count += 1;
        }
        // SAFETY: the cursor and its transaction are open.
        unsafe { ffi::mdb_cursor_close(cursor) };
        if result != ffi::MDB_NOTFOUND {
            check("mdb_cursor_get", result)?;
        }
        Ok(count)
    }
}

impl Writes for Txn<'_> {
    fn get_for_update(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        self.get(table, key, to)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        let (mut key, mut value) = (bytes(key), bytes(value));
        let table = self.lmdb.tables[table];
        // SAFETY: the transaction is open and writes; key and value outlive the call.
        check("mdb_put", unsafe { ffi::mdb_put(self.txn, table, &raw mut key, &raw mut value, 0) })
    }
}

impl Session for LmdbSession<'_> {
    #[inline]
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        // SAFETY: the transaction was reset.
        check("mdb_txn_renew", unsafe { ffi::mdb_txn_renew(self.reader) })?;
        let result = Txn { lmdb: self.lmdb, txn: self.reader }.get(table, key, to);
        // SAFETY: the transaction is open and reads.
        unsafe { ffi::mdb_txn_reset(self.reader) };
        result
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        self.write(&mut |txn| txn.put(table, key, value)).map(|_| ())
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reads) -> StoreResult) -> StoreResult {
        // SAFETY: the transaction was reset.
        check("mdb_txn_renew", unsafe { ffi::mdb_txn_renew(self.reader) })?;
        let result = body(&mut Txn { lmdb: self.lmdb, txn: self.reader });
        // SAFETY: the transaction is open and reads.
        unsafe { ffi::mdb_txn_reset(self.reader) };
        result
    }

    fn write(&mut self, body: &mut dyn FnMut(&mut dyn Writes) -> StoreResult) -> StoreResult<u64> {
        let txn = self.lmdb.begin(0)?;
        if let Err(error) = body(&mut Txn { lmdb: self.lmdb, txn }) {
            // SAFETY: the transaction is open and ends here.
            unsafe { ffi::mdb_txn_abort(txn) };
            return Err(error);
        }
        // SAFETY: the transaction is open and ends here.
        check("mdb_txn_commit", unsafe { ffi::mdb_txn_commit(txn) })?;
        Ok(0)
    }
}
