//! RocksDB's `TransactionDB` as a store, with a column family per table.

use core::ffi::c_int;
use core::ptr::null_mut;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::rocks_raw::{Ptr, Rocks as Library, rocks};
use super::{Reads, Session, Store, StoreError, StoreOptions, StoreResult, Writes};

/// RocksDB 7's number of this setting.
const NO_COMPRESSION: c_int = 0;

/// The C library has no version function.
pub(super) fn release() -> StoreResult<String> {
    rocks().map(|_| "the system's".to_owned())
}

/// An open database.
pub(super) struct Rocks {
    library: &'static Library,
    db: Ptr,
    families: Vec<Ptr>,
    reading: Ptr,
    writing: Ptr,
    transaction: Ptr,
}

// SAFETY: RocksDB's databases, column families and options are thread-safe.
unsafe impl Send for Rocks {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for Rocks {}

/// Calls a function of the library.
macro_rules! call {
    ($library:expr, $name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: every pointer passed came from the library and is not freed, and every text and
        // length describes memory that outlives the call.
        unsafe { ($library.$name)($($arg),*) }
    };
}

impl Rocks {
    pub(super) fn open(folder: &Path, options: &StoreOptions) -> StoreResult<Self> {
        let library = rocks()?;
        let zero = |why| StoreError::failed("open")(&why);
        let path =
            CString::new(folder.as_os_str().as_bytes()).map_err(|why| zero(why.to_string()))?;
        let table = call!(library, rocksdb_block_based_options_create());
        let filter = call!(library, rocksdb_filterpolicy_create_bloom_full(10.0));
        call!(library, rocksdb_block_based_options_set_filter_policy(table, filter));
        let cache = call!(library, rocksdb_cache_create_lru(options.cache));
        call!(library, rocksdb_block_based_options_set_block_cache(table, cache));
        let make = call!(library, rocksdb_options_create());
        call!(library, rocksdb_options_set_create_if_missing(make, 1));
        call!(library, rocksdb_options_set_create_missing_column_families(make, 1));
        call!(library, rocksdb_options_set_compression(make, NO_COMPRESSION));
        call!(library, rocksdb_options_set_block_based_table_factory(make, table));
        let transactional = call!(library, rocksdb_transactiondb_options_create());
        let names: Vec<CString> = core::iter::once(c"default".to_owned())
            .chain((0..options.tables).filter_map(|n| CString::new(format!("t{n}")).ok()))
            .collect();
        let texts: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let each = vec![make; names.len()];
        let mut families: Vec<Ptr> = vec![null_mut(); names.len()];
        let mut fault = null_mut();
        let db = call!(
            library,
            rocksdb_transactiondb_open_column_families(
                make,
                transactional,
                path.as_ptr(),
                names.len() as c_int,
                texts.as_ptr(),
                each.as_ptr(),
                families.as_mut_ptr(),
                &raw mut fault,
            )
        );
        call!(library, rocksdb_options_destroy(make));
        library.check("open", fault)?;
        let reading = call!(library, rocksdb_readoptions_create());
        let writing = call!(library, rocksdb_writeoptions_create());
        call!(library, rocksdb_writeoptions_set_sync(writing, u8::from(options.durable)));
        let transaction = call!(library, rocksdb_transaction_options_create());
        call!(library, rocksdb_transaction_options_set_deadlock_detect(transaction, 1));
        Ok(Self { library, db, families, reading, writing, transaction })
    }

    fn family(&self, table: usize) -> Ptr {
        self.families[table + 1]
    }

    /// Copies a value that was read.
    fn copy(&self, slice: Ptr, to: &mut Vec<u8>) -> bool {
        if slice.is_null() {
            return false;
        }
        let mut length = 0;
        let at = call!(self.library, rocksdb_pinnableslice_value(slice, &raw mut length));
        to.clear();
        // SAFETY: the library's value has this length and is pinned until it is destroyed.
        to.extend_from_slice(unsafe { core::slice::from_raw_parts(at, length) });
        call!(self.library, rocksdb_pinnableslice_destroy(slice));
        true
    }

    /// Walks an iterator and destroys it.
    fn walk(
        &self,
        iterator: Ptr,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> usize {
        let library = self.library;
        let mut count = 0;
        call!(library, rocksdb_iter_seek(iterator, from.as_ptr(), from.len()));
        while count < limit && call!(library, rocksdb_iter_valid(iterator)) != 0 {
            let (mut length, mut size) = (0, 0);
            let key = call!(library, rocksdb_iter_key(iterator, &raw mut length));
            let value = call!(library, rocksdb_iter_value(iterator, &raw mut size));
            // SAFETY: the iterator is at a record whose key has this length.
            let key = unsafe { core::slice::from_raw_parts(key, length) };
            // SAFETY: the same for the value.
            let value = unsafe { core::slice::from_raw_parts(value, size) };
            each(key, value);
            count += 1;
            call!(library, rocksdb_iter_next(iterator));
        }
        call!(library, rocksdb_iter_destroy(iterator));
        count
    }
}

impl Drop for Rocks {
    fn drop(&mut self) {
        for family in self.families.drain(..) {
            call!(self.library, rocksdb_column_family_handle_destroy(family));
        }
        call!(self.library, rocksdb_transactiondb_close(self.db));
    }
}

impl Store for Rocks {
    fn session(&self) -> StoreResult<Box<dyn Session + '_>> {
        Ok(Box::new(RocksSession { store: self, spent: null_mut() }))
    }

