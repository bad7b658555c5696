//! The same machine, seen from many processes.
//!
//! Latches over [`Shared`] lie in a mapping that several processes have, each at an address of its
//! own. The waiters' slots lie in the same mapping, at its start, so that a number means the same
//! slot to everybody. A latch finds them from its own address: the slow path looks the mapping up
//! among those that this process has attached. Nothing in the mapping is trusted: numbers are
//! checked against the table's length.
//!
//! The child of a fork has nothing attached: where its parent's mappings were, it may have other
//! ones by now, and a slot of its parent's threads is not its own.

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

/// The machine that this program runs on, and other programs with it: process-shared futexes, and
/// slots in the mapping that holds the latches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared;

/// How many mappings one process may have attached at a time.
const MAPPINGS: usize = 512;

/// Reaches the threads of all processes that have something attached.
static ALL: Expedited =
    Expedited::new(MembarrierCommand::RegisterGlobalExpedited, MembarrierCommand::GlobalExpedited);

/// What a mapping begins with; the slots follow at the next multiple of 64.
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
    /// Counts attachments, so that a thread's memory of a mapping that went away is not believed.
    /// It wraps after 50 days of 1,000 a second: a thread believes what it remembers if it has not
    /// used the entry for exactly 2^32 of them.
    era: AtomicU32,
    /// What is noted in the slots of this process's threads.
    owner: AtomicU64,
    /// The entry whose waiter slots serve this mapping, one more than its number; zero for itself.
    home: AtomicU32,
    /// How many threads that end are giving back slots in it, or about to see that it is gone.
    retiring: AtomicU32,
}

impl Mapping {
    /// Counts one more attachment.
    fn begin_era(&self) -> u32 {
        // Relaxed: told to other threads with `base`.
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

/// The owner of slots of a process that has no name: it never counts as dead.
const ANYBODY: u64 = u64::MAX;

/// `base` of an entry that somebody is filling in or emptying.
const BUSY: usize = 1;

thread_local! {
    /// Where this thread's chain begins in each mapping, and in which era that was.
    static CHAINS: [Cell<(u32, Chain)>; MAPPINGS] = const { [const { Cell::new((0, 0)) }; MAPPINGS] };
}

/// Why a mapping could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The address is not a multiple of 64.
    Misaligned,
    /// The mapping cannot hold so many slots.
    TooSmall {
        /// Bytes that it would take.
        needed: usize,
        /// Bytes that there are.
        given: usize,
    },
    /// The number of slots, as asked for or as found in the mapping, is not 1 to 65,534.
    Slots(u32),
    /// The mapping does not begin as one that was laid out here does.
    Foreign,
    /// This process has 512 mappings attached.
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

/// A mapping that latches over [`Shared`] may lie in, for as long as this value lives. In the child
/// of a fork it is attached no more, whatever becomes of this value; the child may attach it again,
/// if it has it.
///
/// Dropping it while a thread waits for such a latch makes that thread panic. Threads that have
/// waited for one, and are ending, are waited for: they give back their slots.
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
    /// The bytes that `slots` waiter slots take at a mapping's start.
    pub const fn overhead(slots: u32) -> usize {
        size_of::<Header>() + (slots as usize + 1) * size_of::<Slot<Shared>>()
    }

    /// Lays out `slots` waiter slots at the start of a zeroed mapping and attaches it.
    ///
    /// # Safety
    ///
    /// `base` points to `length` bytes that are mapped and accessed only atomically, here and in
    /// every other process, until the result is dropped; and no thread uses a latch in them, or
    /// what a latch lent out, after that.
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
        // SAFETY: as the caller promises.
        unsafe { Self::attach(base, length) }
    }

    /// Attaches a mapping that [`create`](Self::create) laid out, in this process or another.
    ///
    /// # Safety
    ///
    /// As for [`create`](Self::create).
    pub unsafe fn attach<'a>(base: *mut u8, length: usize) -> Result<Attached<'a>, AttachError> {
        // SAFETY: as the caller promises.
        unsafe { Self::attach_growing(base, length, length) }
    }

    /// Attaches a mapping that grows in place: `length` bytes are mapped, and those up to
    /// `reserved` are set aside for it. The waiter slots lie in the first `length`.
    ///
    /// # Safety
    ///
    /// As for [`create`](Self::create), for `length` bytes now and for others as soon as a latch
    /// in them is used. Nothing else is ever mapped in the first `reserved`.
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
    /// What is left of the mapping for latches and data, and its length.
    pub fn room(&self) -> (*mut u8, usize) {
        (self.room, self.length)
    }

    /// Has this name, which is neither zero nor all ones, noted in the slots that threads of this
    /// process take from now on, so that they can be taken back when it is dead.
    pub fn set_owner(&self, name: u64) {
        if let Some(entry) = self.entry() {
            // Relaxed: a thread that does not know of it yet takes a slot in nobody's name.
            entry.owner.store(name, Relaxed);
        }
    }

