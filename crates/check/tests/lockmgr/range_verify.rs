//! `View::verify` checks ranges and reports damage to them.

use latchwork_check::random::Random;
use latchwork_check::{cell, left};
use latchwork_lockmgr::{KeyRange, Manager, Modes, Owner, RangeKind, Step, View, Wait, granular};
use latchwork_machine::Native;
use latchwork_region::Region;

use RangeKind::{Gap, Insert, ReadNext, WriteNext};

const CLAIMS: usize = 40;
/// Offset of a claim's keys from its first field, in bytes.
const KEYS_AT: usize = 56;
const FIELDS: [&str; 12] = [
    "next", "prev", "left", "right", "top", "within", "space", "owner", "what", "count", "lengths",
    "tier",
];

fn key(number: usize) -> [u8; 8] {
    let mut key = *b"key.0000";
    key[4..].copy_from_slice(format!("{number:04}").as_bytes());
    key
}

/// Ranges of two owners and a child, one request waiting; and a second keyspace.
fn image(modes: &Modes) -> Vec<u8> {
    let options = latchwork_region::Options {
        processes: 2,
        threads: 4,
        waiters: 1,
        limit: 6 << 20,
        ..Default::default()
    };
    let region = Region::<Native>::heap(&options).unwrap();
    let manager = Manager::new(region, modes.clone(), latchwork_check::early::early()).unwrap();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    let child = a.child().unwrap();
    let take = |owner: &Owner<'_>, from: usize, to: usize, kind| {
        let (from, to) = (key(from), key(to));
        owner.lock_range(b"keys", KeyRange::half_open(&from, &to), kind, Wait::Never).unwrap();
    };
    for at in 0..CLAIMS - 2 {
        let kind = [Gap, ReadNext][at % 2];
        // Some ranges are long, so that ends in the tree differ from those of the claims.
        take(if at % 3 == 0 { &b } else { &a }, at * 2, at * 2 + 1 + at % 5 * 3, kind);
    }
    take(&child, 500, 510, WriteNext);
    b.lock_range(b"others", KeyRange::all(), WriteNext, Wait::Never).unwrap();
    let (from, to) = (key(505), key(506));
    let range = KeyRange::half_open(&from, &to);
    let request = b.request_range(b"keys", range, Insert, Wait::Detect).unwrap();
    assert_eq!(request.step(), Step::Waiting);
    let image = cell::image(manager.region());
    drop((request, child));
    drop((a, b));
    left::nothing_in(&session);
    image
}

/// The flaws found in an image. Returns None if the region is refused.
fn flaws(image: &[u8], modes: &Modes) -> Option<Vec<String>> {
    let view = View::new(Region::<Native>::from_image(image).ok()?).ok()??;
    let said = view.verify(Some(modes)).ok()?;
    // The same without the modes.
    view.verify(None).ok()?;
    Some(said.flaws)
}

/// The offsets of claims, found by their first key.
fn claims(image: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    for at in (64..image.len() - 8).step_by(8) {
        let mut word: [u8; 8] = image[at..at + 8].try_into().unwrap();
        // A key's first byte is the highest byte of its word.
        word.reverse();
        let length = u32::from_ne_bytes(image[(at - 16) & !3..][..4].try_into().unwrap());
        if word.starts_with(b"key.") && length == 8 << 16 | 8 {
            found.push(at - KEYS_AT);
        }
    }
    found
}

fn field(image: &[u8], claim: usize, field: usize) -> u32 {
    u32::from_ne_bytes(image[claim + field * 4..][..4].try_into().unwrap())
}

#[test]
fn a_sound_image_has_no_flaws() {
    let modes = granular::modes();
    let image = image(&modes);
    let view = View::new(Region::<Native>::from_image(&image).unwrap()).unwrap().unwrap();
    let said = view.verify(Some(&modes)).unwrap();
    assert!(said.flaws.is_empty(), "{:?}", said.flaws);
    assert_eq!(said.ranges, CLAIMS as u64 + 1);
    assert_eq!(claims(&image).len(), CLAIMS);
}