    /// Flushes the memory tables. RocksDB's own threads decide about compaction.
    fn settle(&self) -> StoreResult {
        let how = call!(self.library, rocksdb_flushoptions_create());
        for family in &self.families {
            let mut fault = null_mut();
            call!(
                self.library,
                rocksdb_transactiondb_flush_cf(self.db, how, *family, &raw mut fault)
            );
            self.library.check("flush", fault)?;
        }
        Ok(())
    }
}

struct RocksSession<'r> {
    store: &'r Rocks,
    /// A finished transaction, kept for reuse.
    spent: Ptr,
}

impl Drop for RocksSession<'_> {
    fn drop(&mut self) {
        if !self.spent.is_null() {
            call!(self.store.library, rocksdb_transaction_destroy(self.spent));
        }
    }
}

/// A snapshot: read options that contain it.
struct Snapshot<'r> {
    store: &'r Rocks,
    reading: Ptr,
}

impl Reads for Snapshot<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        let (store, library, mut fault) = (self.store, self.store.library, null_mut());
        let slice = call!(
            library,
            rocksdb_transactiondb_get_pinned_cf(
                store.db,
                self.reading,
                store.family(table),
                key.as_ptr(),
                key.len(),
                &raw mut fault,
            )
        );
        library.check("get", fault)?;
        Ok(store.copy(slice, to))
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        let (store, family) = (self.store, self.store.family(table));
        let iterator = call!(
            store.library,
            rocksdb_transactiondb_create_iterator_cf(store.db, self.reading, family)
        );
        Ok(store.walk(iterator, from, limit, each))
    }
}

/// A transaction.
struct Txn<'r> {
    store: &'r Rocks,
    txn: Ptr,
}

impl Txn<'_> {
    fn lock_and_get(
        &self,
        table: usize,
        key: &[u8],
        exclusive: bool,
        to: &mut Vec<u8>,
    ) -> StoreResult<bool> {
        let (store, library, mut fault) = (self.store, self.store.library, null_mut());
        let slice = call!(
            library,
            rocksdb_transaction_get_pinned_for_update_cf(
                self.txn,
                store.reading,
                store.family(table),
                key.as_ptr(),
                key.len(),
                u8::from(exclusive),
                &raw mut fault,
            )
        );
        library.check("get_for_update", fault)?;
        Ok(store.copy(slice, to))
    }
}

impl Reads for Txn<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        self.lock_and_get(table, key, false, to)
    }

    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> StoreResult<usize> {
        let (store, family) = (self.store, self.store.family(table));
        let iterator = call!(
            store.library,
            rocksdb_transaction_create_iterator_cf(self.txn, store.reading, family)
        );
        Ok(store.walk(iterator, from, limit, each))
    }
}

impl Writes for Txn<'_> {
    fn get_for_update(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        self.lock_and_get(table, key, true, to)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        let (library, mut fault) = (self.store.library, null_mut());
        call!(
            library,
            rocksdb_transaction_put_cf(
                self.txn,
                self.store.family(table),
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
                &raw mut fault,
            )
        );
        library.check("put", fault)
    }
}

impl Session for RocksSession<'_> {
    fn get(&mut self, table: usize, key: &[u8], to: &mut Vec<u8>) -> StoreResult<bool> {
        Snapshot { store: self.store, reading: self.store.reading }.get(table, key, to)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> StoreResult {
        let (store, library) = (self.store, self.store.library);
        loop {
            let mut fault = null_mut();
            call!(
                library,
                rocksdb_transactiondb_put_cf(
                    store.db,
                    store.writing,
                    store.family(table),
                    key.as_ptr(),
                    key.len(),
                    value.as_ptr(),
                    value.len(),
                    &raw mut fault,
                )
            );
            match library.check("put", fault) {
                Err(StoreError::Again) => {}
                result => return result,
            }
        }
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reads) -> StoreResult) -> StoreResult {
        let (store, library) = (self.store, self.store.library);
        let snapshot = call!(library, rocksdb_transactiondb_create_snapshot(store.db));
        let reading = call!(library, rocksdb_readoptions_create());
        call!(library, rocksdb_readoptions_set_snapshot(reading, snapshot));
        let result = body(&mut Snapshot { store, reading });
        call!(library, rocksdb_readoptions_destroy(reading));
        call!(library, rocksdb_transactiondb_release_snapshot(store.db, snapshot));
        result
    }

    fn write(&mut self, body: &mut dyn FnMut(&mut dyn Writes) -> StoreResult) -> StoreResult<u64> {
        let (store, library) = (self.store, self.store.library);
        let mut again = 0;
        loop {
            let txn = call!(
                library,
                rocksdb_transaction_begin(store.db, store.writing, store.transaction, self.spent)
            );
            self.spent = txn;
            let mut fault = null_mut();
            let mut result = body(&mut Txn { store, txn });
            if result.is_ok() {
                call!(library, rocksdb_transaction_commit(txn, &raw mut fault));
                result = library.check("commit", fault);
            } else {
                call!(library, rocksdb_transaction_rollback(txn, &raw mut fault));
                library.check("rollback", fault)?;
            }
            match result {
                Err(StoreError::Again) => again += 1,
                result => return result.map(|()| again),
            }
        }
    }
}
