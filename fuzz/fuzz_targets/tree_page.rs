//! Arbitrary bytes as a page of a tree, and as a logged change of a page.
//!
//! An input is a list of changes to a sound page, 10 bytes each: a place and a value. An input that
//! begins with 0xff is the whole page; with 0xfe, a payload.

#![no_main]

use latchwork_check::tree_bytes::{exercise, sound};
use latchwork_tree::{Change, Header, Kind, Role};
use libfuzzer_sys::fuzz_target;

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fuzz_target!(|input: &[u8]| {
    let mut page = sound(512, Kind::Leaf);
    match input {
        [0xff, page @ ..] => exercise(&page.chunks(8).map(number).collect::<Vec<_>>()),
        [0xfe, payload @ ..] => {
            let Some(change) = Change::decode(payload) else { return };
            for role in [Role::Own, Role::Left, Role::Right] {
                let _ = change.apply(role, &mut page.clone(), Header::NONE);
            }
        }
        changes => {
            for change in changes.chunks_exact(10) {
                let at = number(&change[..2]) as usize % page.len();
                page[at] = number(&change[2..]);
            }
            exercise(&page);
        }
    }
});
