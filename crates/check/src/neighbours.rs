//! Names in one partition of a lock manager, under one bias.

use std::sync::OnceLock;

use latchwork_lockmgr::Manager;
use latchwork_lockmgr::shared::{self, S, X};
use latchwork_machine::Native;
use latchwork_region::{Options, Region};

/// `count` such names. All regions on the heap hash names in the same way.
///
/// A write lock on one closes the bias of the others, which is how they are found.
///
/// # Panics
///
/// If more than four are requested.
pub fn neighbours(count: usize) -> Vec<&'static [u8]> {
    static FOUND: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    FOUND.get_or_init(|| find(4))[..count].iter().map(Vec::as_slice).collect()
}

fn find(count: usize) -> Vec<Vec<u8>> {
    let region = Region::<Native>::heap(&Options { limit: 64 << 20, ..Options::default() });
    let manager = Manager::new(region.unwrap(), shared::modes(), Default::default()).unwrap();
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    let mut found = vec![b"the first".to_vec()];
    let first = found[0].clone();
    let opens = || {
        for _ in 0..40 {
            owner.lock(&first, S).unwrap();
            owner.unlock(&first).unwrap();
        }
    };
    let closes = |name: &[u8]| {
        owner.lock(name, X).unwrap();
        owner.unlock(name).unwrap();
        let before = session.stats().weak;
        owner.lock(&first, S).unwrap();
        owner.unlock(&first).unwrap();
        session.stats().weak == before
    };
    opens();
    for number in 0u32.. {
        let name = format!("neighbour {number}").into_bytes();
        if closes(&name) {
            found.push(name);
            opens();
        }
        if found.len() == count {
            break;
        }
    }
    found
}
