//! The manager: a region, a set of modes, and where its cells begin.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use latchwork_machine::{ConstMachine, Deadline, Native, Word};
use latchwork_region::{Offset, Region, Repair};

use crate::deadlock::history::Ring;
use crate::deadlock::victim::Policy;
use crate::memory::blocks::{BLOCKS, Blocks};
use crate::memory::cells::{Biases, Directory, Partitions, get, put};
use crate::wakeup::notifier::Watch;
use crate::{Error, Mode, Modes, OwnerId};

/// What a manager may do; a process's own choice, not kept in the region.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a waiter waits before it looks for a deadlock that it is part of. 200 us.
    pub detect_after: Duration,
    /// Whom a detector sacrifices.
    pub policy: Policy,
    /// The most locks of one owner; none by default. Of weak locks only those that are in the table
    /// count; the others are 32 at most.
    pub owner_locks: Option<u32>,
    /// Whether weak modes are taken in the owner's own memory. True; if the system had no
    /// asymmetric barrier when the manager was made it counts as false.
    pub weak: bool,
    /// Whether the first weak lock of a name that nobody has locked is taken in the owner's own
    /// memory. False: a name comes there when 32 weak locks of it, or of others that share its
    /// bias, went through the table, so that a strong lock of a new name need not look at any
    /// owner.
    pub opens_early: bool,
    /// How often a session asks for a name before it is kept for it: then its strong locks, too,
    /// are taken in the owner's own memory until somebody else asks for it. 32; 0 is never.
    pub keep_after: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            detect_after: Duration::from_micros(200),
            policy: Policy::Youngest,
            owner_locks: None,
            weak: true,
            opens_early: false,
            keep_after: 32,
        }
    }
}

/// Called with each dead owner that held locks, before they are released: true releases them,
/// false keeps the owner as *orphaned*, until [`Session::release_orphan`](crate::Session).
pub type Recovery = Box<dyn Fn(OwnerId, &[u8]) -> bool + Send + Sync>;

/// Locks by name, for owners that wait for each other.
///
/// Clones are the same manager. Open a [`Session`](crate::Session) for each thread.
pub struct Manager<M: ConstMachine = Native> {
    pub(crate) inner: Arc<Inner<M>>,
}

impl<M: ConstMachine> Clone for Manager<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

pub(crate) struct Inner<M: ConstMachine> {
    pub(crate) region: Region<M>,
    pub(crate) modes: Modes,
    pub(crate) options: Options,
    pub(crate) seed: u64,
    pub(crate) blocks: Blocks<M>,
    pub(crate) directory: Offset<Directory<M>>,
    /// Whether owners rely on closers passing a heavy barrier.
    pub(crate) relied_on: bool,
    pub(crate) weak: bool,
    pub(crate) recovery: Option<Recovery>,
    /// The modes in which tickets of ranges are held and waited for.
    pub(crate) tickets: Option<(Mode, Mode)>,
    /// When this process last looked for the dead.
    pub(crate) swept: M::AtomicU64,
    /// When this process last began to look at all who wait, with success; and when it may next.
    pub(crate) looked: M::AtomicU64,
    pub(crate) rests: M::AtomicU64,
    /// Owners that sweeps of this process kept, and no session has counted yet.
    pub(crate) orphaned: M::AtomicU64,
    /// What the region's sweeps call.
    pub(crate) repair: Arc<LocksRepair<M>>,
    /// Those of this process who wait without a thread.
    pub(crate) watch: Mutex<Watch>,
}

/// What the lock manager does for the dead, registered with the region: see `recovery/sweep.rs`.
pub(crate) struct LocksRepair<M: ConstMachine> {
    pub(crate) manager: Weak<Inner<M>>,
    /// Why the last one failed, in full.
    pub(crate) failed: Mutex<Option<Error>>,
}

