//! How the pages of the file are used, and whether what the catalog says of them is so.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use latchwork_disk::Open;
use latchwork_machine::ConstMachine;
use latchwork_tree::Error as TreeError;

use crate::files::session::StoreSession;
use crate::files::tree_journal::Part;
use crate::long::PIECES;
use crate::tables::CATALOG;
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
    /// Those that are neither: of a table that is being loaded, or being taken or given back, or
    /// left so by a death between two steps.
    pub lost: u64,
}

/// The bytes of the file of pages, and what the disk has of them.
///
/// The length is that of the pages of tables, of free pages, of pages that are neither (see
/// [`Space::lost`]), and of the room behind the last page. The bytes on the disk are the length
/// without the holes, or with the blocks in which the file system keeps the list of the file's
/// blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataFile {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages, including those that are not written yet.
    pub pages: u64,
    /// Pages that the next table that grows takes.
    pub free: u64,
    /// Bytes from the beginning of the file to its end (`st_size`).
    pub length: u64,
    /// Bytes that the file takes on the disk (`st_blocks` times 512), as `du` reports them.
    pub on_disk: u64,
}

impl DataFile {
    /// Bytes behind the last page, set aside for the next ones.
    pub fn reserved(&self) -> u64 {
        self.length.saturating_sub(self.pages * u64::from(self.page_bytes))
    }

    /// Bytes of the length that take no space on the disk.
    pub fn holes(&self) -> u64 {
        self.length.saturating_sub(self.on_disk)
    }
}

/// What is wrong with the pages of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The table; none of the catalog, and of long values, which all tables share.
    pub table: Option<String>,
    /// The page of its root: 0 for the catalog.
    pub root: u32,
    /// What is wrong.
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

    /// Measures the file of pages. O(pages / 512); others may write meanwhile.
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

    /// Looks at every page of every table; returns how many there are. Others may write meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Tree`] with what is wrong, also with a page that two tables have, or one table and
    /// the free ones; those of the parts.
    pub fn verify(&self) -> Result<u64, Error> {
        Ok(self.space()?.used)
    }

    /// Counts the pages of the file, and looks at them as [`verify`](Self::verify) does.
    ///
    /// Where others write meanwhile, a page may be counted as what it was a moment ago, and pages
    /// that were added are not counted.
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
        let (worker, begun) = (&session.worker, self.log_end());
        let pages = home.pool.pages(home.file)?;
        let (mut used, mut twice) = (BTreeMap::new(), Vec::new());
        for tree in self.roots()? {
            worker.with(tree, Part::System, |of| {
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

    /// The first fault of the pages of each table. [`space`](Self::space) ends at the first of all
    /// tables, but it alone finds a page that two of them have.
    ///
    /// # Errors
    ///
    /// Those of the parts that are no damage.
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
            let looked =
                session.worker.with(root, Part::System, |of| of.verify_each(&mut |_| Ok(())));
            match looked.map_err(Error::from) {
                Err(why) if why.is_damage() => faults.push(Fault { table, root, why }),
                other => other?,
            }
            Ok::<(), Error>(())
        };
        look(None, CATALOG)?;
        look(None, PIECES)?;
        match self.trees() {
            // The names that cannot be read are the catalog's fault, which is told.
            Err(why) if why.is_damage() => {}
            tables => tables?.into_iter().try_for_each(|(name, root)| look(Some(name), root))?,
        }
        Ok(faults)
    }

    /// Looks again for pages that were neither of a table nor free when that was looked at.
    fn look_again(&self, worker: &StoreSession<M>, space: &mut Counted) -> Result<(), Error> {
        let (trees, mut looks) = (self.roots()?, 0);
        for page in space.lost() {
            if worker.is_free_page(page)? {
                space.free.insert(page);
                continue;
            }
            // A page that cannot be read is none of theirs.
            let is_of = |tree: &u32| worker.leads_to(*tree, page).unwrap_or(false);
            looks += trees.len();
            if looks <= LOOKS && trees.iter().any(is_of) {
                space.used.insert(page);
            }
        }
        Ok(())
    }

    /// The trees of all tables, of the catalog and of long values.
    pub(super) fn roots(&self) -> Result<Vec<u32>, Error> {
        let tables = self.trees()?;
        Ok([CATALOG, PIECES].into_iter().chain(tables.into_iter().map(|table| table.1)).collect())
    }
}

/// How often it is asked at most whether a table leads to a page.
const LOOKS: usize = 1 << 20;

/// Whether something is wrong that stays so; others may be in the middle of a change.
fn stays(wrong: &dyn Fn() -> Result<bool, Error>) -> Result<bool, Error> {
    for _ in 0..3 {
        if !wrong()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first pages of the file, and what they are.
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
