//! Measures how long a store takes to open after a crash that left a long transaction open, and how
//! long other transactions then wait.
//!
//! ```sh
//! cargo run --release -p latchwork-store --example measure -- left-open 100000
//! ```
//!
//! The argument is the number of records that the transaction has changed. A child process runs the
//! transaction and is killed; its shared memory is then removed, as in a crash of the machine.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latchwork_store::{Options, Store, Table, discard_shared_memory};

use super::Fault;

const ROWS: Table<u64, &[u8]> = Table::new("rows");
const OTHERS: Table<u64, u64> = Table::new("others");

/// The argument that marks the child process.
pub(crate) const CHILD: &str = "left-open-child";

fn open(path: &Path) -> Result<Store, Fault> {
    let mut options = Options::default();
    // No checkpoint is made.
    options.sizes.log_budget = 8 << 30;
    options.sizes.history = 16 << 30;
    Ok(Store::open_with(path, &options)?)
}

/// Runs in the child until it is killed.
pub(crate) fn leave_open(path: &Path, rows: u64) -> Result<(), Fault> {
    let store = open(path)?;
    store.put(&OTHERS, 0, 0)?;
    for part in 0..rows.div_ceil(1000) {
        let rows = part * 1000..rows.min((part + 1) * 1000);
        store.write(|tx| rows.clone().try_for_each(|row| tx.put(&ROWS, row, &[1; 100])))?;
    }
    let mut open = store.begin()?;
    for row in 0..rows {
        open.put(&ROWS, row, &[2; 100])?;
    }
    // Makes everything logged before it durable.
    store.put(&OTHERS, 1, 1)?;
    println!("open");
    std::thread::sleep(Duration::from_secs(600));
    Err("nobody has killed it".into())
}

pub(crate) fn run(path: &Path, rows: u64) -> Result<(), Fault> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([CHILD.as_ref(), path.as_os_str(), rows.to_string().as_ref()])
        .stdout(Stdio::piped())
        .spawn()?;
    let said = BufReader::new(child.stdout.take().ok_or("no output")?).lines().next();
    child.kill()?;
    child.wait()?;
    assert_eq!(said.ok_or("the child said nothing")??, "open");
    discard_shared_memory(path)?;

    let since = Instant::now();
    let ms = |what: &str| println!("{what} after {:.0} ms", since.elapsed().as_secs_f64() * 1e3);
    let store = open(path)?;
    ms("opened");
    assert_eq!(store.get(&ROWS, rows / 2)?.as_deref(), Some(&[1; 100][..]), "as it was");
    ms("read what it had changed");
    store.put(&OTHERS, 2, 2)?;
    ms("written beside it");
    store.put(&ROWS, rows / 2, &[3; 100])?;
    ms("written what it had changed");
    store.verify()?;
    Ok(())
}
