//! The machine of several processes that share memory.
//!
//! Latches over [`Shared`] lie in a mapping that several processes have, each at its own address.
//! The waiters' slots lie at the start of the same mapping, so a number means the same slot in
//! every process. A latch finds them from its own address: the slow path searches the mappings that
//! this process has attached. Nothing in the mapping is trusted; numbers are checked against the
//! table's length.
//!
//! The child of a fork has nothing attached: other mappings may have replaced its parent's, and a
//! slot of its parent's threads does not belong to it.

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, compiler_fence, fence,
};
use std::sync::Once;

use rustix::thread::MembarrierCommand;
use rustix::thread::futex::Flags;

use crate::native::{Expedited, SPIN_NS, at_thread_exit, now, wait, wake};
use crate::slot::{Slot, SlotTable};
use crate::{
    Chain, Clock, ConstMachine, Deadline, Level, MAX_SLOTS, Machine, Native, Place, Slots, Waited,
};

/// The machine of this program and of others that share memory with it: process-shared futexes, and
/// slots in the mapping that contains the latches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared;

/// The most mappings that one process can have attached at a time.
const MAPPINGS: usize = 512;

/// Reaches the threads of all processes that have a mapping attached.
static ALL: Expedited =
    Expedited::new(MembarrierCommand::RegisterGlobalExpedited, MembarrierCommand::GlobalExpedited);

/// The start of a mapping; the slots follow at the next multiple of 64.
#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    slots: AtomicU32,
    table: SlotTable<Shared>,
}

const MAGIC: u64 = u64::from_le_bytes(*b"latchwk1");

/// A mapping of this process. `length` is zero while the entry is unused.
struct Mapping {
    base: AtomicUsize,
    length: AtomicUsize,
    slots: AtomicU32,
    /// Counts attachments, so that a thread's cached slots of a detached mapping are not used. It
    /// wraps after 50 days of 1,000 per second: a thread uses an outdated cache if it has not used
    /// the entry for exactly 2^32 attachments.
    era: AtomicU32,
    /// The name recorded in the slots of this process's threads.
    owner: AtomicU64,
    /// The entry whose waiter slots serve this mapping, plus one; zero for itself.
    home: AtomicU32,
    /// The number of ending threads that are returning slots in it, or are about to see that it is
    /// detached.
    retiring: AtomicU32,
}

impl Mapping {
    /// Counts one more attachment.
    fn begin_era(&self) -> u32 {
        // Relaxed: `base` publishes it to other threads.
        self.era.fetch_add(1, Relaxed).wrapping_add(1)
    }
}

static ATTACHED: [Mapping; MAPPINGS] = [const {
    Mapping {
        base: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        slots: AtomicU32::new(0),
        era: AtomicU32::new(0),
        owner: AtomicU64::new(0),
        home: AtomicU32::new(0),
        retiring: AtomicU32::new(0),
    }
}; MAPPINGS];

/// The owner of slots of a process without a name. It never counts as dead.
const ANYBODY: u64 = u64::MAX;

/// `base` of an entry that is being filled in or emptied.
const BUSY: usize = 1;

thread_local! {
    /// The start of this thread's chain in each mapping, and the era in which it was recorded.
    static CHAINS: [Cell<(u32, Chain)>; MAPPINGS] = const { [const { Cell::new((0, 0)) }; MAPPINGS] };
}

/// The reason why a mapping could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The address is not a multiple of 64.
    Misaligned,
    /// The mapping cannot hold so many slots.
    TooSmall {
        /// Bytes that are needed.
        needed: usize,
        /// Bytes that were given.
        given: usize,
    },
    /// The number of slots, as requested or as found in the mapping, is not 1 to 65,534.
    Slots(u32),
    /// The mapping was not laid out by [`Shared::create`].
    Foreign,
    /// This process already has 512 mappings attached.
    TooMany,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned => f.write_str("the mapping's address is not a multiple of 64"),
            Self::TooSmall { needed, given } => {
                write!(f, "the mapping has {given} bytes, its waiter slots take {needed}")
            }
            Self::Slots(n) => write!(f, "{n} waiter slots: must be 1 to {MAX_SLOTS}"),
            Self::Foreign => f.write_str("the mapping does not begin with a table of waiter slots"),
            Self::TooMany => {
                write!(f, "this process has {MAPPINGS} mappings attached, which is all it can")
            }
        }
    }
}

