//! Opens a store, writes a record in a transaction and reads it from a snapshot.
//!
//! `cargo run --release -p latchwork --example guide_first`

use latchwork::store::{Error, Store, Table};

const FRUIT: Table<&str, u64> = Table::new("fruit");

fn main() -> Result<(), Error> {
    let path = std::env::temp_dir().join(format!("latchwork-first-{}", std::process::id()));
    let store = Store::open(&path)?; // creates the store if it does not exist

    store.write(|tx| {
        let pears = tx.get_for_update(&FRUIT, "pear")?.unwrap_or(0);
        tx.put(&FRUIT, "pear", pears + 3)?;
        tx.put(&FRUIT, "apple", 5)
    })?; // durable when `write` returns

    let all = store.read(|tx| tx.range(&FRUIT, ..)?.collect::<Result<Vec<_>, _>>())?;
    assert_eq!(all, [("apple".to_owned(), 5), ("pear".to_owned(), 3)]);

    // A closure that returns an error rolls its transaction back.
    let refused = store.write(|tx| {
        tx.put(&FRUIT, "pear", 0)?;
        Err::<(), _>(Error::Rejected("sold out".to_owned()))
    });
    assert_eq!(refused, Err(Error::Rejected("sold out".to_owned())));
    assert_eq!(store.get(&FRUIT, "pear")?, Some(3));
    println!("{all:?}");

    store.close()?; // reports errors of closing; a drop also closes
    std::fs::remove_dir_all(&path).expect("the store's folder can be removed");
    Ok(())
}
