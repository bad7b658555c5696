//! Pages in hand: which pages a thread has that no page of a tree leads to, by its slot.
//!
//! A thread that makes a page, or unlinks one, says so in its slot's line before the log has
//! anything of it, and takes it back when a page leads there, or the page is free. What a thread
//! that dies leaves in its line is looked at by the sweep: a page to which its tree does not lead
//! is given back. Nothing else happens to a page meanwhile: what is in a hand is not unlinked, so
//! what the tree says stays so until the line is cleared.
//!
//! After a crash of the machine the lines are gone, and the log says which pages were in hand: a
//! checkpoint keeps it from before the first record that is about one.
//!
//! ```text
//! in a slot's lines   word 3         where the log was before the first of them, or zero
//!                     word 8 .. 15   a page: tree 32 │ root 1 │ goes 1 │ page 29 │ 1, or zero
//! ```
//!
//! Six are the most at once: the root of a table whose loading failed, two pages that it had taken,
//! the page that goes while its tree is dismantled, and two for the root of the catalog, which may
//! have to be split to say that this one is free.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};

use crate::Error;
use crate::files::shared::{LINE, SLOTS, Shared};

const SINCE: u64 = 3;
/// In the slot's second line: others read it where the first says that something is in hand.
const HANDS: u64 = 8;
/// How many pages a thread has in hand at most.
const COUNT: u64 = LINE - HANDS;

/// A page in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InHand {
    /// The tree that it is to be of, or was.
    pub(crate) tree: u32,
    pub(crate) page: u64,
    pub(crate) what: What,
}

/// What a page in hand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// One that is made for its tree, or was unlinked from it.
    Page,
    /// The root of a tree whose table is being made. It is written: a sweep asks it for its pages.
    Root,
    /// One of a tree that nobody knows, and that is dismantled.
    Goes,
}

const ROOT: u64 = 1 << 31;
const GOES: u64 = 1 << 30;
/// The page's number, times two.
const PAGE: u64 = GOES - 2;

impl InHand {
    fn word(self) -> u64 {
        let what = match self.what {
            What::Page => 0,
            What::Root => ROOT,
            What::Goes => GOES,
        };
        u64::from(self.tree) << 32 | what | self.page << 1 & PAGE | 1
    }

    fn of(word: u64) -> Option<Self> {
        let (tree, page) = ((word >> 32) as u32, (word & PAGE) >> 1);
        let what = match word & (ROOT | GOES) {
            0 => What::Page,
            GOES => What::Goes,
            _ => What::Root,
        };
        (word & 1 != 0).then_some(Self { tree, page, what })
    }
}

