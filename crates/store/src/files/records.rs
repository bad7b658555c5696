//! The engine of transactions and snapshots: records in a tree and in the log.

use core::ops::Bound;

use latchwork_lockmgr::Held;
use latchwork_log::{Entry, Error as LogError, Flags, Head, Lsn};
use latchwork_machine::ConstMachine;
use latchwork_tree::{Batch, Change, Error as TreeError, Header, Tree};

use crate::Error;
use crate::engine::{Engine, UndoChain, Version, WriteOptions, WriteOutcome};
use crate::files::kinds::{CHANGE, COMMIT};
use crate::files::session::{Leave, StoreSession};
use crate::files::tree_journal::{ChangeOrigin, TreeJournal};
use crate::files::undo_ownership::State;
use crate::seen::Commits;
use crate::stamp::Stamp;
use crate::tables::{CATALOG, KEPT_BYTES};
use crate::user::Used;

impl<M: ConstMachine> StoreSession<M> {
    /// Runs a closure with a tree whose changes are logged as `origin` says.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        tree: u32,
        origin: ChangeOrigin,
        work: impl FnOnce(&Tree<'_, 'static, TreeJournal<'_, M>, M>) -> R,
    ) -> R {
        let journal = TreeJournal::new(self, tree, origin);
        let done = work(&Tree::open(&self.handle, self.home.file, u64::from(tree), &journal));
        // Pages that are not returned keep their intents, which are resolved when the slot is used
        // next.
        let _ = journal.give_back();
        done
    }

    /// Rolls back one record of a transaction: see [`Engine::undo`].
    pub(crate) fn undo_one(&self, chain: &mut UndoChain, at: u64) -> Result<u64, Error> {
        let entry = self.log.log().read(Lsn(at))?;
        if changes_nothing(&entry) {
            return Ok(entry.head.prev.0);
        }
        let next = self.change_upto(entry.head.prev.0)?;
        let damaged = || {
            let table = self.home.table(entry.head.aux);
            Error::Damaged { table, key: Vec::new(), what: "undo" }
        };
        let change = Change::decode(&entry.payload).ok_or_else(damaged)?;
        let tree = entry.head.aux;
        let journal = TreeJournal::new(self, tree, ChangeOrigin::Undo { slot: chain.slot, next });
        let (file, made) = (self.home.file, Header::new(entry.slot, entry.lsn.0));
        let undone = Tree::open(&self.handle, file, u64::from(tree), &journal).undo(&change, made);
        journal.undone(undone.is_ok())?;
        let undone = undone?;
        if undone.lsn != 0 {
            chain.last = undone.lsn;
        }
        if undone.emptied
            && let Change::Insert { key, .. } = change
        {
            self.is_empty_at(tree, key, undone.lsn);
        }
        Ok(next)
    }

    /// Returns the transaction's last record, up to this one, that must be rolled back. The log
    /// record of a rollback points there and skips earlier rollbacks; otherwise repeated rollbacks
    /// to one savepoint would visit all of them each time.
    fn change_upto(&self, mut at: u64) -> Result<u64, Error> {
        while at != 0 {
            let entry = self.log.log().read(Lsn(at))?;
            if !changes_nothing(&entry) {
                break;
            }
            at = entry.head.prev.0;
        }
        Ok(at)
    }

    /// Logs a commit: see [`Engine::commit`].
    fn commit_now(&self, chain: &mut UndoChain) -> Result<u64, Error> {
        let (prev, older) = (Lsn(chain.last), Lsn(self.last_commit.get()));
        let head = Head { kind: COMMIT, flags: Flags::LAST, prev, older, ..Head::default() };
        let at = self.note(chain.slot, &head)?;
        chain.last = 0;
        self.committed(at.0);
        Ok(at.0)
    }
}

/// Returns whether a transaction's record needs no rollback: it is a rollback itself, or prepares
/// the transaction.
fn changes_nothing(entry: &Entry) -> bool {
    entry.head.flags.has(Flags::CLR) || entry.head.kind != CHANGE
}

fn stamp(header: Header) -> Stamp {
    Stamp::from_word(header.to_bits())
}

