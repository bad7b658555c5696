//! Checks of the consistency of a manager.

use std::collections::{HashMap, HashSet};

use latchwork_machine::ConstMachine;
use latchwork_region::Offset;

use super::{View, seen, seen_object};
use crate::error::corrupt_list;
use crate::memory::cells::{ObjectAt, RequestAt, Small, cell_at};
use crate::memory::names::Name;
use crate::memory::numbers::{OwnerNumber, PartitionNumber};
use crate::memory::state::status;
use crate::memory::typed::Stored;
use crate::{Error, Mode, Modes};

/// The result of a check. Exact while no thread uses the region.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Verified {
    /// Descriptions of inconsistencies. While other threads use the region, an inconsistency that
    /// is reported once may be an unfinished change; a repeated one is not.
    pub flaws: Vec<String>,
    /// Partitions that were skipped because their latch is held, and the thread slots of the
    /// holders.
    pub latched: Vec<(u32, u32)>,
    /// Objects, requests, owners and claims on ranges that were checked.
    pub objects: u64,
    #[allow(missing_docs)]
    pub requests: u64,
    #[allow(missing_docs)]
    pub owners: u64,
    #[allow(missing_docs)]
    pub ranges: u64,
}

impl<M: ConstMachine> View<M> {
    /// Follows every list, and compares redundant fields. With the modes it also searches for
    /// owners that hold conflicting locks. Reads each cell once: repeat the check if other threads
    /// use the region.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] if the manager's own cells cannot be read.
    pub fn verify(&self, modes: Option<&Modes>) -> Result<Verified, Error> {
        let mut said = Verified { latched: self.latched()?, ..Verified::default() };
        let latched = said.latched.iter();
        let skipped: HashSet<_> = latched.map(|held| PartitionNumber::of(held.0)).collect();
        let mut linked = HashMap::new();
        for number in self.blocks.each().filter(|number| !skipped.contains(number)) {
            if let Err(error) = self.verify_partition(number, modes, &mut said, &mut linked) {
                said.flaws.push(format!("partition {number}: {error}"));
            }
        }
        self.verify_history(&mut said.flaws)?;
        if let Err(error) = self.verify_ranges(&mut said, |number| skipped.contains(&number)) {
            said.flaws.push(format!("ranges: {error}"));
        }
        let alive = self.living();
        let mut flaws = Vec::new();
        self.each_owner(|index, (page, cell)| {
            if seen(&cell.state).is_free() {
                return Ok(());
            }
            said.owners += 1;
            // The sweep repairs unfinished changes of dead threads.
            if !seen(&page.thread).checked_sub(1).is_some_and(|t| alive.contains(&t)) {
                return Ok(());
            }
            let (mut at, mut count) = (seen(&cell.head), 0);
            while !at.is_null() {
                let Ok(request) = cell_at(&self.region, at) else {
                    flaws.push(format!("owner {index}: its list leads nowhere"));
                    return Ok(());
                };
                if seen(&request.owner) != index {
                    flaws.push(format!("owner {index}: request {at} in its list is another's"));
                    return Ok(());
                }
                linked.remove(&at);
                count += 1;
                at = seen(&request.own_next);
                if u64::from(count) > self.cells() {
                    flaws.push(format!("owner {index}: its list is corrupt"));
                    return Ok(());
                }
            }
            if count != seen(&cell.held) {
                flaws.push(format!("owner {index}: has {count} requests, counts otherwise"));
            }
            Ok(())
        })?;
        for (at, owner) in linked {
            let page = self.owner(owner)?.map_or(0, |(page, _)| seen(&page.thread));
            if page.checked_sub(1).is_some_and(|thread| alive.contains(&thread)) {
                flaws.push(format!("request {at}: not in the list of its owner {owner}"));
            }
        }
        said.flaws.append(&mut flaws);
        Ok(said)
    }

    /// Checks that the records of the history are allocated cells, each in one slot.
    fn verify_history(&self, flaws: &mut Vec<String>) -> Result<(), Error> {
        let Some(history) = self.history()? else { return Ok(()) };
        let mut known = HashSet::new();
        for at in history.slots.iter().map(|slot| seen(slot) as u32).filter(|at| *at != 0) {
            match self.region.lent(Offset::<()>::from_raw(at)) {
                Ok(Some(_)) if known.insert(at) => {}
                Ok(Some(_)) => flaws.push(format!("deadlock {at}: twice in the history")),
                Ok(None) => flaws.push(format!("deadlock {at}: its cell is free")),
                Err(_) => flaws.push(format!("deadlock {at}: leads nowhere")),
            }
        }
        Ok(())
    }

    /// Returns the thread slots of live processes, and retained slots.
    fn living(&self) -> HashSet<u32> {
        let processes = self.region.processes();
        let lives = |process: u32, generation: u32| {
            processes.iter().any(|p| p.slot == process && p.generation == generation && p.alive)
        };
        let threads = self.region.threads();
        let at_work = threads.filter(|t| t.retained || lives(t.process, t.process_generation));
        at_work.map(|t| t.slot).collect()
    }

