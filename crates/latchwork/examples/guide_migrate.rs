//! Moves a table to another value type. Every process may run this at its start.
//!
//! `cargo run --release -p latchwork --example guide_migrate`

use latchwork::store::{Error, Store, Table};

/// Prices in euros, the old schema.
const OLD: Table<&str, f64> = Table::new("prices");
/// Prices in cents, the new schema.
const PRICES: Table<&str, u64> = Table::new("prices").with_version(1);

fn open(path: &std::path::Path) -> Result<Store, Error> {
    let store = Store::open(path)?;
    let cents = |name, euros: f64| Ok((name, (euros * 100.0).round() as u64));
    store.migrate(&OLD, &PRICES, cents, &mut |rows| println!("{rows} rows migrated"))?;
    Ok(store)
}

fn main() -> Result<(), Error> {
    let path = std::env::temp_dir().join(format!("latchwork-migrate-{}", std::process::id()));
    let store = Store::open(&path)?;
    store.put(&OLD, "tea", 2.5)?;
    drop(store);

    let store = open(&path)?;
    assert_eq!(store.get(&PRICES, "tea")?, Some(250));
    // A program with the old types is refused.
    assert!(matches!(store.get(&OLD, "tea"), Err(Error::TableType { .. })));
    drop(store);
    drop(open(&path)?); // has nothing to do

    std::fs::remove_dir_all(&path).expect("the store's folder can be removed");
    Ok(())
}
