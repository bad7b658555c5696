//! The subjects of a report: latches by their names, and the places in a program that took them.

use std::cmp::Reverse;
use std::collections::HashMap;

use latchwork_profile::{Class, Place, Row, Snapshot, Stack};

use crate::symbols::{Name, Symbols};
use crate::unwind::Tables;

/// A place where latches were taken, by one process or by many that run one program.
pub(crate) struct Site {
    pub(crate) row: Row,
    /// Whether all acquisitions here are counted. Callers of one wrapper are distinguished by the
    /// stacks of threads that waited.
    pub(crate) counted: bool,
    pub(crate) pid: u32,
    pub(crate) program: String,
    /// The place and its callers outwards, as many as requested.
    pub(crate) frames: Vec<Name>,
}

/// A latch of one process.
pub(crate) struct Latch {
    pub(crate) row: Row,
    pub(crate) pid: u32,
    pub(crate) program: String,
    /// The variable, or the address.
    pub(crate) name: String,
    /// For a latch without a variable, the place where it was locked first; the words tell how
    /// certain that is.
    pub(crate) first_at: Option<(&'static str, Name)>,
    /// The place of its longest wait, and the place where the holder at that time had taken it.
    pub(crate) waited_at: Option<Name>,
    pub(crate) held_at: Option<Name>,
}

/// The content of all segments, with names.
#[derive(Default)]
pub(crate) struct Places {
    pub(crate) latches: Vec<Latch>,
    pub(crate) sites: Vec<Site>,
}

/// Returns a program's name.
pub(crate) fn program(snapshot: &Snapshot) -> String {
    snapshot.exe.rsplit('/').next().unwrap_or_default().to_owned()
}

impl Places {
    /// Names the content of the segments: `top` latches, all places, and `depth` callers of each
    /// place.
    pub(crate) fn of(
        snapshots: &[Snapshot],
        depth: usize,
        top: usize,
        symbols: &mut Symbols,
    ) -> Self {
        // By total wait time, then by number of acquisitions.
        let order = |row: &Row| (Reverse((row.wait_total, row.acquisitions)), row.address);
        let processes: Vec<_> =
            snapshots.iter().map(|snapshot| Process::new(snapshot, symbols, depth)).collect();
        let mut known = HashMap::new();
        let mut places = Self::default();
        for process in &processes {
            places.add_sites(process, symbols, &mut known);
        }
        places.sites.sort_by_key(|site| (order(&site.row), site.pid));
        let rows = |process| Process::rows(process).map(move |row| (process, row));
        let mut rows: Vec<_> = processes.iter().flat_map(rows).collect();
        rows.sort_by_key(|(process, row)| (order(row), process.snapshot.pid));
        let named = rows.into_iter().take(top).map(|(process, row)| process.latch(row, symbols));
        places.latches = named.collect();
        places
    }

    fn add_sites(
        &mut self,
        process: &Process<'_>,
        symbols: &mut Symbols,
        known: &mut HashMap<(Vec<Name>, u8), usize>,
    ) {
        for row in &process.snapshot.sites {
            for (frames, row, counted) in process.site(row, symbols) {
                // The same place in the same file is one, in any process.
                let named = frames.iter().any(|name| name.module.is_some());
                let next = self.sites.len();
                let index = match named {
                    true => *known.entry((frames.clone(), row.class as u8)).or_insert(next),
                    false => next,
                };
                if let Some(site) = self.sites.get_mut(index) {
                    site.row.add(&row);
                    site.counted &= counted;
                    continue;
                }
                let (pid, program) = (process.snapshot.pid, program(process.snapshot));
                self.sites.push(Site { row, counted, pid, program, frames });
            }
        }
    }
}

/// A process whose stacks are unwound.
struct Process<'a> {
    snapshot: &'a Snapshot,
    depth: usize,
    chains: Vec<(&'a Stack, Vec<Name>)>,
}

impl<'a> Process<'a> {
    fn new(snapshot: &'a Snapshot, symbols: &mut Symbols, depth: usize) -> Self {
        // The tables are large, and useless for a process that never waited.
        let mut tables = match &snapshot.chains[..] {
            [] => Tables::none(),
            _ => Tables::of(snapshot, symbols),
        };
        let chains = snapshot.chains.iter().map(|stack| {
            let callers = tables.callers(stack);
            let all = callers.iter().flat_map(|caller| symbols.frames(snapshot, *caller));
            let mut frames: Vec<_> = all.filter(|name| !name.wrapper).take(depth.max(1)).collect();
            if frames.is_empty() {
                frames = own(symbols, snapshot, stack.row.address).0;
            }
            (stack, frames)
        });
        Self { snapshot, depth, chains: chains.collect() }
    }

