//! Latches in damaged memory that no thread holds: a thread that waits for one gets an error.

use std::sync::atomic::Ordering::Relaxed;

use latchwork_lockmgr::{Error, Manager, Options, shared};
use latchwork_machine::Native;
use latchwork_region::{Error as RegionError, Offset, Region};

/// Sets the latches of all partitions. These roots name blocks of partitions, which begin at the
/// first full line; a partition is a line of 16 words, and its latch is the first of them.
fn set_all(region: &Region<Native>, word: u32) {
    let blocks = (16..32).map(|root| region.root(root).unwrap().load(Relaxed) as u32);
    for block in blocks.filter(|block| *block != 0) {
        // SAFETY: a block of partitions has this many words.
        let words = unsafe { region.words32(Offset::<()>::from_raw(block), 14 + 1022 * 16) };
        words.unwrap()[14..].chunks(16).for_each(|line| line[0].store(word, Relaxed));
    }
}

#[test]
fn a_latch_without_a_holder_is_an_error() {
    // Slot 0 is the session's own; no thread has slot 3, and slot 5,000 does not exist.
    for holder in [0, 3, 5000, u32::MAX - 1] {
        let region = Region::<Native>::private(&latchwork_region::Options::default()).unwrap();
        let manager = Manager::new(region.clone(), shared::modes(), Options::default()).unwrap();
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        owner.lock(b"before", shared::X).unwrap();
        set_all(&region, holder + 1);
        let told = owner.lock(b"after", shared::X).unwrap_err();
        let latch = |why: &Error| {
            let Error::Region(RegionError::Corrupt { what, .. }) = why else { return false };
            what.contains("latch")
        };
        assert!(latch(&told), "{holder}: {told}");
        // As before: the failed calls have left nothing behind.
        set_all(&region, 0);
        owner.lock(b"after", shared::X).unwrap();
        drop(owner);
        assert_eq!(session.totals().unwrap().requests, 0);
    }
}