impl<M: ConstMachine> Commits for StoreSession<M> {
    fn last_commit(&self, slot: u16, at: u64) -> Result<u64, Error> {
        let log = self.log.log();
        let mut oldest = 0;
        let kept = log.commits_of(u32::from(slot), |_, commit| {
            oldest = commit.0;
            (commit.0 <= at).then_some(commit.0)
        });
        if let Some(commit) = kept? {
            return Ok(commit);
        }
        // Older than the slot's list: each commit points to the previous one.
        while oldest > at {
            oldest = match log.read(Lsn(oldest)) {
                Ok(entry) => entry.head.older.0,
                // All earlier records are gone as well; a reader of them gets an error.
                Err(LogError::Gone { .. }) => return Ok(0),
                Err(why) => return Err(why.into()),
            };
        }
        Ok(oldest)
    }

    fn is_finished(&self, stamp: Stamp) -> bool {
        let (at, (low, end)) = (stamp.at(), self.read_at());
        if at < low {
            return true;
        }
        // Later commits do not count: the changes that were read may have been rolled back before
        // them.
        let before = |_, commit: Lsn| (commit.0 < end).then_some(at <= commit.0);
        let kept = self.log.log().commits_of(u32::from(stamp.slot()), before);
        kept.is_ok_and(|finished| finished == Some(true))
    }
}

/// A write that has failed or panicked. Its record may still be in the log. When this is dropped,
/// `chain` gets that record, so that it is rolled back with the others, or is known to have
/// committed the transaction.
struct UnfinishedWrite<'a, M: ConstMachine> {
    worker: &'a StoreSession<M>,
    chain: &'a mut UndoChain,
}

impl<M: ConstMachine> Drop for UnfinishedWrite<'_, M> {
    fn drop(&mut self) {
        let (worker, chain) = (self.worker, &mut *self.chain);
        match worker.committed_since() {
            Ok(Some(at)) => {
                (chain.last, chain.committed) = (0, at);
                worker.committed(at);
            }
            // If the memory is damaged, the next call reports it.
            _ => {
                let open = worker.home.log.open_of(u32::from(chain.slot));
                chain.last = open.map_or(chain.last, |(_, last)| last.0.max(chain.last));
            }
        }
    }
}

impl<M: ConstMachine> Engine for StoreSession<M> {
    fn table(&self, tree: u32) -> String {
        self.home.table(tree)
    }

    fn used(&self, slot: u32) -> Used {
        self.home.used(slot)
    }

    fn is_nested(&self) -> bool {
        self.user.is_nested()
    }

