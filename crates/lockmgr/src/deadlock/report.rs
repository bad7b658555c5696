//! The report of a cycle to its victim, which may be in another process.
//!
//! The detector writes the cycle into a cell of the region and links it to the victim's owner cell,
//! under the latch of the partition where the victim waits. The victim reads it from there.
//!
//! ```text
//! owner cell  owners of the cycle << 32 | offset of the cell, or null if there was no room for one
//! word 0      links in the report << 32 | words in use; then for each link two words and its name
//! link        owner, generation
//!             hard: 8 | held + 1: 8 | wanted: 8 | . 8 | name's bytes: 16 | all: 16; name
//! ```
//!
//! **Omitted parts.** A cycle is broken even if there is no room for its report. Names are complete
//! if they fit the largest cell with all links. Otherwise each name is cut at the largest number of
//! words with which all links fit. If even the bare links do not fit (beyond 4,091 owners), the
//! last links are omitted. If no cell of the needed size is available, a smaller one is filled; if
//! none is available, only the number of owners is reported, in the owner cell. The length of each
//! name and the number of owners are always reported, so [`Cycle`] gives the size of the missing
//! part.

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::{Cell, Dead, Offset, Plain};

use crate::error::reason;
use crate::memory::cells::{OwnerCell, get, put, words64_at};
use crate::memory::handle::Owner;
use crate::memory::typed::Stored;
use crate::memory::{Memory, intents, names};
use crate::mode::Mode;
use crate::{Cycle, Error, Link, OwnerId, Reason};

/// Words of a report, by size of its cell.
const WORDS: [usize; 3] = [63, 511, 8183];
/// Words of a link before its name.
const LINK: usize = 2;

/// The report of a cycle.
#[repr(C)]
pub(crate) struct Report<M: ConstMachine, const N: usize> {
    words: [M::AtomicU64; N],
}

/// A report of any size. All begin with these words.
type Small<M> = Report<M, { WORDS[0] }>;

// SAFETY: the type consists of words of a machine and nothing else.
unsafe impl<M: ConstMachine, const N: usize> Plain for Report<M, N> {}

/// A report in a cell that is in hand, if there was room for one.
pub(crate) enum Written<'s, M: ConstMachine> {
    Short(Cell<'s, Report<M, { WORDS[0] }>, M>),
    Middle(Cell<'s, Report<M, { WORDS[1] }>, M>),
    Long(Cell<'s, Report<M, { WORDS[2] }>, M>),
    Nowhere,
}

impl<M: ConstMachine> Written<'_, M> {
    fn offset(&self) -> Offset<Small<M>> {
        match self {
            Self::Short(cell) => cell.offset(),
            Self::Middle(cell) => cell.offset().cast(),
            Self::Long(cell) => cell.offset().cast(),
            Self::Nowhere => Offset::NULL,
        }
    }

    /// Completes the creation, after the owner's cell links to the report.
    fn publish(self) {
        match self {
            Self::Short(cell) => drop(cell.publish().raw()),
            Self::Middle(cell) => drop(cell.publish().raw()),
            Self::Long(cell) => drop(cell.publish().raw()),
            Self::Nowhere => {}
        }
    }
}

/// Returns the largest number of words of each name with which all links fit, and how many links
/// fit with it.
fn fit(links: &[&Link]) -> (usize, usize) {
    let room = WORDS[2] - 1;
    let all = |most: usize| {
        links.iter().map(|link| LINK + link.object.len().div_ceil(8).min(most)).sum::<usize>()
    };
    let longest = links.iter().map(|link| link.object.len().div_ceil(8)).max().unwrap_or(0);
    // All links fit with `fits` words of each name. With one more they do not, or no name is
    // longer.
    let (mut fits, mut beyond) = (0, longest + 1);
    while beyond - fits > 1 {
        let middle = fits.midpoint(beyond);
        if all(middle) <= room {
            fits = middle;
        } else {
            beyond = middle;
        }
    }
    (fits, links.len().min(room / LINK))
}

/// Returns the words of a link, with at most so many words of its name.
fn link_words(link: &Link, most: usize) -> Vec<u64> {
    let told = &link.object[..link.object.len().min(most * 8)];
    let held = link.held.map_or(0, |mode| u64::from(mode.0) + 1);
    let lengths = (told.len() as u64) << 32 | (link.length as u64) << 48;
    let mut words = vec![
        link.owner.word(),
        u64::from(link.hard) | held << 8 | u64::from(link.wanted.0) << 16 | lengths,
    ];
    words.extend(told.chunks(8).map(|chunk| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    }));
    words
}

/// Writes as many links as fit.
fn fill<M: ConstMachine>(links: &[Vec<u64>], words: &[M::AtomicU64]) {
    let (mut at, mut told) = (1, 0u64);
    for link in links {
        let Some(room) = words.get(at..at + link.len()) else { break };
        room.iter().zip(link).for_each(|(word, value)| put(word, *value));
        at += link.len();
        told += 1;
    }
    put(&words[0], told << 32 | at as u64);
}

