//! The use of the pages of the file, and its check against the catalog.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use latchwork_disk::Open;
use latchwork_machine::ConstMachine;
use latchwork_tree::Error as TreeError;

use crate::files::session::StoreSession;
use crate::files::tree_journal::ChangeOrigin;
use crate::long::PIECES;
use crate::tables::CATALOG;
use crate::{Error, Store};

/// The pages of a store's file, by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Space {
    /// All pages.
    pub pages: u64,
    /// Pages of tables, of the catalog, and of long values.
    pub used: u64,
    /// Free pages, which tables take when they grow.
    pub free: u64,
    /// Pages that are neither: pages of a table that is being loaded, pages that are being
    /// allocated or freed, and pages that a death left in such a state.
    pub lost: u64,
}

/// The size of the file of pages.
///
/// The length comprises the pages of tables, free pages, pages that are neither (see
/// [`Space::lost`]), and the space after the last page. The bytes on the disk are the length
/// without the holes, plus the blocks in which the file system stores the block list of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataFile {
    /// Size of a page in bytes.
    pub page_bytes: u32,
    /// Number of pages, including unwritten ones.
    pub pages: u64,
    /// Free pages, which tables take when they grow.
    pub free: u64,
    /// Length of the file in bytes (`st_size`).
    pub length: u64,
    /// Bytes that the file occupies on the disk (`st_blocks` times 512), as `du` reports them.
    pub on_disk: u64,
}

impl DataFile {
    /// Returns the bytes after the last page, which are reserved for further pages.
    pub fn reserved(&self) -> u64 {
        self.length.saturating_sub(self.pages * u64::from(self.page_bytes))
    }

    /// Returns the bytes of the length that occupy no space on the disk.
    pub fn holes(&self) -> u64 {
        self.length.saturating_sub(self.on_disk)
    }
}

/// An error found in the pages of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The table; `None` for the catalog, and for long values, which all tables share.
    pub table: Option<String>,
    /// The page of its root; 0 for the catalog.
    pub root: u32,
    /// The error.
    pub why: Error,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.table, self.root) {
            (Some(table), _) => write!(f, "table {table}: ")?,
            (None, CATALOG) => f.write_str("the catalog: ")?,
            (None, _) => f.write_str("long values: ")?,
        }
        self.why.say_without_advice(f)
    }
}

