//! The data sets and their loading.

use latchwork_rivals::{Session, Store, StoreOptions, StoreResult, Writes};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use super::ledger::Commits;
use super::{keys, ledger, transfer};

/// Bytes of a YCSB row.
pub(super) const ROW: usize = 1000;
/// Records loaded per transaction.
const LOAD: usize = 1000;

/// Sizes of the data sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amounts {
    pub(super) rows: usize,
    pub(super) scale: usize,
    pub(super) bytes: u64,
}

/// A data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Data {
    /// Records of 16 and 100 bytes.
    Records { rows: usize },
    /// The same, in a store with durable commits.
    DurableRecords { rows: usize },
    /// Records of 4 and 100 bytes in each table.
    Seed { rows: usize, tables: usize, snapshots: bool },
    /// The same, one table, in a store with durable commits.
    DurableSeed { rows: usize },
    /// Accounts, tellers, branches and a history.
    Bank { scale: usize },
    /// Rows of 24 and 1,000 bytes.
    Ycsb { rows: usize },
    /// As `Records`; loaded only by the measurement.
    Fresh { rows: usize },
    /// As `Records`, in a store whose log is bounded to a fraction of the written bytes.
    History { rows: usize, bytes: u64 },
    /// Accounts written by processes that are killed.
    Ledger,
    /// As `DurableRecords`, in a store without a checkpoint within `log` bytes of log.
    Crash { rows: usize, log: u64 },
}

impl Data {
    pub(super) fn is_durable(self) -> bool {
        matches!(self, Self::DurableRecords { .. } | Self::DurableSeed { .. } | Self::Crash { .. })
    }

    /// The options of the store.
    pub(super) fn options(self, cache: usize, durable: bool) -> StoreOptions {
        let tables = match self {
            Self::Seed { tables, .. } => tables,
            Self::Bank { .. } => transfer::TABLES,
            _ => 1,
        };
        let snapshots = matches!(self, Self::Seed { snapshots: true, .. } | Self::History { .. });
        let history = self.history();
        let budget = match self {
            Self::Crash { .. } => history,
            // The default is a sixteenth. With a small history checkpoints would dominate.
            _ => history.map(|history| history / 4),
        };
        StoreOptions { cache, durable, tables, snapshots, budget, history, recover: false }
    }

    /// The commits of processes that are killed.
    pub(super) fn commits(self) -> Commits {
        match self {
            Self::Ledger => Commits::Transfers,
            _ => Commits::Batches { rows: self.rows() },
        }
    }

    /// Bytes of log kept for a snapshot, if not the store's default.
    pub(super) fn history(self) -> Option<u64> {
        match self {
            Self::History { bytes, .. } => Some((bytes / 4).clamp(4 << 20, 4 << 30)),
            Self::Crash { log, .. } => Some((log * 4).max(64 << 20)),
            _ => None,
        }
    }

    /// Keys of a table.
    pub(super) fn rows(self) -> u64 {
        match self {
            Self::Records { rows }
            | Self::DurableRecords { rows }
            | Self::Seed { rows, .. }
            | Self::DurableSeed { rows }
            | Self::Fresh { rows }
            | Self::History { rows, .. }
            | Self::Crash { rows, .. }
            | Self::Ycsb { rows } => rows.max(1) as u64,
            Self::Bank { scale } => (transfer::ACCOUNTS * scale) as u64,
            Self::Ledger => ledger::ACCOUNTS,
        }
    }

    /// Total number of records.
    pub(super) fn records(self) -> u64 {
        match self {
            Self::Seed { tables, .. } => self.rows() * tables as u64,
            Self::Bank { scale } => transfer::records(scale),
            _ => self.rows(),
        }
    }

    /// Loads the data in random order.
    pub(super) fn load(self, store: &dyn Store) -> StoreResult {
        let mut session = store.session()?;
        let session = session.as_mut();
        match self {
            Self::Records { .. }
            | Self::DurableRecords { .. }
            | Self::Fresh { .. }
            | Self::History { .. }
            | Self::Crash { .. } => {
                self.put_all(session, 0, keys::VALUE, keys::record)?;
            }
            Self::Seed { tables, .. } => {
                for table in 0..tables {
                    self.put_all(session, table, keys::VALUE, keys::seed)?;
                }
            }
            Self::DurableSeed { .. } => self.put_all(session, 0, keys::VALUE, keys::seed)?,
            Self::Ledger => ledger::load(session)?,
            Self::Bank { scale } => transfer::load(session, scale, LOAD)?,
            Self::Ycsb { .. } => self.put_all(session, 0, ROW, keys::user)?,
        }
        store.settle()
    }

    fn put_all<const N: usize>(
        self,
        session: &mut dyn Session,
        table: usize,
        size: usize,
        key: fn(u64) -> [u8; N],
    ) -> StoreResult {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut value = vec![0; size];
        for part in keys::shuffled(self.rows()).chunks(LOAD) {
            session.write(&mut |txn: &mut dyn Writes| {
                for number in part {
                    keys::fill(&mut value, *number, &mut rng);
                    txn.put(table, &key(*number), &value)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}
