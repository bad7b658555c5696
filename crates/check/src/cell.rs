//! Access to the memory of a region for tests, whose cells have one type each.

use latchwork_machine::ConstMachine;
use latchwork_region::{Error, Offset, Plain, Region, Thread};

/// The value in a cell.
///
/// # Errors
///
/// As [`Region::resolve`].
pub fn value<T: Plain, M: ConstMachine>(
    region: &Region<M>,
    offset: Offset<T>,
) -> Result<&T, Error> {
    // SAFETY: a test uses a cell with the type it was made with, or reads words of 8 bytes in a
    // region that no other thread uses.
    unsafe { region.resolve(offset) }
}

/// How often the cell was allocated.
///
/// # Errors
///
/// As [`Region::generation`].
pub fn generation<T: Plain, M: ConstMachine>(
    region: &Region<M>,
    offset: Offset<T>,
) -> Result<u32, Error> {
    // SAFETY: the offsets of a test come from cells.
    unsafe { region.generation(offset) }
}

/// Frees a cell.
///
/// # Errors
///
/// As [`Thread::free`].
pub fn free<T: Plain, M: ConstMachine>(thread: &Thread<M>, offset: Offset<T>) -> Result<(), Error> {
    // SAFETY: a test does not use a cell after freeing it, or frees none.
    unsafe { thread.free(offset) }
}

/// The bytes of a region that no thread uses.
///
/// # Panics
///
/// If the region returns an error.
pub fn image<M: ConstMachine>(region: &Region<M>) -> Vec<u8> {
    // SAFETY: the test's threads do not store at the same time.
    unsafe { region.image() }.unwrap()
}
