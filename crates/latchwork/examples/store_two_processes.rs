//! Two processes write one store at the same time. One is killed in the middle of a transaction;
//! the other continues.
//!
//! `cargo run --release -p latchwork --example store_two_processes`

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use latchwork::store::{Error, Store, Table};

const ACCOUNTS: Table<u64, i64> = Table::new("accounts");

/// Moves money between two accounts in one transaction.
fn transfer(store: &Store, from: u64, to: u64, amount: i64) -> Result<(), Error> {
    store.write(|tx| {
        let left = tx.get_for_update(&ACCOUNTS, from)?.unwrap_or(0) - amount;
        let has = tx.get_for_update(&ACCOUNTS, to)?.unwrap_or(0) + amount;
        tx.put(&ACCOUNTS, from, left)?;
        tx.put(&ACCOUNTS, to, has)
    })
}

/// The child process: some transfers, then a transaction that it does not finish.
fn child(path: &Path) -> Result<(), Error> {
    let store = Store::open(path)?;
    for _ in 0..100 {
        transfer(&store, 1, 2, 1)?;
    }
    // Wait here: the lock taken next must not block the parent's first transfers.
    std::io::stdin()
        .read_line(&mut String::new())
        .map_err(|why| Error::Rejected(why.to_string()))?;
    store.write(|tx| {
        tx.put(&ACCOUNTS, 1, -1_000_000)?;
        println!("in the middle");
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(path) = std::env::args_os().nth(1) {
        return Ok(child(Path::new(&path))?);
    }
    let path = std::env::temp_dir().join(format!("latchwork-store-{}", std::process::id()));
    let store = Store::open(&path)?; // the same call in both processes
    store.write(|tx| {
        tx.put(&ACCOUNTS, 1, 500)?;
        tx.put(&ACCOUNTS, 2, 500)
    })?;
    let mut other = Command::new(std::env::current_exe()?)
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    for _ in 0..100 {
        transfer(&store, 2, 1, 1)?;
    }
    other.stdin.take().ok_or("no pipe")?.write_all(b"go on\n")?;
    let mut said = String::new();
    let out = other.stdout.take().ok_or("no pipe")?;
    BufReader::new(out).read_line(&mut said)?;
    assert_eq!(said, "in the middle\n");
    let rows = || store.read(|tx| tx.range(&ACCOUNTS, ..)?.collect::<Result<Vec<_>, _>>());
    println!("while the other process is in the middle of a transaction: {:?}", rows()?);
    other.kill()?;
    other.wait()?;
    // This transfer waits for the killed process's lock, finds that its holder is dead and rolls
    // the transaction back.
    transfer(&store, 1, 2, 100)?;
    println!("after it was killed, and a transfer of 100: {:?}", rows()?);
    assert_eq!(rows()?, [(1, 400), (2, 600)]);
    drop(store);
    std::fs::remove_dir_all(&path)?;
    Ok(())
}
