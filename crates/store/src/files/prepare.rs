//! Prepared transactions: neither committed nor rolled back until a thread decides.
//!
//! ```text
//!            PREPARE in the log                       COMMIT in the log
//!   open ───────────────────────▶ prepared ──┬───────────────────────────▶ committed
//!     │                                      │ first CLR, or END
//!     │ any other end, any death             ▼
//!     └───────────────────────────────▶ undone
//! ```
//!
//! The log alone records the state: a transaction is prepared as long as its last record is a
//! `PREPARE`. So a thread that dies while it prepares or decides leaves one state or the next, and
//! so does a crash. Its thread slot is *retained* with its log records, its locks, and its
//! reservation for its end. A sweep that finds the slot of a dead thread in this state retains it
//! again.
//!
//! | record | payload |
//! |---|---|
//! | `LOCKS`, as many as needed | 0; for each lock its mode (1), length (2), name |
//! | | for each range its kind plus 128 (1), then keyspace, first key, and end key, each as |
//! | | length (2), which is 65,535 for none, and bytes |
//! | `PREPARE` | 0; the time, in milliseconds since 1970 (8); the id |
//!
//! All locks are logged, including those of reads: what the transaction has read must not change
//! before it commits, or a snapshot between the two would be the state of no serial order. The id
//! itself is locked, as a key of no tree, so that no two transactions have the same.

use std::time::{SystemTime, UNIX_EPOCH};

use latchwork_lockmgr::granular::{IS, IX, S, SIX, U, X};
use latchwork_lockmgr::{Held, HeldRange, Mode, RangeKind};
use latchwork_log::{Entry, Head, Lsn};
use latchwork_machine::ConstMachine;

use crate::Error;
use crate::engine::UndoChain;
use crate::files::inner::StoreInner;
use crate::files::kinds::{END, LOCKS, PREPARE};
use crate::files::session::{SMALL, StoreSession};

/// Approximate size of a lock record in bytes.
const PART: usize = 16 << 10;
/// Flags a range; and the length of an absent key.
const RANGE: u8 = 128;
const NONE: u16 = u16::MAX;
const MODES: [Mode; 6] = [IS, IX, S, SIX, U, X];

/// A prepared transaction in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) slot: u16,
    pub(crate) gid: Vec<u8>,
    /// Milliseconds since 1970.
    pub(crate) when: u64,
    /// The positions of its first record and of the `PREPARE` record.
    pub(crate) first: u64,
    pub(crate) at: u64,
}

/// The kind of the last record of a slot's transaction.
#[derive(Debug)]
pub(crate) enum LastRecord {
    Prepared(Found),
    /// It is being appended; if its thread dies now, it may or may not be in the log.
    Appending,
    /// No record, or one of another kind.
    Other,
}

impl Found {
    /// Decodes the record; `None` if it is of another kind.
    pub(crate) fn of(first: Lsn, entry: &Entry) -> Option<Self> {
        let (when, gid) = entry.payload.get(1..)?.split_first_chunk()?;
        let (when, gid) = (u64::from_le_bytes(*when), gid.to_vec());
        let found = Self { slot: entry.slot, gid, when, first: first.0, at: entry.lsn.0 };
        (entry.head.kind == PREPARE).then_some(found)
    }
}

fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    // Names and keys are shorter: the lock manager limits them.
    to.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    to.extend_from_slice(bytes);
}

/// Encodes the locks as payloads of records.
fn parts(held: &Held) -> Vec<Vec<u8>> {
    let mut parts = vec![vec![0]];
    let mut part = |write: &dyn Fn(&mut Vec<u8>)| {
        if parts.last().is_none_or(|part| part.len() > PART) {
            parts.push(vec![0]);
        }
        parts.last_mut().into_iter().for_each(write);
    };
    for (name, mode) in &held.locks {
        part(&|to| {
            to.push(mode.number());
            put(to, name);
        });
    }
    for range in &held.ranges {
        part(&|to| {
            to.push(RANGE | range.kind as u8);
            put(to, &range.keyspace);
            put(to, &range.from);
            match &range.to {
                Some(key) => put(to, key),
                None => to.extend_from_slice(&NONE.to_le_bytes()),
            }
        });
    }
    parts.retain(|part| part.len() > 1);
    parts
}

/// Consumes bytes from the front; the inner `None` stands for an absent key.
fn take(from: &mut &[u8]) -> Option<Option<Vec<u8>>> {
    let (length, rest) = from.split_first_chunk()?;
    let length = u16::from_le_bytes(*length);
    let bytes = match length {
        NONE => Some(&rest[..0]),
        _ => rest.get(..usize::from(length)),
    };
    let bytes = bytes?;
    *from = &rest[bytes.len()..];
    Some((length != NONE).then(|| bytes.to_vec()))
}

/// Decodes the locks in a record; `None` if it is damaged.
pub(crate) fn locks_of(payload: &[u8], held: &mut Held) -> Option<()> {
    let mut from = payload.get(1..)?;
    while let Some((what, rest)) = from.split_first() {
        from = rest;
        let name = take(&mut from)??;
        if what & RANGE == 0 {
            held.locks.push((name, *MODES.get(usize::from(*what))?));
            continue;
        }
        let kind = *RangeKind::ALL.get(usize::from(what & !RANGE))?;
        let (from, to) = (take(&mut from)??, take(&mut from)?);
        held.ranges.push(HeldRange { keyspace: name, from, to, kind });
    }
    Some(())
}