    /// The rows of its latches.
    fn rows(&self) -> impl Iterator<Item = &'a Row> {
        self.snapshot.latches.iter()
    }

    /// The places of a call site's row: itself, or the callers of a wrapper.
    fn site(&self, row: &Row, symbols: &mut Symbols) -> Vec<(Vec<Name>, Row, bool)> {
        let here = |stack: &Stack| (stack.row.address, stack.row.class) == (row.address, row.class);
        let mut whole = row.clone();
        let mut groups: Vec<(Vec<Name>, Row)> = Vec::new();
        for (stack, frames) in self.chains.iter().filter(|(stack, _)| here(stack)) {
            // A holder that had waited is known by its chain; the others by the site.
            whole.blocked = whole.blocked.saturating_add(stack.row.blocked);
            whole.blocked_total = whole.blocked_total.saturating_add(stack.row.blocked_total);
            match groups.iter_mut().find(|(other, _)| other == frames) {
                Some((_, sum)) => sum.add(&stack.row),
                None => groups.push((frames.clone(), stack.row.clone())),
            }
        }
        let (frames, wrapper) = own(symbols, self.snapshot, row.address);
        if groups.is_empty() || self.depth <= 1 && !wrapper {
            return vec![(frames, whole, true)];
        }
        let mut rest = row.clone();
        groups.iter().for_each(|(_, row)| rest.subtract(row));
        if rest.contended == 0 {
            (rest.wait_max, rest.peer) = (0, 0);
        }
        let split = groups.into_iter().map(|(frames, row)| (frames, row, false));
        // The callers that did not wait are unknown.
        split.chain([(frames, rest, true)]).filter(|(_, row, _)| row.acquisitions > 0).collect()
    }

    fn latch(&self, row: &Row, symbols: &mut Symbols) -> Latch {
        let snapshot = self.snapshot;
        let variable = symbols.variable(snapshot, row.address);
        let first_at = variable.is_none().then(|| {
            // Of a wrapper's callers only those that waited are known.
            let (_, wrapper) = own(symbols, snapshot, row.first_caller);
            let at = self.at(row.first_caller, row.address, symbols).unwrap_or_default();
            (if wrapper { "locked in" } else { "first in" }, at)
        });
        let memory = if snapshot.is_on_stack(row.address) { "stack" } else { "heap" };
        let name = variable.unwrap_or_else(|| format!("{memory} {:x}", row.address));
        let held_at = row.peer_holder.and_then(|place| match place {
            Place::Site(address, _) => self.at(address, row.address, symbols),
            Place::Chain(index) => self.chain(index),
        });
        let waited_at = self.at(row.peer, row.address, symbols);
        let (pid, program) = (snapshot.pid, program(snapshot));
        Latch { row: row.clone(), pid, program, name, first_at, waited_at, held_at }
    }

    fn chain(&self, index: usize) -> Option<Name> {
        let (_, frames) = self.chains.iter().find(|(stack, _)| stack.index == index)?;
        frames.first().cloned()
    }

    /// The program's own line of a call that took this latch. If the call is a wrapper's, that of
    /// the longest known wait.
    fn at(&self, address: u64, latch: u64, symbols: &mut Symbols) -> Option<Name> {
        if address == 0 {
            return None;
        }
        let (frames, wrapper) = own(symbols, self.snapshot, address);
        let same = self.chains.iter().filter(|(stack, _)| wrapper && stack.row.address == address);
        let longest = same.max_by_key(|(stack, _)| (stack.row.peer == latch, stack.row.wait_max));
        longest.map_or(frames, |(_, frames)| frames.clone()).into_iter().next()
    }
}

/// The program's own line of a return address, and false; or the innermost function, and true if
/// all are wrappers.
fn own(symbols: &mut Symbols, snapshot: &Snapshot, address: u64) -> (Vec<Name>, bool) {
    let frames = symbols.frames(snapshot, address);
    let own = frames.iter().position(|name| !name.wrapper);
    (vec![frames[own.unwrap_or(0)].clone()], own.is_none())
}

/// Returns the name of a class.
pub(crate) fn class(class: Class) -> &'static str {
    match class {
        Class::Mutex => "mutex",
        Class::Read => "read",
        Class::Write => "write",
        Class::Spin => "spin",
    }
}

/// Returns the class of a latch: a reader-writer lock has one, whichever mode came last.
pub(crate) fn latch_class(of: Class) -> &'static str {
    match of {
        Class::Read | Class::Write => "rwlock",
        of => class(of),
    }
}
