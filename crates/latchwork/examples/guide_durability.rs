//! Durability modes of a store and of single transactions.
//!
//! `cargo run --release -p latchwork --example guide_durability`

use std::time::{Duration, Instant};

use latchwork::store::{Error, Mode, Options, Store, Table, TxnOptions};

const EVENTS: Table<u64, &str> = Table::new("events");

fn main() -> Result<(), Error> {
    let path = std::env::temp_dir().join(format!("latchwork-durability-{}", std::process::id()));
    let mut options = Options::default();
    // Commits return before they are durable. While commits arrive, a machine crash loses about the
    // last 100 ms of them.
    options.sizes.mode = Mode::Periodic(Duration::from_millis(100));
    let store = Store::open_with(&path, &options)?;

    let begun = Instant::now();
    for number in 0..1000 {
        store.put(&EVENTS, number, "click")?;
    }
    println!("1,000 commits in {:.1?}", begun.elapsed());

    // One transaction that must be durable, with everything committed before it.
    let full = TxnOptions { mode: Some(Mode::Full), label: "payment", ..TxnOptions::default() };
    let done = store.write_with(&full, |tx| tx.insert(&EVENTS, 1000, "payment"))?;
    println!("the payment is durable after {} run", done.runs);

    // Commits that never wait, then one sync for all of them.
    let none = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
    for number in 2000..3000 {
        store.write_with(&none, |tx| tx.put(&EVENTS, number, "click"))?;
    }
    store.sync()?;
    assert_eq!(store.read(|tx| tx.count(&EVENTS, ..))?, 2001);

    drop(store);
    std::fs::remove_dir_all(&path).expect("the store's folder can be removed");
    Ok(())
}
