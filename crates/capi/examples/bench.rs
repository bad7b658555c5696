//! `scripts/capi bench`: C `get`, `put` and a scan compared with the Rust calls, in one process on
//! one store, in turns. The loops in C are in `bench.c`.

#![allow(improper_ctypes, reason = "opaque in C, and never more than a pointer")]

use std::ffi::CString;
use std::hint::black_box;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::Instant;

use latchwork_capi::snapshot::{lw_snapshot, lw_snapshot_free, lw_snapshot_new};
use latchwork_capi::store::{lw_close, lw_mode, lw_open, lw_options, lw_store};
use latchwork_capi::store_of;
use latchwork_capi::table::{lw_table, lw_table_free, lw_table_new};
use latchwork_store::{Raw, Store, Table};

unsafe extern "C" {
    fn c_get(store: *mut lw_store, table: *const lw_table, records: u64, n: u64, seed: u64) -> u64;
    fn c_put(store: *mut lw_store, table: *const lw_table, records: u64, n: u64, seed: u64) -> u64;
    fn c_snapshot_get(
        snapshot: *mut lw_snapshot,
        table: *const lw_table,
        records: u64,
        n: u64,
        seed: u64,
    ) -> u64;
    fn c_scan_with(snapshot: *mut lw_snapshot, table: *const lw_table) -> u64;
    fn c_scan(snapshot: *mut lw_snapshot, table: *const lw_table, count: *mut u64) -> u64;
}

const RECORDS: u64 = 100_000;
const OPERATIONS: u64 = 100_000;
/// How often each side has its turn, unless the first argument says otherwise.
const ROUNDS: usize = 15;
const TABLE: Table<Raw, Raw> = Table::new("bench");

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Not inlined: `valgrind --tool=callgrind --toggle-collect='*rust_get*'` counts its instructions.
#[inline(never)]
fn rust_get(store: &Store, mut seed: u64) {
    let mut value = Vec::new();
    for _ in 0..OPERATIONS {
        let key = (next(&mut seed) % RECORDS).to_be_bytes();
        let found = store.read(|tx| {
            tx.get_with(&TABLE, &key, |bytes| {
                value.clear();
                value.extend_from_slice(bytes);
            })
        });
        black_box((found.unwrap(), &value));
    }
}

#[inline(never)]
fn rust_put(store: &Store, mut seed: u64) {
    let mut value = [0; 100];
    for _ in 0..OPERATIONS {
        let key = (next(&mut seed) % RECORDS).to_be_bytes();
        value[..8].copy_from_slice(&key);
        store.put(&TABLE, &key, &value).unwrap();
    }
}

fn rounds() -> usize {
    std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS).max(1)
}

/// Median and least nanoseconds an operation.
fn summary(mut all: Vec<f64>) -> (f64, f64) {
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[0])
}

/// `bench ROUNDS ROW` measures one row alone.
fn in_turns(name: &str, operations: u64, mut rust: impl FnMut(u64), mut c: impl FnMut(u64)) {
    if std::env::args().nth(2).is_some_and(|row| row != name) {
        return;
    }
    let (mut of_rust, mut of_c) = (Vec::new(), Vec::new());
    for round in 0..2 * rounds() {
        let seed = (round / 2) as u64 + 1;
        // Which one is first changes.
        let is_rust = (round % 2 == 0) == (round / 2 % 2 == 0);
        let begun = Instant::now();
        if is_rust {
            rust(seed)
        } else {
            c(seed)
        }
        let ns = begun.elapsed().as_nanos() as f64 / operations as f64;
        if is_rust { of_rust.push(ns) } else { of_c.push(ns) }
    }
    let ((rust, rust_least), (c, c_least)) = (summary(of_rust), summary(of_c));
    println!(
        "{name:14} {rust:9.1} {c:9.1} {:+8.1}    {rust_least:9.1} {c_least:9.1} {:+8.1}",
        c - rust,
        c_least - rust_least
    );
}

/// The objects of both sides, on one store.
struct Both {
    store: Store,
    opened: *mut lw_store,
    table: *mut lw_table,
    snapshot: *mut lw_snapshot,
}

