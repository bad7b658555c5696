//! Arbitrary bytes as a file of pages.
//!
//! An input is a list of changes to a sound file, 3 bytes each: a place and a value. An input that
//! begins with 0xff is the whole file.

#![no_main]

use std::sync::LazyLock;

use latchwork_check::pool_bytes::{exercise, sound};
use libfuzzer_sys::fuzz_target;

static SOUND: LazyLock<Vec<u8>> = LazyLock::new(|| sound(24));

fuzz_target!(|input: &[u8]| {
    if let [0xff, whole @ ..] = input {
        exercise(whole);
        return;
    }
    let mut bytes = SOUND.clone();
    for change in input.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] = change[2];
    }
    exercise(&bytes);
});
