//! Random bytes in the files of a store: the short form of the fuzz target `store_files`.

use std::ops::Range;

use latchwork_check::parts::side_by_side;
use latchwork_check::random::Random;
use latchwork_check::store_bytes::{FileBytes, Used, exercise, sound};

/// Changes some bytes of a file, in one of the ways in which disks and people damage files.
fn change(file: &mut FileBytes, random: &mut Random) {
    let bytes = &mut file.1;
    if bytes.is_empty() {
        return;
    }
    // Headers matter most, and most of a segment is empty.
    let reach = if random.below(2) == 0 { bytes.len().min(8192) } else { bytes.len() };
    let at = random.roll(reach);
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.below(256) as u8,
        2 => {
            let end = (at + 8).min(bytes.len());
            let word = random.below(u64::MAX).to_le_bytes();
            bytes[at..end].copy_from_slice(&word[..end - at]);
        }
        3 => {
            let end = (at + random.roll(4096)).min(bytes.len());
            bytes[at..end].fill(0);
        }
        4 => {
            // A misplaced page, or block of the log.
            let (from, to) = (random.roll(reach) / 4096 * 4096, at / 4096 * 4096);
            let length = 4096.min(bytes.len() - from.max(to));
            bytes.copy_within(from..from + length, to);
        }
        _ => bytes.truncate(at),
    }
}

/// Returns how many stores were refused, damaged, and whole.
fn rounds(count: u64, seed: u64) -> [u64; 3] {
    let files = sound();
    assert!(files.len() >= 3, "data, log and control");
    assert_eq!(exercise(&files), Used::Whole);
    let mut random = Random(seed);
    let mut seen = [0; 3];
    for _ in 0..count {
        let mut changed = files.clone();
        for _ in 0..=random.below(3) {
            let place = random.roll(changed.len());
            change(&mut changed[place], &mut random);
        }
        if random.below(12) == 0 {
            changed.remove(random.roll(changed.len()));
        }
        seen[exercise(&changed) as usize] += 1;
    }
    seen
}

/// Runs `count` rounds with each of these seeds, four seeds at a time.
fn many(count: u64, seeds: Range<u64>) {
    let mut seen = [0; 3];
    for four in seeds.collect::<Vec<_>>().chunks(4) {
        for part in side_by_side(four, |seed| rounds(count, *seed)) {
            seen.iter_mut().zip(part).for_each(|(all, more)| *all += more);
        }
    }
    println!("refused, damaged, whole: {seen:?}");
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}

#[test]
fn any_bytes_are_a_store_or_errors() {
    many(38, 0x5703..0x5707);
}

#[test]
#[ignore = "long"]
fn any_bytes_are_a_store_or_errors_long() {
    many(1_000, 0x1_0001..0x1_0029);
}
