//! The machine of this program: one process.

use core::cell::Cell;
use core::sync::atomic::Ordering::{self, Relaxed};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, compiler_fence, fence};

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};
use rustix::thread::{MembarrierCommand, membarrier};
use rustix::time::{ClockId, clock_gettime};

use crate::place;
use crate::slot::{Slot, SlotTable};
use crate::{
    Chain, Clock, ConstMachine, Deadline, Level, MAX_SLOTS, Machine, Place, Slots, Waited,
};

/// The machine of this program: `core`'s atomics, the kernel's futex, one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Native;

/// Enough for two context switches; longer waits are cheaper asleep.
pub(crate) const SPIN_NS: u64 = 3_000;

struct Table {
    table: SlotTable<Native>,
    slots: [Slot<Native>; MAX_SLOTS as usize + 1],
}

/// 4 MiB of addresses. A page of it becomes memory when its first slot is used.
// SAFETY: a table and its slots are atomic integers for which all zero is a value.
static TABLE: Table = unsafe { core::mem::zeroed() };

thread_local! {
    static CHAIN: Cell<Chain> = const { Cell::new(0) };
}

impl Native {
    /// Returns the table that all latches of this process share.
    pub fn table() -> Slots<'static, Native> {
        Slots::new(&TABLE.table, &TABLE.slots)
    }
}

impl Machine for Native {
    type AtomicU8 = AtomicU8;
    type AtomicU16 = AtomicU16;
    type AtomicU32 = AtomicU32;
    type AtomicU64 = AtomicU64;

    const SPIN_NS: u64 = SPIN_NS;

    #[inline(always)]
    fn fence(order: Ordering) {
        fence(order);
    }

    /// SeqCst for the compiler alone: the kernel adds the instruction where this thread is, if
    /// needed.
    #[inline(always)]
    fn light_barrier() {
        compiler_fence(Ordering::SeqCst);
    }

    fn heavy_barrier() -> bool {
        OURS.pass()
    }

    #[inline(always)]
    fn relax() {
        core::hint::spin_loop();
    }

    fn yield_now() {
        rustix::thread::sched_yield();
    }

    fn wait(word: &AtomicU32, expected: u32, deadline: Option<Deadline>) -> Waited {
        wait(word, expected, deadline, Flags::PRIVATE)
    }

    fn wake(word: &AtomicU32) {
        wake(word, Flags::PRIVATE);
    }

    fn now(clock: Clock) -> u64 {
        now(clock)
    }

    fn place() -> Place {
        place::HERE.place_of(place::cpu())
    }

    fn spread(level: Level) -> bool {
        place::HERE.spread(level)
    }

    #[inline]
    fn slots<'a>(_: *const AtomicU32) -> Slots<'a, Self> {
        Slots::new(&TABLE.table, &TABLE.slots)
    }

    #[inline]
    fn chain(_: &Slots<'_, Self>) -> Chain {
        CHAIN.get()
    }

    fn set_chain(_: &Slots<'_, Self>, chain: Chain) {
        CHAIN.set(chain);
        at_thread_exit(&EXIT, retire);
    }
}

impl ConstMachine for Native {
    const U8: AtomicU8 = AtomicU8::new(0);
    const U16: AtomicU16 = AtomicU16::new(0);
    const U32: AtomicU32 = AtomicU32::new(0);
    const U64: AtomicU64 = AtomicU64::new(0);

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    crate::copy::copies_of_this_processor!();
}

static EXIT: AtomicU32 = AtomicU32::new(0);

extern "C" fn retire(_: *mut libc::c_void) {
    let chain = CHAIN.replace(0);
    Native::table().retire(chain);
}

/// Has `exit` called when this thread ends.
///
/// It uses a POSIX key instead of a thread-local with a destructor: Rust registers such a
/// destructor with the C library, which allocates, and the thread may be waiting for a mutex inside
/// an allocator. Setting one of a process's first 32 keys allocates nothing. If no key is
/// available, the slot is lost.
pub(crate) fn at_thread_exit(key: &AtomicU32, exit: extern "C" fn(*mut libc::c_void)) {
    // Relaxed: a key works as soon as its number is known.
    let mut known = key.load(Relaxed);
    if known == 0 {
        let mut fresh = 0;
        // SAFETY: `fresh` is a place for a key, and `exit` stays for as long as this library does.
        if unsafe { libc::pthread_key_create(&mut fresh, Some(exit)) } != 0 {
            return;
        }
        match key.compare_exchange(0, fresh + 1, Relaxed, Relaxed) {
            Ok(_) => known = fresh + 1,
            Err(first) => {
                // SAFETY: no other thread has seen `fresh`.
                unsafe { libc::pthread_key_delete(fresh) };
                known = first;
            }
        }
    }
    // SAFETY: the key was made above and is never deleted. Any value but null calls `exit`.
    unsafe { libc::pthread_setspecific(known - 1, core::ptr::dangling()) };
}

/// A barrier of the kernel for which each process must register.
pub(crate) struct Expedited {
    register: MembarrierCommand,
    pass: MembarrierCommand,
    known: AtomicU8,
}

const UNASKED: u8 = 0;
const ABLE: u8 = 1;
const UNABLE: u8 = 2;

/// Reaches the threads of this process.
static OURS: Expedited = Expedited::new(
    MembarrierCommand::RegisterPrivateExpedited,
    MembarrierCommand::PrivateExpedited,
);

impl Expedited {
    pub(crate) const fn new(register: MembarrierCommand, pass: MembarrierCommand) -> Self {
        Self { register, pass, known: AtomicU8::new(UNASKED) }
    }

    /// Registers this process unless it is registered. False if the system cannot.
    pub(crate) fn register(&self) -> bool {
        // Relaxed: registering twice does no harm, and the kernel orders the rest.
        if self.known.load(Relaxed) == UNASKED {
            let able = membarrier(self.register).is_ok();
            self.known.store(if able { ABLE } else { UNABLE }, Relaxed);
        }
        self.reaches_us()
    }

    /// Whether this process is registered.
    #[inline(always)]
    pub(crate) fn reaches_us(&self) -> bool {
        self.known.load(Relaxed) == ABLE
    }

    /// Makes all threads of registered processes pass a barrier.
    pub(crate) fn pass(&self) -> bool {
        let passed = self.register() && membarrier(self.pass).is_ok();
        // SeqCst: this thread's own accesses are ordered in any case.
        fence(Ordering::SeqCst);
        passed
    }
}

pub(crate) fn wait(
    word: &AtomicU32,
    expected: u32,
    deadline: Option<Deadline>,
    flags: Flags,
) -> Waited {
    let until = deadline.map(|deadline| Timespec {
        tv_sec: (deadline.at / 1_000_000_000) as i64,
        tv_nsec: (deadline.at % 1_000_000_000) as i64,
    });
    let flags = match deadline {
        Some(Deadline { clock: Clock::Realtime, .. }) => flags | Flags::CLOCK_REALTIME,
        _ => flags,
    };
    match futex::wait_bitset(word, flags, expected, until.as_ref(), core::num::NonZeroU32::MAX) {
        Err(Errno::TIMEDOUT) => Waited::TimedOut,
        _ => Waited::Woken,
    }
}

pub(crate) fn wake(word: &AtomicU32, flags: Flags) {
    let _ = futex::wake(word, flags, 1);
}

pub(crate) fn now(clock: Clock) -> u64 {
    let time = clock_gettime(match clock {
        Clock::Monotonic => ClockId::Monotonic,
        Clock::Realtime => ClockId::Realtime,
    });
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
