//! Arbitrary bytes in the files of a store: its pages, its log, the log's control blocks.
//!
//! An input is a list of changes to sound files, 5 bytes each: which file, where, and what.

#![no_main]

use latchwork_check::store_bytes::{exercise, sound};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut files = sound();
    for change in input.chunks_exact(5) {
        let place = usize::from(change[0]) % files.len();
        let bytes = &mut files[place].1;
        let at = usize::from(change[1]) << 16 | usize::from(change[2]) << 8 | usize::from(change[3]);
        if let Some(at) = at.checked_rem(bytes.len()) {
            bytes[at] = change[4];
        }
    }
    exercise(&files);
});