impl<M: ConstMachine> StoreSession<M> {
    /// Logs that the slot's transaction is prepared: see `Engine::prepare`.
    pub(crate) fn prepare_now(
        &self,
        chain: &mut UndoChain,
        gid: &[u8],
        held: &Held,
    ) -> Result<u64, Error> {
        for part in parts(held) {
            // The first record of a transaction without changes reserves space for its end, because
            // the transaction may be rolled back if the next record has no room.
            let aside = if chain.last == 0 { SMALL } else { 0 };
            chain.last = self.append_part(chain, LOCKS, &part, aside)?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut payload = vec![0];
        payload.extend_from_slice(&(now.as_millis() as u64).to_le_bytes());
        payload.extend_from_slice(gid);
        // Reserves space for its commit, which must not fail for lack of space. Its id is locked,
        // so this is not its first record.
        chain.last = self.append_part(chain, PREPARE, &payload, SMALL)?;
        Ok(chain.last)
    }

    fn append_part(
        &self,
        chain: &UndoChain,
        kind: u8,
        payload: &[u8],
        aside: u64,
    ) -> Result<u64, Error> {
        self.log.reserve(payload.len() as u64 + SMALL + aside)?;
        let head = Head { kind, prev: Lsn(chain.last), ..Head::default() };
        let mut record = self.log.build(&head, &[payload])?;
        record.set_aside(aside);
        Ok(self.log.append(&mut record)?.0)
    }
}

impl<M: ConstMachine> StoreInner<M> {
    /// Returns the prepared transaction of a slot; `None` if its transaction is not prepared, or is
    /// being decided.
    pub(crate) fn prepared_in(&self, slot: u32) -> Result<Option<Found>, Error> {
        Ok(match self.last_record_of(slot)? {
            LastRecord::Prepared(found) => Some(found),
            LastRecord::Appending | LastRecord::Other => None,
        })
    }

    /// Returns the kind of the last record of a slot's transaction.
    pub(crate) fn last_record_of(&self, slot: u32) -> Result<LastRecord, Error> {
        let (first, last) = self.log.open_of(slot)?;
        // The slot shows a commit before the log's end does.
        let commits = first != Lsn::NEVER && last == Lsn::NEVER;
        if commits || last >= self.log.end() {
            return Ok(LastRecord::Appending);
        }
        if last == Lsn::NEVER {
            return Ok(LastRecord::Other);
        }
        let has_moved = || Ok::<bool, Error>(self.log.open_of(slot)?.1 != last);
        match self.log.read(last) {
            // A thread died during an append for the slot, and another record came to that place.
            Ok(entry) if u32::from(entry.slot) != slot && has_moved()? => Ok(LastRecord::Appending),
            Ok(entry) => Ok(match Found::of(first, &entry) {
                Some(found) if !self.has_ended(slot, last)? => LastRecord::Prepared(found),
                _ => LastRecord::Other,
            }),
            // It has ended in between.
            Err(_) if has_moved()? => Ok(LastRecord::Other),
            Err(why) => Err(why.into()),
        }
    }

    /// Returns whether the end of a rollback is in the log although its slot still has a last
    /// record: the thread that clears it is doing so, or is dead. If there was no change to roll
    /// back, nothing else shows the end.
    fn has_ended(&self, slot: u32, last: Lsn) -> Result<bool, Error> {
        let newest = self.log.newest_of(slot)?;
        // If a thread died during an append for this slot, it is a record of another.
        Ok(newest > last
            && self
                .log
                .read(newest)
                .is_ok_and(|entry| entry.head.kind == END && u32::from(entry.slot) == slot))
    }

    /// Returns all prepared transactions, except transactions that a living thread is preparing or
    /// deciding, in the order in which they were prepared. Includes those of dead threads that
    /// another process is sweeping: a thread that decides one waits for that.
    pub(crate) fn all_prepared(&self) -> Result<Vec<Found>, Error> {
        let (mut all, region) = (Vec::new(), self.manager.region());
        // The child of a fork sees no slots.
        region.check()?;
        for slot in 0..self.log.slots_high() {
            let is_left = || region.is_retained(slot) || region.is_dead(slot);
            // Transactions of living threads are not read. Checked twice, because the slot may
            // change its owner.
            if is_left()
                && let Some(found) = self.prepared_in(slot)?
                && is_left()
            {
                all.push(found);
            }
        }
        all.sort_by_key(|found| found.at);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_read_as_they_were_written() {
        let mut held = Held::default();
        for number in 0..5000_u32 {
            let mode = MODES[number as usize % MODES.len()];
            held.locks.push((number.to_be_bytes().repeat(1 + number as usize % 8), mode));
        }
        for (number, kind) in RangeKind::ALL.into_iter().enumerate() {
            let to = (number % 2 == 0).then(|| vec![9; number]);
            held.ranges.push(HeldRange { keyspace: vec![1], from: vec![2; number], to, kind });
        }
        let parts = parts(&held);
        assert!(parts.len() > 3 && parts.iter().all(|part| part.len() < 2 * PART));
        let mut read = Held::default();
        parts.iter().for_each(|part| locks_of(part, &mut read).unwrap());
        assert_eq!(read, held);
        assert!(super::parts(&Held::default()).is_empty());
    }
}