impl<M: ConstMachine> Store<M> {
    /// Returns the number of free pages and of all pages of the file. O(pages / 512). Other
    /// transactions can write at the same time.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn free_pages(&self) -> Result<(u64, u64), Error> {
        let free = self.session()?.worker.free_pages()?.len() as u64;
        Ok((free, self.home().pool.pages(self.home().file)?))
    }

    /// Measures the file of pages. O(pages / 512). Other transactions can write at the same time.
    ///
    /// # Errors
    ///
    /// [`Error::Disk`] if the file cannot be opened or measured; errors of the pool and the catalog
    /// if its pages cannot be read.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::Store;
    ///
    /// # let path = std::env::temp_dir().join(format!("store-data-file-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let file = store.data_file()?;
    /// let pages = file.pages * u64::from(file.page_bytes);
    /// assert_eq!(file.length, pages + file.reserved());
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn data_file(&self) -> Result<DataFile, Error> {
        let (free, pages) = self.free_pages()?;
        let home = self.home();
        let file = home.disk.open(&home.folder.join("data"), Open::READ)?;
        let (length, on_disk) = (file.length()?, file.allocated()?);
        Ok(DataFile { page_bytes: home.file.page_bytes(), pages, free, length, on_disk })
    }

    /// Checks every page of every table. Returns their number. Other transactions can write at the
    /// same time.
    ///
    /// # Errors
    ///
    /// [`Error::Tree`] with the fault; this includes a page that belongs to two tables, or to a
    /// table and to the free pages. Errors of the [store's parts](Error).
    pub fn verify(&self) -> Result<u64, Error> {
        Ok(self.space()?.used)
    }

    /// Counts the pages of the file by use, and checks them as [`verify`](Self::verify) does.
    ///
    /// While other transactions write, a page may be counted by an earlier use, and new pages are
    /// not counted.
    ///
    /// # Errors
    ///
    /// Those of [`verify`](Self::verify).
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
        let (worker, begun) = (&session.worker, self.log_end());
        let pages = home.pool.pages(home.file)?;
        let (mut used, mut twice) = (BTreeMap::new(), Vec::new());
        for tree in self.roots()? {
            worker.with(tree, ChangeOrigin::System, |of| {
                of.verify_each(&mut |page| {
                    let other = used.insert(page, tree).filter(|other| *other != tree);
                    twice.extend(other.map(|other| (page, [other, tree])));
                    Ok(())
                })
            })?;
        }
        for (page, trees) in twice {
            if stays(&|| Ok(worker.leads_to(trees[0], page)? && worker.leads_to(trees[1], page)?))?
            {
                return Err(TreeError::Malformed("a page that two tables lead to").into());
            }
        }
        let mut free: BTreeSet<_> = worker.free_pages()?.into_iter().collect();
        for (page, tree) in free.iter().filter_map(|page| Some((*page, *used.get(page)?))) {
            if stays(&|| Ok(worker.leads_to(tree, page)? && worker.is_free_page(page)?))? {
                return Err(TreeError::Malformed("a page of a table that is free").into());
            }
        }
        free.retain(|page| *page < pages && !used.contains_key(page));
        let used = used.range(..pages).map(|(page, _)| *page).collect();
        let mut space = Counted { pages, used, free };
        if self.log_end() != begun {
            self.look_again(worker, &mut space)?;
        }
        Ok(space.count())
    }

    /// Returns the first fault in the pages of each table. In contrast, [`space`](Self::space) ends
    /// at the first fault of any table, but only it finds a page that belongs to two tables.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error) that are not damage.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::Store;
    ///
    /// # let path = std::env::temp_dir().join(format!("store-faults-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// assert!(store.faults()?.is_empty());
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn faults(&self) -> Result<Vec<Fault>, Error> {
        let session = self.session()?;
        let mut faults = Vec::new();
        let mut look = |table: Option<String>, root| {
            let looked = session
                .worker
                .with(root, ChangeOrigin::System, |of| of.verify_each(&mut |_| Ok(())));
            match looked.map_err(Error::from) {
                Err(why) if why.is_damage() => faults.push(Fault { table, root, why }),
                other => other?,
            }
            Ok::<(), Error>(())
        };
        look(None, CATALOG)?;
        look(None, PIECES)?;
        match self.trees() {
            // If the names cannot be read, the fault of the catalog is already reported.
            Err(why) if why.is_damage() => {}
            tables => tables?.into_iter().try_for_each(|(name, root)| look(Some(name), root))?,
        }
        Ok(faults)
    }

    /// Checks again the pages that were neither in a table nor free.
    fn look_again(&self, worker: &StoreSession<M>, space: &mut Counted) -> Result<(), Error> {
        let (trees, mut looks) = (self.roots()?, 0);
        for page in space.lost() {
            if worker.is_free_page(page)? {
                space.free.insert(page);
                continue;
            }
            // A page that cannot be read belongs to no table.
            let is_of = |tree: &u32| worker.leads_to(*tree, page).unwrap_or(false);
            looks += trees.len();
            if looks <= LOOKS && trees.iter().any(is_of) {
                space.used.insert(page);
            }
        }
        Ok(())
    }

    /// Returns the trees of the catalog, of long values and of all tables.
    pub(super) fn roots(&self) -> Result<Vec<u32>, Error> {
        let tables = self.trees()?;
        Ok([CATALOG, PIECES].into_iter().chain(tables.into_iter().map(|table| table.1)).collect())
    }
}

/// Maximum number of checks whether a table contains a page.
const LOOKS: usize = 1 << 20;

/// Returns whether a fault persists; another thread may be in the middle of a change.
fn stays(wrong: &dyn Fn() -> Result<bool, Error>) -> Result<bool, Error> {
    for _ in 0..3 {
        if !wrong()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first pages of the file, by use.
struct Counted {
    pages: u64,
    used: BTreeSet<u64>,
    free: BTreeSet<u64>,
}

impl Counted {
    fn lost(&self) -> Vec<u64> {
        let known = |page: &u64| self.used.contains(page) || self.free.contains(page);
        (0..self.pages).filter(|page| !known(page)).collect()
    }

    fn count(&self) -> Space {
        let (used, free) = (self.used.len() as u64, self.free.len() as u64);
        Space { pages: self.pages, used, free, lost: self.pages.saturating_sub(used + free) }
    }
}
