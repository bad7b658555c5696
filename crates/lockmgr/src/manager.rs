//! The manager: creates or opens the lock manager of a region.

use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use latchwork_machine::{ConstMachine, Deadline, Native, Word};
use latchwork_region::{Offset, Region, Repair};

use crate::deadlock::history::History;
use crate::memory::blocks::{Blocks, wanted};
use crate::memory::cells::{Biases, Directory, Partitions, cell_at, get, put};
use crate::memory::inner::{Inner, LocksRepair};
use crate::memory::roots;
use crate::memory::roots::READY;
use crate::observe::health::Health;
use crate::options::{Options, Recovery};
use crate::recovery::policy::some_decide;
use crate::{Error, Modes};

/// Locks by name, for owners that wait for each other.
///
/// Clones are the same manager. Open a [`Session`](crate::Session) for each thread.
pub struct Manager<M: ConstMachine = Native> {
    pub(crate) inner: Arc<Inner<M>>,
}

impl<M: ConstMachine> fmt::Debug for Manager<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (modes, options) = (&self.inner.modes, &self.inner.options);
        let names: Vec<_> = modes.each().map(|mode| modes.name(mode)).collect();
        let mut shown = f.debug_struct("Manager");
        shown.field("modes", &names).field("options", options).finish_non_exhaustive()
    }
}

impl<M: ConstMachine> Clone for Manager<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl Manager<Native> {
    /// Creates a manager in private memory of this process, without a file.
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
    /// Opens the manager of a region, or creates it.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`] if the region has a manager with other modes; [`Error::Barrier`] if this
    /// process may not call `membarrier(2)` and the process that created the manager could;
    /// [`Error::Region`].
    pub fn new(region: Region<M>, modes: Modes, options: Options) -> Result<Self, Error> {
        Self::build(region, modes, options, None)
    }

    /// Opens the manager of a region, or creates it, with a callback that decides about the locks
    /// of dead owners. The callback runs on the thread that finds a dead owner, without a latch
    /// held. It must not use this manager.
    ///
    /// The region records that a process had a callback. From then on a process without one does
    /// not release dead owners that held locks: it keeps them as
    /// [orphans](crate::Session::orphans), and the next sweep of a process with a callback asks
    /// about them. Until such a process sweeps, the locks stay held.
    ///
    /// # Examples
    ///
    /// An engine that rolls back dead owners in one thread of its own: the callback keeps each
    /// owner, and the thread searches for orphans periodically, first after the start.
    ///
    /// ```
    /// use latchwork_lockmgr::{Error, Manager, Options, Session, shared};
    /// use latchwork_region::Region;
    ///
    /// fn end_orphans(session: &Session) -> Result<(), Error> {
    ///     session.sweep()?;
    ///     for (owner, _label) in session.labelled_orphans()? {
    ///         match session.adopt(owner) {
    ///             // Its work is undone here, while its locks are held.
    ///             Ok(adopted) => adopted.end()?,
    ///             // Another thread was faster.
    ///             Err(Error::NoOwner(_)) => {}
    ///             Err(error) => return Err(error),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    ///
    /// let region = Region::private(&latchwork_region::Options::default())?;
    /// let keep = Box::new(|_, _: &[u8]| false);
    /// let manager = Manager::with_recovery(region, shared::modes(), Options::default(), keep)?;
    /// end_orphans(&manager.session()?)?;
    /// # Ok::<(), latchwork_lockmgr::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`], [`Error::Barrier`] and [`Error::Region`] as for [`new`](Self::new).
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
        if get(region.root(roots::MODES)?) != modes.fingerprint() {
            return Err(Error::Foreign);
        }
        let directory = get(region.root(roots::DIRECTORY)?) as u32;
        let directory = Offset::<Directory<M>>::from_raw(directory);
        let seed = region.creation() as u64;
        let relied_on = get(region.root(roots::BARRIER)?) != 0;
        if relied_on && !barrier {
            return Err(Error::Barrier);
        }
        let weak = options.weak && relied_on;
        // Checked here because the closure below cannot return an error.
        let blocks = Blocks::read(&region)?;
        cell_at(&region, directory)?;
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
            opened: M::AtomicU64::default(),
            looked: M::AtomicU64::default(),
            rests: M::AtomicU64::default(),
            decided: M::AtomicU64::default(),
            orphaned: M::AtomicU64::default(),
            repair: Arc::new(LocksRepair { manager: inner.clone(), failed: Mutex::default() }),
            watch: Mutex::default(),
            region,
        });
        if inner.recovery.is_some() {
            some_decide(&inner.region)?;
        }
        let repair: Arc<dyn Repair<M>> = inner.repair.clone();
        inner.region.register(&repair)?;
        Ok(Self { inner })
    }

    /// Returns its modes.
    pub fn modes(&self) -> &Modes {
        &self.inner.modes
    }

    /// Sweeps the region: repairs the state that dead threads left, in all layers, releases their
    /// owners' locks, and returns the number of dead threads. Needs no session and no free thread
    /// slot. It may be called at any time.
    ///
    /// Reads each thread slot, with a system call for each process found in them; reads each
    /// partition once for every 16 dead threads; and does work proportional to the locks that they
    /// held.
    ///
    /// # Errors
    ///
    /// [`Error::Region`]. If the region has layers that this process cannot repair, nothing is
    /// swept ([`latchwork_region::Error::NoRepair`]).
    pub fn sweep(&self) -> Result<usize, Error> {
        self.inner.sweep()
    }

    /// Returns the state of the manager over all processes: the number of dead threads and orphans,
    /// how many owners wait, and for how long. Needs no session, takes no latch and stores nothing.
    /// The result is not a snapshot of one instant.
    ///
    /// Reads each partition and each owner cell that was ever created, and checks for each process
    /// with thread slots whether it is alive.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn health(&self) -> Result<Health, Error> {
        self.inner.health()
    }

    /// Returns its region.
    pub fn region(&self) -> &Region<M> {
        &self.inner.region
    }
}

