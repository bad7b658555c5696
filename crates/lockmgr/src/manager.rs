//! The manager: a region, a set of modes, and where its cells begin.

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
    /// process may not call `membarrier(2)`, and the one that made the manager could;
    /// [`Error::Region`].
    pub fn new(region: Region<M>, modes: Modes, options: Options) -> Result<Self, Error> {
        Self::build(region, modes, options, None)
    }

    /// As [`new`](Self::new), with a word to say about the locks of the dead. The callback runs on
    /// the thread that met the dead owner, with no latch held; it must not use this manager.
    ///
    /// The region remembers that a process had a callback. From then on a process without one
    /// releases no dead owner that held locks: it keeps it as an
    /// [orphan](crate::Session::orphans), and the next sweep of a process that has a callback asks
    /// about it. While no such process sweeps, the locks stay held.
    ///
    /// # Examples
    ///
    /// An engine that ends what the dead left from one thread of its own: the callback keeps each
    /// owner, and the thread looks for them now and then, first of all after a start.
    ///
    /// ```
    /// use latchwork_lockmgr::{Error, Manager, Options, Session, shared};
    /// use latchwork_region::Region;
    ///
    /// fn end_orphans(session: &Session) -> Result<(), Error> {
    ///     session.sweep()?;
    ///     for (owner, _label) in session.labelled_orphans()? {
    ///         match session.adopt(owner) {
    ///             // Its work is undone here, with the locks that it held.
    ///             Ok(adopted) => adopted.end()?,
    ///             // Another thread has it.
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
        // Outside of the closure, where there is no error.
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

    /// Its modes.
    pub fn modes(&self) -> &Modes {
        &self.inner.modes
    }

    /// Sweeps the region: puts right what dead threads left, in all its layers, releases their
    /// owners' locks, and returns how many threads there were. Needs no session and no free thread
    /// slot; harmless at any time.
    ///
    /// Costs a look at each thread slot, and a system call for each process found in them; for
    /// each 16 of the dead, a look at each partition; and work in proportion to what they held.
    ///
    /// # Errors
    ///
    /// [`Error::Region`]: if the region has layers that this process cannot repair nothing is swept
    /// ([`latchwork_region::Error::NoRepair`]).
    pub fn sweep(&self) -> Result<usize, Error> {
        self.inner.sweep()
    }

    /// How it is, over all processes: what is left of the dead, how many owners wait and how long.
    /// Needs no session, takes no latch, stores nothing; what it says is of no one instant.
    ///
    /// Costs a look at each partition and each owner cell that was ever made, and for each process
    /// with thread slots what it costs to ask whether it lives.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn health(&self) -> Result<Health, Error> {
        self.inner.health()
    }

    /// The region that it lies in.
    pub fn region(&self) -> &Region<M> {
        &self.inner.region
    }
}

/// Lays the manager out, or waits until somebody has.
///
/// The process that lays it out writes its name first. If it dies, the next one writes its own name
/// and begins anew; what the first had allocated and not published is freed by the sweep, and
/// published cells are in the roots, where the next one finds them. If it fails it takes its name
/// away, and the next one, in any process, goes on from the roots.
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
