//! Two transactions lock two accounts in opposite order. The lock manager chooses one as the
//! victim; it releases its locks and runs again.
//!
//! `cargo run --release -p latchwork --example deadlock_and_retry`

use std::sync::Barrier;

use latchwork::lockmgr::{Error, Manager, Owner, granular};

/// Locks both accounts. The barrier between the two locks makes the deadlock certain.
fn transfer(
    owner: &Owner<'_>,
    from: &[u8],
    to: &[u8],
    meet: &mut dyn FnMut(),
) -> Result<(), Error> {
    owner.lock(from, granular::X)?;
    meet();
    owner.lock(to, granular::X)?;
    // The transfer itself goes here.
    owner.release_all()?;
    Ok(())
}

fn work(manager: &Manager, barrier: &Barrier, from: &[u8], to: &[u8]) -> Result<u32, Error> {
    let session = manager.session()?;
    let mut tries = 0;
    loop {
        tries += 1;
        // Each attempt is a new owner: a transaction.
        let owner = session.owner()?;
        let mut meet = || {
            if tries == 1 {
                barrier.wait();
            }
        };
        match transfer(&owner, from, to, &mut meet) {
            Ok(()) => return Ok(tries),
            Err(error) if error.is_retryable() => {
                println!("{error}; again");
                owner.release_all()?;
            }
            Err(error) => return Err(error),
        }
    }
}

fn main() -> Result<(), Error> {
    let manager = Manager::private(granular::modes())?;
    let barrier = Barrier::new(2);
    let tries = std::thread::scope(|scope| {
        let one = scope.spawn(|| work(&manager, &barrier, b"alice", b"bob"));
        let other = scope.spawn(|| work(&manager, &barrier, b"bob", b"alice"));
        let (one, other) = (one.join().expect("no panic"), other.join().expect("no panic"));
        Ok::<u32, Error>(one? + other?)
    })?;
    println!("both are done after {tries} tries");
    assert_eq!(tries, 3, "one of the two had to try again");
    Ok(())
}