impl Both {
    fn open(path: &Path) -> Self {
        let text = CString::new(path.to_str().unwrap()).unwrap();
        let (mut opened, mut table) = (null_mut(), null_mut());
        // SAFETY: all zero is the default of each option.
        let mut options: lw_options = unsafe { core::mem::zeroed() };
        (options.size, options.mode) = (size_of::<lw_options>(), lw_mode::LW_MODE_NONE as u32);
        // SAFETY: a text that ends with a zero, and a place for a pointer.
        let code =
            unsafe { lw_open(text.as_ptr(), &raw const options, &raw mut opened, null_mut()) };
        assert_eq!(code, 0);
        // SAFETY: as above.
        let code = unsafe { lw_table_new(c"bench".as_ptr(), null(), &raw mut table, null_mut()) };
        assert_eq!(code, 0);
        // SAFETY: a store that is alive.
        let store = unsafe { store_of(opened) };
        for number in 0..RECORDS {
            store.put(&TABLE, &number.to_be_bytes(), &[7; 100]).unwrap();
        }
        store.sync().unwrap();
        store.checkpoint().unwrap();
        Self { store, opened, table, snapshot: null_mut() }
    }

    fn gets(&self) {
        let c = |seed| {
            // SAFETY: handles that are alive.
            let bytes = unsafe { c_get(self.opened, self.table, RECORDS, OPERATIONS, seed) };
            assert_eq!(bytes, 100 * OPERATIONS);
        };
        in_turns("get", OPERATIONS, |seed| rust_get(&self.store, seed), c);
    }

    fn puts(&self) {
        let c = |seed| {
            // SAFETY: handles that are alive.
            let done = unsafe { c_put(self.opened, self.table, RECORDS, OPERATIONS, seed) };
            assert_eq!(done, OPERATIONS);
        };
        in_turns("put", OPERATIONS, |seed| rust_put(&self.store, seed), c);
    }

    /// Reads of a snapshot of each side, of the same moment.
    fn snapshots(&mut self) {
        // SAFETY: a store that is alive, and a place for a pointer.
        assert_eq!(unsafe { lw_snapshot_new(self.opened, &raw mut self.snapshot, null_mut()) }, 0);
        let kept = self.store.snapshot().unwrap();
        let mut value = Vec::new();
        let rust = |mut seed: u64| {
            for _ in 0..OPERATIONS {
                let key = (next(&mut seed) % RECORDS).to_be_bytes();
                let copy = |bytes: &[u8]| {
                    value.clear();
                    value.extend_from_slice(bytes);
                };
                black_box(kept.get_with(&TABLE, &key, copy).unwrap());
            }
        };
        let c = |seed| {
            // SAFETY: handles that are alive.
            let bytes =
                unsafe { c_snapshot_get(self.snapshot, self.table, RECORDS, OPERATIONS, seed) };
            assert_eq!(bytes, 100 * OPERATIONS);
        };
        in_turns("snapshot get", OPERATIONS, rust, c);
        let rust_scan = |_| {
            let mut bytes = 0;
            let add = &mut |_: &[u8], value: &[u8]| {
                bytes += value.len();
                Ok(true)
            };
            kept.scan(&TABLE, .., add).unwrap();
            assert_eq!(bytes as u64, 100 * RECORDS);
        };
        let c = |_| {
            // SAFETY: handles that are alive.
            assert_eq!(unsafe { c_scan_with(self.snapshot, self.table) }, 100 * RECORDS);
        };
        in_turns("scan, a record", RECORDS, rust_scan, c);
        let c = |_| {
            let mut count = 0;
            // SAFETY: handles that are alive, and a place for a number.
            let bytes = unsafe { c_scan(self.snapshot, self.table, &raw mut count) };
            assert_eq!((count, bytes), (RECORDS, 100 * RECORDS));
        };
        in_turns("by a cursor", RECORDS, rust_scan, c);
    }

    fn close(self) {
        // SAFETY: it is alive, and not used afterwards.
        unsafe { lw_snapshot_free(self.snapshot) };
        // SAFETY: as above.
        unsafe { lw_table_free(self.table) };
        drop(self.store);
        // SAFETY: as above.
        assert_eq!(unsafe { lw_close(self.opened, null_mut()) }, 0);
    }
}

fn main() {
    let path = std::env::temp_dir().join(format!("latchwork-capi-bench-{}", std::process::id()));
    let mut both = Both::open(&path);
    println!("ns an operation (lower is better); {RECORDS} records of 100 bytes, mode none");
    println!("                    median of {} rounds                    least", rounds());
    println!("                    Rust         C     more         Rust         C     more");
    both.gets();
    both.puts();
    both.snapshots();
    both.close();
    std::fs::remove_dir_all(&path).unwrap();
}
