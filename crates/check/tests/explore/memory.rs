//! The allocator of these tests: large zeroed memory is there when it is touched, and not before.
//!
//! A region on the heap has room for all that it may ever have, half a gigabyte for a store's; the
//! system's allocator writes zeros to what is aligned like that. A run uses little of it.

use std::alloc::{GlobalAlloc, Layout, System};

/// From so many bytes on memory comes from a mapping of its own, aligned like this at most.
const LARGE: usize = 1 << 20;
const ALIGN: usize = 1 << 16;

struct Sparse;

#[global_allocator]
static MEMORY: Sparse = Sparse;

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() == ALIGN
}

/// Zeroed pages, or null.
fn map(size: usize) -> *mut u8 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever there is room.
    let start = unsafe { libc::mmap(core::ptr::null_mut(), size + ALIGN, rights, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return core::ptr::null_mut();
    }
    let skip = start.addr().next_multiple_of(ALIGN) - start.addr();
    let base = start.wrapping_byte_add(skip);
    if skip > 0 {
        // SAFETY: the beginning of what was mapped above, which nobody knows of.
        unsafe { libc::munmap(start, skip) };
    }
    // SAFETY: its end.
    unsafe { libc::munmap(base.wrapping_byte_add(size), ALIGN - skip) };
    base.cast()
}

// SAFETY: it is the system's allocator, but for what is large and aligned like a region: that is a
// mapping each, in `alloc` and `alloc_zeroed`, and for that reason in `dealloc`; `realloc` is made
// of these by default.
unsafe impl GlobalAlloc for Sparse {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_large(layout) {
            true => map(layout.size().next_multiple_of(ALIGN)),
            // SAFETY: as the caller says.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_large(layout) {
            true => map(layout.size().next_multiple_of(ALIGN)),
            // SAFETY: as the caller says.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: it was mapped with this length in `map`.
            unsafe { libc::munmap(at.cast(), layout.size().next_multiple_of(ALIGN)) };
        } else {
            // SAFETY: as the caller says, and `alloc` had it from there.
            unsafe { System.dealloc(at, layout) };
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() < ALIGN {
            // SAFETY: as the caller says; memory of this alignment is the system's, of any size.
            return unsafe { System.realloc(at, layout, size) };
        }
        // SAFETY: the caller says that the size is one for this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as the caller says.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: both are as long as the shorter of the two, and apart.
            unsafe { core::ptr::copy_nonoverlapping(at, to, layout.size().min(size)) };
            // SAFETY: as the caller says.
            unsafe { self.dealloc(at, layout) };
        }
        to
    }
}
