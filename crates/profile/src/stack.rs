//! The stack of a thread that is about to wait.
//!
//! Optimized code has no frame pointers. Finding a caller without them needs unwind tables, which
//! are large, are read under a lock of the loader, and need code that allocates. None of that is
//! acceptable on the path of a lock. So the piece of the stack above the call is copied as it is,
//! once per chain, and the reader unwinds it with the tables of the files. This costs the same for
//! every program. Alternatives were rejected: a walk of frame pointers stops in the first library
//! that was built without them (Debian's glibc is), and a search of the stack for words that look
//! like return addresses finds those of finished calls.
//!
//! The kernel makes the copy. A thread may run on a stack that the program allocated, whose end is
//! unknown, and reading behind it would fault; the kernel copies as far as memory exists. It costs
//! about a microsecond, before a wait.
//!
//! A thread that did not wait, but took a latch for which others wait, has no time for that,
//! because it holds the latch. Its chain is identified by its frame pointers, as far as they are on
//! the current page of its stack, which certainly exists. The copy is made when such a chain is
//! new. Optimized code has no frame pointers, but there the compiler inlines `lock_guard` and the
//! like into their callers.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::layout::{Chain, Class, STACK};
use crate::maps;

/// The caller of a latch function.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Caller {
    /// The return address.
    pub address: usize,
    /// The stack pointer at the function's entry; zero if unknown.
    pub sp: usize,
    /// The frame pointer at the function's entry, in code that has one.
    pub fp: usize,
}

/// A piece of this thread's stack.
pub(crate) struct Piece {
    words: [u64; STACK],
    length: usize,
}

impl Piece {
    pub(crate) const fn empty() -> Self {
        Self { words: [0; STACK], length: 0 }
    }

    /// Copies at most `length` words above the caller's stack pointer; false if the kernel refuses.
    /// In place, because its own stack may be small.
    pub(crate) fn copy(&mut self, caller: Caller, length: usize) -> bool {
        let bytes = length.min(STACK) * size_of::<u64>();
        let to = libc::iovec { iov_base: self.words.as_mut_ptr().cast(), iov_len: bytes };
        // The kernel copies whole parts of a list, so each page is a part.
        let from = pages(caller.sp, bytes);
        let count = from.iter().take_while(|part| part.iov_len > 0).count() as libc::c_ulong;
        let process = rustix::process::getpid().as_raw_nonzero().get();
        // SAFETY: the calling thread's own.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let before = unsafe { errno.read() };
        // SAFETY: the kernel writes at most `bytes` to the words, and checks what it reads.
        let copied = unsafe { libc::process_vm_readv(process, &to, 1, from.as_ptr(), count, 0) };
        // SAFETY: as above. A lock function preserves `errno`.
        unsafe { errno.write(before) };
        self.length = usize::try_from(copied).unwrap_or(0) / size_of::<u64>();
        self.length > 0
    }

    /// Returns the identity of this chain: a hash of the words of the piece that are addresses of
    /// code. Remains of earlier calls may give one chain two identities; the reader merges them.
    pub(crate) fn key(&self, caller: Caller, class: Class) -> u64 {
        let code = self.words[..self.length].iter().filter(|word| maps::is_code(**word as usize));
        code.fold(seed(caller, class), |hash, word| mix(hash, *word)).max(1)
    }

    pub(crate) fn store(&self, chain: &Chain, caller: Caller) {
        // Relaxed: a reader takes what it finds in the file. The length comes last in case the
        // process dies before it.
        chain.caller.store(caller.address as u64, Relaxed);
        chain.sp.store(caller.sp as u64, Relaxed);
        chain.fp.store(caller.fp as u64, Relaxed);
        for (to, from) in chain.stack.iter().zip(&self.words[..self.length]) {
            to.store(*from, Relaxed);
        }
        chain.length.store(self.length as u64, Relaxed);
    }
}

fn seed(caller: Caller, class: Class) -> u64 {
    mix(mix(0, caller.address as u64), class as u64)
}

/// Fibonacci hashing of successive words.
fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the identity of this chain by so many frame pointers; none without at least one.
///
/// It differs from that of a piece, and may again split one chain.
pub(crate) fn quick_key(caller: Caller, class: Class, frames: usize) -> Option<u64> {
    const PAGE: usize = 4096;
    // The thread's stack from the return address on, up to the end of the page.
    let (mut low, end) = (caller.sp, (caller.sp | (PAGE - 1)) + 1);
    let (mut fp, mut key, mut found) = (caller.fp, seed(caller, class), false);
    for _ in 0..frames {
        // A frame begins with the caller's frame pointer and the return address.
        if fp < low || !fp.is_multiple_of(align_of::<usize>()) || fp > end - 2 * size_of::<usize>()
        {
            break;
        }
        let word = |at: usize| {
            let word = core::ptr::with_exposed_provenance_mut(at);
            // SAFETY: aligned, and on the page of this thread's stack pointer, which is mapped as
            // long as the thread runs on it. Atomic, because the stack may be shared.
            unsafe { AtomicUsize::from_ptr(word) }.load(Relaxed)
        };
        let back = word(fp + size_of::<usize>());
        // Optimized code has other values in that register.
        if !maps::is_code(back) {
            break;
        }
        (key, found) = (mix(key, back as u64), true);
        (low, fp) = (fp + 2 * size_of::<usize>(), word(fp));
    }
    // Distinct from the identities of pieces.
    found.then_some(mix(key, 1).max(1))
}

/// The parts of `bytes` from `start` on, split at page boundaries.
fn pages(start: usize, bytes: usize) -> [libc::iovec; 2] {
    const PAGE: usize = 4096;
    let first = (PAGE - start % PAGE).min(bytes);
    let part = |at: usize, length| libc::iovec { iov_base: at as *mut _, iov_len: length };
    [part(start, first), part(start.wrapping_add(first), bytes - first)]
}

const _: () = assert!(STACK * size_of::<u64>() <= 4096);
