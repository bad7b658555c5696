//! From the names of tables to their trees: the catalog, which is a tree itself.

use core::time::Duration;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use latchwork_lockmgr::Wait;
use latchwork_machine::ConstMachine;

use crate::engine::Engine;
use crate::files::home::Home;
use crate::files::worker::Worker;
use crate::idle::{Kept, Scratch, Sessions};
use crate::names::NAME_MAX;
use crate::seen::View;
use crate::{Attempts, Error, Patience, Snapshot, Txn};

/// The tree that has the names of all others.
pub(crate) const CATALOG: u32 = 0;
/// What errors call it.
pub(crate) const CATALOG_NAME: &str = "the catalog";

/// With this begin the records of the catalog that are no table's. No name begins so, for names are
/// UTF-8.
pub(crate) const INNER: &[u8] = b"\xff";
/// And with this those of them that say which pages are free.
pub(crate) const MAP: &[u8] = b"\xfffree";
/// This one says to which log the pages belong.
pub(crate) const SIGNATURE: &[u8] = b"\xfflog";

/// How much memory a session keeps of what values took: one that is longer gives it back.
pub(crate) const KEPT_BYTES: usize = 1 << 20;

/// The tables of which a snapshot sees a record, and their trees.
pub(crate) fn tables<E: Engine>(snapshot: &Snapshot<'_, E>) -> Result<Vec<(String, u32)>, Error> {
    let mut tables = Vec::new();
    for (name, tree) in trees(snapshot)? {
        snapshot.scan_raw(tree, .., false, &mut |_, _| {
            tables.push((name.clone(), tree));
            Ok(false)
        })?;
    }
    Ok(tables)
}

/// All tables that a snapshot sees, also those without a record, and their trees.
pub(crate) fn trees<E: Engine>(snapshot: &Snapshot<'_, E>) -> Result<Vec<(String, u32)>, Error> {
    let mut tables = Vec::new();
    snapshot.scan_raw(CATALOG, ..INNER, false, &mut |name, root| {
        tables.push((String::from_utf8_lossy(name).into_owned(), root_of(root)?));
        Ok(true)
    })?;
    Ok(tables)
}

/// The trees of a store, by their names.
pub(crate) struct Catalog<M: ConstMachine> {
    home: Arc<Home<M>>,
    sessions: Arc<Sessions<M>>,
    /// As far as they were asked for.
    trees: RwLock<HashMap<String, u32>>,
}

impl<M: ConstMachine> Catalog<M> {
    pub(crate) fn new(home: &Arc<Home<M>>, sessions: &Arc<Sessions<M>>) -> Self {
        Self { home: home.clone(), sessions: sessions.clone(), trees: RwLock::default() }
    }

    /// Finds a table's tree.
    pub(crate) fn find(&self, worker: &Worker<M>, name: &str) -> Result<Option<u32>, Error> {
        let known = self.trees.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(tree) = known.get(name) {
            return Ok(Some(*tree));
        }
        drop(known);
        fits(name)?;
        let mut root = Vec::new();
        worker.about_to_read()?;
        let found = worker.newest(CATALOG, name.as_bytes(), &mut root)?;
        // A table that was committed before the thread looked stays. If this said no of one, its
        // readers would take it for empty.
        let (low, end) = worker.read_at();
        if !found.there || !View::new(end.saturating_sub(1), low).sees(found.stamp, worker)? {
            return Ok(None);
        }
        let tree = root_of(&root)?;
        self.insert(name, tree);
        Ok(Some(tree))
    }

