//! The calling thread: a number for each thread, and whether there is more than one.
//!
//! The number is not the kernel's thread id. It is never used twice (until 2^32 threads have
//! asked), and the child of a fork keeps its number, so it can release what the forking thread
//! held.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

// The initial-exec model makes the number two loads away. Rust's own thread-locals are a call in a
// shared library, and stable Rust cannot choose the model.
core::arch::global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".globl latchwork_thread_number",
    ".hidden latchwork_thread_number",
    ".type latchwork_thread_number, @object",
    ".size latchwork_thread_number, 4",
    ".p2align 2",
    "latchwork_thread_number:",
    ".zero 4",
    ".text",
);

/// Returns the place of this thread's number, which is zero until it has one.
#[inline(always)]
fn cell() -> *mut u32 {
    let cell: *mut u32;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the thread pointer, and the variable's offset from it.
    unsafe {
        core::arch::asm!(
            "mov {c}, qword ptr fs:[0]",
            "add {c}, qword ptr [rip + latchwork_thread_number@GOTTPOFF]",
            c = out(reg) cell,
            options(nostack, pure, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mrs {c}, tpidr_el0",
            "adrp {o}, :gottprel:latchwork_thread_number",
            "ldr {o}, [{o}, :gottprel_lo12:latchwork_thread_number]",
            "add {c}, {c}, {o}",
            c = out(reg) cell,
            o = out(reg) _,
            options(nostack, pure, readonly),
        );
    }
    cell
}

/// Returns this thread's number; zero if it was never requested.
#[inline(always)]
pub(crate) fn known_number() -> u32 {
    // SAFETY: the thread's own variable.
    unsafe { *cell() }
}

/// Returns this thread's number, never zero.
#[inline]
pub(crate) fn number() -> u32 {
    let cell = cell();
    // SAFETY: the thread's own variable.
    let known = unsafe { *cell };
    if known != 0 { known } else { number_slow(cell) }
}

#[cold]
#[inline(never)]
fn number_slow(cell: *mut u32) -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    loop {
        // Relaxed: only uniqueness matters.
        let number = LAST.fetch_add(1, Relaxed).wrapping_add(1);
        if number != 0 {
            // SAFETY: the thread's own variable.
            unsafe { *cell = number };
            return number;
        }
    }
}

unsafe extern "C" {
    /// glibc 2.32 and later: not zero while the process has one thread.
    static __libc_single_threaded: AtomicU8;
}

/// Returns whether this is the process's only thread.
///
/// If so, a load and a store replace an exchange: no other thread can intervene, and starting a
/// second thread publishes everything stored before.
#[inline(always)]
pub(crate) fn alone() -> bool {
    // SAFETY: glibc exports it as a byte. Relaxed: only this thread, or one that this thread
    // starts or joins, changes it.
    unsafe { __libc_single_threaded.load(Relaxed) != 0 }
}
