//! Arbitrary bytes as a dump of a store.
//!
//! An input that begins with 0xff is the whole dump; any other is a list of changes to a sound one,
//! 3 bytes each: where, and what.

#![no_main]

use latchwork_check::dump_bytes::{exercise, sound};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut dump = sound();
    match input {
        [0xff, dump @ ..] => exercise(dump),
        changes => {
            for change in changes.chunks_exact(3) {
                let at = usize::from(change[0]) << 8 | usize::from(change[1]);
                let at = at % dump.len();
                dump[at] = change[2];
            }
            exercise(&dump);
        }
    }
});
