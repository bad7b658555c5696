//! The addresses of the log's shared words in this process, by name, for reports on cache lines.

use latchwork_machine::ConstMachine;

use crate::layout::Shared;
use crate::{Error, Log};

fn place<T: ?Sized>(what: &T, name: impl Into<String>) -> (usize, usize, String) {
    (core::ptr::from_ref(what).cast::<u8>().addr(), size_of_val(what), name.into())
}

impl<M: ConstMachine> Log<M> {
    /// Returns address, length and name of each part. A part that lies within another comes after
    /// it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Region`] if the region fails or was opened before a fork.
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
        for (number, group) in shared.groups.iter().enumerate() {
            found.push(place(group, format!("log-group {number}")));
            found.push(place(&group.leader, format!("log-group {number}.leader")));
            found.push(place(&group.end, format!("log-group {number}.end")));
        }
        // If the buffer is smaller than its maximum, the words after it are unused.
        let first = self.inner.area.word(self.inner.buffer_at)?;
        let buffer = core::ptr::from_ref(first).addr();
        found.push((buffer, self.inner.buffer as usize, "log-buffer".to_owned()));
        for number in 0..self.threads() {
            found.push(place(self.slot_of(number)?, format!("log-slot {number}")));
        }
        Ok(found)
    }
}
