//! Room of free pages is returned to the file system, while others write.

use core::ops::Bound;

use latchwork_machine::ConstMachine;
use latchwork_tree::Batch;

use crate::engine::Engine;
use crate::files::meter::Count;
use crate::tools::DataFile;
use crate::{Error, Store};

/// After how many leaves that were scanned the empty ones are unlinked: as many pages are freed at
/// a time.
const LEAVES: u64 = 256;

impl<M: ConstMachine> Store<M> {
    /// Frees the empty pages of all tables, and returns the room of all free pages to the file
    /// system: also of those that a checkpoint leaves to be taken next. Other threads and processes
    /// may write meanwhile. Returns what the file was before, and what it is now; `told` is called
    /// with the number of leaves that were looked at so far.
    ///
    /// Records stay where they are, so pages that are half empty stay so, and the length of the
    /// file stays: [`compact_into`](Self::compact_into) makes a store whose pages are full. Pages
    /// with removed records that a snapshot may still see are not freed.
    ///
    /// It reads every leaf once, and makes a checkpoint. If the process is killed, what was freed
    /// stays free; the next call goes on.
    ///
    /// # Errors
    ///
    /// Those of [`checkpoint`](Self::checkpoint); [`Error::Disk`] if the device fails. A file
    /// system that cannot punch holes is no error: the bytes on the disk stay then.
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
    pub fn reclaim(&self, told: &mut dyn FnMut(u64)) -> Result<(DataFile, DataFile), Error> {
        self.writable()?;
        let before = self.data_file()?;
        let (session, mut leaves) = (self.session()?, 0);
        let worker = &session.worker;
        worker.tidy_all();
        for tree in self.roots()? {
            let (mut batch, mut from) = (Batch::default(), Vec::new());
            loop {
                // A scan notes a leaf that has nothing but old removed records.
                worker.scan(tree, Bound::Included(&from), false, usize::MAX, &mut batch)?;
                leaves += 1;
                if leaves % LEAVES == 0 {
                    worker.tidy_all();
                    told(leaves);
                }
                match batch.next() {
                    Some(next) => next.clone_into(&mut from),
                    None => break,
                }
            }
        }
        worker.tidy_all();
        drop(session);
        // What was freed is durable, and the pages that were changed are written.
        self.checkpoint()?;
        let worker = &self.session()?.worker;
        worker.count(Count::Punched, self.home().punch_all(worker)?);
        told(leaves);
        Ok((before, self.data_file()?))
    }
}
