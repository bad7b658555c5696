//! Events for subscribers of the crate `tracing`, as the crate's documentation lists them. Compiled
//! only with the feature `tracing`.

use core::cell::{Cell, RefCell};
use core::fmt;

use tracing::level_filters::LevelFilter;
use tracing::{debug, info, warn};

use crate::ids::OwnerId;
use crate::meter::outcome::Outcome;
use crate::mode::{Mode, Modes};
use crate::{Link, Reason};

const TARGET: &str = "latchwork_lockmgr";

/// The name of an owner's wait, and whether its begin was emitted.
#[derive(Default)]
pub(crate) struct Traced {
    name: RefCell<Vec<u8>>,
    told: Cell<bool>,
}

impl Traced {
    /// Records the name of a wait, if a subscriber exists.
    pub(crate) fn note(&self, name: impl FnOnce() -> Option<Vec<u8>>) {
        self.told.set(false);
        let listened = LevelFilter::current() != LevelFilter::OFF;
        self.name.replace(if listened { name().unwrap_or_default() } else { Vec::new() });
    }

    /// Emits that a wait has begun, once.
    pub(crate) fn begun(&self, owner: OwnerId, modes: &Modes, mode: Mode) {
        if !self.told.replace(true) {
            let (name, mode) = (self.name.borrow().clone(), modes.name(mode));
            debug!(target: TARGET, %owner, name = %name.escape_ascii(), mode, "wait begun");
        }
    }

    /// Emits that a wait has ended, and its outcome.
    pub(crate) fn ended(
        &self,
        owner: OwnerId,
        modes: &Modes,
        mode: Mode,
        ns: u64,
        outcome: Outcome,
    ) {
        let (name, mode) = (self.name.take(), modes.name(mode));
        let name = name.escape_ascii();
        let how = match outcome {
            Outcome::Granted => "granted",
            Outcome::Refused(Reason::Deadlock) => "deadlock",
            Outcome::Refused(Reason::Wounded) => "wounded",
            Outcome::Refused(Reason::Killed) => "killed",
            Outcome::TimedOut => "timed out",
            Outcome::Withdrawn => "withdrawn",
        };
        debug!(target: TARGET, %owner, %name, mode, ns, outcome = how, "wait ended");
        if outcome == Outcome::TimedOut {
            warn!(target: TARGET, %owner, %name, mode, ns, "timed out");
        }
    }
}

/// Displays a cycle, the victim first.
struct Cycle<'a>(&'a [&'a Link], &'a Modes);

impl fmt::Display for Cycle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for link in self.0 {
            let name = link.object.escape_ascii();
            write!(f, "{} wants {name} in {}, ", link.owner, self.1.name(link.wanted))?;
            if let Some(held) = link.held {
                write!(f, "has it in {}, ", self.1.name(held))?;
            }
            f.write_str(if link.hard { "held by " } else { "behind " })?;
        }
        self.0.first().map_or(Ok(()), |link| write!(f, "{}", link.owner))
    }
}

/// Emits that a deadlock was broken by aborting the first owner of the cycle.
pub(crate) fn deadlock(links: &[&Link], modes: &Modes) {
    let Some(victim) = links.first() else { return };
    let (victim, owners, cycle) = (victim.owner, links.len(), Cycle(links, modes));
    warn!(target: TARGET, %victim, owners, %cycle, "deadlock broken");
}

/// Emits that a deadlock was broken by moving a waiter before another.
pub(crate) fn moved(link: &Link, before: OwnerId) {
    let (owner, name) = (link.owner, link.object.escape_ascii());
    info!(target: TARGET, %owner, %before, %name, "waiter moved to break a deadlock");
}

/// Emits that a dead thread was swept.
pub(crate) fn swept(thread: u32, released: u32, orphaned: u32) {
    info!(target: TARGET, thread, released, orphaned, "dead thread swept");
}

/// Emits that a dead owner's locks are kept for recovery.
pub(crate) fn orphaned(owner: OwnerId, label: &[u8]) {
    let end = label.iter().position(|byte| *byte == 0).unwrap_or(label.len());
    let label = label[..end].escape_ascii();
    warn!(target: TARGET, %owner, %label, "owner orphaned");
}

/// Emits that an orphan's locks were released.
pub(crate) fn orphan_released(owner: OwnerId) {
    info!(target: TARGET, %owner, "orphan released");
}
