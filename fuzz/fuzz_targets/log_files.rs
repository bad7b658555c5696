//! Arbitrary bytes as the files of a log: its control blocks, and a segment of records.
//!
//! An input is a list of changes to sound files, 4 bytes each: which file and where, and what. One
//! that begins with 0xff is the whole segment behind its header, one with 0xfe the control file.

#![no_main]

use latchwork_check::log_bytes::{exercise, sound};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut files = sound();
    match input {
        [0xff, records @ ..] => {
            let length = records.len().min(files[1].len() - 4096);
            files[1][4096..4096 + length].copy_from_slice(&records[..length]);
        }
        [0xfe, control @ ..] => files[0] = control.to_vec(),
        changes => {
            for change in changes.chunks_exact(4) {
                let file = &mut files[usize::from(change[0] & 1)];
                let at = usize::from(change[1]) << 8 | usize::from(change[2]);
                let at = at % file.len();
                file[at] = change[3];
            }
        }
    }
    exercise(&files);
});