#[test]
fn each_wrong_field_is_detected() {
    let modes = granular::modes();
    let whole = image(&modes);
    let claims = claims(&whole);
    // Each field in turn gets the value of another claim.
    let mut missed = Vec::new();
    let mut tried = 0;
    for (which, name) in FIELDS.iter().enumerate() {
        for (n, at) in claims.iter().enumerate().skip(which).step_by(12) {
            let now = field(&whole, *at, which);
            let other = field(&whole, claims[(n + 7) % claims.len()], which);
            for value in [0, other, now ^ 1, now.wrapping_add(64), u32::MAX] {
                if value == now {
                    continue;
                }
                let mut bytes = whole.clone();
                bytes[at + which * 4..][..4].copy_from_slice(&value.to_ne_bytes());
                tried += 1;
                if flaws(&bytes, &modes).is_some_and(|flaws| flaws.is_empty()) {
                    missed.push((*name, n, now, value));
                }
            }
        }
    }
    // Undetectable: the count of a range, a top claim with an equal end, keys of other lengths, and
    // a waiting request marked as held.
    let told = |name: &str| !matches!(name, "count" | "top" | "lengths" | "what");
    let wrong: Vec<_> = missed.iter().filter(|(name, ..)| told(name)).collect();
    println!("{} of {tried} changes were found", tried - missed.len());
    assert!(wrong.is_empty(), "missed: {wrong:?}");
    for name in ["top", "lengths", "what"] {
        let count = missed.iter().filter(|(other, ..)| *other == name).count();
        assert!(count < claims.len() / 12 * 3, "{name}: missed {count}");
    }
}

#[test]
fn damage_is_missed_without_reading_ranges() {
    // The control: without the root of keyspaces, `verify` reads no claims and the same damage is
    // not reported.
    let modes = granular::modes();
    let whole = image(&modes);
    let at = claims(&whole)[5];
    let mut bytes = whole.clone();
    bytes[at + 8..at + 12].fill(0xff);
    assert!(!flaws(&bytes, &modes).unwrap().is_empty());
    let region = Region::<Native>::from_image(&bytes).unwrap();
    let before: Vec<u64> = (0..latchwork_region::ROOTS).map(|n| root(&region, n)).collect();
    let blind = (0..before.len()).filter(|n| before[*n] != 0).any(|n| {
        let word = region.root(n).unwrap();
        word.store(0, core::sync::atomic::Ordering::Relaxed);
        let said = View::new(region.clone()).ok().flatten().and_then(|v| v.verify(None).ok());
        word.store(before[n], core::sync::atomic::Ordering::Relaxed);
        said.is_some_and(|said| said.flaws.is_empty() && said.ranges == 0)
    });
    assert!(blind, "the flaw was found without reading claims");
}

fn root(region: &Region, number: usize) -> u64 {
    region.root(number).unwrap().load(core::sync::atomic::Ordering::Relaxed)
}

#[test]
fn damage_is_survived() {
    let modes = granular::modes();
    let whole = image(&modes);
    let claims = claims(&whole);
    let mut dice = Random(0x9e37_79b9_7f4a_7c15);
    let mut roll = |below| dice.roll(below);
    let (mut found, rounds) = (0, 250);
    for _ in 0..rounds {
        let mut bytes = whole.clone();
        for _ in 0..=roll(4) {
            let at = claims[roll(claims.len())] + roll(18) * 4;
            match roll(4) {
                // A word of another claim: cycles, and trees that share branches.
                0 | 1 => {
                    let from = claims[roll(claims.len())] + roll(6) * 4;
                    bytes.copy_within(from..from + 4, at);
                }
                2 => bytes[at + roll(4)] ^= 1 << roll(8),
                _ => bytes[at..at + 4].copy_from_slice(&(roll(1 << 17) as u32).to_ne_bytes()),
            }
        }
        found += usize::from(flaws(&bytes, &modes).is_none_or(|flaws| !flaws.is_empty()));
    }
    println!("damage was found in {found} of {rounds} images");
    assert!(found > rounds / 2);
}