impl core::error::Error for AttachError {}

/// A mapping that may contain latches over [`Shared`], for as long as this value lives. In the
/// child of a fork it is no longer attached, even if this value still exists; the child may attach
/// it again if it has the mapping.
///
/// Dropping the value while a thread waits for such a latch makes that thread panic. The drop waits
/// for ending threads that have waited for such a latch and are returning their slots.
#[derive(Debug)]
pub struct Attached<'a> {
    index: usize,
    era: u32,
    room: *mut u8,
    length: usize,
    mapping: PhantomData<&'a [u8]>,
}

// SAFETY: it is an index and an address, and detaching is a store that any thread may make.
unsafe impl Send for Attached<'_> {}
// SAFETY: through a shared reference only the address is read.
unsafe impl Sync for Attached<'_> {}

impl Shared {
    /// Returns the bytes that `slots` waiter slots take at a mapping's start.
    pub const fn overhead(slots: u32) -> usize {
        size_of::<Header>() + (slots as usize + 1) * size_of::<Slot<Shared>>()
    }

    /// Lays out `slots` waiter slots at the start of a zeroed mapping and attaches it.
    ///
    /// # Errors
    ///
    /// [`AttachError`] for a misaligned or too small mapping, a number of slots out of range, or
    /// too many mappings.
    ///
    /// # Safety
    ///
    /// `base` points to `length` bytes that are mapped and accessed only atomically, here and in
    /// every other process, until the result is dropped. After that no thread uses a latch in them
    /// or a reference obtained from a latch.
    pub unsafe fn create<'a>(
        base: *mut u8,
        length: usize,
        slots: u32,
    ) -> Result<Attached<'a>, AttachError> {
        check(base, length, slots)?;
        // SAFETY: `check` found room and alignment for a header; the caller promises the rest.
        let header = unsafe { &*base.cast::<Header>() };
        header.slots.store(slots, Relaxed);
        // Release: synchronizes with the Acquire in `attach`, so that the count is seen with it.
        header.magic.store(MAGIC, Release);
        // SAFETY: the caller's promise is the same.
        unsafe { Self::attach(base, length) }
    }

    /// Attaches a mapping that [`create`](Self::create) laid out, in this process or another.
    ///
    /// # Errors
    ///
    /// [`AttachError`], also for a mapping that was not laid out by `create`.
    ///
    /// # Safety
    ///
    /// The contract of [`create`](Self::create).
    pub unsafe fn attach<'a>(base: *mut u8, length: usize) -> Result<Attached<'a>, AttachError> {
        // SAFETY: the caller's promise is the same.
        unsafe { Self::attach_growing(base, length, length) }
    }

    /// Attaches a mapping that grows in place: `length` bytes are mapped, and addresses up to
    /// `reserved` are reserved for it. The waiter slots lie in the first `length` bytes.
    ///
    /// # Errors
    ///
    /// [`AttachError`], as for [`attach`](Self::attach).
    ///
    /// # Safety
    ///
    /// The contract of [`create`](Self::create), for `length` bytes now and for further bytes as
    /// soon as a latch in them is used. Nothing else is ever mapped in the first `reserved` bytes.
    pub unsafe fn attach_growing<'a>(
        base: *mut u8,
        length: usize,
        reserved: usize,
    ) -> Result<Attached<'a>, AttachError> {
        check(base, length, 1)?;
        // SAFETY: `check` found room and alignment for a header; the caller promises the rest.
        let header = unsafe { &*base.cast::<Header>() };
        // Acquire: synchronizes with the Release in `create`.
        if header.magic.load(Acquire) != MAGIC {
            return Err(AttachError::Foreign);
        }
        // Read once: another process may change it between the check and the use.
        let slots = header.slots.load(Relaxed);
        check(base, length, slots)?;
        let length = length.max(reserved);
        ALL.register();
        let index = claim().ok_or(AttachError::TooMany)?;
        let entry = &ATTACHED[index];
        entry.slots.store(slots, Relaxed);
        entry.length.store(length, Relaxed);
        entry.owner.store(ANYBODY, Relaxed);
        entry.home.store(0, Relaxed);
        let era = entry.begin_era();
        // Release: synchronizes with the Acquire in `find`, so that the entry is seen whole.
        entry.base.store(base as usize, Release);
        let overhead = Self::overhead(slots);
        let room = base.wrapping_add(overhead);
        Ok(Attached { index, era, room, length: length - overhead, mapping: PhantomData })
    }
}

