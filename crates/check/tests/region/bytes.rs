//! Arbitrary bytes as a region: no call panics, hangs or accesses other memory.

use std::fs;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::cell;
use latchwork_check::random::Random;
use latchwork_machine::{Native, Shared};
use latchwork_region::{Error, Fate, Offset, Options, Region};

type Words = [AtomicU64; 7];
type Wide = [AtomicU64; 500];

const BLOCK: usize = 1 << 16;

fn options() -> Options {
    Options { processes: 3, threads: 4, waiters: 1, limit: 4 << 20, mode: 0o600 }
}

/// A used region in which a thread died, truncated to the used blocks.
fn image() -> Vec<u8> {
    let region = Region::<Native>::heap(&options()).unwrap();
    let killed = region.another().unwrap();
    let (thread, dead) = (region.thread().unwrap(), killed.thread().unwrap());
    let cells: Vec<_> = (0..300).map(|_| thread.alloc::<Words>().unwrap().publish()).collect();
    let wides: Vec<_> = (0..20).map(|_| dead.alloc::<Wide>().unwrap().publish()).collect();
    cells.into_iter().skip(50).for_each(|cell| cell::free(&thread, cell).unwrap());
    wides.into_iter().skip(5).for_each(|cell| cell::free(&dead, cell).unwrap());
    std::mem::forget(dead.alloc::<Words>().unwrap());
    killed.die();
    let mut image = cell::image(&region);
    image.truncate(BLOCK * 6);
    image[1024..1032].copy_from_slice(&(BLOCK as u64 * 6).to_ne_bytes());
    // No process slot is locked: the processes have ended.
    for slot in 0..3 {
        let held = (12_288 + Shared::overhead(1)).next_multiple_of(4096) + slot * 128 + 24;
        image[held..held + 4].fill(0);
    }
    image
}

/// Every operation of a region, by a caller that trusts no result.
fn use_it(image: &[u8]) -> Result<(), Error> {
    let region = Region::<Native>::from_image(image)?;
    let _ = region.audit();
    let _ = (region.processes().len(), region.threads().count(), format!("{region:?}"));
    if let Ok(thread) = region.thread() {
        for _ in 0..100 {
            let Ok(cell) = thread.alloc::<Words>() else { break };
            cell[6].store(1, Relaxed);
            cell.publish();
        }
        for _ in 0..5 {
            let Ok(cell) = thread.alloc::<Wide>() else { break };
            cell[499].store(1, Relaxed);
        }
        for raw in 0..200 {
            let _ = cell::free(&thread, Offset::<Words>::from_raw(raw * 37));
        }
        for dead in region.dead_threads()? {
            let _ =
                dead.finish(|cell| if cell.generation % 2 == 0 { Fate::Keep } else { Fate::Free });
        }
        let _ = thread.alloc::<Words>().map(drop);
    }
    for raw in [1, 1023, 1024, 5000, u32::MAX] {
        if let Ok(words) = cell::value(&region, Offset::<Words>::from_raw(raw)) {
            words[0].store(1, Relaxed);
        }
    }
    region.audit().map(drop)
}

#[test]
fn flipped_bits_are_survived() {
    let whole = image();
    assert_eq!(use_it(&whole), Ok(()), "the image is good to begin with");
    let swept = Region::<Native>::from_image(&whole).unwrap();
    assert_eq!(swept.sweep(), Ok(2), "its two threads are dead");
    assert!(swept.audit().unwrap().is_sound());
    let mut dice = Random(0x2545_f491_4f6c_dd1d);
    let (mut refused, mut opened, mut unsound) = (0, 0, 0);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=dice.roll(8) {
            let at = match dice.roll(5) {
                0 => dice.roll(80),
                1 => 1024 + dice.roll(200),
                2 => 4096 + dice.roll(12 << 10),
                // A link, or the header of a block.
                3 => BLOCK + dice.roll(5 * 4096) * 16 + dice.roll(16),
                _ => dice.roll(bytes.len()),
            };
            match dice.roll(4) {
                0 => bytes[at] = 0xff,
                1 => bytes[at] = dice.roll(256) as u8,
                2 => bytes[at] = bytes[at].wrapping_add(1),
                _ => bytes[at] ^= 1 << dice.roll(8),
            }
        }
        match use_it(&bytes) {
            Ok(()) => opened += 1,
            Err(_) => refused += 1,
        }
        let sound = Region::<Native>::from_image(&bytes).and_then(|region| region.audit());
        unsound += u64::from(sound.is_ok_and(|audit| !audit.is_sound()));
    }
    println!("{opened} opened, {unsound} of them unsound; {refused} refused");
    assert!(opened > 2_000 && refused > 2_000 && unsound > 300, "the dice are loaded");
}

#[test]
fn arbitrary_bytes_are_refused() {
    let whole = image();
    let mut dice = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..10_000 {
        let mut bytes = vec![0; dice.roll(20_000)];
        bytes.iter_mut().for_each(|byte| *byte = dice.roll(256) as u8);
        // Half of them begin with valid bytes.
        let kept = dice.roll(80).min(bytes.len()) * dice.roll(2);
        bytes[..kept].copy_from_slice(&whole[..kept]);
        assert!(use_it(&bytes).is_err());
    }
    for length in (0..whole.len()).step_by(997).chain(0..100) {
        let error = use_it(&whole[..length]).unwrap_err();
        assert!(
            matches!(error, Error::Truncated { found, .. } if found == length as u64),
            "{error}"
        );
    }
}

#[test]
fn damaged_files_are_opened_or_refused() {
    let path = std::env::temp_dir().join(format!("latchwork-bytes-{}", std::process::id()));
    let options = options();
    drop(Region::create(&path, &options).unwrap());
    let whole = fs::read(&path).unwrap();
    let mut dice = Random(0xda94_2042_e4dd_58b5);
    let mut refused = 0;
    for _ in 0..1_000 {
        let mut bytes = whole.clone();
        for _ in 0..=dice.roll(4) {
            // With the waiter slots, which precede the processes.
            let at = [dice.roll(80), 1024 + dice.roll(16), 12_288 + dice.roll(64)][dice.roll(3)];
            bytes[at] ^= 1 << dice.roll(8);
        }
        fs::write(&path, &bytes).unwrap();
        match Region::open(&path, &options) {
            Ok(region) => {
                let _ = region.thread().and_then(|thread| thread.alloc::<Words>().map(drop));
            }
            Err(_) => refused += 1,
        }
    }
    fs::remove_file(&path).unwrap();
    assert!((300..1_000).contains(&refused), "{refused} refused");
}
