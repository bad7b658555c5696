//! What lies in a region, for tests, whose cells are of one type each.

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
    // SAFETY: a test uses a cell as what it was made, or looks at words of 8 bytes in a region that
    // no other thread uses.
    unsafe { region.resolve(offset) }
}

/// How often the cell was lent out.
///
/// # Errors
///
/// As [`Region::generation`].
pub fn generation<T: Plain, M: ConstMachine>(
    region: &Region<M>,
    offset: Offset<T>,
) -> Result<u32, Error> {
    // SAFETY: a test has its offsets from cells.
    unsafe { region.generation(offset) }
}

/// Gives a cell back.
///
/// # Errors
///
/// As [`Thread::free`].
pub fn free<T: Plain, M: ConstMachine>(thread: &Thread<M>, offset: Offset<T>) -> Result<(), Error> {
    // SAFETY: a test that frees a cell is done with it, or frees none.
    unsafe { thread.free(offset) }
}

/// The bytes of a region in which no thread is at work.
///
/// # Panics
///
/// If the region is no more.
pub fn image<M: ConstMachine>(region: &Region<M>) -> Vec<u8> {
    // SAFETY: the test's threads do not store meanwhile.
    unsafe { region.image() }.unwrap()
}
