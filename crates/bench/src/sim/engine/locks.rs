//! Our lock manager in the simulator.

use std::cell::Cell;

use latchwork_lockmgr::shared::{self, S, X};
use latchwork_lockmgr::{
    Error, KeyRange, Manager, Options, Owner, RangeKind, Session, Stripes, Wait,
};
use latchwork_region::Region;
use latchwork_sim::{Simulated, Simulation, work};

use super::super::dice::Dice;
use super::super::operations::Names;
use super::super::watch::Watch;
use super::{Engine, drawn, pause, zipf};

/// Upper bound, in bytes for the cells of each thread, of each object, and for all others.
const THREAD: u64 = 256 << 10;
const OBJECT: u64 = 256;
const REST: u64 = 8 << 20;
/// The range mode: exclusive.
const RANGE: RangeKind = RangeKind::WriteRecord;

/// A lock manager with a session per simulated thread.
pub(super) struct Bank {
    sessions: Vec<Session<Simulated>>,
    /// Cycles under a lock.
    inside: u64,
    names: Names,
    /// The keyspace of the range locks, if used.
    stripes: Option<Stripes>,
    /// Cumulative distribution of the requests over the common objects.
    shares: Vec<f64>,
    /// Holders per object; -1 is an exclusive one.
    holders: Vec<Cell<i64>>,
    /// Whether weak locks are granted in their owners' memory.
    weak: bool,
}

impl Bank {
    /// Creates a session per thread and what a long run has already created: the objects of threads
    /// that have their own, and the pages in which owners keep weak locks.
    pub(super) fn new(
        weak: bool,
        inside: u64,
        names: Names,
        threads: usize,
    ) -> Result<Self, String> {
        let told = |error: Error| error.to_string();
        let objects = if names.common > 0 { names.common } else { names.own * threads };
        let region = Region::heap(&latchwork_region::Options {
            processes: 1,
            threads: threads as u32,
            waiters: 1,
            limit: REST + THREAD * threads as u64 + OBJECT * objects as u64,
            ..latchwork_region::Options::default()
        });
        let region = region.map_err(|error| told(error.into()))?;
        let options = Options { weak, ..Options::default() };
        let manager = Manager::new(region, shared::modes(), options).map_err(told)?;
        let sessions: Result<Vec<_>, _> = (0..threads).map(|_| manager.session()).collect();
        let bank = Self {
            sessions: sessions.map_err(told)?,
            inside,
            names,
            stripes: stripes(names.stripes, objects).map_err(told)?,
            shares: zipf(names.common, 1.0),
            holders: (0..objects).map(|_| Cell::new(0)).collect(),
            weak,
        };
        for me in 0..threads {
            bank.prepare(me).map_err(told)?;
        }
        Ok(bank)
    }

    fn prepare(&self, me: usize) -> Result<(), Error> {
        let owner = self.sessions[me].owner()?;
        for turn in 0..self.names.own {
            let name = name(me * self.names.own + turn);
            self.lock(&owner, &name, true)?;
            self.unlock(&owner, &name)?;
        }
        if self.names.common > 0 {
            owner.lock(&name(0), S)?;
            owner.unlock(&name(0))?;
        }
        Ok(())
    }

    fn lock(&self, owner: &Owner<'_, Simulated>, name: &[u8], writes: bool) -> Result<(), Error> {
        match &self.stripes {
            None => owner.lock(name, if writes { X } else { S }),
            Some(stripes) => owner.lock_striped(stripes, KeyRange::key(name), RANGE, Wait::Detect),
        }
    }

    fn unlock(&self, owner: &Owner<'_, Simulated>, name: &[u8]) -> Result<(), Error> {
        match &self.stripes {
            None => owner.unlock(name),
            Some(stripes) => owner.unlock_striped(stripes, KeyRange::key(name), RANGE),
        }
    }

    fn enter(&self, object: usize, writes: bool) -> Result<(), String> {
        let holders = &self.holders[object];
        match (writes, holders.get()) {
            (true, 0) => holders.set(-1),
            (false, n) if n >= 0 => holders.set(n + 1),
            (_, n) => return Err(format!("object {object}: granted beside {n} holders")),
        }
        Ok(())
    }

    fn leave(&self, object: usize, writes: bool) {
        let holders = &self.holders[object];
        holders.set(if writes { 0 } else { holders.get() - 1 });
    }
}

impl Engine for Bank {
    fn set_up(&self, simulation: &mut Simulation) {
        for (start, len, name) in self.sessions[0].places().unwrap_or_default() {
            simulation.label_at(start, len, name);
        }
    }

    fn live(&self, me: usize, dice: &mut Dice, watch: &Watch<'_>) -> Result<(), String> {
        let told = |error: Error| error.to_string();
        let owner = self.sessions[me].owner().map_err(told)?;
        for turn in 0.. {
            pause(self.names.outside, dice);
            if !watch.goes_on() {
                break;
            }
            let object = match self.names.common {
                0 => me * self.names.own + turn % self.names.own,
                _ => drawn(&self.shares, dice),
            };
            let writes = self.names.common == 0 || (dice.below(1000) as u32) < self.names.writes;
            let name = name(object);
            let mut granted = Ok(());
            watch.waited(&mut || granted = self.lock(&owner, &name, writes));
            granted.map_err(told)?;
            self.enter(object, writes)?;
            if self.names.common > 0 {
                work(self.inside);
            }
            self.leave(object, writes);
            self.unlock(&owner, &name).map_err(told)?;
            watch.done();
        }
        Ok(())
    }

    fn judge(&self) -> Result<Option<f64>, String> {
        let count = |sum: (u64, u64), session: &Session<Simulated>| {
            let stats = session.stats();
            (sum.0 + stats.requests, sum.1 + stats.weak)
        };
        let (requests, weak) = self.sessions.iter().fold((0, 0), count);
        if self.weak && self.names.common > 0 && weak == 0 {
            return Err("no lock was taken in its owner's memory".to_owned());
        }
        let left = self.sessions[0].totals().map_err(|error| error.to_string())?;
        match left.requests + left.weak + left.ranges {
            0 => Ok(Some(weak as f64 / requests.max(1) as f64)),
            left => Err(format!("{left} locks are held when all have ended")),
        }
    }
}

/// 16 bytes, as in the native workloads, in the order of objects.
fn name(object: usize) -> [u8; 16] {
    let mut name = *b"object..........";
    name[8..].copy_from_slice(&(object as u64).to_be_bytes());
    name
}

/// `count` stripes of equally many objects. `None` without a keyspace.
fn stripes(count: usize, objects: usize) -> Result<Option<Stripes>, Error> {
    let count = count.min(objects);
    let bounds = (1..count).map(|stripe| name(stripe * objects / count));
    (count > 0).then(|| Stripes::new(b"keys", bounds)).transpose()
}
