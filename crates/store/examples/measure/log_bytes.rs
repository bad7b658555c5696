//! Counts the bytes of log of transfers and of single puts, by kind of record.
//!
//! ```sh
//! cargo run --release -p latchwork-store --example measure -- log-bytes 100000
//! ```
//!
//! The transfers are those of `latchwork bench store --only tproc-b-1`: rows of 64 bytes with keys
//! of 4 bytes in three tables, of which 8 bytes change, and an insert of 16 bytes with a key of 8.
//! The puts replace a value of 100 bytes by one of the same length, of which 8 bytes differ.

use std::collections::BTreeMap;
use std::path::Path;

use latchwork_store::{Error, Mode, Options, Store, Table, read_log};

use super::Fault;

type Bytes = Table<&'static [u8], &'static [u8]>;

const BANK: [Bytes; 3] = [Table::new("accounts"), Table::new("tellers"), Table::new("branches")];
const ROWS: [u64; 3] = [100_000, 100, 1];
const HISTORY: Bytes = Table::new("history");
const OTHERS: Bytes = Table::new("others");
const OTHER_ROWS: u64 = 20_000;

/// The next number of a sequence without a pattern, so that all runs do the same.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 29
}

fn load(store: &Store, table: &Bytes, rows: u64, value: &[u8]) -> Result<(), Error> {
    for row in 0..rows {
        store.put(table, &(row as u32).to_le_bytes()[..], value)?;
    }
    Ok(())
}

fn transfer(store: &Store, state: &mut u64, number: u64) -> Result<(), Error> {
    let amount = (next(state) % 1000) as i64 - 499;
    let keys = ROWS.map(|rows| (next(state) % rows) as u32);
    store.write(|tx| {
        for (table, key) in BANK.iter().zip(keys) {
            let key = &key.to_le_bytes()[..];
            let mut row = tx.get_for_update(table, key)?.unwrap_or_default();
            if let Some(balance) = row.first_chunk_mut() {
                *balance = (i64::from_le_bytes(*balance) + amount).to_le_bytes();
            }
            tx.put(table, key, &row[..])?;
        }
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&amount.to_le_bytes());
        tx.put_final(&HISTORY, &number.to_be_bytes()[..], &entry[..])
    })
}

fn put(store: &Store, state: &mut u64) -> Result<(), Error> {
    let key = (next(state) % OTHER_ROWS) as u32;
    let mut value = [7; 100];
    value[40..48].copy_from_slice(&next(state).to_le_bytes());
    store.put(&OTHERS, &key.to_le_bytes()[..], &value[..])
}

/// Makes calls, and prints the bytes of log that one takes.
fn measure(
    (store, path): (&Store, &Path),
    (name, calls): (&str, u64),
    call: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<(), Fault> {
    let from = store.log_end();
    (0..calls).try_for_each(&mut *call)?;
    let end = store.log_end();
    store.sync()?;
    let mut kinds: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    read_log(path, from, &mut |record| {
        if (from..end).contains(&record.at) {
            let kind = kinds.entry(record.kind).or_default();
            *kind = (kind.0 + 1, kind.1 + record.next - record.at);
        }
        true
    })?;
    let per_call = |bytes: u64| bytes as f64 / calls as f64;
    println!("{name}: {:.1} bytes of log", per_call(end - from));
    for (kind, (count, bytes)) in kinds {
        let (records, bytes) = (per_call(count), per_call(bytes));
        println!("    {kind:<9}{records:>8.3} records{bytes:>8.1} bytes");
    }
    Ok(())
}

pub(crate) fn run(path: &Path, calls: u64) -> Result<(), Fault> {
    let mut options = Options::default();
    options.sizes.mode = Mode::None;
    let store = Store::open_with(path, &options)?;
    for (table, rows) in BANK.iter().zip(ROWS) {
        load(&store, table, rows, &[0; 64])?;
    }
    load(&store, &OTHERS, OTHER_ROWS, &[7; 100])?;
    let (at, mut state) = ((&store, path), 1);
    measure(at, ("transfer", calls), &mut |number| transfer(&store, &mut state, number))?;
    measure(at, ("put", calls), &mut |_| put(&store, &mut state))
}
