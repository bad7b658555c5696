//! Arbitrary bytes as a file of pages and in the areas of a pool: the short form of the fuzz
//! targets `pool_file` and `pool_region`.

use latchwork_check::pool_bytes::{PAGE, exercise, sound};
use latchwork_check::pool_region::{self, Change, Used};
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
            // Two pages are exchanged.
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
    // Zeros are no page; a file that ends in the middle of a page does not contain it.
    assert_eq!((exercise(&[0; 8 * PAGE]), exercise(&whole[..10 * PAGE - 1])), (0, 9));
}

#[test]
fn any_words_are_a_pool_or_errors() {
    assert_eq!(pool_region::exercise(&[]), Used::Whole);
    let (places, mut random, mut whole) = (pool_region::places(), Random(0xa7ea), 0);
    for _ in 0..300 {
        let changes: Vec<_> = (0..=random.below(4))
            .map(|_| {
                let what = match random.below(4) {
                    0 => Change::To(random.below(u64::MAX)),
                    1 => Change::To(random.below(64)),
                    2 => Change::Flip(1 << random.below(64)),
                    _ => Change::Like(random.roll(places)),
                };
                (random.roll(places), what)
            })
            .collect();
        whole += u32::from(pool_region::exercise(&changes) == Used::Whole);
    }
    assert!(whole > 150, "{whole} were used");
}
