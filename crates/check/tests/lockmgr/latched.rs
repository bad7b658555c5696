//! Latches of damaged memory, that no thread holds: a thread that waits for one is told.

use std::sync::atomic::Ordering::Relaxed;

use latchwork_lockmgr::{Error, Manager, Options, shared};
use latchwork_machine::Native;
use latchwork_region::{Error as RegionError, Offset, Region};

/// Sets the latches of all partitions. Of a block, which these roots name, a line of 16 words is a
/// partition, whose latch is the first; padding puts it at the beginning of a line.
fn set_all(region: &Region<Native>, word: u32) {
    let blocks = (16..32).map(|root| region.root(root).unwrap().load(Relaxed) as u32);
    for block in blocks.filter(|block| *block != 0) {
        // SAFETY: a block of partitions, which has so many words.
        let words = unsafe { region.words32(Offset::<()>::from_raw(block), 14 + 1022 * 16) };
        words.unwrap()[14..].chunks(16).for_each(|line| line[0].store(word, Relaxed));
    }
}

#[test]
fn a_latch_that_nobody_holds_is_told() {
    // The slot of the session itself is 0; no thread has 3, and there is no 5,000.
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
        // As it was: what was had is let go of.
        set_all(&region, 0);
        owner.lock(b"after", shared::X).unwrap();
        drop(owner);
        assert_eq!(session.totals().unwrap().requests, 0);
    }
}
