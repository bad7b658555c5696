//! Lists locks, transactions that wait for them, and transactions that block others.

use std::time::Duration;

use latchwork_lockmgr::{LockInfo, granular};
use latchwork_machine::ConstMachine;

use crate::tools::view::{Inspection, StoreView, TransactionInfo, mode_in_words};
use crate::{Error, Store};

/// A lock that is held or requested.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreLock {
    /// The transaction.
    pub transaction: TransactionInfo,
    /// The table, or the number of its tree if the catalog cannot be read.
    pub table: String,
    /// The key or the range, as text.
    pub key: String,
    /// The mode: see [`LockWait::mode`](crate::LockWait::mode).
    pub mode: &'static str,
    /// Whether it is held; otherwise it is requested.
    pub held: bool,
    /// How long the request has waited.
    pub waited: Option<Duration>,
}

/// A transaction that waits, and the transactions that block it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocked {
    /// The waiting transaction; its [`waits`](TransactionInfo::waits) names the lock.
    pub waiter: TransactionInfo,
    /// The blocking transactions: holders of the lock first.
    pub blockers: Vec<Blocker>,
}

/// A transaction that blocks another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocker {
    /// The transaction.
    pub transaction: TransactionInfo,
    /// The mode in which it holds the lock, or in which it waits before the other transaction.
    pub mode: &'static str,
    /// Whether it holds the lock; otherwise it waits for it and comes first.
    pub holds: bool,
}

impl<M: ConstMachine> StoreView<M> {
    /// Lists all locks that are held or requested.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn locks(&self) -> Result<Vec<StoreLock>, Error> {
        let inspection = self.inspect()?;
        let mut locks = Vec::new();
        for row in &inspection.snapshot.rows {
            let Some(transaction) = inspection.transaction(row.owner) else { continue };
            let (table, key) = inspection.names.of(&row.object, row.range.as_ref());
            let range = row.range.as_ref();
            if row.held.is_some() && !range.is_some_and(|range| range.waiting) {
                let mode = mode_in_words(range, row.held);
                let (table, key) = (table.clone(), key.clone());
                let transaction = transaction.clone();
                locks.push(StoreLock { transaction, table, key, mode, held: true, waited: None });
            }
            if let Some(waits) = transaction.waits.clone().filter(|_| row.wanted.is_some()) {
                let (mode, waited) = (waits.mode, Some(waits.since));
                let (table, key) = (waits.table, waits.key);
                locks.push(StoreLock { transaction, table, key, mode, held: false, waited });
            }
        }
        Ok(locks)
    }

    /// Lists the transactions that wait for locks, the longest wait first, and their blockers.
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn blocked(&self) -> Result<Vec<Blocked>, Error> {
        let inspection = self.inspect()?;
        Ok(Self::blocked_in(&inspection))
    }

    pub(super) fn blocked_in(inspection: &Inspection) -> Vec<Blocked> {
        let mut all: Vec<(usize, Blocked)> = Vec::new();
        for edge in inspection.snapshot.edges(Some(&granular::modes())) {
            let (row, other) =
                (&inspection.snapshot.rows[edge.row], &inspection.snapshot.rows[edge.blocker]);
            let Some(blocker) = blocker(inspection, other, edge.hard) else { continue };
            match all.last_mut().filter(|(at, _)| *at == edge.row) {
                Some((_, blocked)) => blocked.blockers.push(blocker),
                None => {
                    let Some(waiter) = inspection.transaction(row.owner) else { continue };
                    all.push((edge.row, Blocked { waiter, blockers: vec![blocker] }));
                }
            }
        }
        let mut all: Vec<_> = all.into_iter().map(|(_, blocked)| blocked).collect();
        all.iter_mut().for_each(|blocked| blocked.blockers.sort_by_key(|other| !other.holds));
        let waited = |blocked: &Blocked| blocked.waiter.waits.as_ref().map(|waits| waits.since);
        all.sort_by_key(|blocked| core::cmp::Reverse(waited(blocked)));
        all
    }
}

fn blocker(inspection: &Inspection, row: &LockInfo, holds: bool) -> Option<Blocker> {
    let transaction = inspection.transaction(row.owner)?;
    let mode = if holds { row.held } else { row.wanted };
    Some(Blocker { transaction, mode: mode_in_words(row.range.as_ref(), mode), holds })
}

impl<M: ConstMachine> Store<M> {
    /// Lists the transactions of all processes that wait for locks, and their blockers: see
    /// [`StoreView::blocked`].
    ///
    /// # Errors
    ///
    /// Errors of the [store's parts](Error).
    pub fn blocked(&self) -> Result<Vec<Blocked>, Error> {
        self.view()?.blocked()
    }
}
