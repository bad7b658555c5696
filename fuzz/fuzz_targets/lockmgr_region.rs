//! Arbitrary bytes as a region with a lock manager.
//!
//! An input is a list of changes to a region that was used, 8 bytes each: how, where, what. So what
//! is tried is what comes after the header's checksum. An input that begins with 0xff is the whole
//! region.

#![no_main]

use std::sync::LazyLock;

use latchwork_check::bytes;
use libfuzzer_sys::fuzz_target;

static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(bytes::image);
/// The words that are not zero: where there is something to damage.
static PLACES: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let words = WHOLE.chunks_exact(4).enumerate();
    words.filter(|(_, word)| *word != [0; 4]).map(|(at, _)| at * 4).collect()
});

fuzz_target!(|input: &[u8]| {
    if let Some(rest) = input.strip_prefix(&[0xff]) {
        let _ = bytes::use_it(rest);
        return;
    }
    let mut image = WHOLE.clone();
    for change in input.chunks_exact(8) {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | usize::from(*byte));
        let (how, at, new) = (change[0] % 4, number(&change[1..4]), &change[4..]);
        let at = if how == 0 { at * 4 % (image.len() - 4) } else { PLACES[at % PLACES.len()] };
        if how < 2 {
            image[at..at + 4].copy_from_slice(new);
        } else {
            // A link that leads elsewhere.
            let from = PLACES[number(new) % PLACES.len()];
            image.copy_within(from..from + 4, at);
        }
    }
    let _ = bytes::use_it(&image);
});