    /// Has latches in another mapping wait in this one's slots: `length` bytes from `base` on.
    /// The other is detached before this one is.
    ///
    /// # Errors
    ///
    /// [`AttachError::TooMany`]; [`AttachError::Misaligned`] if `base` is no multiple of 64;
    /// [`AttachError::Foreign`] if this one was attached before a fork.
    ///
    /// # Safety
    ///
    /// The bytes are accessed only atomically, here and in every other process, until the result
    /// is dropped, and are mapped as soon as a latch in them is used. Nothing else is ever mapped
    /// in them. `self` is dropped after the result.
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
        // Relaxed: nobody but the child of a fork changes it while `self` lives.
        Some(&ATTACHED[self.index]).filter(|entry| entry.era.load(Relaxed) == self.era)
    }

    /// The mapping's slots.
    ///
    /// # Panics
    ///
    /// If it was attached before a fork.
    pub fn slots(&self) -> Slots<'_, Shared> {
        let entry = self.entry().expect("latchwork: this mapping was attached before a fork");
        // Relaxed: it is attached for as long as `self`.
        Shared::slots(entry.base.load(Relaxed) as *const AtomicU32)
    }

    /// Takes back the slots of the dead that are in no queue: see [`Slots::reclaim`].
    pub fn reclaim(&self, dead: impl Fn(u64) -> bool) -> u32 {
        self.slots().reclaim(|owner| owner != ANYBODY && dead(owner))
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        // After a fork another mapping may have the entry.
        let Some(entry) = self.entry() else { return };
        // SeqCst, as are the other three: either a thread that ends sees this, or it is waited for,
        // and synchronizes with this one. It may outlive all that its maker knows of it, as threads
        // of a scope do.
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

/// An unused entry, now ours to fill in.
fn claim() -> Option<usize> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler does only what may be done after a fork, and stays.
        unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) };
    });
    // Acquire: synchronizes with the Release of a detaching thread.
    let index =
        ATTACHED.iter().position(|e| e.base.compare_exchange(0, BUSY, Acquire, Relaxed).is_ok())?;
    // Release: synchronizes with the Acquire fence in `find`, which sees `BUSY`, or what came
    // later, if it has seen what follows.
    fence(Release);
    Some(index)
}

/// Detaches all that the parent of this process had. The eras end, so that no thread believes what
/// it remembers of a slot, and no [`Attached`] is taken for what has its entry next.
extern "C" fn forget_in_child() {
    // Relaxed, all: the child has one thread. An entry that nobody has is not written to: each page
    // that is costs the child a copy.
    let is_used = |of: &&Mapping| of.base.load(Relaxed) != 0 || of.retiring.load(Relaxed) != 0;
    for entry in ATTACHED.iter().filter(is_used) {
        entry.base.store(0, Relaxed);
        entry.retiring.store(0, Relaxed);
        entry.length.store(0, Relaxed);
        entry.begin_era();
    }
}

/// The mapping around `address`.
fn find(address: usize) -> Option<(usize, usize, u32)> {
    ATTACHED.iter().enumerate().find_map(|(index, entry)| {
        // Acquire: the era of what `base` is of, or of what was there before.
        let era = entry.era.load(Acquire);
        // Acquire: synchronizes with the Release in `attach`.
        let base = entry.base.load(Acquire);
        let inside = base > BUSY && address.wrapping_sub(base) < entry.length.load(Relaxed);
        if !inside {
            return None;
        }
        let (home, slots) = (entry.home.load(Relaxed), entry.slots.load(Relaxed));
        // Acquire: synchronizes with the Release fences of threads that detach and attach. All of
        // it is of one mapping, or it is not the one around `address`, which stays.
        fence(Acquire);
        if (era, base) != (entry.era.load(Relaxed), entry.base.load(Relaxed)) {
            return None;
        }
        match home as usize {
            0 => Some((index, base, slots)),
            home => {
                let entry = ATTACHED.get(home - 1)?;
                // Relaxed: it was attached before this one, and is so until after it.
                Some((home - 1, entry.base.load(Relaxed), entry.slots.load(Relaxed)))
            }
        }
    })
}

/// The light barrier of a process that the kernel's does not reach.
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

    /// Free where the kernel's barrier reaches this process, as it does since the first mapping was
    /// attached; a fence where it does not, so that no peer has to know.
    #[inline(always)]
    fn light_barrier() {
        // SeqCst, for the compiler alone.
        compiler_fence(SeqCst);
        if !ALL.reaches_us() {
            unreached();
        }
    }

    #[inline(always)]
    fn reached_barrier() {
        debug_assert!(ALL.reaches_us(), "latchwork: no heavy barrier has succeeded here");
        // SeqCst, for the compiler alone: the kernel's barrier does the rest.
        compiler_fence(SeqCst);
    }

    /// Reaches all processes that registered for it: those who have a mapping attached. False if
    /// this process may not call it; then it must not rely on a peer's light barrier.
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

/// The waiter slots of a mapping, of which `find` or its entry says this.
///
/// # Safety
///
/// It is attached, or a thread that detaches it waits for this one.
unsafe fn slots_of<'a>(index: usize, base: usize, count: u32) -> Slots<'a, Shared> {
    let base = base as *const u8;
    // SAFETY: `attach` checked that the mapping begins with a header; it is there, by the caller.
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
            // SAFETY: the thread that detaches it waits, for this one is counted.
            unsafe { slots_of(index, base, entry.slots.load(Relaxed)) }.retire(chain);
        }
        entry.retiring.fetch_sub(1, SeqCst);
    }
}
