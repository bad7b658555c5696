//! A scan locks the range that it reads. No other transaction inserts into the range, so the scan
//! meets no phantom.
//!
//! `cargo run --release -p latchwork --example ranges`

use std::ops::Bound::{Excluded, Included};

use latchwork::lockmgr::{Error, KeyRange, Manager, RangeKind, Wait, granular};

fn main() -> Result<(), Error> {
    let manager = Manager::private(granular::modes())?;
    let session = manager.session()?;
    let (reader, writer) = (session.owner()?, session.owner()?);

    // Orders 100 to 199.
    let scanned = KeyRange { from: Included(b"100"), to: Excluded(b"200") };
    reader.lock_range(b"orders", scanned, RangeKind::ReadNext, Wait::Detect)?;

    let insert = |key: &[u8]| {
        writer.lock_range(b"orders", KeyRange::key(key), RangeKind::Insert, Wait::Never)
    };
    println!("insert 150 beside the scan: {:?}", insert(b"150"));
    assert_eq!(insert(b"150"), Err(Error::NotGranted));
    println!("insert 250 beside the scan: {:?}", insert(b"250"));
    assert_eq!(insert(b"250"), Ok(()));
    reader.release_all()?;
    assert_eq!(insert(b"150"), Ok(()));
    println!("insert 150 after the scan: Ok(())");
    Ok(())
}
