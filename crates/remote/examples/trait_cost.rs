//! Calls of the embedded store through the traits and without them, to count instructions:
//!
//! ```text
//! cargo build --release -p latchwork-remote --example trait_cost
//! for how in direct traits; do
//!     valgrind --tool=callgrind target/release/examples/trait_cost $how
//! done
//! ```

use latchwork_store::{Error, Options, ReadOps, Store, Table, WriteOps};

const NUMBERS: Table<u64, u64> = Table::new("numbers");
const CALLS: u64 = 20_000;

/// Writes and reads through the traits.
#[inline(never)]
fn by_traits(tx: &mut impl WriteOps) -> Result<u64, Error> {
    let mut sum = 0;
    for number in 0..CALLS {
        WriteOps::put(tx, &NUMBERS, number % 512, number)?;
        sum += ReadOps::get(tx, &NUMBERS, number % 512)?.unwrap_or(0);
    }
    Ok(sum)
}

/// The same without them.
#[inline(never)]
fn direct(tx: &mut latchwork_store::WriteTxn<'_, '_>) -> Result<u64, Error> {
    let mut sum = 0;
    for number in 0..CALLS {
        tx.put(&NUMBERS, number % 512, number)?;
        sum += tx.get(&NUMBERS, number % 512)?.unwrap_or(0);
    }
    Ok(sum)
}

fn main() -> Result<(), Error> {
    let path = std::env::temp_dir().join(format!("trait-cost-{}", std::process::id()));
    let store = Store::open_with(&path, &Options::small())?;
    let how = std::env::args().nth(1).unwrap_or_default();
    let sum = match &how[..] {
        "traits" => store.write(|tx| by_traits(tx))?,
        _ => store.write(direct)?,
    };
    assert_eq!(sum, CALLS * (CALLS - 1) / 2);
    drop(store);
    let _ = std::fs::remove_dir_all(&path);
    Ok(())
}
