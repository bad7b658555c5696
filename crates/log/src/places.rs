//! Where the shared words of a log lie in this process, by name: for reports on cache lines.

use latchwork_machine::ConstMachine;

use crate::layout::Shared;
use crate::{Error, Log};

fn place<T: ?Sized>(what: &T, name: impl Into<String>) -> (usize, usize, String) {
    (core::ptr::from_ref(what).cast::<u8>().addr(), size_of_val(what), name.into())
}

impl<M: ConstMachine> Log<M> {
    /// Address, length and name of each; what lies within something else comes after it.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    #[doc(hidden)]
    pub fn places(&self) -> Result<Vec<(usize, usize, String)>, Error> {
        let shared: &Shared<M> = self.shared()?;
        let mut found = vec![
            place(shared, "log"),
            place(&shared.found, "log.found"),
            place(&shared.end, "log.end"),
            place(&shared.written, "log.written"),
            place(&shared.flushed, "log.flushed"),
            place(&shared.flusher, "log.flusher"),
            place(&shared.maker, "log.maker"),
            place(&shared.prepared, "log.prepared"),
            place(&shared.flushed_at, "log.flushed_at"),
            place(&shared.append, "log.append"),
            place(&shared.pins, "log.pins"),
        ];
        // Where it is not yet as large as it may be, the words behind it are no other's.
        let first = self.inner.area.word(self.inner.buffer_at)?;
        let buffer = core::ptr::from_ref(first).addr();
        found.push((buffer, self.inner.buffer as usize, "log-buffer".to_owned()));
        for number in 0..self.threads() {
            found.push(place(self.slot_of(number)?, format!("log-slot {number}")));
        }
        Ok(found)
    }
}
