//! The edges between waiting owners in a snapshot, by the rules of `table/granting.rs`.

use std::collections::HashMap;

use crate::OwnerId;
use crate::mode::{Mode, Modes};
use crate::observe::stats::LockInfo;

use super::Snapshot;

/// A waiter, and an owner that blocks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Edge {
    /// The waiter, as an index in [`Snapshot::rows`].
    pub row: usize,
    /// The blocking owner, as an index in [`Snapshot::rows`].
    pub blocker: usize,
    /// Whether the blocking owner holds the lock, rather than merely waiting before the waiter.
    pub hard: bool,
}

impl Snapshot {
    /// Returns which owner waits for which. Without the modes, every holder and every earlier
    /// waiter counts as blocking.
    pub fn edges(&self, modes: Option<&Modes>) -> Vec<Edge> {
        let parents: HashMap<u32, u32> =
            self.owners.iter().filter_map(|o| Some((o.owner.index, o.parent?))).collect();
        let kin = |of: OwnerId, owner: OwnerId| is_kin(&parents, of.index, owner.index);
        let mut edges = Vec::new();
        let mut from = 0;
        let table = self.rows.iter().position(|row| row.weak).unwrap_or(self.rows.len());
        for queue in self.rows[..table].chunk_by(|a, b| a.object == b.object) {
            let stops = |held: Mode, want: Mode| modes.is_none_or(|m| m.conflicts(held, want));
            let clash = |a: Mode, b: Mode| modes.is_none_or(|m| m.clash(a) & b.bit() != 0);
            // A lock of an owner's ancestors blocks other waiters, but not the owner.
            let yields = |want: Mode, owner: OwnerId| {
                parents.contains_key(&owner.index)
                    && queue.iter().any(|row| {
                        row.held.is_some_and(|held| stops(held, want)) && kin(row.owner, owner)
                    })
            };
            for (place, waiter) in queue.iter().enumerate() {
                let Some(want) = waiter.wanted else { continue };
                for (other, row) in queue.iter().enumerate() {
                    if row.owner.index == waiter.owner.index {
                        continue;
                    }
                    let hard =
                        row.held.is_some_and(|h| stops(h, want)) && !kin(row.owner, waiter.owner);
                    let soft = !hard
                        && is_earlier(queue, other, place)
                        && row.wanted.is_some_and(|w| clash(want, w) && !yields(w, waiter.owner));
                    if hard || soft {
                        edges.push(Edge { row: from + place, blocker: from + other, hard });
                    }
                }
            }
            from += queue.len();
        }
        edges
    }
}

/// Returns whether a request must be decided before another: conversions precede all requests that
/// hold nothing.
fn is_earlier(queue: &[LockInfo], other: usize, me: usize) -> bool {
    queue[me].held.is_none() && (queue[other].held.is_some() || other < me)
}

fn is_kin(parents: &HashMap<u32, u32>, owner: u32, of: u32) -> bool {
    let mut at = of;
    for _ in 0..1000 {
        if at == owner {
            return true;
        }
        match parents.get(&at) {
            Some(parent) => at = *parent,
            None => return false,
        }
    }
    false
}
