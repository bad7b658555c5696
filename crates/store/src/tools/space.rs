//! How the pages of the file are used, and whether what the catalog says of them is so.

use std::collections::BTreeSet;

use latchwork_machine::ConstMachine;
use latchwork_tree::Error as TreeError;

use crate::files::scribe::Part;
use crate::long::PIECES;
use crate::tables::{CATALOG, trees};
use crate::{Error, Store};

/// The pages of a store's file, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Space {
    /// All of them.
    pub pages: u64,
    /// Those of tables, of the catalog, and of long values.
    pub used: u64,
    /// Those that are taken next when a table needs one.
    pub free: u64,
    /// Those that are neither: of a table whose loading was killed, or being taken or given back.
    pub lost: u64,
}

impl<M: ConstMachine> Store<M> {
    /// How many pages of the file are free, and how many there are. O(pages / 512); others may
    /// write meanwhile.
    ///
    /// # Errors
    ///
    /// Those of the parts.
    pub fn free_pages(&self) -> Result<(u64, u64), Error> {
        let free = self.session()?.worker.free_pages()?.len() as u64;
        Ok((free, self.home().pool.pages(self.home().file)?))
    }

    /// Looks at every page of every table; returns how many there are. While nobody writes.
    ///
    /// # Errors
    ///
    /// [`Error::Tree`] with what is wrong, also with a page that two tables have, or one table and
    /// the free ones; those of the parts.
    pub fn verify(&self) -> Result<u64, Error> {
        Ok(self.space()?.used)
    }

    /// Counts the pages of the file, and looks at them as [`verify`](Self::verify) does.
    /// While nobody writes.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-space-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// store.put(&FRUIT, "pear", 3)?;
    /// let space = store.space()?;
    /// assert_eq!((space.pages, space.used), (3, 3), "the catalog, long values, and a leaf");
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn space(&self) -> Result<Space, Error> {
        let (session, home) = (self.session()?, self.home());
        let worker = &session.worker;
        let mut roots = vec![CATALOG, PIECES];
        roots.extend(self.read(|tx| trees(&tx.snapshot))?.into_iter().map(|table| table.1));
        let mut used = BTreeSet::new();
        for tree in roots {
            worker.with(tree, Part::System, |tree| {
                tree.verify_each(&mut |page| match used.insert(page) {
                    true => Ok(()),
                    false => Err(TreeError::Malformed("a page that two pages lead to")),
                })
            })?;
        }
        let mut free = BTreeSet::new();
        for page in worker.free_pages()? {
            if used.contains(&page) {
                return Err(TreeError::Malformed("a page of a table that is free").into());
            }
            free.insert(page);
        }
        let (pages, used) = (home.pool.pages(home.file)?, used.len() as u64);
        let free = free.range(..pages).count() as u64;
        Ok(Space { pages, used, free, lost: pages.saturating_sub(used + free) })
    }
}