    fn verify_partition(
        &self,
        number: PartitionNumber,
        modes: Option<&Modes>,
        said: &mut Verified,
        linked: &mut HashMap<RequestAt<M>, OwnerNumber>,
    ) -> Result<(), Error> {
        let line = self.blocks.partition(&self.region, number)?;
        let table = seen(&line.heads);
        if table.is_none() {
            return Ok(());
        }
        let mut objects = 0;
        for chain in self.chains(table)? {
            let mut at = seen_object(chain);
            while !at.is_null() {
                let object = cell_at(&self.region, at)?;
                if self.region.lent(at)?.is_none() {
                    said.flaws.push(format!("object {at}: its cell is free"));
                }
                let bytes = self.name_of(at, object)?;
                match Name::new(&bytes, self.region.creation() as u64) {
                    Ok(name) if self.blocks.spot(name.hash).partition != number => {
                        said.flaws.push(format!("object {at}: in the wrong partition"));
                    }
                    Ok(name) if seen(&object.hash) != name.hash as u32 => {
                        said.flaws.push(format!("object {at}: its name is not the hashed one"));
                    }
                    Ok(_) => {}
                    Err(_) => said.flaws.push(format!("object {at}: has no name")),
                }
                self.verify_queue(number, at, object, modes, said, linked)?;
                objects += 1;
                at = seen(&object.next);
                if objects > self.cells() {
                    return corrupt_list();
                }
            }
        }
        let counted = seen(&line.objects);
        if objects != u64::from(counted) {
            said.flaws.push(format!("partition {number}: {objects} objects, counted {counted}"));
        }
        said.objects += objects;
        Ok(())
    }

    fn verify_queue(
        &self,
        number: PartitionNumber,
        of: ObjectAt<M>,
        object: &Small<M>,
        modes: Option<&Modes>,
        said: &mut Verified,
        linked: &mut HashMap<RequestAt<M>, OwnerNumber>,
    ) -> Result<(), Error> {
        let (mut at, mut last, mut length) = (seen(&object.head), Offset::NULL, 0u32);
        let mut held: Vec<(OwnerNumber, Mode)> = Vec::new();
        let mut in_queue = false;
        while !at.is_null() {
            let request = cell_at(&self.region, at)?;
            let mut wrong = |what: &str| said.flaws.push(format!("request {at}: {what}"));
            let (state, owner) = (seen(&request.state), seen(&request.owner));
            in_queue |= at == seen(&object.first);
            if in_queue && state.holds() && !object.is_scattered() {
                wrong("holds, and is in the queue");
            }
            if seen(&request.object) != of || seen(&request.partition) != number {
                wrong("names another object");
            }
            if seen(&request.prev) != last {
                wrong("its link back leads elsewhere");
            }
            if matches!(state.status, status::NEW | status::DENIED | status::AWAY)
                || state.status > status::AWAY
            {
                wrong("in a queue, and neither held nor waiting");
            }
            match self.owner(owner)? {
                Some((_, cell)) if seen(&cell.state).is_free() => wrong("its owner has ended"),
                Some((_, cell)) if state.waits() && seen(&cell.waiting) != at => {
                    wrong("waits, and its owner does not know");
                }
                Some(_) => {}
                None => wrong("its owner never was"),
            }
            if let Some(modes) = modes {
                if !modes.has(state.mode) || !modes.has(state.want) {
                    wrong("its mode is not in the set");
                } else if state.holds() {
                    let both =
                        |m: Mode| modes.conflicts(m, state.mode) && modes.conflicts(state.mode, m);
                    if held.iter().any(|(o, m)| both(*m) && !self.are_kin(*o, owner)) {
                        wrong("holds what another holds and does not share");
                    }
                    held.push((owner, state.mode));
                }
            }
            if !request.is_moved() {
                linked.insert(at, owner);
            }
            (last, length) = (at, length + 1);
            at = seen(&request.next);
            if u64::from(length) > self.cells() {
                return corrupt_list();
            }
        }
        let mut wrong = |what: &str| said.flaws.push(format!("object {of}: {what}"));
        if length != 0 && seen(&object.tail) != last {
            wrong("its last request is not the noted one");
        }
        if seen(&object.length) != length {
            wrong("counts its requests wrongly");
        }
        said.requests += u64::from(length);
        Ok(())
    }

    /// Returns whether two owners are the same, or one is an ancestor of the other.
    pub(super) fn are_kin(&self, a: OwnerNumber, b: OwnerNumber) -> bool {
        let leads = |from: OwnerNumber, to: OwnerNumber| {
            let mut at = Some(from);
            for _ in 0..1000 {
                match at {
                    Some(owner) if owner == to => return true,
                    Some(owner) => {
                        let cell = self.owner(owner).ok().flatten();
                        at = cell.and_then(|(_, cell)| self.parent_of(cell));
                    }
                    None => return false,
                }
            }
            false
        };
        leads(a, b) || leads(b, a)
    }
}
