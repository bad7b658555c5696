//! Damaged bytes under a lock manager: no call panics, hangs or accesses memory out of bounds.
//! (The longer form is `fuzz/fuzz_targets/lockmgr_region.rs`.)

use latchwork_check::random::Random;
use latchwork_lockmgr::{Manager, View, granular};
use latchwork_machine::Native;
use latchwork_region::Region;

#[allow(unreachable_pub, reason = "a module of this test")]
use latchwork_check::bytes::{Used, image, use_it};

const BLOCK: usize = 1 << 16;

/// The aligned nonzero words of the heap, which can be damaged.
fn places(image: &[u8]) -> Vec<usize> {
    (BLOCK..image.len()).step_by(4).filter(|at| image[*at..*at + 4] != [0; 4]).collect()
}

#[test]
fn the_undamaged_image_is_sound() {
    let whole = image();
    assert_eq!(use_it(&whole), Ok(Used::Whole));
    let region = Region::<Native>::from_image(&whole).unwrap();
    let view = View::new(region.clone()).unwrap().unwrap();
    let before = view.look().unwrap();
    assert!(before.rows.iter().filter(|row| row.wanted.is_some()).count() > 3);
    assert!(before.rows.iter().filter(|row| row.held.is_some()).count() > 30);
    let manager = Manager::new(region, granular::modes(), latchwork_check::early::early()).unwrap();
    let session = manager.session().unwrap();
    assert_eq!(session.sweep(), Ok(2), "the image has two dead threads");
    let totals = session.totals().unwrap();
    assert_eq!((totals.requests, totals.weak, totals.owners), (0, 0, 0));
    assert!(manager.region().audit().unwrap().is_sound());
}

#[test]
fn damage_is_survived() {
    let whole = image();
    let places = places(&whole);
    let mut dice = Random(0x2545_f491_4f6c_dd1d);
    let (mut used, mut seen, mut refused) = (0, 0, 0);
    let rounds = 3_000;
    for _ in 0..rounds {
        let mut bytes = whole.clone();
        for _ in 0..=dice.roll(6) {
            let at = match dice.roll(8) {
                // The header with its roots; the slots of processes and threads.
                0 => 1024 + dice.roll(200) * 4,
                1 => 12_288 + dice.roll(2048) * 4,
                _ => places[dice.roll(places.len())],
            };
            match dice.roll(5) {
                // A link to another place: cycles, and cells in two lists.
                0 | 1 => {
                    let from = places[dice.roll(places.len())];
                    bytes.copy_within(from..from + 4, at);
                }
                2 => bytes[at..at + 4].fill(0),
                3 => bytes[at + dice.roll(4)] ^= 1 << dice.roll(8),
                _ => bytes[at..at + 4].copy_from_slice(&(dice.roll(1 << 16) as u32).to_ne_bytes()),
            }
        }
        match use_it(&bytes) {
            Ok(Used::Whole) => used += 1,
            Ok(Used::Seen) => seen += 1,
            Err(_) => refused += 1,
        }
    }
    println!("{used} used, {seen} only read, {refused} refused");
    assert!(used > rounds / 4 && refused > rounds / 50, "too few images of one kind");
}