impl Attached<'_> {
    /// Returns the rest of the mapping, for latches and data, and its length.
    pub fn room(&self) -> (*mut u8, usize) {
        (self.room, self.length)
    }

    /// Sets the name recorded in slots that threads of this process take from now on, so that the
    /// slots can be taken back when the process is dead. The name is neither zero nor all ones.
    pub fn set_owner(&self, name: u64) {
        if let Some(entry) = self.entry() {
            // Relaxed: a thread that has not seen it yet takes a slot without a name.
            entry.owner.store(name, Relaxed);
        }
    }

    /// Lets latches in another mapping use this mapping's waiter slots: `length` bytes from `base`
    /// on. The other mapping must be detached before this one.
    ///
    /// # Errors
    ///
    /// [`AttachError::TooMany`]; [`AttachError::Misaligned`] if `base` is no multiple of 64;
    /// [`AttachError::Foreign`] if this mapping was attached before a fork.
    ///
    /// # Safety
    ///
    /// The bytes are accessed only atomically, here and in every other process, until the result is
    /// dropped, and are mapped as soon as a latch in them is used. Nothing else is ever mapped in
    /// them. `self` is dropped after the result.
    pub unsafe fn attach_beside<'a>(
        &self,
        base: *mut u8,
        length: usize,
    ) -> Result<Attached<'a>, AttachError> {
        if !(base as usize).is_multiple_of(align_of::<Header>()) {
            return Err(AttachError::Misaligned);
        }
        self.entry().ok_or(AttachError::Foreign)?;
        let index = claim().ok_or(AttachError::TooMany)?;
        let entry = &ATTACHED[index];
        entry.length.store(length, Relaxed);
        entry.home.store(self.index as u32 + 1, Relaxed);
        let era = entry.begin_era();
        // Release: synchronizes with the Acquire in `find`, so that the entry is seen whole.
        entry.base.store(base as usize, Release);
        Ok(Attached { index, era, room: base, length, mapping: PhantomData })
    }

    /// Its entry; none if it was attached before a fork.
    fn entry(&self) -> Option<&'static Mapping> {
        // Relaxed: only the child of a fork changes it while `self` lives.
        Some(&ATTACHED[self.index]).filter(|entry| entry.era.load(Relaxed) == self.era)
    }

    /// Returns the mapping's slots.
    ///
    /// # Panics
    ///
    /// If it was attached before a fork.
    pub fn slots(&self) -> Slots<'_, Shared> {
        let entry = self.entry().expect("latchwork: this mapping was attached before a fork");
        // Relaxed: it stays attached as long as `self`.
        Shared::slots(entry.base.load(Relaxed) as *const AtomicU32)
    }

    /// Takes back the slots of dead processes that are in no queue: see [`Slots::reclaim`].
    pub fn reclaim(&self, dead: impl Fn(u64) -> bool) -> u32 {
        self.slots().reclaim(|owner| owner != ANYBODY && dead(owner))
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        // After a fork another mapping may have the entry.
        let Some(entry) = self.entry() else { return };
        // SeqCst, as are the other three: either an ending thread sees this, or it is waited for
        // and synchronizes with this thread. An ending thread may outlive everything its creator
        // knows of it, as threads of a scope do.
        entry.base.store(BUSY, SeqCst);
        while entry.retiring.load(SeqCst) != 0 {
            Native::yield_now();
        }
        // Release: as in `claim`.
        fence(Release);
        entry.length.store(0, Relaxed);
        // Release: synchronizes with the Acquire in `claim`.
        entry.base.store(0, Release);
    }
}

