//! Copies a store into one with full pages.

use std::path::Path;

use latchwork_lockmgr::Wait;
use latchwork_machine::Shared as Machine;

use crate::tables::tables;
use crate::tools::temporary::TemporaryFolder;
use crate::{Error, Store};

/// Limits of a transaction: number and bytes of records.
const RECORDS: usize = 1000;
const BYTES: usize = 256 << 10;

impl Store<Machine> {
    /// Writes all tables, at one position of the log, into a new store in a new folder, in the
    /// order of their keys, so that its pages are full and contiguous. Returns the number of
    /// records. Other transactions can write at the same time; their changes are not copied.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] if `to` exists; [`Error::Prepared`] if a prepared transaction is undecided,
    /// because the new store would lack it; [`Error::SnapshotTooOld`] if other transactions write
    /// much; errors of the [store's parts](Error). After an error `to` does not exist.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    /// # let path = std::env::temp_dir().join(format!("store-compact-{}", std::process::id()));
    /// # std::fs::create_dir(&path).unwrap();
    /// let store = Store::open(path.join("shop"))?;
    /// store.write(|tx| tx.put(&FRUIT, "pear", 3))?;
    /// assert_eq!(store.compact_into(path.join("small"), &mut |_| {})?, 1);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn compact_into(
        &self,
        to: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        if let Some(first) = self.prepared()?.into_iter().next() {
            return Err(Error::Prepared { gid: first.gid });
        }
        let target = TemporaryFolder::new(to.as_ref())?;
        let mut sizes = self.home().sizes;
        sizes.page = self.home().file.page_bytes();
        let mut records = 0;
        target.fill(&sizes, |small| {
            self.read(|tx| {
                for (name, entry) in tables(&tx.snapshot)? {
                    let (tree, wanted) = (entry.tree, (entry.types, entry.version));
                    let into = small.catalog().make(&name, &wanted, Wait::Detect)?.tree;
                    let (mut batch, mut bytes) = (Vec::new(), 0);
                    tx.snapshot.scan_raw(tree, .., false, &mut |key, value| {
                        batch.push((key.to_vec(), value.to_vec()));
                        bytes += key.len() + value.len();
                        if batch.len() == RECORDS || bytes >= BYTES {
                            small.put_all(into, &batch)?;
                            records += batch.len() as u64;
                            progress(records);
                            (bytes, batch) = (0, Vec::new());
                        }
                        Ok(true)
                    })?;
                    small.put_all(into, &batch)?;
                    records += batch.len() as u64;
                }
                Ok(())
            })
        })?;
        target.name(&sizes)?;
        Ok(records)
    }
}