    /// Makes a table's tree, in a transaction of its own, unless another thread is faster: for that
    /// one it waits as for a lock, and not at all with [`Wait::Never`]; without a deadline for ten
    /// seconds. For the lock manager does not find a cycle through the transaction that is to use
    /// the table, whose locks have another owner.
    pub(crate) fn make(&self, name: &str, wait: Wait) -> Result<u32, Error> {
        fits(name)?;
        let home = &self.home;
        let worker = self.sessions.worker(home)?;
        let made = Cell::new(None);
        let mut patience = Patience { label: "new table", ..Patience::default() };
        match wait {
            Wait::Until(deadline) => patience.time = deadline.left::<M>(),
            Wait::Never => patience.time = Duration::ZERO,
            _ => {}
        }
        let done = Attempts::run(&worker, worker.locks()?, worker.slot(), &patience, |txn| {
            // Of an attempt before.
            made.set(None);
            worker.settle_all(worker.slot(), true)?;
            if let Some(root) = txn.get_raw_for_update(CATALOG, name.as_bytes())? {
                return root_of(&root);
            }
            let tree = worker.make_root()?;
            txn.write_raw(CATALOG, name.as_bytes(), Some(&tree.to_le_bytes()))?;
            made.set(Some(u64::from(tree)));
            Ok(tree)
        });
        // To ask the catalog whether it has a root means to read it all.
        if let (Ok(_), Some(root)) = (&done, made.get()) {
            home.shared.let_go(worker.slot(), root)?;
        }
        // Of one that could not be rolled back the root is a sweep's, with the record of it.
        if !worker.is_given_up() {
            worker.settle_all(worker.slot(), true)?;
        }
        let done = done.map_err(|why| match why {
            // The transaction that is to use the table has a deadline of its own to tell of.
            Error::Deadline { last, .. } => *last,
            why => why,
        })?;
        // Its commit is not shown: with it all would be that others have committed before, and that
        // is to be durable first. Those that look for the table see it in any case.
        self.insert(name, done.value);
        Ok(done.value)
    }

    fn insert(&self, name: &str, tree: u32) {
        self.home.name_table(tree, name);
        let mut known = self.trees.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(name.to_owned(), tree);
    }
}

pub(crate) fn fits(name: &str) -> Result<(), Error> {
    match name.len() > NAME_MAX {
        true => Err(Error::NameTooLong { table: name.to_owned() }),
        false => Ok(()),
    }
}

/// The root's page, as the catalog has it.
pub(crate) fn root_of(bytes: &[u8]) -> Result<u32, Error> {
    let what = "no page number";
    let damaged = |_| Error::Damaged { table: CATALOG_NAME.to_owned(), key: Vec::new(), what };
    Ok(u32::from_le_bytes(bytes.try_into().map_err(damaged)?))
}

/// From tables to trees, for one session.
pub(crate) struct Tables<'s, M: ConstMachine> {
    pub(crate) catalog: &'s Catalog<M>,
    pub(crate) kept: &'s Kept<M>,
}

impl<M: ConstMachine> Clone for Tables<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ConstMachine> Copy for Tables<'_, M> {}

impl<M: ConstMachine> Tables<'_, M> {
    /// The table's tree; none if nothing was ever written to it.
    #[inline]
    pub(crate) fn find(&self, name: &'static str) -> Result<Option<u32>, Error> {
        let known = self.kept.trees.borrow_mut().find(name);
        if known.is_some() {
            return Ok(known);
        }
        let found = self.catalog.find(&self.kept.worker, name)?;
        if let Some(tree) = found {
            self.kept.trees.borrow_mut().insert(name, tree);
        }
        Ok(found)
    }

    /// Does something with the session's scratch memory: with some of its own, if that is in use.
    #[inline]
    pub(crate) fn with_scratch<R>(&self, work: impl FnOnce(&mut Scratch) -> R) -> R {
        let mut scratch = self.kept.scratch.take();
        let done = work(&mut scratch);
        if scratch.value.capacity() > KEPT_BYTES {
            scratch.value = Vec::new();
        }
        self.kept.scratch.set(scratch);
        done
    }

    /// The table's tree, made for a transaction if there is none. One that another transaction
    /// makes is waited for as for a lock.
    #[inline]
    pub(crate) fn make(
        &self,
        name: &'static str,
        txn: &mut Txn<'_, Worker<M>, M>,
    ) -> Result<u32, Error> {
        match self.find(name)? {
            Some(tree) => Ok(tree),
            None => txn.make_table((CATALOG, name), |wait| self.catalog.make(name, wait)),
        }
    }
}
