//! A store for containers: little memory, and the shared memory in the store's folder.
//!
//! `cargo run --release -p latchwork --example guide_small`

use std::time::Duration;

use latchwork::store::{Error, MemoryPlace, Options, Store, Table};

const SETTINGS: Table<&str, &str> = Table::new("settings");

fn main() -> Result<(), Error> {
    let path = std::env::temp_dir().join(format!("latchwork-small-{}", std::process::id()));
    let mut options = Options::small();
    // For containers that share the volume and not /dev/shm. Every program must set it.
    options.place = MemoryPlace::Folder;
    // Do not wait longer than this for a process that opens or closes the store.
    options.wait = Some(Duration::from_secs(10));
    let store = Store::open_with(&path, &options)?;
    store.put(&SETTINGS, "language", "en")?;

    // Each process may check what it got: the largest request of all processes counts.
    println!("{:?}", store.opened());
    assert!(store.sizes()?.cache >= options.sizes.cache);

    store.close()?; // close gracefully before the container ends
    std::fs::remove_dir_all(&path).expect("the store's folder can be removed");
    Ok(())
}
