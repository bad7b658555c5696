//! Measures the repair of a damaged page, which is rebuilt from the log.
//!
//! ```sh
//! cargo run --release -p latchwork-store --example measure -- damaged-page 100
//! ```
//!
//! The argument is the amount of log, in MiB, written since the last change of the page. The
//! changes of the page lie at the beginning of the log, so the repair reads all of it: this is the
//! worst case.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use latchwork_store::{Mode, Options, Store, Table};

use super::Fault;

const ROWS: Table<u64, &[u8]> = Table::new("rows");
const NEEDLE: &[u8] = b"a value that no other record has";
const PAGE: usize = 8192;

/// Damages a byte of the page on disk that contains the needle. Returns false if no page does.
fn damage(data: &Path) -> Result<bool, Fault> {
    let mut file = std::fs::File::options().read(true).write(true).open(data)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let Some(at) = bytes.windows(NEEDLE.len()).position(|bytes| bytes == NEEDLE) else {
        return Ok(false);
    };
    file.seek(SeekFrom::Start(at as u64))?;
    file.write_all(b"A")?;
    println!("page {} is damaged on disk", at / PAGE);
    Ok(true)
}

pub(crate) fn run(path: &Path, mib: u64) -> Result<(), Fault> {
    let mut options = Options::default();
    // Small, so that the page leaves the cache, and no checkpoint is made.
    options.sizes.cache = 4 << 20;
    options.sizes.log_budget = (mib + 1024) << 20;
    options.sizes.mode = Mode::None;
    let store = Store::open_with(path, &options)?;
    // In the middle of the page's records, so that its neighbours fill it.
    for row in 0..100 {
        store.put(&ROWS, row, if row == 50 { NEEDLE } else { &[7; 64] })?;
    }
    let begin = store.log_end();
    let mut row = 1000;
    while store.log_end() - begin < mib << 20 {
        for _ in 0..1000 {
            store.put(&ROWS, row, &[7; 500])?;
            row += 1;
        }
    }
    if !damage(&path.join("data"))? {
        return Err("the page is not on disk".into());
    }
    let since = Instant::now();
    let found = store.read(|tx| tx.get(&ROWS, 50))?;
    let took = since.elapsed();
    assert_eq!(found.as_deref(), Some(NEEDLE), "the record is as it was");
    println!("made anew from {mib} MiB of log in {:.0} ms", took.as_secs_f64() * 1e3);
    store.verify()?;
    Ok(())
}
