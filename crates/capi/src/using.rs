//! Which store or lock manager each thread uses, so that `lw_close` knows whether a call is under
//! way.
//!
//! ```text
//! a call      word = handle; light barrier; is its kind still right? ..; word = 0
//! a close     kind = CLOSING; heavy barrier; does a thread's word have the handle? no: CLOSED
//! ```
//!
//! A word belongs to one thread, so a call writes no line that other threads write. A call that
//! finds its thread's word taken (it is in a callback of another call), or whose thread is ending,
//! is counted in the handle instead. The two barriers are those of `membarrier(2)`: either the call
//! sees the new kind, or the close sees the call.

use core::cell::Cell;
use core::ptr::null;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

/// The handle that a thread uses: 0, or its address.
#[repr(align(64))]
pub(crate) struct Word {
    handle: AtomicUsize,
    taken: AtomicBool,
    /// The next older word.
    next: *const Word,
}

// SAFETY: `next` does not change, and words last for ever.
unsafe impl Sync for Word {}

/// The newest word. A list without a mutex, because a child of a fork uses it as well.
static WORDS: AtomicPtr<Word> = AtomicPtr::new(core::ptr::null_mut());

/// The word of a thread that is ending: it is never free.
static NONE: Word =
    Word { handle: AtomicUsize::new(1), taken: AtomicBool::new(true), next: null() };

thread_local! {
    /// The word of this thread; null before its first call.
    static WORD: Cell<*const Word> = const { Cell::new(null()) };
    static ENDS: Ends = const { Ends };
}

/// Gives the word back when the thread ends.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        let word = WORD.replace(&raw const NONE);
        // SAFETY: null, or a word.
        if let Some(word) = unsafe { word.as_ref() } {
            // Release: with the AcqRel of `first`.
            word.taken.store(false, Release);
        }
    }
}

fn words() -> impl Iterator<Item = &'static Word> {
    // Acquire: with the AcqRel of `first`, so that the words are whole.
    // SAFETY: null, or a word, which lasts for ever.
    let last = unsafe { WORDS.load(Acquire).as_ref() };
    // SAFETY: as above.
    std::iter::successors(last, |word| unsafe { word.next.as_ref() })
}

/// Finds a word for this thread.
#[cold]
fn first() -> &'static Word {
    // A destructor of a thread's local variable may make a call after that of `ENDS` has run.
    if ENDS.try_with(|_| ()).is_err() {
        WORD.set(&raw const NONE);
        return &NONE;
    }
    // AcqRel: with the Release of `Ends`.
    let is_free = |word: &&Word| word.taken.compare_exchange(false, true, AcqRel, Relaxed).is_ok();
    let word = words().find(is_free).unwrap_or_else(|| {
        let (handle, taken) = (AtomicUsize::new(0), AtomicBool::new(true));
        let word = Box::leak(Box::new(Word { handle, taken, next: null() }));
        let word: *mut Word = word;
        // AcqRel: publishes it to the Acquire of `words`.
        let _ = WORDS.fetch_update(AcqRel, Acquire, |last| {
            // SAFETY: no other thread has seen it.
            unsafe { (*word).next = last };
            Some(word)
        });
        // SAFETY: it was leaked above.
        unsafe { &*word }
    });
    WORD.set(word);
    word
}

/// Says that this thread uses a handle from here on. None if it uses another one already.
#[inline]
pub(crate) fn begin(handle: usize) -> Option<&'static Word> {
    // SAFETY: null, or a word, which lasts for ever.
    let word = unsafe { WORD.get().as_ref() }.unwrap_or_else(first);
    // Relaxed: the thread's own.
    if word.handle.load(Relaxed) != 0 {
        return None;
    }
    // Relaxed: the caller has a light barrier behind it.
    word.handle.store(handle, Relaxed);
    Some(word)
}

impl Word {
    /// Says that the use has ended.
    #[inline]
    pub(crate) fn end(&self) {
        // Release: with the Acquire of `is_used`.
        self.handle.store(0, Release);
    }
}

/// Whether a thread uses a handle.
pub(crate) fn is_used(handle: usize) -> bool {
    // Acquire: with the Release of `end`, so that what the call did comes before the close.
    words().any(|word| word.handle.load(Acquire) == handle)
}
