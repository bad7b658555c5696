//! Berkeley DB 5.3 as a store.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use super::symbols::{Library, functions};
use super::{Reads, Session, Store, StoreError, StoreOptions, StoreResult, Writes};

/// A structure of the library.
#[repr(C)]
pub(super) struct Opaque([u8; 0]);

type Out = *mut *mut Opaque;
type EnvCreate = unsafe extern "C" fn(Out, u32) -> c_int;
type DbCreate = unsafe extern "C" fn(Out, *mut Opaque, u32) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int) -> *const c_char;
type Each = unsafe extern "C" fn(*mut c_void, *const u8, usize, *const u8, usize);

functions!(Exports {
    db_env_create: fn(Out, u32) -> c_int;
    db_create: fn(Out, *mut Opaque, u32) -> c_int;
    db_version: fn(*mut c_int, *mut c_int, *mut c_int) -> *const c_char;
    db_strerror: fn(c_int) -> *const c_char;
});

unsafe extern "C" {
    fn latchwork_bdb_store_open(
        create: EnvCreate,
        version: Version,
        home: *const c_char,
        cache: u64,
        durable: c_int,
        recover: c_int,
        out: Out,
    ) -> c_int;
    fn latchwork_bdb_store_table(
        create: DbCreate,
        env: *mut Opaque,
        number: u32,
        snapshots: c_int,
        out: Out,
    ) -> c_int;
    fn latchwork_bdb_store_close_table(db: *mut Opaque) -> c_int;
    fn latchwork_bdb_store_close(env: *mut Opaque) -> c_int;
    fn latchwork_bdb_store_checkpoint(env: *mut Opaque) -> c_int;
    fn latchwork_bdb_store_begin(env: *mut Opaque, snapshot: c_int, out: Out) -> c_int;
    fn latchwork_bdb_store_end(txn: *mut Opaque, commit: c_int) -> c_int;
    fn latchwork_bdb_store_get(
        db: *mut Opaque,
        txn: *mut Opaque,
        update: c_int,
        key: *const u8,
        length: usize,
        value: *mut u8,
        room: usize,
        got: *mut usize,
    ) -> c_int;
    fn latchwork_bdb_store_put(
        db: *mut Opaque,
        txn: *mut Opaque,
        key: *const u8,
        length: usize,
        value: *const u8,
        size: usize,
    ) -> c_int;
    fn latchwork_bdb_store_scan(
        db: *mut Opaque,
        txn: *mut Opaque,
        from: *const u8,
        length: usize,
        limit: usize,
        room: *mut u8,
        size: usize,
        each: Each,
        context: *mut c_void,
        count: *mut usize,
    ) -> c_int;
}

const OPEN_VERSION: c_int = -1;
const NOT_FOUND: c_int = -30988;
const DEADLOCK: c_int = -30993;
const BUFFER_SMALL: c_int = -30999;

/// Size of a scan's buffer: a multiple of the page size and of 1,024.
const BULK: usize = 64 << 10;

fn exports() -> StoreResult<&'static Exports> {
    static EXPORTS: OnceLock<Option<Exports>> = OnceLock::new();
    EXPORTS
        .get_or_init(|| Exports::find(&Library::open(&[c"libdb-5.3.so"])?))
        .as_ref()
        .ok_or(super::BDB_MISSING)
}

pub(super) fn release() -> StoreResult<String> {
    let exports = exports()?;
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: three integers to fill.
    unsafe { (exports.db_version)(&raw mut major, &raw mut minor, &raw mut patch) };
    Ok(format!("{major}.{minor}.{patch}"))
}

#[cold]
fn failure(call: &'static str, result: c_int) -> StoreError {
    match result {
        DEADLOCK => StoreError::Again,
        OPEN_VERSION => StoreError::Missing("the library is not Berkeley DB 5.3"),
        _ => {
            let Ok(exports) = exports() else { return super::BDB_MISSING };
            // SAFETY: a number; the text that comes back is static.
            let text = unsafe { (exports.db_strerror)(result) };
            // SAFETY: the library's texts end in zero.
            let text = unsafe { CStr::from_ptr(text) };
            StoreError::Failed(call, text.to_string_lossy().into_owned())
        }
    }
}

