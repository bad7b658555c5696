//! Pages of owners: the free owners of a session, and the free pages of the region.
//!
//! A session has pages of 31 owners each and keeps a stack of their free owners. The owner that was
//! returned last is on top: its weak page is in the cache, and names that are reserved for its cell
//! stay reserved for the next owner. So the cost of a new owner does not depend on the number of
//! owners.
//!
//! Free pages form a list of the region, and new pages are appended to the directory:
//!
//! ```text
//! root FREE_PAGES   times changed << 32 | index + 1 of the first, or zero
//! page.listed       1 while the page is in the list, or about to be
//! page.next_free    index + 1 of the next, or zero
//! root PAGES        lower bound of the pages that exist; the directory is authoritative
//! ```
//!
//! The list is a stack (Treiber, 1986). Its word counts its changes, so that a thread notices if a
//! page was removed and inserted again between its load and its exchange. The list is a hint:
//! **`page.thread` alone says which session has a page**, and a session claims a free page by
//! changing that word from zero. A process that dies between two steps leaves a free page that is
//! in no list; it is found when the directory is full.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::Offset;

use crate::Error;
use crate::memory::cells::{OwnerCell, OwnerPage, PAGES, cell_at, get, put};
use crate::memory::numbers::{OWNERS, OwnerNumber};
use crate::memory::{Memory, roots};

impl<M: ConstMachine> Memory<M> {
    /// Returns a free owner cell of this session.
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
                // It was returned and then taken by other means.
                Some(_) => {}
                // The page belonged to this session; a null entry here was written by a faulty
                // peer.
                None => return Err(Error::Foreign),
            }
        }
    }

    /// Records that an owner of this session is free.
    pub(crate) fn give_owner(&self, index: OwnerNumber) {
        self.free.borrow_mut().push(index);
    }

    /// Claims a page and records its free owners, with the first one on top.
    fn have_page(&self) -> Result<(), Error> {
        let place = self.claim_page()?;
        self.pages.borrow_mut().push(place);
        let Some(page) = self.page(place)? else { return Err(Error::Foreign) };
        let free = (0..page.owners.len()).rev().filter(|at| get(&page.owners[*at].state).is_free());
        self.free.borrow_mut().extend(free.map(|at| OwnerNumber::new(place, at)));
        Ok(())
    }

    /// Claims a free page, or creates one.
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
        // The directory is full: a dead process may have left a free page outside the list.
        for place in 0..PAGES as u32 {
            if self.claims(place)? {
                return Ok(place);
            }
        }
        Err(Error::Cap("owners", OWNERS * PAGES as u32))
    }

    /// Claims a page for this session if the page is free.
    fn claims(&self, place: u32) -> Result<bool, Error> {
        let Some(page) = self.page(place)? else { return Ok(false) };
        let me = self.thread.number() + 1;
        // AcqRel: synchronizes with the Release in `free_page`; the owners are visible as the last
        // session left them.
        Ok(get(&page.thread) == 0 && page.thread.compare_exchange(0, me, AcqRel, Relaxed).is_ok())
    }

    /// Frees a page whose owners are all free.
    pub(crate) fn free_page(&self, place: u32, page: &OwnerPage<M>) -> Result<(), Error> {
        put(&page.thread, 0);
        self.list_page(place, page)
    }

    /// Inserts a free page into the list.
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
            // visible.
            match head.compare_exchange(seen, next, AcqRel, Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Removes a page from the list. The tag of the list's head has 32 bits and changes when a page
    /// of an ended thread is inserted or removed. At 1,000 changes a second it repeats after 50
    /// days, and only for a thread that stopped for exactly that many changes between its load and
    /// its exchange.
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