/// Words of the region's header that are the manager's.
pub(crate) mod root {
    /// Zero, the name of who lays the manager out, or `READY`.
    pub(crate) const STATE: usize = 0;
    /// Whether who laid the manager out had an asymmetric barrier: else no process relies on one.
    pub(crate) const BARRIER: usize = 1;
    pub(crate) const DIRECTORY: usize = 3;
    pub(crate) const MODES: usize = 4;
    /// The last deadlocks: see `deadlock/history.rs`.
    pub(crate) const RING: usize = 5;
    /// Whether there ever was a child.
    pub(crate) const FAMILIES: usize = 6;
    /// Null until somebody locks a range.
    pub(crate) const KEYSPACES: usize = 7;
    /// Null until somebody waits without a thread.
    pub(crate) const BELLS: usize = 8;
    /// Pages of owners that are nobody's, and how many were made: see `memory/pages.rs`.
    pub(crate) const FREE_PAGES: usize = 9;
    pub(crate) const PAGES: usize = 10;
    /// As many as there are blocks.
    pub(crate) const PARTITIONS: usize = 16;
    /// As many.
    pub(crate) const BIASES: usize = PARTITIONS + crate::memory::blocks::BLOCKS;
}

/// No process is called so: its slot would be 65,535.
pub(crate) const READY: u64 = u64::MAX;

impl Manager<Native> {
    /// A manager of this process alone, which needs no file.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn private(modes: Modes) -> Result<Self, Error> {
        let region = Region::private(&latchwork_region::Options::default())?;
        Self::new(region, modes, Options::default())
    }
}

impl<M: ConstMachine> Manager<M> {
    /// A manager in a region: a new one, or the one that is there.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`] if the region has a manager with other modes; [`Error::Barrier`] if this
    /// process may not call `membarrier(2)`, and who made the manager could; [`Error::Region`].
    pub fn new(region: Region<M>, modes: Modes, options: Options) -> Result<Self, Error> {
        Self::build(region, modes, options, None)
    }

    /// As [`new`](Self::new), with a word to say about the locks of the dead. The callback runs on
    /// the thread that met the dead owner, with no latch held; it must not use this manager.
    ///
    /// # Errors
    ///
    /// As for `new`.
    pub fn with_recovery(
        region: Region<M>,
        modes: Modes,
        options: Options,
        recovery: Recovery,
    ) -> Result<Self, Error> {
        Self::build(region, modes, options, Some(recovery))
    }

    fn build(
        region: Region<M>,
        modes: Modes,
        options: Options,
        recovery: Option<Recovery>,
    ) -> Result<Self, Error> {
        let barrier = M::heavy_barrier();
        lay_out(&region, &modes, barrier)?;
        if get(region.root(root::MODES)?) != modes.fingerprint() {
            return Err(Error::Foreign);
        }
        let at = |number| Ok::<u32, Error>(get(region.root(number)?) as u32);
        let directory = at(root::DIRECTORY)?;
        let seed = region.creation() as u64;
        let relied_on = get(region.root(root::BARRIER)?) != 0;
        if relied_on && !barrier {
            return Err(Error::Barrier);
        }
        let weak = options.weak && relied_on;
        // Outside of the closure, where there is no error.
        let blocks = Blocks::read(&region, (root::PARTITIONS, root::BIASES))?;
        let directory = Offset::from_raw(directory);
        region.resolve(directory)?;
        let inner = Arc::new_cyclic(|inner: &Weak<Inner<M>>| Inner {
            tickets: crate::range::claims::tickets(&modes),
            modes,
            options,
            seed,
            blocks,
            directory,
            relied_on,
            weak,
            recovery,
            swept: M::AtomicU64::default(),
            looked: M::AtomicU64::default(),
            rests: M::AtomicU64::default(),
            orphaned: M::AtomicU64::default(),
            repair: Arc::new(LocksRepair { manager: inner.clone(), failed: Mutex::default() }),
            watch: Mutex::default(),
            region,
        });
        let repair: Arc<dyn Repair<M>> = inner.repair.clone();
        inner.region.register(&repair)?;
        Ok(Self { inner })
    }

