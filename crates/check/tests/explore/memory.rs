//! The allocator of these tests: large zeroed memory is allocated when it is first accessed.
//!
//! A region on the heap reserves its maximum size, half a gigabyte for a store. The system's
//! allocator would write zeros to memory of that alignment; a run uses little of it.

use std::alloc::{GlobalAlloc, Layout, System};

/// From this size on memory is mapped separately, aligned to at most `ALIGN`.
const LARGE: usize = 1 << 20;
const ALIGN: usize = 1 << 16;

struct Sparse;

#[global_allocator]
static MEMORY: Sparse = Sparse;

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() == ALIGN
}

/// Returns zeroed pages, or null.
fn map(size: usize) -> *mut u8 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the system chooses.
    let start = unsafe { libc::mmap(core::ptr::null_mut(), size + ALIGN, rights, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return core::ptr::null_mut();
    }
    let skip = start.addr().next_multiple_of(ALIGN) - start.addr();
    let base = start.wrapping_byte_add(skip);
    if skip > 0 {
        // SAFETY: the start of the mapping above, which is not used.
        unsafe { libc::munmap(start, skip) };
    }
    // SAFETY: the end of the mapping above, which is not used.
    unsafe { libc::munmap(base.wrapping_byte_add(size), ALIGN - skip) };
    base.cast()
}

// SAFETY: the system's allocator, except for memory of large size and alignment, which is mapped in
// `alloc` and `alloc_zeroed`, and unmapped in `dealloc` for the same layouts.
unsafe impl GlobalAlloc for Sparse {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_large(layout) {
            true => map(layout.size().next_multiple_of(ALIGN)),
            // SAFETY: the caller's promise.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_large(layout) {
            true => map(layout.size().next_multiple_of(ALIGN)),
            // SAFETY: the caller's promise.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: mapped with this length in `map`.
            unsafe { libc::munmap(at.cast(), layout.size().next_multiple_of(ALIGN)) };
        } else {
            // SAFETY: the caller's promise; `alloc` got it from the system.
            unsafe { System.dealloc(at, layout) };
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() < ALIGN {
            // SAFETY: the caller's promise; memory of this alignment always comes from the system.
            return unsafe { System.realloc(at, layout, size) };
        }
        // SAFETY: the caller promises that the size is valid for this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the caller's promise.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: both are at least as long as the shorter one, and do not overlap.
            unsafe { core::ptr::copy_nonoverlapping(at, to, layout.size().min(size)) };
            // SAFETY: the caller's promise.
            unsafe { self.dealloc(at, layout) };
        }
        to
    }
}
