//! The data sets, and how they are loaded.

use latchwork_rivals::{Session, Store, StoreOptions, StoreResult, Writes};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use super::{keys, transfer};

/// Bytes of a record's value.
pub(super) const VALUE: usize = 100;
/// Bytes of a row of YCSB.
pub(super) const ROW: usize = 1000;
/// Records that are loaded in a transaction.
const LOAD: usize = 1000;

/// What is in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Data {
    /// Records of 16 and 100 bytes.
    Records { rows: usize },
    /// The same, in a store that waits for the disk.
    DurableRecords { rows: usize },
    /// Records of 4 and 100 bytes, of each table.
    Seed { rows: usize, tables: usize, snapshots: bool },
    /// The same, one table, in a store that waits for the disk.
    DurableSeed { rows: usize },
    /// Accounts, tellers, branches and a history.
    Bank { scale: usize },
    /// Rows of 24 and 1,000 bytes.
    Ycsb { rows: usize },
}

impl Data {
    pub(super) fn is_durable(self) -> bool {
        matches!(self, Self::DurableRecords { .. } | Self::DurableSeed { .. })
    }

    /// How a store of this is opened.
    pub(super) fn options(self, cache: usize, durable: bool) -> StoreOptions {
        let tables = match self {
            Self::Seed { tables, .. } => tables,
            Self::Bank { .. } => transfer::TABLES,
            _ => 1,
        };
        let snapshots = matches!(self, Self::Seed { snapshots: true, .. });
        StoreOptions { cache, durable, tables, snapshots }
    }

    /// Keys of a table.
    pub(super) fn rows(self) -> u64 {
        match self {
            Self::Records { rows }
            | Self::DurableRecords { rows }
            | Self::Seed { rows, .. }
            | Self::DurableSeed { rows }
            | Self::Ycsb { rows } => rows.max(1) as u64,
            Self::Bank { scale } => (transfer::ACCOUNTS * scale) as u64,
        }
    }

    /// Records in all.
    pub(super) fn records(self) -> u64 {
        match self {
            Self::Seed { tables, .. } => self.rows() * tables as u64,
            Self::Bank { scale } => transfer::records(scale),
            _ => self.rows(),
        }
    }

    /// Puts everything in, in random order.
    pub(super) fn load(self, store: &dyn Store) -> StoreResult {
        let mut session = store.session()?;
        let session = session.as_mut();
        match self {
            Self::Records { .. } | Self::DurableRecords { .. } => {
                self.put_all(session, 0, VALUE, keys::record)?;
            }
            Self::Seed { tables, .. } => {
                for table in 0..tables {
                    self.put_all(session, table, VALUE, keys::seed)?;
                }
            }
            Self::DurableSeed { .. } => self.put_all(session, 0, VALUE, keys::seed)?,
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
