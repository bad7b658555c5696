//! A lock manager on loom's machine for regions, created once for all executions of a model.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use latchwork_check::Overlaid;
use latchwork_check::overlaid::{Action, together};
use latchwork_lockmgr::{Manager, Modes, Options, Owner, OwnerId, Session, View, shared};
use latchwork_machine::{Machine, Word};
use latchwork_region::{Plain, Region, Thread};
use loom::cell::UnsafeCell;

/// The names that are locked.
pub(crate) const A: &[u8] = b"a";
pub(crate) const B: &[u8] = b"b";

/// The initial state of both names' biases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    Open,
    Closed,
    /// Reserved for the first session's slot. Strong locks may cause reservations.
    Kept,
}

/// The parameters of a model.
pub(crate) struct Play {
    pub(crate) modes: Modes,
    pub(crate) threads: usize,
    /// Thread slots of the region.
    pub(crate) slots: usize,
    /// Whether threads open their own sessions.
    pub(crate) own: bool,
    pub(crate) names: [&'static [u8]; 2],
    /// Whether cells that are allocated in an execution were used before.
    pub(crate) dirty: bool,
    pub(crate) bias: Bias,
    /// How many of the first sessions have no owner and no page.
    pub(crate) ownerless: usize,
    /// How often threads must call [`Life::note`].
    pub(crate) notes: Option<u32>,
}

/// The objects of a thread in a model.
pub(crate) struct Life<'a> {
    pub(crate) me: usize,
    pub(crate) manager: &'a Manager<Overlaid>,
    session: Option<&'a Session<Overlaid>>,
    owner: Option<&'a Owner<'a, Overlaid>>,
    pub(crate) ids: &'a [OwnerId],
    pub(crate) guarded: &'a Guarded,
    notes: &'a Cell<u32>,
    met: &'a RefCell<Vec<OwnerId>>,
}

impl<'a> Life<'a> {
    pub(crate) fn session(&self) -> &'a Session<Overlaid> {
        self.session.expect("a thread with a session")
    }

    pub(crate) fn owner(&self) -> &'a Owner<'a, Overlaid> {
        self.owner.expect("a thread with an owner")
    }

    /// Records an owner's id: no two owners may have the same.
    pub(crate) fn meet(&self, owner: OwnerId) {
        let mut met = self.met.borrow_mut();
        assert!(!met.contains(&owner), "{owner} was created twice");
        met.push(owner);
    }

    /// Counts an event, independently of the schedule.
    pub(crate) fn note(&self) {
        self.notes.set(self.notes.get() + 1);
    }
}

/// An idle manager. Executions begin with it and restore it.
struct Stage {
    manager: Manager<Overlaid>,
    executions: AtomicU64,
}

// SAFETY: a manager consists of atomic words and data in a mutex.
unsafe impl Send for Stage {}
// SAFETY: as above.
unsafe impl Sync for Stage {}

impl Play {
    pub(crate) fn new(threads: usize, bias: Bias) -> Self {
        let modes = shared::modes();
        let (slots, names) = (threads, [A, B]);
        let (own, dirty, ownerless, notes) = (false, false, 0, None);
        Self { modes, threads, slots, own, names, dirty, bias, ownerless, notes }
    }

    /// Creates the manager, with cells allocated and the biases in their initial state.
    fn stage(&self) -> Stage {
        let region = Region::heap(&latchwork_region::Options {
            processes: 1,
            threads: self.slots as u32,
            waiters: 1,
            limit: 4 << 20,
            ..latchwork_region::Options::default()
        });
        let weakest = self.modes.each().find(|mode| self.modes.is_weak(*mode)).unwrap();
        let strongest = self.modes.each().last().unwrap();
        let options = Options {
            detect_after: Duration::from_secs(1),
            keep_after: u32::from(self.bias == Bias::Kept),
            ..latchwork_check::early::early()
        };
        let manager = Manager::new(region.unwrap(), self.modes.clone(), options).unwrap();
        let sessions: Vec<_> = (0..self.slots).map(|_| manager.session().unwrap()).collect();
        for session in &sessions[self.ownerless.min(self.slots)..] {
            let owner = session.owner().unwrap();
            for name in self.names {
                owner.lock(name, strongest).unwrap();
                owner.unlock(name).unwrap();
                for _ in 0..40 {
                    owner.lock(name, weakest).unwrap();
                    owner.unlock(name).unwrap();
                }
                if self.bias == Bias::Closed {
                    owner.lock(name, strongest).unwrap();
                    owner.unlock(name).unwrap();
                }
            }
        }
        if self.bias == Bias::Kept {
            let owner = sessions[0].owner().unwrap();
            for name in self.names {
                owner.lock(name, strongest).unwrap();
                owner.unlock(name).unwrap();
            }
        }
        // In reverse order, so that each session gets its slot and page again: the page freed last
        // is claimed first.
        sessions.into_iter().rev().for_each(drop);
        if self.dirty {
            let region = manager.region();
            let threads: Vec<_> = (0..self.slots).map(|_| region.thread().unwrap()).collect();
            for thread in &threads {
                scribble::<500>(thread);
                scribble::<8000>(thread);
            }
        }
        Stage { manager, executions: AtomicU64::new(0) }
    }

