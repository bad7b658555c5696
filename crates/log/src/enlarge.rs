//! The present buffer of a log, and its growth: see `buffer.rs`.

use core::sync::atomic::Ordering::{Relaxed, Release};

use latchwork_machine::{ConstMachine, Word};
use latchwork_region::Error as RegionError;

use crate::buffer::{Buffer, Size};
use crate::layout::Shared;
use crate::{Error, Log, Session};

impl<M: ConstMachine> Log<M> {
    /// Returns the buffer. A thread that reads the bytes before an end has loaded that end first.
    pub(crate) fn buffer(&self) -> Result<Buffer<'_, M>, Error> {
        self.buffer_in(self.shared()?)
    }

    /// Returns the buffer to a caller that already has the shared words.
    #[inline]
    pub(crate) fn buffer_in(&self, shared: &Shared<M>) -> Result<Buffer<'_, M>, Error> {
        let (inner, size) = (&self.inner, self.buffer_size(shared)?);
        Ok(Buffer::new(&inner.area, inner.buffer_at, inner.buffer_base, size))
    }

    /// Returns the present size of the buffer.
    #[inline]
    pub(crate) fn buffer_size(&self, shared: &Shared<M>) -> Result<Size, Error> {
        // Relaxed: see the head of `buffer.rs`.
        let size = Size::of(shared.buffer_size.load(Relaxed));
        let fits = size.bytes().is_power_of_two() && size.bytes() <= self.inner.buffer;
        // A record takes at most an eighth of the smallest buffer.
        if fits && size.bytes() >= 1 << 16 {
            Ok(size)
        } else {
            Err(Error::Corrupt { what: "area" })
        }
    }
}

impl<M: ConstMachine> Session<M> {
    /// Doubles the buffer, unless another thread has done so. If there is no memory, the present
    /// size becomes final.
    #[cold]
    pub(crate) fn enlarge(&self, shared: &Shared<M>, from: Size) -> Result<(), Error> {
        let inner = &self.log.inner;
        let larger = from.doubled(inner.buffer);
        let next = match inner.area.grow(inner.buffer_at + larger.bytes() / 8) {
            Ok(()) => larger,
            Err(RegionError::NoSpace | RegionError::FileLimit | RegionError::TooLarge(_)) => {
                from.made_final()
            }
            Err(why) => return Err(why.into()),
        };
        let latched = self.latch()?;
        if shared.buffer_size.load(Relaxed) == from.word() {
            // Release: after the memory was reserved.
            shared.buffer_size.store(next.word(), Release);
        }
        drop(latched);
        Ok(())
    }
}