    /// Its modes.
    pub fn modes(&self) -> &Modes {
        &self.inner.modes
    }

    /// The region that it lies in.
    pub fn region(&self) -> &Region<M> {
        &self.inner.region
    }
}

/// Lays the manager out, or waits until somebody has.
///
/// Who lays it out writes its name first. If it dies, the next one writes its own name and begins
/// anew; what the first had allocated and not published is freed by the sweep, and published cells
/// are in the roots, where the next one finds them. If it fails it takes its name away, and the
/// next one, in any process, goes on from the roots.
fn lay_out<M: ConstMachine>(region: &Region<M>, modes: &Modes, barrier: bool) -> Result<(), Error> {
    let (process, generation) = region.process()?;
    let me = u64::from(generation) << 32 | u64::from(process + 1);
    let state = region.root(root::STATE)?;
    loop {
        // Acquire: synchronizes with the exchange to READY below.
        let seen = state.load(Acquire);
        if seen == READY {
            return Ok(());
        }
        let free = seen == 0
            || (seen != me && !region.alive((seen as u32).wrapping_sub(1), (seen >> 32) as u32));
        // AcqRel: after a death what it stored is seen.
        if free && state.compare_exchange(seen, me, AcqRel, Relaxed).is_ok() {
            break;
        }
        M::wait(&M::AtomicU32::default(), 0, Some(Deadline::after::<M>(Duration::from_micros(50))));
    }
    let made = place_all(region, modes, barrier);
    // AcqRel: synchronizes with the Acquire above, in those who wait. It fails only if a peer
    // took us for dead, which then finishes.
    let _ = state.compare_exchange(me, if made.is_ok() { READY } else { 0 }, AcqRel, Relaxed);
    made
}

/// Makes what the roots do not lead to yet, for the one that lays the manager out.
fn place_all<M: ConstMachine>(
    region: &Region<M>,
    modes: &Modes,
    barrier: bool,
) -> Result<(), Error> {
    // A slot set aside for sweepers, for the dead may have all others.
    let thread = region.sweeper()?;
    let place = |number: usize, offset: u32| -> Result<(), Error> {
        put(region.root(number)?, u64::from(offset));
        Ok(())
    };
    for block in 0..BLOCKS {
        if get(region.root(root::PARTITIONS + block)?) == 0 {
            let cell = thread.alloc::<Partitions<M>>()?;
            place(root::PARTITIONS + block, cell.offset().raw())?;
            cell.publish();
        }
        if get(region.root(root::BIASES + block)?) == 0 {
            let cell = thread.alloc::<Biases<M>>()?;
            place(root::BIASES + block, cell.offset().raw())?;
            cell.publish();
        }
    }
    if get(region.root(root::DIRECTORY)?) == 0 {
        let cell = thread.alloc::<Directory<M>>()?;
        place(root::DIRECTORY, cell.offset().raw())?;
        cell.publish();
    }
    if get(region.root(root::RING)?) == 0 {
        let cell = thread.alloc::<Ring<M>>()?;
        place(root::RING, cell.offset().raw())?;
        cell.publish();
    }
    put(region.root(root::BARRIER)?, u64::from(barrier));
    put(region.root(root::MODES)?, modes.fingerprint());
    Ok(())
}

impl<M: ConstMachine> Inner<M> {
    /// Whether there ever was a child, in any process: then a waiter may go before an earlier one.
    pub(crate) fn has_families(&self) -> Result<bool, Error> {
        Ok(get(self.region.root(root::FAMILIES)?) != 0)
    }
}

/// Which cells are the roots', for the sweep.
pub(crate) fn is_root<M: ConstMachine>(region: &Region<M>, offset: u32) -> Result<bool, Error> {
    let blocks = root::PARTITIONS..root::BIASES + BLOCKS;
    for number in blocks.chain([root::DIRECTORY, root::RING, root::KEYSPACES, root::BELLS]) {
        if get(region.root(number)?) == u64::from(offset) {
            return Ok(true);
        }
    }
    Ok(false)
}