fn check(base: *mut u8, length: usize, slots: u32) -> Result<(), AttachError> {
    if !(base as usize).is_multiple_of(align_of::<Header>()) {
        return Err(AttachError::Misaligned);
    }
    if !(1..=MAX_SLOTS).contains(&slots) {
        return Err(AttachError::Slots(slots));
    }
    let needed = Shared::overhead(slots);
    if length < needed {
        return Err(AttachError::TooSmall { needed, given: length });
    }
    Ok(())
}

/// Claims an unused entry to fill in.
fn claim() -> Option<usize> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler does only what may be done after a fork, and stays.
        unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) };
    });
    // Acquire: synchronizes with the Release of a detaching thread.
    let index =
        ATTACHED.iter().position(|e| e.base.compare_exchange(0, BUSY, Acquire, Relaxed).is_ok())?;
    // Release: synchronizes with the Acquire fence in `find`, which sees `BUSY`, or a later value,
    // if it has seen any of the following stores.
    fence(Release);
    Some(index)
}

/// Detaches everything that this process's parent had. The eras end, so that no thread uses its
/// cached slots, and no [`Attached`] is taken for the next owner of its entry.
extern "C" fn forget_in_child() {
    // Relaxed, all: the child has one thread. Unused entries are not written, because each written
    // page costs the child a copy.
    let is_used = |of: &&Mapping| of.base.load(Relaxed) != 0 || of.retiring.load(Relaxed) != 0;
    for entry in ATTACHED.iter().filter(is_used) {
        entry.base.store(0, Relaxed);
        entry.retiring.store(0, Relaxed);
        entry.length.store(0, Relaxed);
        entry.begin_era();
    }
}

/// Returns the mapping around `address`.
fn find(address: usize) -> Option<(usize, usize, u32)> {
    ATTACHED.iter().enumerate().find_map(|(index, entry)| {
        // Acquire: the era that belongs to `base`, or an older one.
        let era = entry.era.load(Acquire);
        // Acquire: synchronizes with the Release in `attach`.
        let base = entry.base.load(Acquire);
        let inside = base > BUSY && address.wrapping_sub(base) < entry.length.load(Relaxed);
        if !inside {
            return None;
        }
        let (home, slots) = (entry.home.load(Relaxed), entry.slots.load(Relaxed));
        // Acquire: synchronizes with the Release fences of threads that detach and attach. All
        // values belong to one mapping, or to another than the one around `address`, which stays.
        fence(Acquire);
        if (era, base) != (entry.era.load(Relaxed), entry.base.load(Relaxed)) {
            return None;
        }
        match home as usize {
            0 => Some((index, base, slots)),
            home => {
                let entry = ATTACHED.get(home - 1)?;
                // Relaxed: it was attached before this one and is detached after it.
                Some((home - 1, entry.base.load(Relaxed), entry.slots.load(Relaxed)))
            }
        }
    })
}

/// The light barrier of a process that the kernel's barrier does not reach.
#[cold]
#[inline(never)]
fn unreached() {
    // SeqCst: the other half is the fence in `heavy_barrier`.
    fence(SeqCst);
}

impl Machine for Shared {
    type AtomicU8 = AtomicU8;
    type AtomicU16 = AtomicU16;
    type AtomicU32 = AtomicU32;
    type AtomicU64 = AtomicU64;

    const SPIN_NS: u64 = SPIN_NS;

    #[inline(always)]
    fn fence(order: Ordering) {
        fence(order);
    }

    /// Free where the kernel's barrier reaches this process, as it does after the first attachment.
    /// Otherwise a fence, so that no peer needs to know.
    #[inline(always)]
    fn light_barrier() {
        // SeqCst for the compiler alone.
        compiler_fence(SeqCst);
        if !ALL.reaches_us() {
            unreached();
        }
    }

