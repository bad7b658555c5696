//! Returns the space of free pages to the file system, while other transactions write.

use core::ops::Bound;

use latchwork_machine::ConstMachine;
use latchwork_tree::Batch;

use crate::engine::Engine;
use crate::files::meter::Count;
use crate::tools::DataFile;
use crate::{Error, Store};

/// The number of scanned leaves after which empty ones are unlinked.
const LEAVES: u64 = 256;

impl<M: ConstMachine> Store<M> {
    /// Frees the empty pages of all tables, and returns the space of all free pages to the file
    /// system, including pages that a checkpoint keeps for reuse. Other threads and processes can
    /// write at the same time. Returns the size of the file before and after; `progress` is called
    /// with the number of leaves visited so far.
    ///
    /// Records are not moved, so half-empty pages remain, and the length of the file does not
    /// change. [`compact_into`](Self::compact_into) creates a store with full pages. Pages with
    /// removed records that a snapshot may still see are not freed.
    ///
    /// The call reads every leaf once, and makes a checkpoint. If the process is killed, the freed
    /// pages stay free, and another call continues.
    ///
    /// # Errors
    ///
    /// Those of [`checkpoint`](Self::checkpoint); [`Error::Disk`] if the device fails. If the file
    /// system cannot punch holes, that is no error, and the space is not returned.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const LINES: Table<u64, &str> = Table::new("lines");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-reclaim-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.write(|tx| (0..9000).try_for_each(|n| tx.put(&LINES, n, "a line of some words")))?;
    /// store.write(|tx| tx.remove_range(&LINES, ..))?;
    /// let (before, after) = store.reclaim(&mut |_| {})?;
    /// assert!(after.on_disk <= before.on_disk);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn reclaim(&self, progress: &mut dyn FnMut(u64)) -> Result<(DataFile, DataFile), Error> {
        self.writable()?;
        let before = self.data_file()?;
        let (session, mut leaves) = (self.session()?, 0);
        let worker = &session.worker;
        worker.tidy_all();
        for tree in self.roots()? {
            let (mut batch, mut from) = (Batch::default(), Vec::new());
            loop {
                // A scan notes a leaf that contains only old removed records.
                worker.scan(tree, Bound::Included(&from), false, usize::MAX, &mut batch)?;
                leaves += 1;
                if leaves % LEAVES == 0 {
                    worker.tidy_all();
                    progress(leaves);
                }
                match batch.next() {
                    Some(next) => next.clone_into(&mut from),
                    None => break,
                }
            }
        }
        worker.tidy_all();
        drop(session);
        // The checkpoint makes the freed pages durable and writes the changed ones.
        self.checkpoint()?;
        let worker = &self.session()?.worker;
        worker.count(Count::Punched, self.home().punch_all(worker)?);
        progress(leaves);
        Ok((before, self.data_file()?))
    }
}
