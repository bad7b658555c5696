//! Calls of a store, for counting their instructions. `measured` contains only the calls.
//!
//! ```sh
//! cargo build --release -p latchwork-store --example measure
//! valgrind --tool=callgrind --toggle-collect='*measured*' \
//!     target/release/examples/measure calls get 5000
//! ```
//!
//! Divide the number that callgrind collects by the number of calls. The store has 20,000 records
//! of 16 and 100 bytes, and does not wait for the disk.

use latchwork_store::{Error, Mode, Options, Store, Table};

use super::Fault;

const ROWS: Table<&[u8], &[u8]> = Table::new("rows");
const HISTORY: Table<&[u8], &[u8]> = Table::new("history");
const COUNT: u64 = 20_000;

fn key(number: u64) -> Vec<u8> {
    format!("{number:016}").into_bytes()
}

/// Makes one call of a kind, with a key.
fn call(store: &Store, kind: &str, key: &[u8]) -> Result<bool, Error> {
    match kind {
        "get" => store.read(|tx| tx.get_with(&ROWS, key, <[u8]>::is_empty)).map(|it| it.is_some()),
        "get-rw" => store.write(|tx| tx.get(&ROWS, key)).map(|it| it.is_some()),
        "put" => store.put(&ROWS, key, &[8; 100]).map(|()| true),
        "range-10" | "scan-100" => {
            let wanted = if kind == "range-10" { 10 } else { 100 };
            let mut left = wanted;
            store.read(|tx| {
                tx.scan(&ROWS, key.., &mut |_, _| {
                    left -= 1;
                    Ok(left > 0)
                })
            })?;
            Ok(left < wanted)
        }
        // As in TPC-B: an account, a teller, the branch, and a line of the history.
        "transfer" => store.write(|tx| {
            for row in [key, &key[..14], b"branch"] {
                let old = tx.get_for_update(&ROWS, row)?.unwrap_or_default();
                tx.put(&ROWS, row, &[old.first().copied().unwrap_or(7); 64])?;
            }
            tx.put_final(&HISTORY, key, &[9; 16]).map(|()| true)
        }),
        _ => {
            Err(Error::Options("a call: get, get-long, get-rw, put, range-10, scan-100, transfer"))
        }
    }
}

/// Makes the calls, under a name that a profiler finds.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
}

pub(crate) fn run(path: &std::path::Path, kind: &str, calls: u64) -> Result<(), Fault> {
    let mut options = Options::default();
    options.sizes.mode = Mode::None;
    let store = Store::open_with(path, &options)?;
    for row in 0..COUNT {
        store.put(&ROWS, &key(row), &[7; 100])?;
    }
    // All keys are equally likely, and all runs use the same ones.
    let keys: Vec<_> = (0..calls).map(|at| key(at.wrapping_mul(7_919) % COUNT)).collect();
    let get = |tx: &latchwork_store::ReadTxn<'_>, key: &Vec<u8>| {
        let found = tx.get_with(&ROWS, key, <[u8]>::is_empty)?;
        assert!(found.is_some());
        Ok(())
    };
    let all = || match kind {
        "get-long" => store.read(|tx| keys.iter().try_for_each(|key| get(tx, key))),
        _ => keys.iter().try_for_each(|key| call(&store, kind, key).map(|it| assert!(it))),
    };
    all()?;
    let mut done = Ok(());
    measured(&mut || done = all());
    Ok(done?)
}