/// Lays the manager out, or waits until another process has.
///
/// The process that lays it out stores its identity first. If it dies, the next process stores its
/// own identity and starts again: the sweep frees cells that were allocated and not published, and
/// published cells are in the roots, where the next process finds them. If it fails it clears its
/// identity, and the next attempt, in any process, continues from the roots.
fn lay_out<M: ConstMachine>(region: &Region<M>, modes: &Modes, barrier: bool) -> Result<(), Error> {
    let (process, generation) = region.process()?;
    let me = u64::from(generation) << 32 | u64::from(process + 1);
    let state = region.root(roots::STATE)?;
    loop {
        // Acquire: synchronizes with the exchange to READY below.
        let seen = state.load(Acquire);
        if seen == READY {
            return Ok(());
        }
        let free = seen == 0
            || (seen != me && !region.alive((seen as u32).wrapping_sub(1), (seen >> 32) as u32));
        // AcqRel: after a death, the stores of the previous process are visible.
        if free && state.compare_exchange(seen, me, AcqRel, Relaxed).is_ok() {
            break;
        }
        M::wait(&M::AtomicU32::default(), 0, Some(Deadline::after::<M>(Duration::from_micros(50))));
    }
    let made = place_all(region, modes, barrier);
    // AcqRel: synchronizes with the Acquire above, in processes that wait. It fails only if another
    // process considered this one dead; that process then finishes.
    let _ = state.compare_exchange(me, if made.is_ok() { READY } else { 0 }, AcqRel, Relaxed);
    made
}

/// Creates the cells that the roots do not lead to yet.
fn place_all<M: ConstMachine>(
    region: &Region<M>,
    modes: &Modes,
    barrier: bool,
) -> Result<(), Error> {
    // A slot reserved for sweepers, because dead threads may occupy all others.
    let thread = region.sweeper()?;
    let place = |number: usize, offset: u32| -> Result<(), Error> {
        put(region.root(number)?, u64::from(offset));
        Ok(())
    };
    let power = wanted::<M>();
    put(region.root(roots::BLOCKS)?, power);
    for block in 0..1 << power {
        if get(region.root(roots::PARTITIONS + block)?) == 0 {
            let cell = thread.alloc::<Partitions<M>>()?;
            place(roots::PARTITIONS + block, cell.offset().raw())?;
            cell.publish();
        }
        if get(region.root(roots::BIASES + block)?) == 0 {
            let cell = thread.alloc::<Biases<M>>()?;
            place(roots::BIASES + block, cell.offset().raw())?;
            cell.publish();
        }
    }
    if get(region.root(roots::DIRECTORY)?) == 0 {
        let cell = thread.alloc::<Directory<M>>()?;
        place(roots::DIRECTORY, cell.offset().raw())?;
        cell.publish();
    }
    if get(region.root(roots::HISTORY)?) == 0 {
        let cell = thread.alloc::<History<M>>()?;
        place(roots::HISTORY, cell.offset().raw())?;
        cell.publish();
    }
    put(region.root(roots::BARRIER)?, u64::from(barrier));
    put(region.root(roots::MODES)?, modes.fingerprint());
    Ok(())
}
