//! A simple lock manager: one thread, one list for each name, no fast path. `latchwork-lockmgr` is
//! compared with it step by step.

use std::collections::BTreeMap;

use latchwork_lockmgr::{Mode, Modes};

/// An owner's hold on a name, its waiting request for it, or both.
#[derive(Clone, Debug)]
struct Entry {
    owner: usize,
    held: Option<Mode>,
    want: Option<Mode>,
    count: u32,
    /// When the request began to wait.
    turn: u64,
}

/// The result of a request so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Held.
    Granted,
    /// Waits.
    Waiting,
    /// Refused, because it was not allowed to wait.
    Refused,
}

/// The manager.
pub(crate) struct Naive {
    modes: Modes,
    names: BTreeMap<Vec<u8>, Vec<Entry>>,
    turns: u64,
}

impl Naive {
    /// Creates a manager without locks.
    pub(crate) fn new(modes: Modes) -> Self {
        Self { modes, names: BTreeMap::new(), turns: 0 }
    }

    /// Returns whether another owner's hold blocks `owner` from `want`.
    fn stopped(modes: &Modes, list: &[Entry], owner: usize, want: Mode) -> bool {
        list.iter()
            .filter(|entry| entry.owner != owner)
            .filter_map(|entry| entry.held)
            .any(|held| modes.conflicts(held, want))
    }

    /// Returns whether two requests must not pass each other.
    fn clash(modes: &Modes, a: Mode, b: Mode) -> bool {
        modes.conflicts(a, b) || modes.conflicts(b, a)
    }

    /// Requests a lock.
    pub(crate) fn request(&mut self, owner: usize, name: &[u8], mode: Mode, wait: bool) -> Outcome {
        let modes = &self.modes;
        let list = self.names.entry(name.to_vec()).or_default();
        let own = list.iter().position(|entry| entry.owner == owner);
        let wanted =
            own.and_then(|at| list[at].held).map_or(mode, |held| modes.convert(held, mode));
        let stopped = match own {
            Some(at) if list[at].held == Some(wanted) => false,
            Some(_) => Self::stopped(modes, list, owner, wanted),
            None => {
                Self::stopped(modes, list, owner, wanted)
                    || list.iter().filter_map(|e| e.want).any(|w| Self::clash(modes, w, wanted))
            }
        };
        if stopped && !wait {
            return Outcome::Refused;
        }
        let at = own.unwrap_or(list.len());
        if own.is_none() {
            list.push(Entry { owner, held: None, want: None, count: 0, turn: 0 });
        }
        let entry = &mut list[at];
        if stopped {
            self.turns += 1;
            (entry.want, entry.turn) = (Some(wanted), self.turns);
            return Outcome::Waiting;
        }
        (entry.held, entry.count) = (Some(wanted), entry.count + 1);
        Outcome::Granted
    }

    /// Grants requests: conversions first, then the others in queue order.
    fn advance(&mut self, name: &[u8]) {
        let modes = &self.modes;
        let Some(list) = self.names.get_mut(name) else { return };
        let mut blocked: Vec<Mode> = Vec::new();
        for converting in [true, false] {
            let mut turns: Vec<usize> = (0..list.len()).collect();
            turns.sort_by_key(|at| list[*at].turn);
            for at in turns {
                let (Some(want), held) = (list[at].want, list[at].held) else { continue };
                if held.is_some() != converting {
                    continue;
                }
                let behind = !converting && blocked.iter().any(|w| Self::clash(modes, *w, want));
                if behind || Self::stopped(modes, list, list[at].owner, want) {
                    blocked.push(want);
                } else {
                    let entry = &mut list[at];
                    (entry.held, entry.want, entry.count) = (Some(want), None, entry.count + 1);
                }
            }
        }
        list.retain(|entry| entry.held.is_some() || entry.want.is_some());
        if list.is_empty() {
            self.names.remove(name);
        }
    }

    /// Returns whether the owner waits.
    pub(crate) fn waits(&self, owner: usize) -> bool {
        self.names.values().flatten().any(|entry| entry.owner == owner && entry.want.is_some())
    }

    /// The held mode of a name and its count.
    pub(crate) fn holds(&self, owner: usize, name: &[u8]) -> Option<(Mode, u32)> {
        let entry = self.names.get(name)?.iter().find(|entry| entry.owner == owner)?;
        entry.held.map(|mode| (mode, entry.count))
    }

    /// Changes the owner's entries, of one name or of all, and grants requests that this allows.
    fn change(&mut self, owner: usize, name: Option<&[u8]>, change: impl Fn(&mut Entry)) -> bool {
        let mut found = false;
        let names: Vec<_> = self.names.keys().cloned().collect();
        for each in names.iter().filter(|each| name.is_none_or(|name| name == &each[..])) {
            let list = self.names.get_mut(each).unwrap();
            for entry in list.iter_mut().filter(|entry| entry.owner == owner) {
                change(entry);
                found = true;
            }
            self.advance(each);
        }
        found
    }

    /// Releases one count of a lock. Returns false if it is not held.
    pub(crate) fn unlock(&mut self, owner: usize, name: &[u8]) -> bool {
        self.change(owner, Some(name), |entry| {
            entry.count -= 1;
            entry.held = entry.held.filter(|_| entry.count > 0);
        })
    }

    /// Releases a lock with all its counts.
    pub(crate) fn release_object(&mut self, owner: usize, name: &[u8]) {
        self.change(owner, Some(name), |entry| entry.held = None);
    }

    /// Releases all locks.
    pub(crate) fn release_all(&mut self, owner: usize) {
        self.change(owner, None, |entry| entry.held = None);
    }

    /// Releases all locks in modes that do not write.
    pub(crate) fn release_reads(&mut self, owner: usize) {
        let writes: Vec<Mode> = self.modes.each().filter(|m| self.modes.is_write(*m)).collect();
        self.change(owner, None, |entry| entry.held = entry.held.filter(|m| writes.contains(m)));
    }

    /// Cancels the owner's request.
    pub(crate) fn cancel(&mut self, owner: usize) {
        self.change(owner, None, |entry| entry.want = None);
    }

    /// Weakens a lock. Returns false if no mode that covers `mode` is held.
    pub(crate) fn downgrade(&mut self, owner: usize, name: &[u8], mode: Mode) -> bool {
        match self.holds(owner, name) {
            Some((held, _)) if self.modes.covers(held, mode) => {
                self.change(owner, Some(name), |entry| entry.held = Some(mode))
            }
            _ => false,
        }
    }
}
