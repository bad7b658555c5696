//! Data under an [`OptLatch`], word by word.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{ConstMachine, Machine, Native, Word};

use super::{Exclusive, Holder, HolderDied, OptLatch};

/// A value that consists of `N` words of 8 bytes.
pub trait Words<const N: usize>: Copy {
    /// Converts the value to words.
    fn to_words(self) -> [u64; N];
    /// Converts words that `to_words` returned to the value.
    fn from_words(words: [u64; N]) -> Self;
}

impl<const N: usize> Words<N> for [u64; N] {
    #[inline(always)]
    fn to_words(self) -> [u64; N] {
        self
    }
    #[inline(always)]
    fn from_words(words: [u64; N]) -> Self {
        words
    }
}

impl Words<1> for u64 {
    #[inline(always)]
    fn to_words(self) -> [u64; 1] {
        [self]
    }
    #[inline(always)]
    fn from_words([word]: [u64; 1]) -> Self {
        word
    }
}

/// A value of `N` words with its latch. Readers copy it and store nothing.
///
/// ```
/// use latchwork_latch::{HolderNumber, LocalHolder, OptCell};
///
/// static PAIR: OptCell<[u64; 2], 2> = OptCell::ZERO;
/// let me = LocalHolder::new(HolderNumber::new(1).unwrap());
/// PAIR.update(&me, |[a, b]| [a + 1, b + 2])?;
/// assert_eq!(PAIR.read(&me)?, [1, 2]);
/// assert_eq!(PAIR.read_with(&me, |view| view.get(1))?, Some(2));
/// # Ok::<(), latchwork_latch::HolderDied>(())
/// ```
///
/// No borrowed data leave the closure, which may have seen torn data:
///
/// ```compile_fail
/// use latchwork_latch::{HolderNumber, LocalHolder, OptCell};
///
/// let cell = OptCell::<[u64; 2], 2>::new([1, 1]);
/// let me = LocalHolder::new(HolderNumber::new(1).unwrap());
/// let view = cell.read_with(&me, |view| view).unwrap();
/// ```
pub struct OptCell<T: Words<N>, const N: usize, M: Machine = Native> {
    latch: OptLatch<M>,
    words: [M::AtomicU64; N],
    value: PhantomData<fn() -> T>,
}

/// The words that a reader sees before validation; they may be of different states.
#[derive(Debug)]
pub struct View<'v, M: Machine = Native> {
    words: &'v [M::AtomicU64],
}

impl<M: Machine> View<'_, M> {
    /// Returns the word at `index`, if it exists.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<u64> {
        // Relaxed: `validate` orders the loads.
        self.words.get(index).map(|word| word.load(Relaxed))
    }
}

impl<T: Words<N>, const N: usize, M: ConstMachine> OptCell<T, N, M> {
    /// A cell whose words are zero.
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a cell of its own")]
    pub const ZERO: Self =
        Self { latch: OptLatch::FREE, words: [const { M::U64 }; N], value: PhantomData };
}

impl<T: Words<N>, const N: usize, M: Machine> OptCell<T, N, M> {
    /// Creates a cell with this value.
    pub fn new(value: T) -> Self {
        let words = core::array::from_fn(|_| M::AtomicU64::default());
        let cell = Self { latch: OptLatch::default(), words, value: PhantomData };
        cell.store(value);
        cell
    }

    /// Returns the latch, for inspection.
    pub fn latch(&self) -> &OptLatch<M> {
        &self.latch
    }

    /// Returns a copy of the value.
    ///
    /// # Errors
    ///
    /// [`HolderDied`], as for [`OptLatch::read`].
    ///
    /// # Panics
    ///
    /// Panics as [`OptLatch::read`] does.
    #[inline]
    pub fn read<H: Holder<M>>(&self, holder: &H) -> Result<T, HolderDied> {
        self.latch.read_with(holder, || self.load()).map(T::from_words)
    }

    /// Returns the result of `read` for one state of the words.
    ///
    /// `read` may see words of different states, and is then called again: see
    /// [`OptLatch::read_with`].
    ///
    /// # Errors
    ///
    /// [`HolderDied`], as for [`OptLatch::read`].
    ///
    /// # Panics
    ///
    /// Panics as [`OptLatch::read`] does.
    #[inline]
    pub fn read_with<H: Holder<M>, R>(
        &self,
        holder: &H,
        mut read: impl for<'v> FnMut(View<'v, M>) -> R,
    ) -> Result<R, HolderDied> {
        self.latch.read_with(holder, || read(View { words: &self.words }))
    }

    /// Replaces the value by the result of `change`.
    ///
    /// If `change` panics the value is unchanged.
    ///
    /// # Errors
    ///
    /// [`HolderDied`], as for [`OptLatch::read`].
    ///
    /// # Panics
    ///
    /// Panics as [`OptLatch::read`] does.
    pub fn update<H: Holder<M>>(
        &self,
        holder: &H,
        change: impl FnOnce(T) -> T,
    ) -> Result<(), HolderDied> {
        let held = self.latch.lock(holder)?;
        self.change(held, change);
        Ok(())
    }

    /// Repairs the value after [`HolderDied`]: replaces it by the result of `repair`, which gets
    /// the words that the dead writer left, some new and some old. Returns false if another thread
    /// was faster.
    pub fn repair<H: Holder<M>>(
        &self,
        died: HolderDied,
        holder: &H,
        repair: impl FnOnce([u64; N]) -> T,
    ) -> bool {
        let Some(held) = self.latch.take_over(died.0, holder) else { return false };
        self.store(repair(self.load()));
        drop(held);
        true
    }

    fn change<H: Holder<M>>(&self, held: Exclusive<'_, H, M>, change: impl FnOnce(T) -> T) {
        let next = change(T::from_words(self.load()));
        self.store(next);
        drop(held);
    }

    fn load(&self) -> [u64; N] {
        // Relaxed: `validate` orders the loads, or the latch is held.
        core::array::from_fn(|index| self.words[index].load(Relaxed))
    }

    fn store(&self, value: T) {
        for (word, value) in self.words.iter().zip(value.to_words()) {
            // Relaxed: the latch is held, and orders the stores.
            word.store(value, Relaxed);
        }
    }
}

impl<T: Words<N>, const N: usize, M: Machine> fmt::Debug for OptCell<T, N, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptCell").field("latch", &self.latch).finish_non_exhaustive()
    }
}
