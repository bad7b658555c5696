//! Page intents: pages of a thread to which no page of a tree links, recorded in its slot.
//!
//! A thread that creates or unlinks a page records an intent in its slot's line before the log
//! contains anything about it, and clears it when a page links to it or it is free. The sweep
//! checks the intents of a dead thread: it frees a page to which its tree does not link. A page
//! with an intent is not unlinked, so the result of that check remains valid until the intent is
//! cleared.
//!
//! After a crash of the machine the lines are lost, and the log tells which pages had intents: a
//! checkpoint retains it from before the first record about such a page.
//!
//! ```text
//! in a slot's lines   word 3         the log's end before the first of them, or zero
//!                     word 8 .. 15   a page: tree 32 │ root 1 │ goes 1 │ page 29 │ 1, or zero
//! ```
//!
//! At most six exist at once: the root of a table whose load failed, two pages that the load had
//! taken, the page being freed while its tree is dismantled, and two for the root of the catalog,
//! which may have to be split to mark this page as free.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};

use crate::Error;
use crate::files::shared::{LINE, SLOTS, Shared};

const SINCE: u64 = 3;
/// In the slot's second line: others read it if the first one says that there are intents.
const HANDS: u64 = 8;
/// Maximum number of intents of a thread.
const COUNT: u64 = LINE - HANDS;

/// A page with an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageIntent {
    /// The tree to which it will belong, or belonged.
    pub(crate) tree: u32,
    pub(crate) page: u64,
    pub(crate) kind: IntentKind,
}

/// The kind of a page with an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntentKind {
    /// A page that was created for its tree, or unlinked from it.
    Page,
    /// The root of a tree whose table is being created. It is written: a sweep follows its links.
    Root,
    /// A page of a tree without a name that is being dismantled.
    Dismantled,
}

const ROOT: u64 = 1 << 31;
const DISMANTLED: u64 = 1 << 30;
/// The page's number, times two.
const PAGE: u64 = DISMANTLED - 2;

impl PageIntent {
    fn word(self) -> u64 {
        let kind = match self.kind {
            IntentKind::Page => 0,
            IntentKind::Root => ROOT,
            IntentKind::Dismantled => DISMANTLED,
        };
        u64::from(self.tree) << 32 | kind | self.page << 1 & PAGE | 1
    }

    fn of(word: u64) -> Option<Self> {
        let (tree, page) = ((word >> 32) as u32, (word & PAGE) >> 1);
        let kind = match word & (ROOT | DISMANTLED) {
            0 => IntentKind::Page,
            DISMANTLED => IntentKind::Dismantled,
            _ => IntentKind::Root,
        };
        (word & 1 != 0).then_some(Self { tree, page, kind })
    }
}

impl<M: ConstMachine> Shared<M> {
    /// Returns whether a slot has room for another intent.
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

    /// Records an intent. Returns false if the slot has no room for another.
    pub(crate) fn hold(&self, slot: u16, held: PageIntent) -> Result<bool, Error> {
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

    /// Changes the kind of a page with an intent.
    pub(crate) fn hold_as(&self, slot: u16, held: PageIntent) -> Result<(), Error> {
        let line = SLOTS + u64::from(slot) * LINE;
        for word in 0..COUNT {
            let word = self.word(line + HANDS + word)?;
            // Relaxed: the slot's own.
            if PageIntent::of(word.load(Relaxed)).is_some_and(|known| known.page == held.page) {
                // Release: synchronizes with the Acquire in `hand`, behind which the page is read.
                word.store(held.word(), Release);
            }
        }
        Ok(())
    }

    /// Clears the intent on a page.
    pub(crate) fn let_go(&self, slot: u16, page: u64) -> Result<(), Error> {
        let line = SLOTS + u64::from(slot) * LINE;
        let mut left = false;
        for word in 0..COUNT {
            let word = self.word(line + HANDS + word)?;
            match PageIntent::of(word.load(Relaxed)) {
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

    /// Stops retaining the log for a slot without intents: its thread died between recording an
    /// intent and recording its start, or the other way round.
    pub(crate) fn if_empty_handed(&self, slot: u16) -> Result<(), Error> {
        match self.hand(slot)?.is_empty() {
            // No page has this number.
            true => self.let_go(slot, u64::MAX),
            false => Ok(()),
        }
    }

    /// Returns the intents of a slot.
    pub(crate) fn hand(&self, slot: u16) -> Result<Vec<PageIntent>, Error> {
        let line = SLOTS + u64::from(slot) * LINE;
        // Relaxed: the slot's own, or the region has claimed it. For `is_held`, the latches of the
        // page that leads to the one that is asked about: a thread that linked that page had
        // recorded the intent before.
        if self.word(line + SINCE)?.load(Relaxed) == 0 {
            return Ok(Vec::new());
        }
        let mut held = Vec::new();
        for word in 0..COUNT {
            // Acquire: synchronizes with the Release in `hold`.
            held.extend(PageIntent::of(self.word(line + HANDS + word)?.load(Acquire)));
        }
        Ok(held)
    }

    /// Returns the position from which the log is about pages with intents of a slot.
    pub(crate) fn held_since(&self, slot: u32) -> Result<Option<u64>, Error> {
        if u64::from(slot) >= self.slots {
            return Ok(None);
        }
        // Acquire: synchronizes with the Release in `hold`.
        let since = self.word(SLOTS + u64::from(slot) * LINE + SINCE)?.load(Acquire);
        Ok((since != 0).then_some(since))
    }

    /// Returns whether a slot has an intent on this page.
    pub(crate) fn is_held(&self, page: u64) -> Result<bool, Error> {
        // A thread that created a page had its slot before the page was linked. A sweeper also has
        // intents on the pages that it frees.
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
    use super::{IntentKind, LINE, PageIntent, SINCE, SLOTS};
    use crate::files::inner::stage::begin;

    /// A thread reads the log's end, and stores it after a checkpoint that gave up the log there.
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

    /// A sweeper that dies leaves its intents, and the next one must not free the same page.
    #[test]
    fn what_a_sweeper_has_in_hand_is_held() {
        let (region, home) = begin();
        let sweeper = region.sweeper().unwrap();
        let slot = u16::try_from(sweeper.number()).unwrap();
        assert!(u32::from(slot) >= home.log.slots_high(), "it is no thread's");
        let held = PageIntent { tree: 9, page: 77, kind: IntentKind::Dismantled };
        assert_eq!(home.shared.is_held(held.page), Ok(false));
        home.shared.hold(slot, held).unwrap();
        assert_eq!(home.shared.is_held(held.page), Ok(true));
        home.shared.let_go(slot, held.page).unwrap();
        assert_eq!(home.shared.is_held(held.page), Ok(false));
    }
}
