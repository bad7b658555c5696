//! A part of a transaction fails. Its locks are released; the locks taken before the savepoint
//! stay.
//!
//! `cargo run --release -p latchwork --example savepoint`

use latchwork::lockmgr::{Error, Manager, granular};

fn main() -> Result<(), Error> {
    let manager = Manager::private(granular::modes())?;
    let session = manager.session()?;
    let owner = session.owner()?;
    owner.lock(b"order 1", granular::X)?;
    let before = owner.savepoint()?;
    owner.lock(b"stock 17", granular::X)?;
    println!("held in the middle: {}", owner.held()?);
    owner.roll_back_to(before)?;
    println!("held after the roll-back: {}", owner.held()?);
    assert_eq!(owner.held()?, 1);
    let other = session.owner()?;
    other.try_lock(b"stock 17", granular::X)?;
    assert_eq!(other.try_lock(b"order 1", granular::X), Err(Error::NotGranted));
    Ok(())
}