#[inline]
fn check(call: &'static str, result: c_int) -> StoreResult {
    if result == 0 { Ok(()) } else { Err(failure(call, result)) }
}

/// An environment and its tables.
pub(super) struct Bdb {
    env: *mut Opaque,
    tables: Vec<*mut Opaque>,
    snapshots: bool,
}

// SAFETY: the environment and the tables were opened with DB_THREAD: their handles are
// free-threaded.
unsafe impl Send for Bdb {}
// SAFETY: as above.
unsafe impl Sync for Bdb {}

impl Bdb {
    pub(super) fn open(folder: &Path, options: &StoreOptions) -> StoreResult<Self> {
        let exports = exports()?;
        let (create, version) = (exports.db_env_create, exports.db_version);
        let home = CString::new(folder.as_os_str().as_bytes())
            .map_err(|why| StoreError::Failed("open", why.to_string()))?;
        let (cache, durable) = (options.cache as u64, c_int::from(options.durable));
        let (recover, mut env) = (c_int::from(options.recover), null_mut());
        let at = home.as_ptr();
        // SAFETY: the library's functions, a path that ends in zero, a pointer to fill.
        let result = unsafe {
            latchwork_bdb_store_open(create, version, at, cache, durable, recover, &raw mut env)
        };
        check("DB_ENV->open", result)?;
        let mut bdb = Self { env, tables: Vec::new(), snapshots: options.snapshots };
        for number in 0..options.tables as u32 {
            let (mut db, snapshots) = (null_mut(), c_int::from(options.snapshots));
            // SAFETY: the environment is open; a pointer to fill.
            let result = unsafe {
                latchwork_bdb_store_table(exports.db_create, env, number, snapshots, &raw mut db)
            };
            check("DB->open", result)?;
            bdb.tables.push(db);
        }
        Ok(bdb)
    }

    fn begin(&self, snapshot: bool) -> StoreResult<Txn<'_>> {
        let mut txn = null_mut();
        // SAFETY: the environment is open; a pointer to fill.
        let result =
            unsafe { latchwork_bdb_store_begin(self.env, c_int::from(snapshot), &raw mut txn) };
        check("DB_ENV->txn_begin", result)?;
        Ok(Txn { bdb: self, txn })
    }
}

impl Drop for Bdb {
    fn drop(&mut self) {
        for db in self.tables.drain(..) {
            // SAFETY: the table is open, and sessions borrow the environment.
            let _ = unsafe { latchwork_bdb_store_close_table(db) };
        }
        // SAFETY: the environment is open and has no table open any more.
        let _ = unsafe { latchwork_bdb_store_close(self.env) };
    }
}

impl Store for Bdb {
    fn session(&self) -> StoreResult<Box<dyn Session + '_>> {
        Ok(Box::new(BdbSession(self)))
    }

    fn settle(&self) -> StoreResult {
        // SAFETY: the environment is open.
        check("txn_checkpoint", unsafe { latchwork_bdb_store_checkpoint(self.env) })
    }
}

struct BdbSession<'b>(&'b Bdb);

/// A transaction. Null if the call has one of its own.
struct Txn<'b> {
    bdb: &'b Bdb,
    txn: *mut Opaque,
}

