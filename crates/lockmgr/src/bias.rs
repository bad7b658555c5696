//! Biases: closing one, which moves the locks under it to the table, and opening it again.
//!
//! See `weak.rs` for what they are.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::Offset;

use crate::Error;
use crate::latch::Latched;
use crate::layout::{
    BIASES, GROUP, MOVED, OWNERS, OwnerCell, PAGES, Request, Spot, WEAK, WeakPage, get, put,
};
use crate::name::{self, Name};
use crate::session::Session;
use crate::weak::{Entry, LENGTH_MAX};

/// The value of a bias: what it is now, and how often it changed. The two low bits say which:
///
/// ```text
///  00 open   weak locks are in their owners' pages
///  10 kept   one entry's owner alone has the entry's name: `kept.rs`
///  x1 closed all is in the table; one more than what it was before
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bias(pub(crate) u32);

impl Bias {
    /// Near the top it stays closed: an entry must never meet its bias's value again.
    const TOP: u32 = u32::MAX - 8;

    #[inline(always)]
    pub(crate) fn is_open(self) -> bool {
        self.0.is_multiple_of(4)
    }

    #[inline(always)]
    pub(crate) fn is_closed(self) -> bool {
        !self.0.is_multiple_of(2)
    }

    #[inline(always)]
    pub(crate) fn is_kept(self) -> bool {
        self.0 % 4 == 2
    }

    /// What it is when it was closed and is opened.
    pub(crate) fn opened(self) -> Option<u32> {
        (self.0 < Self::TOP).then_some((self.0 | 3) + 1)
    }

    /// What it is when it was closed and is kept.
    pub(crate) fn kept(self) -> Option<u32> {
        let next = self.0 & !3 | 2;
        (self.0 < Self::TOP).then_some(if next > self.0 { next } else { next + 4 })
    }
}

/// Weak requests that go to the table before the bias is opened again.
const MISSES: u32 = 32;

impl<M: ConstMachine> Latched<'_, M> {
    /// The request that a closer made for an owner.
    pub(crate) fn moved_of(&self, object_at: u32, owner: u32) -> Result<u32, Error> {
        for each in self.requests(self.session.object(object_at)?) {
            let (at, request, _) = each?;
            if get(&request.owner) == owner && request.is_moved() {
                return Ok(at);
            }
        }
        Ok(0)
    }

    /// Closes a bias, if it is not closed, and moves all locks that are under it to the table.
    #[inline(always)]
    pub(crate) fn close(&self, bias: u32) -> Result<(), Error> {
        let word = &self.session.biases(self.number)?[(bias % BIASES) as usize];
        put(&self.misses, 0);
        if Bias(get(word)).is_closed() { Ok(()) } else { self.close_now(bias) }
    }

    #[cold]
    #[inline(never)]
    fn close_now(&self, bias: u32) -> Result<(), Error> {
        let word = &self.session.biases(self.number)?[(bias % BIASES) as usize];
        let open = get(word);
        put(word, open + 1);
        self.session.point("bias closed");
        let end = self.session.pass_barrier().and_then(|()| self.collect(bias, open));
        end.or_else(|error| {
            self.reopen(bias, open)?;
            Err(error)
        })
    }

    /// Moves all entries that were taken under a bias that is now closed. May be done again.
    pub(crate) fn collect(&self, bias: u32, open: u32) -> Result<(), Error> {
        let session = self.session;
        let first = bias as usize % (WEAK / GROUP) * GROUP;
        for (owner, cell) in session.each_weak() {
            // Acquire: synchronizes with the Release in `make_weak_page`, so that the page is seen as
            // it was made, and not what lay there before.
            let page = cell.weak.load(Acquire);
            if page == 0 {
                continue;
            }
            let page: &WeakPage<M> = session.region().resolve(Offset::from_raw(page))?;
            for at in first..first + GROUP {
                // Acquire: synchronizes with the Release in `weak_take`.
                let entry = Entry::of(page.states[at].load(Acquire));
                let hash = get(&page.hashes[at]);
                let here = Spot { partition: self.number, bias };
                if entry.count == 0 || entry.bias != open || Spot::of(hash) != here {
                    continue;
                }
                if entry.length == 0
                    || entry.length > LENGTH_MAX
                    || !session.modes().has(entry.mode)
                {
                    continue;
                }
                let bytes = name::read::<M>(&page.names[at], entry.length);
                self.move_entry(owner, &Name { bytes: &bytes, hash }, entry)?;
            }
        }
        Ok(())
    }

    fn move_entry(&self, owner: u32, name: &Name<'_>, entry: Entry) -> Result<(), Error> {
        let (object_at, object) = self.find_or_make(name)?;
        if self.moved_of(object_at, owner)? != 0 {
            return Ok(());
        }
        let cell = self.session.thread.alloc::<Request<M>>()?;
        put(&cell.object, object_at);
        put(&cell.owner, owner);
        put(&cell.count, entry.count | MOVED);
        put(&cell.partition, self.number);
        self.link_front(object, cell.offset().raw(), cell.value(), entry.mode)?;
        self.session.point("weak lock moved");
        cell.publish();
        Ok(())
    }

    /// Counts a weak request that had to come here, and opens its bias again if many have.
    pub(crate) fn missed(&self, bias: u32) -> Result<(), Error> {
        let word = &self.session.biases(self.number)?[(bias % BIASES) as usize];
        let closed = Bias(get(word));
        if closed.is_kept() {
            return self.close_now(bias);
        }
        if closed.is_open() || !self.session.inner().weak {
            return Ok(());
        }
        let misses = get(&self.misses).saturating_add(1);
        put(&self.misses, misses);
        if misses >= MISSES
            && get(&self.strong[(bias % BIASES) as usize]) == 0
            && let Some(opened) = closed.opened()
        {
            put(&self.misses, 0);
            put(word, opened);
        }
        Ok(())
    }
}

impl<M: ConstMachine> Session<M> {
    /// The closer's half of the barrier; the owners' is in `weak_take`, `count_kept` and `drop_entry`.
    /// An error if owners rely on it and this process may not, for it is in a sandbox by now.
    pub(crate) fn pass_barrier(&self) -> Result<(), Error> {
        let passed = M::heavy_barrier();
        if passed || !self.inner().relied_on { Ok(()) } else { Err(Error::Barrier) }
    }

    /// Before an owner's first weak lock: from here on those who collect look at it.
    ///
    /// Stored before the owner's page is, so that a death in between leaves an owner that is looked
    /// at for nothing, and not one that is passed over. A closer that misses it is seen by the owner,
    /// as one that misses an entry is; see `weak.rs`.
    pub(crate) fn note_weak(&self, owner: u32) -> Result<(), Error> {
        if let Some(page) = self.page(owner / OWNERS)?
            && get(&page.weak_end) <= owner % OWNERS
        {
            put(&page.weak_end, owner % OWNERS + 1);
        }
        Ok(())
    }

    /// All owner cells that may have a weak page, with their numbers.
    pub(crate) fn each_weak(&self) -> impl Iterator<Item = (u32, &OwnerCell<M>)> {
        (0..PAGES as u32)
            .map_while(|place| self.page(place).ok().flatten().map(|page| (place, page)))
            .flat_map(|(place, page)| {
                let end = get(&page.weak_end) as usize;
                let cells = page.owners.iter().take(end).enumerate();
                cells.map(move |(at, cell)| (place * OWNERS + at as u32, cell))
            })
    }
}