impl<M: ConstMachine> Memory<M> {
    /// Writes the report of a cycle, as far as there is room.
    pub(crate) fn write_report(&self, links: &[&Link]) -> Written<'_, M> {
        let (most, told) = fit(links);
        let words: Vec<_> = links[..told].iter().map(|link| link_words(link, most)).collect();
        let length = 1 + words.iter().map(Vec::len).sum::<usize>();
        // Missing room is not an error: the cycle is broken in any case.
        if length > WORDS[1]
            && let Ok(cell) = self.thread.alloc_dirty::<Report<M, { WORDS[2] }>>()
        {
            fill::<M>(&words, &cell.words);
            return Written::Long(cell);
        }
        if length > WORDS[0]
            && let Ok(cell) = self.thread.alloc_dirty::<Report<M, { WORDS[1] }>>()
        {
            fill::<M>(&words, &cell.words);
            return Written::Middle(cell);
        }
        match self.thread.alloc_dirty::<Small<M>>() {
            Ok(cell) => {
                fill::<M>(&words, &cell.words);
                Written::Short(cell)
            }
            Err(_) => Written::Nowhere,
        }
    }

    /// Links a report to its victim. The caller holds the latch under which the request is refused.
    pub(crate) fn place_report(
        &self,
        cell: &OwnerCell<M>,
        report: Written<'_, M>,
        owners: u32,
    ) -> Result<(), Error> {
        let old = self.begin_taking(cell)?;
        put(&cell.report, u64::from(owners) << 32 | u64::from(report.offset().raw()));
        report.publish();
        self.end_taking(old)
    }

    /// Frees an owner's report, if it has one. Called by the owner, or by the sweeper that releases
    /// it.
    pub(crate) fn drop_report(&self, cell: &OwnerCell<M>) -> Result<(), Error> {
        let old = self.begin_taking(cell)?;
        put(&cell.report, 0);
        self.end_taking(old)
    }

    /// Records the report of an owner before it is removed, which makes all other intents that name
    /// it void. The thread that wrote it may have died before it cleared its own; the sweeper of
    /// that thread must not free the report again.
    fn begin_taking(&self, cell: &OwnerCell<M>) -> Result<Offset<Small<M>>, Error> {
        let at = Offset::from_raw(get(&cell.report) as u32);
        if !at.is_null() {
            self.thread.adopt_as(at, &self.thread.intent()?[intents::REPORT])?;
        }
        Ok(at)
    }

    fn end_taking(&self, at: Offset<Small<M>>) -> Result<(), Error> {
        if !at.is_null() {
            self.point("report taken");
            self.free_report(at)?;
            put(&self.thread.intent()?[intents::REPORT], 0);
        }
        Ok(())
    }

    /// Frees the report that a dead thread removed from an owner and did not free.
    pub(crate) fn free_noted_report(&self, dead: &Dead<'_, M>) -> Result<(), Error> {
        let noted = get(&dead.intent()[intents::REPORT]);
        let is_led_to = |at: u32| {
            // Acquire: synchronizes with the Release of the thread that removed it: then its new
            // generation is visible below.
            self.each_owner().any(|(_, cell)| cell.report.load(Acquire) as u32 == at)
        };
        if noted != 0
            && !is_led_to(noted as u32)
            && let Some(at) = self.noted(noted)?
        {
            let note = &self.thread.intent()?[intents::REPORT];
            // If the report is free already, a faulty peer freed it.
            if self.thread.adopt_as(at, note).is_ok() {
                let _ = self.free_report(at);
                put(note, 0);
            }
        }
        Ok(())
    }

    /// Frees a report's cell. Its size is one of three; freeing it with another size fails.
    fn free_report(&self, at: Offset<Small<M>>) -> Result<(), Error> {
        let short = self.free_cell(at);
        let middle = short.or_else(|_| self.free_cell(at.cast::<Report<M, { WORDS[1] }>>()));
        let long = middle.or_else(|_| self.free_cell(at.cast::<Report<M, { WORDS[2] }>>()));
        Ok(long?)
    }

    fn read_report(&self, at: Offset<Small<M>>) -> Result<Vec<Link>, Error> {
        let head = get(&words64_at(self.region(), at, 1)?[0]);
        let (told, used) = ((head >> 32) as usize, (head as u32 as usize).min(WORDS[2]));
        let words = words64_at(self.region(), at, used)?;
        let (mut links, mut at) = (Vec::new(), 1);
        for _ in 0..told {
            let Some([owner, head]) = words.get(at..at + LINK) else { break };
            let (owner, head) = (get(owner), get(head));
            let length = (head >> 32) as usize & 0xffff;
            let end = at + LINK + length.div_ceil(8);
            let Some(name) = words.get(at + LINK..end) else { break };
            let held = (head >> 8) as u8;
            links.push(Link {
                owner: OwnerId::of(owner),
                object: names::read::<M>(name, length),
                length: (head >> 48) as usize,
                held: held.checked_sub(1).map(Mode),
                wanted: Mode((head >> 16) as u8),
                hard: head & 1 != 0,
            });
            at = end;
        }
        Ok(links)
    }
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Returns the error of this owner's refused request.
    pub(crate) fn refusal(&self, why: u32) -> Result<Error, Error> {
        let report = get(&self.cell.report);
        let error = reason(why);
        if report == 0 || error != Error::Aborted(Reason::Deadlock) {
            return Ok(error);
        }
        let links = match report as u32 {
            0 => Vec::new(),
            at => self.memory.read_report(Offset::from_raw(at))?,
        };
        self.memory.drop_report(self.cell)?;
        Ok(Error::Deadlock(Cycle { links, owners: (report >> 32) as u32 }))
    }
}
