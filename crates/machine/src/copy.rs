//! Copies words that other threads may change at the same time.

use core::arch::asm;
use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use core::sync::atomic::AtomicU64;

/// The methods of [`ConstMachine`](crate::ConstMachine) that this processor does faster than a loop
/// over words.
macro_rules! copies_of_this_processor {
    () => {
        #[inline]
        fn copy_words(from: &[AtomicU64], into: &mut [[u8; 8]]) {
            crate::copy::copy_words(from, into);
        }
        #[inline]
        fn append_words(from: &[AtomicU64], to: &mut Vec<u8>) {
            crate::copy::append_words(from, to);
        }
        #[inline]
        fn store_words(from: &[[u8; 8]], to: &[AtomicU64]) {
            crate::copy::store_words(from, to);
        }
        #[inline(always)]
        fn prefetch(word: &AtomicU64) {
            crate::copy::prefetch(word);
        }
    };
}

pub(crate) use copies_of_this_processor;

/// [`ConstMachine::copy_words`](crate::ConstMachine::copy_words) with `memcpy`.
#[inline]
pub(crate) fn copy_words(from: &[AtomicU64], into: &mut [[u8; 8]]) {
    let count = from.len().min(into.len());
    // SAFETY: both slices have at least `count` elements, and the caller has `into` for itself.
    unsafe { copy(from.as_ptr().cast(), into.as_mut_ptr().cast(), 8 * count) };
}

/// [`ConstMachine::append_words`](crate::ConstMachine::append_words) with `memcpy`, into spare
/// capacity that need not be zeroed first.
#[inline]
pub(crate) fn append_words(from: &[AtomicU64], to: &mut Vec<u8>) {
    let (begun, count) = (to.len(), size_of_val(from));
    to.reserve(count);
    // SAFETY: the words have `count` bytes, and that much capacity was just reserved after those of
    // `to`.
    unsafe { copy(from.as_ptr().cast(), to.spare_capacity_mut().as_mut_ptr().cast(), count) };
    // SAFETY: the capacity exists, and `copy` wrote all of it.
    unsafe { to.set_len(begun + count) };
}

/// [`ConstMachine::prefetch`](crate::ConstMachine::prefetch) with the processor's instruction.
#[inline(always)]
pub(crate) fn prefetch(word: &AtomicU64) {
    // SAFETY: the address is that of a word, and a prefetch changes nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(word).cast()) };
}

/// [`ConstMachine::store_words`](crate::ConstMachine::store_words) with `memcpy`.
#[inline]
pub(crate) fn store_words(from: &[[u8; 8]], to: &[AtomicU64]) {
    let count = from.len().min(to.len());
    // SAFETY: both slices have at least `count` elements, and atomic words may be stored to through
    // a shared reference.
    unsafe { copy(from.as_ptr().cast(), to.as_ptr().cast_mut().cast(), 8 * count) };
}

/// Copies `count` bytes.
///
/// The compiler does not widen accesses in a loop over atomic words, so such a loop copies one word
/// at a time. The system's `memcpy` uses the widest accesses that the processor has: a scan of 10
/// records is 1.2 times as fast with it as with two words at a time (`latchwork bench store --only
/// range-10`).
///
/// # Safety
///
/// `from` has `count` readable bytes and `into` as many writable ones, and they do not overlap.
/// Other threads access either only as atomic words.
#[inline]
unsafe fn copy(from: *const u8, into: *mut u8, count: usize) {
    // SAFETY: `memcpy` follows the calling convention of C, all of whose scratch registers are
    // named; the caller promises that it may read and write there without overlap. An access by
    // another thread at the same time is a race of machine code, which the processor defines, and
    // not of Rust's memory model, to which `asm!` is opaque. On this architecture loads stay in
    // program order, and so do stores, except those of one string instruction among each other and
    // non-temporal ones, which `memcpy` ends with a fence. So the compiler fence that orders the
    // caller's other accesses also orders these.
    unsafe {
        asm!(
            "call {memcpy}",
            memcpy = sym libc::memcpy,
            inout("rdi") into => _,
            inout("rsi") from => _,
            inout("rdx") count => _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn so_many_words_are_stored_and_no_more() {
        let from: Vec<[u8; 8]> =
            (1..=200u64).map(|word| (word << 32 | word).to_le_bytes()).collect();
        for (count, places) in [(0, 9), (1, 9), (9, 9), (9, 4), (65, 70), (200, 200), (200, 0)] {
            let to: Vec<AtomicU64> = (0..201).map(|_| AtomicU64::new(u64::MAX)).collect();
            store_words(&from[..count], &to[..places]);
            for (index, word) in to.iter().enumerate() {
                let wanted = match index < count.min(places) {
                    true => u64::from_le_bytes(from[index]),
                    false => u64::MAX,
                };
                assert_eq!(word.load(Relaxed), wanted, "{index} of {count} in {places}");
            }
        }
    }

    #[test]
    fn so_many_words_are_copied_and_no_more() {
        let from: Vec<AtomicU64> =
            (1..=200).map(|word| AtomicU64::new(word << 32 | word)).collect();
        for count in [0, 1, 2, 3, 8, 9, 63, 64, 65, 199, 200] {
            let mut into = vec![[0xee; 8]; 201];
            copy_words(&from[..count], &mut into[..count]);
            let (copied, rest) = into.split_at(count);
            for (copy, word) in copied.iter().zip(1..) {
                assert_eq!(u64::from_le_bytes(*copy), word << 32 | word);
            }
            assert!(rest.iter().all(|rest| *rest == [0xee; 8]), "behind {count} words");
        }
        for count in [0, 1, 2, 3, 8, 9, 63, 64, 65, 199, 200] {
            // At an address that is no multiple of 8, with and without spare capacity.
            for (begun, room) in [(0, 0), (3, 0), (3, 2000), (16, 2000)] {
                let mut to = Vec::with_capacity(room);
                to.resize(begun, 0xee);
                append_words(&from[..count], &mut to);
                let (before, copied) = to.split_at(begun);
                assert!(before.iter().all(|byte| *byte == 0xee), "before {count} words");
                let words = from[..count].iter().map(|word| word.load(Relaxed).to_le_bytes());
                assert!(copied.iter().copied().eq(words.flatten()), "{count} words at {begun}");
            }
        }
        // Fewer places than words, and fewer words than places.
        let mut into = [[0xee; 8]; 3];
        copy_words(&from[..5], &mut into[..2]);
        copy_words(&from[7..8], &mut into[1..]);
        let word = |word: u64| (word << 32 | word).to_le_bytes();
        assert_eq!(into, [word(1), word(8), [0xee; 8]]);
    }
}
