//! Arbitrary bytes as a region with a lock manager.
//!
//! An input is a list of changes to a region that was used: place, bytes. So what is tried is what
//! comes after the header's checksum. An input that begins with 0xff is taken as the whole region.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/check/tests/bytes/mod.rs"]
mod bytes;

static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(bytes::image);

fuzz_target!(|input: &[u8]| {
    if let Some(rest) = input.strip_prefix(&[0xff]) {
        let _ = bytes::use_it(rest);
        return;
    }
    let mut image = WHOLE.clone();
    for change in input.chunks_exact(8) {
        let (place, new) = change.split_at(4);
        let place = place.iter().fold(0, |place, byte| place << 8 | usize::from(*byte));
        let at = place * 4 % (image.len() - 4);
        image[at..at + 4].copy_from_slice(new);
    }
    let _ = bytes::use_it(&image);
});
