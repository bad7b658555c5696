//! Any words as a page: every question ends, nothing panics, and what is damaged is found.

use latchwork_check::random::Random;
use latchwork_check::tree_bytes::{exercise, sound};
use latchwork_tree::{Change, Error, Header, Kind, Node, Role, rebuild};

#[test]
fn any_words_are_read_without_a_panic() {
    let mut random = Random(14);
    for words in [0, 1, 7, 8, 9, 63, 64, 512] {
        for _ in 0..200 {
            let mut page: Vec<u64> = (0..words).map(|_| random.below(u64::MAX)).collect();
            exercise(&page);
            // With a beginning that says that it is a page.
            for (index, word) in page.iter_mut().enumerate().take(8) {
                *word = match index {
                    2 => (*word & 0x0007_00ff_0000_0000) | (1 + (*word & 1) * 0x101),
                    3 => (random.below(u64::MAX) % (words as u64 + 9)) << 48 | 5,
                    4 | 5 => *word & 0x003f_003f_003f_003f,
                    _ => *word,
                };
            }
            exercise(&page);
        }
    }
}

/// A sound page with some words or bits of others: torn reads look like that.
#[test]
fn damaged_pages_are_read_without_a_panic() {
    let mut random = Random(15);
    for page in [sound(64, Kind::Leaf), sound(512, Kind::Leaf), sound(512, Kind::Inner)] {
        let other = sound(page.len(), Kind::Leaf);
        for _ in 0..1_500 {
            let mut damaged = page.clone();
            for _ in 0..=random.below(u64::MAX) % 4 {
                let at = (random.below(u64::MAX) % page.len() as u64) as usize;
                let at = if random.below(2) == 0 { at % 16 } else { at };
                damaged[at] = match random.below(u64::MAX) % 3 {
                    0 => damaged[at] ^ 1 << (random.below(u64::MAX) % 64),
                    1 => other[at],
                    _ => random.below(u64::MAX),
                };
            }
            exercise(&damaged);
        }
    }
}

/// Each kind of damage that `verify` is for is found: the control of all that call it.
#[test]
fn verify_finds_what_is_wrong() {
    type Damage = (&'static str, fn(&mut Vec<u64>));
    let damages: [Damage; 7] = [
        ("a slot's head is not its key's", |page| page[9] ^= 1 << 40),
        ("the keys are not in order", |page| page.swap(8, 9)),
        ("records overlap", |page| page[8] = page[8] & !0xffff | page[9] & 0xffff),
        ("the heap's words do not add up", |page| page[5] += 1),
        ("the heap begins among the slots", |page| page[3] &= (1 << 48) - 1),
        ("a leaf is of level 0, and only a leaf is", |page| page[2] |= 1 << 8),
        ("the prefix is not what the fences have in common", |page| page[2] += 1 << 48),
    ];
    for (wanted, damage) in damages {
        let mut page = sound(512, Kind::Leaf);
        damage(&mut page);
        let found = Node::of(&page).unwrap().verify();
        assert!(matches!(found, Err(Error::Malformed(_))), "{wanted}: {found:?}");
        if !wanted.starts_with("records") && !wanted.starts_with("the prefix") {
            assert_eq!(found, Err(Error::Malformed(wanted)));
        }
    }
}

/// Any bytes as a change of the log.
#[test]
fn any_payload_is_read_without_a_panic() {
    let mut random = Random(16);
    let page = sound(512, Kind::Leaf);
    let mut decoded = 0;
    for round in 0..20_000u64 {
        let mut payload: Vec<u8> = (0..round % 90).map(|_| random.below(u64::MAX) as u8).collect();
        if let Some(code) = payload.first_mut() {
            *code = (*code % 18) | (*code & 0x80);
        }
        // In two of three cases, small numbers in place of lengths.
        payload.iter_mut().skip(1).filter(|_| random.below(3) != 0).for_each(|byte| *byte &= 1);
        let Some(change) = Change::decode(&payload) else { continue };
        decoded += 1;
        for role in [Role::Own, Role::Left, Role::Right] {
            let _ = change.apply(role, &mut page.clone(), Header::NONE);
        }
        let mut again = Vec::new();
        change.encode(&mut again);
        assert_eq!(Change::decode(&again), Some(change));
        let link = latchwork_tree::Link { lsn: 16, slot: 0, page: 3, page_prev: 0, payload };
        let _ = rebuild(3, Some(&page), &[link], &mut vec![0; 512]);
    }
    assert!(decoded > 100, "{decoded} payloads were changes");
}
