//! Pages of owners: which of a session's owners are free, and which pages are nobody's.
//!
//! A session has pages of 31 owners each, and remembers the free owners of them, the last one that
//! was given back on top: that one's weak page is warm, and what is reserved for it is reserved for
//! its next owner. So a new owner costs the same beside one other and beside ten thousand.
//!
//! Pages that are nobody's hang in a list of the region, and new ones are made behind the last:
//!
//! ```text
//! root FREE_PAGES   times changed << 32 | place + 1 of the first, or zero
//! page.listed       1 while the page is in the list, or about to be
//! page.next_free    place + 1 of the next, or zero
//! root PAGES        pages that were made, at least; the directory says the rest
//! ```
//!
//! The list is a stack (Treiber, 1986); its word counts its changes, so that a page which leaves
//! and comes back meanwhile is not taken for unmoved. It is a hint: **which session has a page is
//! said by `page.thread` alone**, and the session that claims one changes that from zero. A process
//! that dies between two steps leaves a page that is nobody's and in no list; it is found when the
//! directory is full.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::Offset;

use crate::Error;
use crate::memory::cells::{OwnerCell, OwnerPage, PAGES, cell_at, get, put};
use crate::memory::numbers::{OWNERS, OwnerNumber};
use crate::memory::{Memory, roots};

impl<M: ConstMachine> Memory<M> {
    /// A free owner cell of this session's.
    pub(crate) fn free_owner(&self) -> Result<(OwnerNumber, &OwnerCell<M>), Error> {
        loop {
            let free = self.free.borrow_mut().pop();
            let index = match free {
                Some(index) => index,
                None => {
                    self.have_page()?;
                    continue;
                }
            };
            match self.owner_cell(index)? {
                Some(cell) if get(&cell.state).is_free() => return Ok((index, cell)),
                // It was given back and taken by other means.
                Some(_) => {}
                // The page was this session's; a null entry there is a peer's doing.
                None => return Err(Error::Foreign),
            }
        }
    }

    /// Notes that an owner of this session is free.
    pub(crate) fn give_owner(&self, index: OwnerNumber) {
        self.free.borrow_mut().push(index);
    }

    /// Claims a page, and notes its free owners: the first one on top.
    fn have_page(&self) -> Result<(), Error> {
        let place = self.claim_page()?;
        self.pages.borrow_mut().push(place);
        let Some(page) = self.page(place)? else { return Err(Error::Foreign) };
        let free = (0..page.owners.len()).rev().filter(|at| get(&page.owners[*at].state).is_free());
        self.free.borrow_mut().extend(free.map(|at| OwnerNumber::new(place, at)));
        Ok(())
    }

    /// Makes a page of owners this session's: one that nobody has, or a new one.
    fn claim_page(&self) -> Result<u32, Error> {
        let region = self.region();
        while let Some(place) = self.unlist_page()? {
            if self.claims(place)? {
                return Ok(place);
            }
        }
        let directory = cell_at(region, self.inner().directory)?;
        let made = region.root(roots::PAGES)?;
        let mut fresh = None;
        for place in get(made) as usize % (PAGES + 1)..PAGES {
            let entry = &directory.pages[place];
            // Acquire: synchronizes with the exchange below.
            if !entry.load(Acquire).is_null() {
                continue;
            }
            let cell = match fresh.take() {
                Some(cell) => cell,
                None => self.thread.alloc::<OwnerPage<M>>()?,
            };
            put(&cell.thread, self.thread.number() + 1);
            // AcqRel: synchronizes with the Acquire in `page`.
            if entry.compare_exchange(Offset::NULL, cell.offset(), AcqRel, Acquire).is_ok() {
                cell.publish();
                if get(made) < place as u64 + 1 {
                    put(made, place as u64 + 1);
                }
                return Ok(place as u32);
            }
            fresh = Some(cell);
        }
        drop(fresh);
        // The directory is full: perhaps there is one that a dead process let go of.
        for place in 0..PAGES as u32 {
            if self.claims(place)? {
                return Ok(place);
            }
        }
        Err(Error::Cap("owners", OWNERS * PAGES as u32))
    }

    /// Makes a page this session's if it is nobody's.
    fn claims(&self, place: u32) -> Result<bool, Error> {
        let Some(page) = self.page(place)? else { return Ok(false) };
        let me = self.thread.number() + 1;
        // AcqRel: synchronizes with the Release in `free_page`; the owners are seen as the last
        // session left them.
        Ok(get(&page.thread) == 0 && page.thread.compare_exchange(0, me, AcqRel, Relaxed).is_ok())
    }

    /// Makes a page nobody's, whose owners are all free.
    pub(crate) fn free_page(&self, place: u32, page: &OwnerPage<M>) -> Result<(), Error> {
        put(&page.thread, 0);
        self.list_page(place, page)
    }

    /// Puts a page that is nobody's into the list.
    pub(crate) fn list_page(&self, place: u32, page: &OwnerPage<M>) -> Result<(), Error> {
        self.point("page of owners free");
        if get(&page.listed) != 0 || page.listed.compare_exchange(0, 1, Relaxed, Relaxed).is_err() {
            return Ok(());
        }
        let head = self.region().root(roots::FREE_PAGES)?;
        let mut seen = get(head);
        loop {
            put(&page.next_free, seen as u32);
            let next = (seen >> 32).wrapping_add(1) << 32 | u64::from(place + 1);
            // AcqRel, Acquire: synchronize with the exchange in `unlist_page`: the page's link is
            // seen.
            match head.compare_exchange(seen, next, AcqRel, Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes a page out of the list. The tag of its head has 32 bits, and changes when the page of
    /// an ended thread goes in or out: at 1,000 a second it is the same after 50 days, to a thread
    /// that stopped for exactly so many changes between its load and its exchange.
    fn unlist_page(&self) -> Result<Option<u32>, Error> {
        let head = self.region().root(roots::FREE_PAGES)?;
        // Acquire: synchronizes with the exchange in `free_page`.
        let mut seen = head.load(Acquire);
        while seen as u32 != 0 {
            let place = seen as u32 - 1;
            let Some(page) = self.page(place)? else { return Ok(None) };
            let next = (seen >> 32).wrapping_add(1) << 32 | u64::from(get(&page.next_free));
            // AcqRel, Acquire: as in `free_page`.
            match head.compare_exchange(seen, next, AcqRel, Acquire) {
                Ok(_) => {
                    put(&page.listed, 0);
                    return Ok(Some(place));
                }
                Err(now) => seen = now,
            }
        }
        Ok(None)
    }
}