    /// The model: `before` for each owner in turn, then `life` for each in its own thread, then
    /// checks.
    pub(crate) fn model(
        self,
        before: impl Fn(&Life<'_>) + Send + Sync + 'static,
        life: impl Fn(&Life<'_>) + Send + Sync + 'static,
    ) -> impl Fn() + Send + Sync + 'static {
        let stage = self.stage();
        move || self.act(&stage, &before, &life)
    }

    fn act(&self, stage: &Stage, before: &impl Fn(&Life<'_>), life: &impl Fn(&Life<'_>)) {
        let manager = &stage.manager;
        let count = if self.own { 0 } else { self.threads };
        // Objects of a failed execution must not be used or dropped.
        let sessions: Vec<_> = (0..count).map(|_| manager.session().unwrap()).collect();
        let sessions = ManuallyDrop::new(sessions);
        let owners: Vec<_> =
            sessions[self.ownerless.min(count)..].iter().map(|s| s.owner().unwrap()).collect();
        let owners = ManuallyDrop::new(owners);
        let (guarded, notes, met) = (Guarded::default(), Cell::new(0), RefCell::default());
        let ids: Vec<_> = owners.iter().map(Owner::id).collect();
        let lives: Vec<_> = (0..self.threads)
            .map(|me| Life {
                me,
                manager,
                session: sessions.get(me),
                owner: owners.get(me.wrapping_sub(self.ownerless)),
                ids: &ids,
                guarded: &guarded,
                notes: &notes,
                met: &met,
            })
            .collect();
        if !self.own {
            lives.iter().for_each(before);
        }
        together(lives.iter().map(|me| -> Action<'_> { Box::new(move || life(me)) }).collect());
        if let Some(expected) = self.notes {
            assert_eq!(notes.get(), expected);
        }
        drop(lives);
        drop(ManuallyDrop::into_inner(owners));
        drop(ManuallyDrop::into_inner(sessions));
        self.look(stage);
    }

    /// Checks that all locks are available; in every hundredth execution, because it takes long,
    /// the whole manager.
    fn look(&self, Stage { manager, executions }: &Stage) {
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        for name in self.names {
            owner.try_lock(name, self.modes.each().last().unwrap()).unwrap();
        }
        drop(owner);
        // Relaxed: only a counter.
        if executions.fetch_add(1, Relaxed).is_multiple_of(100) {
            let view = View::new(manager.region().clone()).unwrap().unwrap();
            let verified = view.verify(Some(&self.modes)).unwrap();
            assert!(verified.flaws.is_empty() && verified.latched.is_empty(), "{verified:?}");
            let left = session.totals().unwrap();
            assert_eq!((left.objects, left.requests, left.weak), (0, 0, 0), "{left:?}");
            let audit = manager.region().audit().unwrap();
            assert!(audit.is_sound(), "{audit:?}");
        }
    }
}

/// The words of a cell.
struct Scrap<const N: usize>([<Overlaid as Machine>::AtomicU64; N]);

// SAFETY: it consists of words only.
unsafe impl<const N: usize> Plain for Scrap<N> {}

/// Fills the two cells that are allocated next with arbitrary bytes.
fn scribble<const N: usize>(thread: &Thread<Overlaid>) {
    let cells = [thread.alloc::<Scrap<N>>().unwrap(), thread.alloc::<Scrap<N>>().unwrap()];
    for cell in cells {
        cell.0.iter().for_each(|word| word.store(0x0101_0101_0101_0101, Relaxed));
    }
}

/// Data behind a lock; loom detects conflicting accesses.
#[derive(Default)]
pub(crate) struct Guarded {
    value: UnsafeCell<u32>,
}

impl Guarded {
    pub(crate) fn count(&self) {
        // SAFETY: the caller holds the lock, and loom panics otherwise.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }

    pub(crate) fn read(&self) -> u32 {
        // SAFETY: as above.
        self.value.with(|value| unsafe { *value })
    }
}
