//! Copying words that other threads may change meanwhile.

use core::arch::asm;
use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use core::sync::atomic::AtomicU64;

/// What the machines of this processor have in [`ConstMachine`](crate::ConstMachine) instead of
/// loops over words.
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

/// As [`ConstMachine::copy_words`](crate::ConstMachine::copy_words), on this processor.
#[inline]
pub(crate) fn copy_words(from: &[AtomicU64], into: &mut [[u8; 8]]) {
    let count = from.len().min(into.len());
    // SAFETY: there are so many words, and so many places, which the caller has for itself.
    unsafe { copy(from.as_ptr().cast(), into.as_mut_ptr().cast(), 8 * count) };
}

/// As [`ConstMachine::append_words`](crate::ConstMachine::append_words), on this processor: into
/// the room behind the bytes, which need not be made zero first.
#[inline]
pub(crate) fn append_words(from: &[AtomicU64], to: &mut Vec<u8>) {
    let (begun, count) = (to.len(), size_of_val(from));
    to.reserve(count);
    // SAFETY: the words are so many bytes, for which room was just made behind those of `to`.
    unsafe { copy(from.as_ptr().cast(), to.spare_capacity_mut().as_mut_ptr().cast(), count) };
    // SAFETY: there is room for them, and `copy` wrote all of them.
    unsafe { to.set_len(begun + count) };
}

/// As [`ConstMachine::prefetch`](crate::ConstMachine::prefetch), on this processor.
#[inline(always)]
pub(crate) fn prefetch(word: &AtomicU64) {
    // SAFETY: the address is that of a word, and a hint changes nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(word).cast()) };
}

/// As [`ConstMachine::store_words`](crate::ConstMachine::store_words), on this processor.
#[inline]
pub(crate) fn store_words(from: &[[u8; 8]], to: &[AtomicU64]) {
    let count = from.len().min(to.len());
    // SAFETY: there are so many words of both, and words that are atomic may be stored to through a
    // shared reference.
    unsafe { copy(from.as_ptr().cast(), to.as_ptr().cast_mut().cast(), 8 * count) };
}

/// Copies so many bytes.
///
/// A loop over atomic words copies one at a time, for the compiler makes no wider accesses of them.
/// The system's `memcpy` has the widest that the processor has: a scan of 10 records is 1.2 times
/// as quick with it as with two words at a time (`latchwork bench store --only range-10`).
///
/// # Safety
///
/// There are so many bytes at `from`, and room for as many at `into`, elsewhere. What other threads
/// know of, of either, are atomic words, which they access as such.
#[inline]
unsafe fn copy(from: *const u8, into: *mut u8, count: usize) {
    // SAFETY: `memcpy` keeps to the calling convention of C, all of whose scratch registers are
    // named; the caller says that it may read and write there, and that the two do not overlap.
    // Where other threads access the words at the same time, that is a race of machine code, where
    // the processor says what is read, and not of Rust's memory model, to which `asm!` is opaque.
    // Loads stay in the order of the program on this architecture, and so do stores, but for those
    // of one string instruction among each other, and those past the caches, behind which `memcpy`
    // has a fence: so the fence for the compiler that orders the caller's other accesses orders
    // these.
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
            // At a place that is no multiple of 8, in room that is there or has to be made.
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
