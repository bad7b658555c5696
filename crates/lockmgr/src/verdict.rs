//! How a victim, maybe in another process, learns of the whole cycle.
//!
//! The detector writes the cycle into a cell of the region and hangs it onto the victim's owner
//! cell, under the latch of the partition where the victim waits; the victim takes it from there.
//!
//! ```text
//! word 0: count of links; then for each link two words and its name
//!   owner, generation
//!   hard: 8 | held + 1: 8 | wanted: 8 | . | name's length: 32        name, in whole words
//! ```

use core::sync::atomic::Ordering::Acquire;

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::{Cell, Dead, Offset, Plain};

use crate::layout::{OwnerCell, get, put};
use crate::mode::Mode;
use crate::name;
use crate::note;
use crate::owner::{Owner, reason};
use crate::session::Session;
use crate::{Error, Link, OwnerId, Reason};

/// Words of a verdict.
const WORDS: usize = 8183;

/// Bytes of a name that are told.
const TOLD: usize = 64;

/// A cycle, written down.
#[repr(C)]
pub(crate) struct Verdict<M: ConstMachine> {
    words: [M::AtomicU64; WORDS],
}

// SAFETY: it is made of words of a machine, and nothing else.
unsafe impl<M: ConstMachine> Plain for Verdict<M> {}

impl<M: ConstMachine> Session<M> {
    /// Writes a cycle down: as many links as there is room for.
    pub(crate) fn write_verdict(&self, links: &[&Link]) -> Result<Cell<'_, Verdict<M>, M>, Error> {
        let cell = self.thread.alloc_dirty::<Verdict<M>>()?;
        let (mut at, mut count) = (1, 0);
        for link in links {
            let told = &link.object[..link.object.len().min(TOLD)];
            let words = told.len().div_ceil(8);
            if at + 2 + words > WORDS {
                break;
            }
            put(
                &cell.words[at],
                u64::from(link.owner.index) << 32 | u64::from(link.owner.generation),
            );
            let held = link.held.map_or(0, |mode| u64::from(mode.0) + 1);
            let head = u64::from(link.hard) | held << 8 | u64::from(link.wanted.0) << 16;
            put(&cell.words[at + 1], head | (told.len() as u64) << 32);
            for (word, chunk) in cell.words[at + 2..].iter().zip(told.chunks(8)) {
                let mut bytes = [0; 8];
                bytes[..chunk.len()].copy_from_slice(chunk);
                put(word, u64::from_le_bytes(bytes));
            }
            at += 2 + words;
            count += 1;
        }
        put(&cell.words[0], count);
        Ok(cell)
    }

    /// Hangs a verdict onto its victim, with the latch held under which it is refused.
    pub(crate) fn place_verdict(
        &self,
        cell: &OwnerCell<M>,
        verdict: Cell<'_, Verdict<M>, M>,
    ) -> Result<(), Error> {
        let old = self.begin_taking(cell)?;
        put(&cell.verdict, u64::from(verdict.offset().raw()));
        verdict.publish();
        self.end_taking(old)
    }

    /// Frees an owner's verdict, if it has one. For the owner, or who buries it.
    pub(crate) fn drop_verdict(&self, cell: &OwnerCell<M>) -> Result<(), Error> {
        let old = self.begin_taking(cell)?;
        put(&cell.verdict, 0);
        self.end_taking(old)
    }

    /// Before a verdict is taken from its place: notes it, and makes all other notes of it void. Who
    /// wrote it may have died before it noted that it was done; who sweeps that one is not to free
    /// it, too.
    fn begin_taking(&self, cell: &OwnerCell<M>) -> Result<u32, Error> {
        let at = get(&cell.verdict) as u32;
        if at != 0 {
            self.thread.adopt(Offset::<Verdict<M>>::from_raw(at))?;
            put(&self.thread.intent()?[note::VERDICT], self.name_cell(at)?);
        }
        Ok(at)
    }

    fn end_taking(&self, at: u32) -> Result<(), Error> {
        if at != 0 {
            self.point("verdict taken");
            self.thread.free(Offset::<Verdict<M>>::from_raw(at))?;
            put(&self.thread.intent()?[note::VERDICT], 0);
        }
        Ok(())
    }

    /// Frees the verdict that a dead thread took from its place, if it had done so and no more.
    pub(crate) fn free_noted_verdict(&self, dead: &Dead<'_, M>) -> Result<(), Error> {
        let noted = get(&dead.intent()[note::VERDICT]);
        let is_led_to = |at: u32| {
            // Acquire: synchronizes with the Release of who took it: then its new generation is seen
            // below.
            self.each_owner().any(|(_, cell)| cell.verdict.load(Acquire) as u32 == at)
        };
        if noted != 0
            && !is_led_to(noted as u32)
            && let Some(at) = self.noted(noted)?
        {
            // One that is free already is refused, rightly.
            let _ = self.thread.free(Offset::<Verdict<M>>::from_raw(at));
        }
        Ok(())
    }

    fn read_verdict(&self, at: u32) -> Result<Vec<Link>, Error> {
        let verdict: &Verdict<M> = self.region().resolve(Offset::from_raw(at))?;
        let mut links = Vec::new();
        let mut at = 1;
        for _ in 0..get(&verdict.words[0]) {
            if at + 2 > WORDS {
                break;
            }
            let (owner, head) = (get(&verdict.words[at]), get(&verdict.words[at + 1]));
            let length = ((head >> 32) as usize).min(TOLD);
            let words = length.div_ceil(8);
            if at + 2 + words > WORDS {
                break;
            }
            links.push(Link {
                owner: OwnerId { index: (owner >> 32) as u32, generation: owner as u32 },
                object: name::read::<M>(&verdict.words[at + 2..at + 2 + words], length),
                held: (head as u8 >> 1 != 0 || (head >> 8) as u8 != 0)
                    .then(|| Mode(((head >> 8) as u8).wrapping_sub(1))),
                wanted: Mode((head >> 16) as u8),
                hard: head & 1 != 0,
            });
            at += 2 + words;
        }
        Ok(links)
    }
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Why this owner's request was refused.
    pub(crate) fn verdict(&self, why: u32) -> Result<Error, Error> {
        let at = get(&self.cell.verdict);
        let error = reason(why);
        if at == 0 || error != Error::Doomed(Reason::Deadlock) {
            return Ok(error);
        }
        let links = self.session.read_verdict(at as u32)?;
        self.session.drop_verdict(self.cell)?;
        Ok(Error::Deadlock(links))
    }
}
