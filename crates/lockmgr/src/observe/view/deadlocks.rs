//! Reading the history of deadlocks. The bytes may be damaged, so each count is checked.

use latchwork_machine::{Clock, ConstMachine};
use latchwork_region::Offset;

use super::{TRIES, View, seen};
use crate::deadlock::history::{HEAD, History, KEPT, LINK, Record, TOLD, WORDS};
use crate::memory::cells::cell_at;
use crate::memory::roots;
use crate::memory::typed::Stored;
use crate::mode::Mode;
use crate::{Error, Link, OwnerId};

/// A thread that took part in a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadRef {
    /// Its slot.
    pub thread: u32,
    /// Its process, or `None` if the process had already ended.
    pub pid: Option<u32>,
}

/// An owner of a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The edge: the owner, and the lock that it waited for. At most 64 bytes of the name are
    /// recorded.
    pub link: Link,
    /// The length of the whole name.
    pub name_length: usize,
    /// The owner's label.
    pub label: String,
    /// The owner's thread.
    pub thread: Option<ThreadRef>,
}

/// A deadlock that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlock {
    /// The number of deadlocks in the region so far, including this one.
    pub number: u64,
    /// When it was broken, in nanoseconds since 1970.
    pub at: u64,
    /// How long ago that was by the monotonic clock; `None` if a restart has reset that clock
    /// since.
    pub ago: Option<u64>,
    /// The number of owners in the cycle.
    pub owners: u32,
    /// The recorded part of the cycle: the victim, the owner that it waited for, and so on.
    pub cycle: Vec<Waiter>,
    /// The thread that found it.
    pub finder: Option<ThreadRef>,
}

impl<M: ConstMachine> View<M> {
    /// Returns the last deadlocks that were broken by aborting a victim, at most 16, the oldest
    /// first. A record that changes continuously while it is read, or is invalid, is omitted.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if the manager's own cells cannot be read.
    pub fn deadlocks(&self) -> Result<Vec<Deadlock>, Error> {
        self.refresh()?;
        let mut found: Vec<Deadlock> = Vec::new();
        for place in 0..KEPT {
            let words = (0..TRIES).find_map(|_| self.twice_alike(place).transpose()).transpose()?;
            let read = words.and_then(|words| self.read_record(&words));
            found.extend(read.filter(|record| record.number % KEPT == place));
        }
        found.sort_by_key(|record| record.number);
        Ok(found)
    }

    /// Returns how many deadlocks were broken by aborting a victim since the manager was created.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if the manager's own cells cannot be read.
    pub fn deadlocks_ever(&self) -> Result<u64, Error> {
        self.refresh()?;
        Ok(self.history()?.map_or(0, |history| seen(&history.count)))
    }

    pub(super) fn history(&self) -> Result<Option<&History<M>>, Error> {
        match seen(self.region.root(roots::HISTORY)?) as u32 {
            0 => Ok(None),
            at => Ok(Some(cell_at(&self.region, Offset::from_raw(at))?)),
        }
    }

    /// Returns a record's words, if they are equal in two copies of a file.
    fn twice_alike(&self, place: u64) -> Result<Option<Vec<u64>>, Error> {
        let first = self.record_at(place);
        self.refresh()?;
        Ok(first.filter(|first| self.record_at(place).as_ref() == Some(first)))
    }

    /// Returns a record's words, if the record did not change during the reading.
    fn record_at(&self, place: u64) -> Option<Vec<u64>> {
        let slot = self.history().ok()??.slots.get(place as usize)?;
        let word = seen(slot);
        let offset = Offset::<()>::from_raw(word as u32);
        let before = self.region.lent(offset).ok()??;
        let words = match word >> 32 {
            0 => self.copy::<{ WORDS[0] }>(offset.cast())?,
            1 => self.copy::<{ WORDS[1] }>(offset.cast())?,
            2 => self.copy::<{ WORDS[2] }>(offset.cast())?,
            _ => return None,
        };
        let same = seen(slot) == word && self.region.lent(offset).ok()? == Some(before);
        same.then_some(words)
    }

    fn copy<const N: usize>(&self, at: Offset<Record<M, N>>) -> Option<Vec<u64>> {
        let record = cell_at(&self.region, at).ok()?;
        Some(record.words.iter().map(seen).collect())
    }

    fn read_record(&self, words: &[u64]) -> Option<Deadlock> {
        let (head, mut rest) = words.split_at_checked(HEAD)?;
        let mut cycle = Vec::new();
        for _ in 0..head[3] >> 32 {
            let (link, after) = rest.split_at_checked(LINK)?;
            let byte = |n: u32| (link[1] >> n) as u8;
            let (label, name) = (usize::from(byte(24)), (link[1] >> 32) as u16 as usize);
            if name > TOLD {
                return None;
            }
            let (label_words, after) = after.split_at_checked(label.div_ceil(8))?;
            let (name_words, after) = after.split_at_checked(name.div_ceil(8))?;
            cycle.push(Waiter {
                link: Link {
                    owner: OwnerId::of(link[0]),
                    object: bytes_of(name_words, name),
                    length: (link[1] >> 48) as usize,
                    held: byte(8).checked_sub(1).map(Mode),
                    wanted: Mode(byte(16)),
                    hard: byte(0) != 0,
                },
                name_length: (link[1] >> 48) as usize,
                label: String::from_utf8_lossy(&bytes_of(label_words, label)).into_owned(),
                thread: thread_ref(link[2]),
            });
            rest = after;
        }
        let now = M::now(Clock::Monotonic);
        Some(Deadlock {
            number: head[0],
            at: head[1],
            ago: now.checked_sub(head[2]),
            owners: head[3] as u32,
            cycle,
            finder: thread_ref(head[4]),
        })
    }
}

fn thread_ref(word: u64) -> Option<ThreadRef> {
    let thread = ((word >> 32) as u32).checked_sub(1)?;
    Some(ThreadRef { thread, pid: Some(word as u32).filter(|pid| *pid != 0) })
}

fn bytes_of(words: &[u64], length: usize) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).take(length).collect()
}
