//! Statistics of the pages of a table.

use latchwork_machine::ConstMachine;
use latchwork_pool::Error as PoolError;
use latchwork_tree::{Kind as PageKind, Node};

use crate::files::session::StoreSession;
use crate::long::{Long, PIECES};
use crate::tables::CATALOG;
use crate::{Error, Store};

/// Statistics of the pages of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TablePages {
    /// Its name; empty for the catalog, and `(long values)` for the tree with the pieces of all
    /// long values.
    pub name: String,
    /// The page of its root.
    pub root: u32,
    /// The number of levels, including the leaves.
    pub depth: u32,
    /// Inner pages.
    pub inner: u64,
    /// Leaf pages, which contain records.
    pub leaves: u64,
    /// Pages whose right sibling is not yet in the parent.
    pub incomplete: u64,
    /// Records.
    pub records: u64,
    /// Removed records that are still stored.
    pub ghosts: u64,
    /// Bytes of the records' keys.
    pub key_bytes: u64,
    /// Bytes of the records' values in the table's own pages. For a long value, these are its
    /// beginning and a reference of 16 bytes to its pieces.
    pub value_bytes: u64,
    /// Records with a long value, which does not fit into a page.
    pub long_values: u64,
    /// Bytes of the table's long values in the pages of `(long values)`. Those pages contain the
    /// pieces of all tables, and count these bytes as `value_bytes`.
    pub long_bytes: u64,
    /// Bytes of the pages.
    pub bytes: u64,
    /// Free bytes in the pages.
    pub free: u64,
}

/// How often the count of a table is repeated while other threads change its pages.
const AGAIN: u32 = 8;

impl<M: ConstMachine> Store<M> {
    /// Counts the pages of all tables: first the catalog, then the pieces of long values. The
    /// result is approximate while other transactions write.
    ///
    /// # Errors
    ///
    /// [`Error::Tree`], [`Error::Pool`] for a page that cannot be read; errors of the [store's
    /// parts](Error).
    pub fn pages(&self) -> Result<Vec<TablePages>, Error> {
        let session = self.session()?;
        let mut trees = vec![(String::new(), CATALOG), ("(long values)".to_owned(), PIECES)];
        trees.extend(self.trees()?);
        let count = |(name, root)| self.count_again(&session.worker, name, root);
        trees.into_iter().map(count).collect()
    }

    /// Counts the pages of a table, and repeats the count if a page cannot be read: the page may
    /// have been unlinked, and reused by a thread that has not written it yet. A page that cannot
    /// be read twice is damaged.
    fn count_again(
        &self,
        worker: &StoreSession<M>,
        name: String,
        root: u32,
    ) -> Result<TablePages, Error> {
        let mut before = None;
        for _ in 0..AGAIN {
            match self.count(worker, name.clone(), root) {
                Err(Error::Pool(why)) if why.is_unwritten() && before.as_ref() != Some(&why) => {
                    before = Some(why);
                }
                counted => return counted,
            }
        }
        self.count(worker, name, root)
    }

    fn count(
        &self,
        worker: &StoreSession<M>,
        name: String,
        root: u32,
    ) -> Result<TablePages, Error> {
        let home = self.home();
        let mut found = TablePages { name, root, ..TablePages::default() };
        let mut first = Some(u64::from(root));
        // Damaged links could form a cycle.
        let mut left = home.pool.pages(home.file)?.saturating_mul(2) + 1000;
        while let Some(begin) = first.take() {
            let mut next = Some(begin);
            found.depth += 1;
            while let Some(page) = next {
                left = left.checked_sub(1).ok_or(latchwork_tree::Error::Level { page })?;
                let read = match worker.handle.read(home.file, page, |view| {
                    let node = Node::of(view)?;
                    let child = match node.kind() {
                        PageKind::Inner => Some(node.first_child()?),
                        _ => None,
                    };
                    Some((of_page(&node, root, home.record_max)?, node.right()?, child))
                }) {
                    // The page was unlinked concurrently; the pages after it are not counted.
                    Err(PoolError::Freed { .. }) => break,
                    read => read?,
                };
                add(&mut found, &read.0?);
                (next, first) = (read.1, first.or(read.2));
            }
        }
        found.bytes = (found.inner + found.leaves) * u64::from(home.file.page_bytes());
        Ok(found)
    }
}

/// Counts one page.
fn of_page<P: latchwork_tree::Page + ?Sized>(
    node: &Node<'_, P>,
    root: u32,
    record_max: usize,
) -> Option<Result<TablePages, Error>> {
    let incomplete = u64::from(node.is_incomplete());
    let free = node.room()? as u64;
    let mut found = TablePages { incomplete, free, ..TablePages::default() };
    if node.kind() == PageKind::Inner {
        found.inner = 1;
        return Some(Ok(found));
    }
    found.leaves = 1;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for index in 0..node.count() {
        if node.is_ghost(index)? {
            found.ghosts += 1;
            continue;
        }
        key.clear();
        value.clear();
        node.key_into(index, &mut key)?;
        node.value_into(index, &mut value)?;
        found.records += 1;
        found.key_bytes += key.len() as u64;
        found.value_bytes += value.len() as u64;
        match Long::of(record_max, root, &key, &value) {
            Ok(None) => {}
            Ok(Some(long)) => {
                found.long_values += 1;
                found.long_bytes += long.bytes_in_pieces();
            }
            // The page may have changed during the read; its reader decides.
            Err(why) => return Some(Err(why)),
        }
    }
    Some(Ok(found))
}

fn add(sum: &mut TablePages, one: &TablePages) {
    sum.inner += one.inner;
    sum.leaves += one.leaves;
    sum.incomplete += one.incomplete;
    sum.records += one.records;
    sum.ghosts += one.ghosts;
    sum.key_bytes += one.key_bytes;
    sum.value_bytes += one.value_bytes;
    sum.long_values += one.long_values;
    sum.long_bytes += one.long_bytes;
    sum.free += one.free;
}