impl Txn<'_> {
    fn end(self, commit: bool) -> StoreResult {
        // SAFETY: the transaction is open and ends here.
        check("commit", unsafe { latchwork_bdb_store_end(self.txn, c_int::from(commit)) })
    }

    #[inline]
    fn get(&self, table: usize, key: &[u8], update: bool, to: &mut Vec<u8>) -> StoreResult<bool> {
        let db = self.bdb.tables[table];
        loop {
            to.clear();
            let (room, mut got, update) = (to.capacity(), 0, c_int::from(update));
            let (at, length) = (key.as_ptr(), key.len());
            let value = to.as_mut_ptr();
            // SAFETY: the table and the transaction are open, the key is that long, and the
            // vector has room for so many bytes.
            let result = unsafe {
                latchwork_bdb_store_get(db, self.txn, update, at, length, value, room, &raw mut got)
            };
            match result {
                0 => {
                    // SAFETY: so many bytes of the vector were written.
                    unsafe { to.set_len(got) };
                    return Ok(true);
                }
                NOT_FOUND => return Ok(false),
                BUFFER_SMALL if got > room => to.reserve(got),
                result => return Err(failure("DB->get", result)),
            }
        }
    }

    #[inline]
    fn put(&self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        let (db, at, length) = (self.bdb.tables[table], key.as_ptr(), key.len());
        let (from, size) = (value.as_ptr(), value.len());
        // SAFETY: the table and the transaction are open; key and value are that long.
        check("DB->put", unsafe { latchwork_bdb_store_put(db, self.txn, at, length, from, size) })
    }
}

/// The callback of a scan, called for each record.
type EachRecord<'e> = &'e mut dyn FnMut(&[u8], &[u8]);

unsafe extern "C" fn each_record(
    context: *mut c_void,
    key: *const u8,
    length: usize,
    value: *const u8,
    size: usize,
) {
    // SAFETY: the context was passed by `scan`, which does not use it while it waits.
    let each = unsafe { &mut *context.cast::<EachRecord<'_>>() };
    // SAFETY: the record lies in the buffer of the scan.
    let key = unsafe { core::slice::from_raw_parts(key, length) };
    // SAFETY: the same as for the key.
    let value = unsafe { core::slice::from_raw_parts(value, size) };
    each(key, value);
}

impl Reads for Txn<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        Txn::get(self, table, key, false, to)
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        mut each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        let db = self.bdb.tables[table];
        let mut room = vec![0u64; BULK / 8];
        let (start, length, mut count) = (from.as_ptr(), from.len(), 0);
        let (buffer, context) = (room.as_mut_ptr().cast(), (&raw mut each).cast());
        // SAFETY: the table and the transaction are open, the key is that long, the buffer has
        // room for so much, and the context is what the function expects.
        let result = unsafe {
            latchwork_bdb_store_scan(
                db,
                self.txn,
                start,
                length,
                limit,
                buffer,
                BULK,
                each_record,
                context,
                &raw mut count,
            )
        };
        check("DBC->get", result)?;
        Ok(count)
    }
}

impl Writes for Txn<'_> {
    fn get_for_update(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        Txn::get(self, table, key, true, to)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        Txn::put(self, table, key, value)
    }
}

impl Session for BdbSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        let alone = Txn { bdb: self.0, txn: null_mut() };
        loop {
            match alone.get(table, key, false, to) {
                Err(StoreError::Again) => {}
                result => return result,
            }
        }
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        let alone = Txn { bdb: self.0, txn: null_mut() };
        loop {
            match alone.put(table, key, value) {
                Err(StoreError::Again) => {}
                result => return result,
            }
        }
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reads) -> StoreResult) -> StoreResult {
        loop {
            let mut txn = self.0.begin(self.0.snapshots)?;
            let result = body(&mut txn);
            txn.end(result.is_ok())?;
            match result {
                Err(StoreError::Again) => {}
                result => return result,
            }
        }
    }

    fn write(&mut self, body: &mut dyn FnMut(&mut dyn Writes) -> StoreResult) -> StoreResult<u64> {
        let mut again = 0;
        loop {
            let mut txn = self.0.begin(false)?;
            let result = body(&mut txn);
            let ended = txn.end(result.is_ok());
            match result.and(ended) {
                Err(StoreError::Again) => again += 1,
                result => return result.map(|()| again),
            }
        }
    }
}
