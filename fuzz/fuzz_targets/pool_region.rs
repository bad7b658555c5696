//! Arbitrary words in the areas of a pool.
//!
//! An input is a list of changes to a pool that was used, 11 bytes each: where, how, what.

#![no_main]

use latchwork_check::pool_region::{Change, exercise};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let change = |bytes: &[u8]| {
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let what = number(&bytes[3..]);
        let change = match bytes[2] % 4 {
            0 => Change::To(what),
            1 => Change::To(what % 64),
            2 => Change::Flip(1 << (what % 64)),
            _ => Change::Like(what as usize),
        };
        (number(&bytes[..2]) as usize, change)
    };
    let changes: Vec<_> = input.chunks_exact(11).map(change).collect();
    exercise(&changes);
});