    #[inline]
    fn newest(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Result<Version, Error> {
        value.clear();
        let newest = self.with(tree, ChangeOrigin::System, |tree| tree.newest(key, value))?;
        Ok(newest.map_or_else(Version::default, |newest| Version {
            stamp: stamp(newest.header),
            there: !newest.ghost,
        }))
    }

    fn scan(
        &self,
        tree: u32,
        bound: Bound<&[u8]>,
        back: bool,
        limit: usize,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        self.about_to_read()?;
        let mut after = Vec::new();
        let key: Option<&[u8]> = match bound {
            Bound::Included(key) if !back => Some(key),
            Bound::Excluded(key) if back => Some(key),
            // The least key that is greater.
            Bound::Included(key) | Bound::Excluded(key) => {
                after.extend_from_slice(key);
                after.push(0);
                Some(&after)
            }
            Bound::Unbounded => None,
        };
        self.with(tree, ChangeOrigin::System, |tree| match back {
            false => tree.scan(key.unwrap_or(&[]), limit, batch),
            true => tree.scan_back(key, limit, batch),
        })?;
        self.passed(tree, batch);
        Ok(())
    }

    fn spare(&self) -> Batch {
        let mut batch = self.batch.take();
        batch.forget();
        batch
    }

    fn keep(&self, batch: Batch) {
        if batch.memory() <= KEPT_BYTES {
            self.batch.set(batch);
        }
    }

    fn before(
        &self,
        tree: u32,
        key: &[u8],
        stamp: Stamp,
        value: &mut Vec<u8>,
    ) -> Result<Version, Error> {
        let lost = |what| Err(Error::Damaged { table: self.table(tree), key: key.to_vec(), what });
        let entry = match self.log.log().read(Lsn(stamp.at())) {
            Ok(entry) => entry,
            Err(LogError::Gone { .. }) => return Err(Error::SnapshotTooOld { at: stamp.at() }),
            Err(why) => return Err(why.into()),
        };
        let Some(change) = Change::decode(&entry.payload) else {
            return lost("its stamp leads to no write");
        };
        if entry.head.aux == CATALOG && tree != CATALOG && matches!(change, Change::Insert { .. }) {
            // The stamp of a table that was loaded: the record of its name.
            value.clear();
            return Ok(Version::default());
        }
        if entry.head.aux != tree || change.record_key() != Some(key) {
            return lost("its stamp leads to another record's write");
        }
        match change.earlier(value) {
            Some((was, there)) => Ok(Version { stamp: self::stamp(was), there }),
            None => lost("its stamp leads to a write of another value"),
        }
    }

    fn write(
        &self,
        chain: &mut UndoChain,
        tree: u32,
        key: &[u8],
        value: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<WriteOutcome, Error> {
        if tree != CATALOG {
            // The record is locked, so no migration can move it from now on.
            self.same_tables()?;
        }
        let _work = self.enter()?;
        let origin = ChangeOrigin::Write { prev: chain.last, options };
        let unfinished = UnfinishedWrite { worker: self, chain: &mut *chain };
        let written = self.with(tree, origin, |tree| match value {
            Some(value) => tree.put(key, value),
            None => tree.delete(key),
        });
        match written {
            // These logged nothing.
            Ok(_) | Err(TreeError::Refused | TreeError::Kept | TreeError::Missing) => {
                core::mem::forget(unfinished);
            }
            Err(_) => drop(unfinished),
        }
        let written = match written {
            Err(TreeError::Refused) => return Ok(WriteOutcome::Claimed),
            Err(TreeError::Kept) => return Ok(WriteOutcome::Long),
            // Removing an absent record needs no log record.
            Err(TreeError::Missing) if value.is_none() && !options.last => {
                return Ok(WriteOutcome::Done);
            }
            Err(TreeError::Missing) if value.is_none() => {
                if chain.last != 0 {
                    chain.committed = self.commit_now(chain)?;
                }
                return Ok(WriteOutcome::Done);
            }
            // It is in the log, so it is committed: the page is rebuilt when it is next used.
            Err(_) if chain.committed != 0 => return Ok(WriteOutcome::Done),
            Err(why) => return Err(why.into()),
            Ok(written) => written,
        };
        chain.last = if options.last { 0 } else { written.lsn };
        if options.last {
            chain.committed = written.lsn;
            self.committed(written.lsn);
        }
        if written.emptied {
            self.is_empty_at(tree, key, written.lsn);
        }
        Ok(WriteOutcome::Done)
    }

    fn undo(&self, chain: &mut UndoChain, at: u64) -> Result<u64, Error> {
        let _work = self.enter()?;
        self.undo_one(chain, at)
    }

    fn commit(&self, chain: &mut UndoChain) -> Result<u64, Error> {
        let _work = self.enter()?;
        self.commit_now(chain)
    }

    fn prepare(&self, chain: &mut UndoChain, gid: &[u8], held: &Held) -> Result<u64, Error> {
        let _work = self.enter()?;
        let at = self.prepare_now(chain, gid, held)?;
        self.leave(Leave::Retained);
        Ok(at)
    }

    fn ended(&self, chain: &mut UndoChain) -> Result<(), Error> {
        chain.last = 0;
        self.end_own()
    }

    #[inline]
    fn still_open(&self) -> Result<(), Error> {
        // After the read: a thread that reads rolled back data finds that its turn was taken
        // before. A check by another thread (`Looks`) does not matter.
        match self.home.shared.turn(self.slot())?.now() {
            State::Idle | State::Looks(_) => Ok(()),
            _ => Err(Error::TransactionTooOld),
        }
    }

    #[inline]
    fn same_tables(&self) -> Result<(), Error> {
        match self.home.shared.migrations()? == self.tables_at.get() {
            true => Ok(()),
            false => Err(Error::Migrated),
        }
    }

    fn given_up(&self) {
        self.give_up();
    }

    fn rolled_back(&self, why: Option<&Error>) {
        self.count_abort(why);
    }

    #[inline]
    fn record_max(&self) -> usize {
        self.home.record_max
    }

    fn position(&self) -> u64 {
        self.home.log.end().0
    }

    fn remember(&self, slot: u16) -> Result<(u64, u64), Error> {
        self.home.shared.remember(slot)
    }

    fn remember_newest(&self, slot: u16) -> Result<Option<(u64, u64)>, Error> {
        // In the closure of another transaction, a read must find out whether that one has locked
        // the record.
        if self.reads.get() || self.is_nested() {
            return Ok(None);
        }
        let (visible, low) = self.remember(slot)?;
        self.reads.set(true);
        Ok(Some((visible.max(self.position().saturating_sub(1)), low)))
    }

    fn forget(&self, slot: u16) {
        self.home.shared.forget(slot);
        self.reads.set(false);
    }
}