    #[inline(always)]
    fn reached_barrier() {
        debug_assert!(ALL.reaches_us(), "latchwork: no heavy barrier has succeeded here");
        // SeqCst for the compiler alone: the kernel's barrier does the rest.
        compiler_fence(SeqCst);
    }

    /// Reaches all registered processes: those that have a mapping attached. False if this process
    /// may not call it; then it must not rely on a peer's light barrier.
    fn heavy_barrier() -> bool {
        ALL.pass()
    }

    #[inline(always)]
    fn relax() {
        core::hint::spin_loop();
    }

    fn yield_now() {
        Native::yield_now();
    }

    fn wait(word: &AtomicU32, expected: u32, deadline: Option<Deadline>) -> Waited {
        wait(word, expected, deadline, Flags::empty())
    }

    fn wake(word: &AtomicU32) {
        wake(word, Flags::empty());
    }

    fn now(clock: Clock) -> u64 {
        now(clock)
    }

    fn place() -> Place {
        Native::place()
    }

    fn spread(level: Level) -> bool {
        Native::spread(level)
    }

    fn slots<'a>(word: *const AtomicU32) -> Slots<'a, Self> {
        let Some((index, base, count)) = find(word as usize) else {
            panic!("latchwork: this latch lies in no mapping that the process has attached");
        };
        // SAFETY: the caller of `attach` promised that it stays while latches in it are used.
        unsafe { slots_of(index, base, count) }
    }

    fn chain(slots: &Slots<'_, Self>) -> Chain {
        let index = slots.mapping as usize;
        let (era, chain) = CHAINS.with(|chains| chains[index].get());
        // Relaxed: this thread has seen the mapping attached, and the era with it.
        if era == ATTACHED[index].era.load(Relaxed) { chain } else { 0 }
    }

    fn set_chain(slots: &Slots<'_, Self>, chain: Chain) {
        static EXIT: AtomicU32 = AtomicU32::new(0);
        let index = slots.mapping as usize;
        let era = ATTACHED[index].era.load(Relaxed);
        CHAINS.with(|chains| chains[index].set((era, chain)));
        at_thread_exit(&EXIT, retire);
    }
}

impl ConstMachine for Shared {
    const U8: AtomicU8 = AtomicU8::new(0);
    const U16: AtomicU16 = AtomicU16::new(0);
    const U32: AtomicU32 = AtomicU32::new(0);
    const U64: AtomicU64 = AtomicU64::new(0);

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    crate::copy::copies_of_this_processor!();
}

/// Returns the waiter slots of a mapping, from the values that `find` or its entry gave.
///
/// # Safety
///
/// The mapping is attached, or a thread that detaches it waits for this one.
unsafe fn slots_of<'a>(index: usize, base: usize, count: u32) -> Slots<'a, Shared> {
    let base = base as *const u8;
    // SAFETY: `attach` checked that the mapping begins with a header, and the caller promises that
    // it exists.
    let header = unsafe { &*base.cast::<Header>() };
    let first = base.wrapping_add(size_of::<Header>()).cast::<Slot<Shared>>();
    // SAFETY: as above; `attach` checked that `count` slots fit behind the header.
    let slots = unsafe { core::slice::from_raw_parts(first, count as usize + 1) };
    let mut slots = Slots::new(&header.table, slots);
    slots.mapping = index as u32;
    slots.owner = ATTACHED[index].owner.load(Relaxed);
    slots
}

extern "C" fn retire(_: *mut libc::c_void) {
    for (index, entry) in ATTACHED.iter().enumerate() {
        let (era, chain) = CHAINS.with(|chains| chains[index].replace((0, 0)));
        if chain == 0 {
            continue;
        }
        // SeqCst, all three: as in the drop of an `Attached`.
        entry.retiring.fetch_add(1, SeqCst);
        let base = entry.base.load(SeqCst);
        if base > BUSY && era == entry.era.load(Relaxed) {
            // SAFETY: this thread is counted, and the thread that detaches waits for it.
            unsafe { slots_of(index, base, entry.slots.load(Relaxed)) }.retire(chain);
        }
        entry.retiring.fetch_sub(1, SeqCst);
    }
}
