//! Any bytes as a file of pages: the everyday form of the fuzz target `pool_file`.

use latchwork_check::pool_bytes::{PAGE, exercise, sound};
use latchwork_check::random::Random;

#[test]
fn any_bytes_are_pages_or_errors() {
    let whole = sound(24);
    assert_eq!((whole.len(), exercise(&whole)), (24 * PAGE, 24));
    let mut random = Random(0x9a9e);
    for round in 0..400 {
        let mut bytes = whole.clone();
        let mut hit = [false; 24];
        for _ in 0..=random.below(6) {
            let at = random.roll(bytes.len());
            let to = random.below(255) as u8;
            hit[at / PAGE] |= bytes[at] != to || hit[at / PAGE];
            bytes[at] = to;
        }
        if round % 3 == 0 {
            // Two pages change places.
            let (a, b) = (random.roll(24), random.roll(24));
            for byte in 0..PAGE {
                bytes.swap(a * PAGE + byte, b * PAGE + byte);
            }
            (hit[a], hit[b]) = if a == b { (hit[a], hit[b]) } else { (true, true) };
        }
        let good = hit.iter().filter(|hit| !**hit).count() as u64;
        let found = exercise(&bytes);
        // A byte may have been changed and changed back.
        assert!(found >= good && found <= good + 6, "{found} of {good}");
    }
    for length in [0, 1, 511, 513, 5_000] {
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        assert_eq!(exercise(&bytes), 0);
    }
    // Zeros are no page, and a file that ends in the middle of one has it not.
    assert_eq!((exercise(&[0; 8 * PAGE]), exercise(&whole[..10 * PAGE - 1])), (0, 9));
}
