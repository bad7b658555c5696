//! Publishing the counts of a thread; `meter.rs` describes where they are stored.

use latchwork_disk::Operation;
use latchwork_log::{Error as LogError, Lsn, Mode};
use latchwork_machine::ConstMachine;

use crate::Error;
use crate::events;
use crate::files::inner::StoreInner;
use crate::files::meter::{BOUNDS, Count, Locked, now, reason};
use crate::files::session::StoreSession;

impl<M: ConstMachine> StoreInner<M> {
    /// Adds this process's disk calls since the last call of this to a slot's words.
    fn publish_calls(&self, slot: u16) {
        // Another thread holds it, and publishes them, or the next caller does.
        let Ok(mut published) = self.published.try_lock() else { return };
        let calls = self.disk.calls();
        let new = calls - *published;
        *published = calls;
        for (count, n) in [
            (Count::Syncs, new[Operation::Sync]),
            (Count::Reads, new[Operation::Read]),
            (Count::Writes, new[Operation::Write]),
            (Count::BytesRead, new.bytes_read),
            (Count::BytesWritten, new.bytes_written),
        ] {
            self.shared.add(slot, count as u64, n);
        }
    }
}

impl<M: ConstMachine> StoreSession<M> {
    pub(crate) fn count(&self, count: Count, n: u64) {
        self.home.shared.add(self.slot(), count as u64, n);
    }

    /// Waits until the log before `newest` is as durable as the mode says. If `at` is a commit,
    /// counts the time as its duration.
    ///
    /// # Errors
    ///
    /// Those of the log.
    pub(crate) fn wait_for_commit(
        &self,
        at: Option<u64>,
        newest: Lsn,
        mode: Mode,
    ) -> Result<(), LogError> {
        let from = now::<M>();
        if let Err(why) = self.log.commit(newest, mode) {
            events::sync_failed(&why);
            return Err(why);
        }
        if let Some(at) = at {
            let ns = now::<M>().saturating_sub(from);
            self.count_commit(ns);
            events::committed(at, ns);
        }
        Ok(())
    }

    fn count_commit(&self, ns: u64) {
        let bucket = BOUNDS.partition_point(|bound| bound * 1000 < ns);
        self.home.shared.add(self.slot(), bucket as u64, 1);
        self.count(Count::CommitNs, ns);
    }

    /// Counts a rollback and its reason.
    #[cold]
    pub(crate) fn count_abort(&self, why: Option<&Error>) {
        self.home.shared.add(self.slot(), Count::Aborts as u64 + reason(why), 1);
        self.publish();
    }

    /// Adds the counts in the memory of the thread and its process to the slot's words.
    pub(crate) fn publish(&self) {
        self.home.publish_calls(self.slot());
        let Ok(locks) = self.locks() else { return };
        let waits = locks.stats().waits;
        let before = self.locked.get();
        if waits != before.waits {
            let lengths = locks.waits();
            let ns: u64 = lengths.modes().map(|mode| lengths.sum(mode)).sum();
            self.locked.set(Locked { waits, ns });
            self.count(Count::LockWaits, waits - before.waits);
            self.count(Count::LockNs, ns.saturating_sub(before.ns));
        }
    }
}
