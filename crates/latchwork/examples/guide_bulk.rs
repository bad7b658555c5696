//! Loads a table from sorted rows, copies the store while it is open and restores the copy.
//!
//! `cargo run --release -p latchwork --example guide_bulk`

use latchwork::store::{Error, Store, Table, restore};

const SQUARES: Table<u64, u64> = Table::new("squares");

fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("latchwork-bulk-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder can be created");
    let store = Store::open(folder.join("shop"))?;

    // One transaction; keys must ascend, and the table must not exist.
    let rows = store.load_sorted(&SQUARES, (0..100_000).map(|n| (n, n * n)))?;
    println!("{rows} rows loaded");

    // Writers need not stop. The copy has every transaction committed before the call.
    let copied = store.backup(folder.join("copy"), &mut |_| {})?;
    println!("{} pages copied", copied.pages);
    store.remove(&SQUARES, 99)?;

    // `restore` recovers the copy and checks all of its pages. The copy stays.
    restore(folder.join("copy"), folder.join("restored"), &mut |_| {})?;
    let restored = Store::open(folder.join("restored"))?;
    assert_eq!(restored.get(&SQUARES, 99)?, Some(9801));
    assert_eq!(store.get(&SQUARES, 99)?, None);

    drop((store, restored));
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
    Ok(())
}
