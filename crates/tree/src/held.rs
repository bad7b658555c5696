//! A page of the pool as the page of a tree, and a change that is logged and then applied.
//!
//! The order follows the write-ahead rule: check that the change fits, mark the page, append the
//! record to the log, change the page. A thread that dies after the mark leaves a page that is
//! rebuilt from the log.

use latchwork_machine::ConstMachine;
use latchwork_pool::{PageMut as PoolPage, PageView};

use crate::change::{Change, Role};
use crate::edit;
use crate::journal::Journal;
use crate::layout::{CHANGES_MAX, RECORD_BYTES, changes};
use crate::words::{Page, PageMut};
use crate::{Error, Header};

impl<M: ConstMachine> Page for PageView<'_, M> {
    #[inline(always)]
    fn len(&self) -> usize {
        PageView::len(self)
    }
    #[inline(always)]
    fn word(&self, index: usize) -> Option<u64> {
        PageView::word(self, index)
    }
    #[inline(always)]
    fn run(&self, at: usize, count: usize) -> Option<impl Iterator<Item = u64>> {
        PageView::run(self, at, count)
    }
    #[inline(always)]
    fn append(&self, at: usize, count: usize, to: &mut Vec<u8>) -> Option<()> {
        PageView::append(self, at, count, to)
    }
}

/// A held page whose change has begun.
struct Held<'p, 'h, 't, M: ConstMachine>(&'p mut PoolPage<'h, 't, M>);

impl<M: ConstMachine> Page for Held<'_, '_, '_, M> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn word(&self, index: usize) -> Option<u64> {
        self.0.word(index)
    }
    fn run(&self, at: usize, count: usize) -> Option<impl Iterator<Item = u64>> {
        let end = at.checked_add(count).filter(|end| *end <= self.len())?;
        Some((at..end).map_while(|index| self.word(index)))
    }
}

impl<M: ConstMachine> PageMut for Held<'_, '_, '_, M> {
    fn set(&mut self, index: usize, word: u64) {
        // False only beyond the end, where `set` has no effect.
        let _ = self.0.set(index, word);
    }
    fn set_run(&mut self, at: usize, words: &[[u8; 8]]) {
        // As above.
        let _ = self.0.set_run(at, words);
    }
}

/// A page that only appears to change, to find out whether a change of a record fits.
struct Dry<'p, P: Page>(&'p P);

impl<P: Page> Page for Dry<'_, P> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn word(&self, index: usize) -> Option<u64> {
        self.0.word(index)
    }
    fn run(&self, at: usize, count: usize) -> Option<impl Iterator<Item = u64>> {
        self.0.run(at, count)
    }
}

impl<P: Page> PageMut for Dry<'_, P> {
    fn set(&mut self, _: usize, _: u64) {}
}

/// The place of a key on a page, or where it would be.
type Place = Result<usize, usize>;

/// Returns all words of a page.
pub(crate) fn copy<M: ConstMachine>(page: &PoolPage<'_, '_, M>) -> Vec<u64> {
    (0..page.len()).map(|index| page.word(index).unwrap_or(0)).collect()
}

/// Checks that `change` can be applied to a page.
///
/// A change of one record does not read what it has written, unless the page must be compacted for
/// it; then it is tried on a copy, like all other changes.
///
/// `place` is the place of the record's key on the page, if it was searched.
pub(crate) fn check<M: ConstMachine>(
    change: &Change<'_>,
    page: &PoolPage<'_, '_, M>,
    place: Option<Place>,
) -> Result<(), Error> {
    if change.record_key().is_some() {
        if let Some(place) = place
            && change.is_easy(place, &Dry(&page.view())) == Some(true)
        {
            return Ok(());
        }
        match change.apply(Role::Own, &mut Dry(&page.view()), Header::NONE) {
            Err(Error::Full) => {}
            done => return done,
        }
    }
    change.apply(Role::Own, &mut copy(page), Header::NONE)
}

/// Logs a change that was checked, applies it, and releases the page. Returns its LSN. Credit for
/// it exists. `place` is as in [`check`].
pub(crate) fn log_and_do<J: Journal, M: ConstMachine>(
    journal: &J,
    change: &Change<'_>,
    mut page: PoolPage<'_, '_, M>,
    place: Option<Place>,
) -> Result<u64, Error> {
    log_and_keep(journal, change, &mut page, place)
}

/// [`log_and_do`] that keeps the page.
pub(crate) fn log_and_keep<J: Journal, M: ConstMachine>(
    journal: &J,
    change: &Change<'_>,
    page: &mut PoolPage<'_, '_, M>,
    place: Option<Place>,
) -> Result<u64, Error> {
    page.intend();
    let (lsn, whole) = append(journal, change, page)?;
    page.begin(lsn);
    if whole {
        edit::set_changes(&mut Held(page), 0);
    }
    // After an error the page is dropped, which poisons it: it does not match the log.
    let header = Header::new(journal.slot(), lsn);
    match place {
        Some(place) => change.apply_at(place, &mut Held(page), header)?,
        None => change.apply(Role::Own, &mut Held(page), header)?,
    }
    page.commit_and_keep();
    Ok(lsn)
}

/// Applies a change of the log to the page that its record names, which this thread holds and
/// keeps, for recovery. `slot` and `lsn` are the record's.
///
/// # Errors
///
/// The error of the change. The page is then poisoned when it is dropped.
pub fn redo<M: ConstMachine>(
    change: &Change<'_>,
    page: &mut PoolPage<'_, '_, M>,
    slot: u16,
    lsn: u64,
) -> Result<(), Error> {
    page.begin(lsn);
    change.apply(Role::Own, &mut Held(page), Header::new(slot, lsn))?;
    page.commit_and_keep();
    Ok(())
}

/// Appends a change to the journal, and before it the whole page if necessary. Returns the LSN of
/// the change, and whether the page was logged.
fn append<J: Journal, M: ConstMachine>(
    journal: &J,
    change: &Change<'_>,
    page: &PoolPage<'_, '_, M>,
) -> Result<(u64, bool), Error> {
    loop {
        // A new page has no content, and the earlier history of its number does not count.
        let (since, mut prev) = (journal.since(), if page.is_new() { 0 } else { page.lsn() });
        let whole = prev != 0 && is_logged_whole(page, since, change.undoes());
        if whole {
            // The journal may have been marked since room was reserved.
            let bytes = change.bytes() + change.undo_bytes();
            if !journal.has(image_bytes(page.len()) + bytes) {
                return Err(Error::Room);
            }
            let image = Change::image(&page.view()).ok_or(Error::Malformed("not a page"))?;
            let change = Change::Image { image: &image };
            match journal.append(page.page(), prev, &change, since).map_err(Error::Journal)? {
                Some(lsn) => prev = lsn,
                None => continue,
            }
        }
        if let Some(lsn) =
            journal.append(page.page(), prev, change, since).map_err(Error::Journal)?
        {
            return Ok((lsn, whole));
        }
    }
}

/// Whether a page is logged whole before its next change: before the first one after `since`, and
/// again after many. An undoing change may have room for no more than it needs.
pub(crate) fn is_logged_whole<M: ConstMachine>(
    page: &PoolPage<'_, '_, M>,
    since: u64,
    undoes: bool,
) -> bool {
    let lsn = page.lsn();
    lsn != 0 && (lsn < since || !undoes && changes(&page.view()) >= CHANGES_MAX)
}

/// Log bytes that a change of a record may take in addition to its own: the whole page, before it.
pub(crate) fn image_bytes(words: usize) -> u64 {
    words as u64 * 8 + RECORD_BYTES
}
