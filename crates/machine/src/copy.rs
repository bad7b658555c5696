//! Copying words that other threads may change meanwhile.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// As [`ConstMachine::copy_words`](crate::ConstMachine::copy_words), on this processor.
///
/// A loop over atomic loads copies a word at a time, for the compiler makes no wider accesses of
/// them: 8 KiB take 300 ns so, and 145 ns with the processor's own copying (EPYC, in its cache).
#[inline]
pub(crate) fn copy_words(from: &[AtomicU64], into: &mut [[u8; 8]]) {
    /// From so many words on a string instruction is quicker, which takes time to begin.
    const MANY: usize = 64;
    let count = from.len().min(into.len());
    let (from, into) = (&from[..count], &mut into[..count]);
    if count >= MANY {
        // SAFETY: `count` words can be read from `from`, and as many written to `into`, which the
        // caller has for itself. Other threads may store to those of `from`: that is a race of
        // machine code, where the processor says what is read, and not of Rust's memory model, to
        // which `asm!` is opaque. Loads stay in the order of the program on this architecture, so
        // the fence for the compiler that orders the caller's other loads orders these.
        unsafe {
            asm!(
                "rep movsq",
                inout("rcx") count => _,
                inout("rsi") from.as_ptr() => _,
                inout("rdi") into.as_mut_ptr() => _,
                options(nostack, preserves_flags),
            );
        }
        return;
    }
    let ((from, last), (into, end)) = (from.as_chunks::<2>(), into.as_chunks_mut::<2>());
    for (pair, place) in from.iter().zip(into) {
        // SAFETY: as above, of two words.
        unsafe {
            asm!(
                "movdqu {both}, [{from}]",
                "movdqu [{into}], {both}",
                from = in(reg) pair.as_ptr(),
                into = in(reg) place.as_mut_ptr(),
                both = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
    if let ([word], [place]) = (last, end) {
        // Relaxed: the caller orders.
        *place = word.load(Relaxed).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Fewer places than words, and fewer words than places.
        let mut into = [[0xee; 8]; 3];
        copy_words(&from[..5], &mut into[..2]);
        copy_words(&from[7..8], &mut into[1..]);
        let word = |word: u64| (word << 32 | word).to_le_bytes();
        assert_eq!(into, [word(1), word(8), [0xee; 8]]);
    }
}
