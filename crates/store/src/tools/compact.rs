//! A store whose pages are full, of one whose pages are not.

use std::path::Path;

use latchwork_lockmgr::Wait;
use latchwork_machine::Shared as Machine;

use crate::tables::tables;
use crate::tools::temporary::TemporaryFolder;
use crate::{Error, Store};

/// How many records are written in one transaction, and how many bytes.
const RECORDS: usize = 1000;
const BYTES: usize = 256 << 10;

impl Store<Machine> {
    /// Writes all tables, as they are at one position of the log, into a new store in a folder that
    /// is not there yet: in the order of their keys, so that its pages are full and lie together.
    /// Returns how many records there are. Others may write meanwhile; the new store has nothing of
    /// that.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] if there is something at `to`; [`Error::Prepared`] if a transaction waits
    /// for its decision, for the new store would not have it; [`Error::SnapshotTooOld`] where
    /// others write much; those of the parts. Nothing is at `to` then.
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
        told: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        if let Some(first) = self.prepared()?.into_iter().next() {
            return Err(Error::Prepared { gid: first.gid });
        }
        let beside = TemporaryFolder::new(to.as_ref())?;
        let mut sizes = self.home().sizes;
        sizes.page = self.home().file.page_bytes();
        let mut records = 0;
        beside.fill(&sizes, |small| {
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
                            told(records);
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
        beside.name(&sizes)?;
        Ok(records)
    }
}