impl<M: ConstMachine> Shared<M> {
    /// Whether a slot has room for another page in hand.
    pub(crate) fn has_hand(&self, slot: u16) -> Result<bool, Error> {
        let line = SLOTS + u64::from(slot) * LINE + HANDS;
        for word in 0..COUNT {
            // Relaxed: the slot's own.
            if self.word(line + word)?.load(Relaxed) == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes a page in hand. False if the slot has no room for another.
    pub(crate) fn hold(&self, slot: u16, held: InHand) -> Result<bool, Error> {
        let line = SLOTS + u64::from(slot) * LINE;
        let since = self.word(line + SINCE)?;
        // Relaxed: the slot's own.
        if since.load(Relaxed) == 0 {
            // Release: synchronizes with the Acquire in `held_since`. What the log gets of the page
            // comes behind it, under the log's latch. A checkpoint may have been made since the end
            // was read: the next one does not believe it then.
            since.store(self.log.end().0, Release);
        }
        for word in 0..COUNT {
            let word = self.word(line + HANDS + word)?;
            if word.load(Relaxed) == 0 {
                // Release: synchronizes with the Acquire in `hand` and `is_held`.
                word.store(held.word(), Release);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Says what a page that is in hand is from now on.
    pub(crate) fn hold_as(&self, slot: u16, held: InHand) -> Result<(), Error> {
        let line = SLOTS + u64::from(slot) * LINE;
        for word in 0..COUNT {
            let word = self.word(line + HANDS + word)?;
            // Relaxed: the slot's own.
            if InHand::of(word.load(Relaxed)).is_some_and(|known| known.page == held.page) {
                // Release: synchronizes with the Acquire in `hand`, behind which the page is read.
                word.store(held.word(), Release);
            }
        }
        Ok(())
    }

    /// Lets go of a page that is in hand.
    pub(crate) fn let_go(&self, slot: u16, page: u64) -> Result<(), Error> {
        let line = SLOTS + u64::from(slot) * LINE;
        let mut left = false;
        for word in 0..COUNT {
            let word = self.word(line + HANDS + word)?;
            match InHand::of(word.load(Relaxed)) {
                // Release: synchronizes with the Acquire in `is_held`: a page leads there.
                Some(held) if held.page == page => word.store(0, Release),
                Some(_) => left = true,
                None => {}
            }
        }
        if !left {
            self.word(line + SINCE)?.store(0, Release);
        }
        Ok(())
    }

    /// Keeps the log no longer for a slot that has nothing in hand: its thread died between taking
    /// a page and saying since when, or the other way round.
    pub(crate) fn if_empty_handed(&self, slot: u16) -> Result<(), Error> {
        match self.hand(slot)?.is_empty() {
            // No page has this number.
            true => self.let_go(slot, u64::MAX),
            false => Ok(()),
        }
    }

    /// What a slot has in hand.
    pub(crate) fn hand(&self, slot: u16) -> Result<Vec<InHand>, Error> {
        let line = SLOTS + u64::from(slot) * LINE;
        // Relaxed: the slot's own, or the region has claimed it. For `is_held`, the latches of the
        // page that leads to the one that is asked about: a thread that linked that one had said
        // before that it has it.
        if self.word(line + SINCE)?.load(Relaxed) == 0 {
            return Ok(Vec::new());
        }
        let mut held = Vec::new();
        for word in 0..COUNT {
            // Acquire: synchronizes with the Release in `hold`.
            held.extend(InHand::of(self.word(line + HANDS + word)?.load(Acquire)));
        }
        Ok(held)
    }

    /// From where on the log is about pages that a slot has in hand.
    pub(crate) fn held_since(&self, slot: u32) -> Result<Option<u64>, Error> {
        if u64::from(slot) >= self.slots {
            return Ok(None);
        }
        // Acquire: synchronizes with the Release in `hold`.
        let since = self.word(SLOTS + u64::from(slot) * LINE + SINCE)?.load(Acquire);
        Ok((since != 0).then_some(since))
    }

    /// Whether a slot has this page in hand.
    pub(crate) fn is_held(&self, page: u64) -> Result<bool, Error> {
        // A thread that made a page had its slot before the page was linked. What a sweeper gives
        // back it has in hand, too.
        for slot in self.log.each_slot().filter_map(|slot| u16::try_from(slot).ok()) {
            if self.hand(slot)?.iter().any(|held| held.page == page) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::{InHand, LINE, SINCE, SLOTS, What};
    use crate::files::inner::stage::begin;

    /// A thread reads the log's end, and says it after a checkpoint that gave up the log there.
    #[test]
    fn a_bound_that_is_late_takes_no_redo_point_back() {
        let (_region, home) = begin();
        let (own, late) = (home.worker().unwrap(), home.worker().unwrap());
        let end = home.log.end().0;
        let root = own.make_root().unwrap();
        home.shared.let_go(own.slot(), root.into()).unwrap();
        assert!(home.checkpoint(&own).unwrap());
        let redo = home.log.redo();
        assert!(redo.0 > end, "there is something between them");
        let since = SLOTS + u64::from(late.log.slot()) * LINE + SINCE;
        home.shared.word(since).unwrap().store(end, super::Relaxed);
        assert!(home.checkpoint(&own).unwrap());
        assert_eq!(home.log.redo(), redo, "it is kept from the last one on");
    }

    /// A sweeper that dies leaves its hand, and the next one must not give the same page back.
    #[test]
    fn what_a_sweeper_has_in_hand_is_held() {
        let (region, home) = begin();
        let sweeper = region.sweeper().unwrap();
        let slot = u16::try_from(sweeper.number()).unwrap();
        assert!(u32::from(slot) >= home.log.slots_high(), "it is no thread's");
        let held = InHand { tree: 9, page: 77, what: What::Goes };
        assert_eq!(home.shared.is_held(held.page), Ok(false));
        home.shared.hold(slot, held).unwrap();
        assert_eq!(home.shared.is_held(held.page), Ok(true));
        home.shared.let_go(slot, held.page).unwrap();
        assert_eq!(home.shared.is_held(held.page), Ok(false));
    }
}
