//! The table of workloads, from which all their properties are generated.

use serde::{Deserialize, Serialize};

use super::data::{Amounts, Data};

/// Threads of all processes, and processes.
type Crew = (usize, usize);

/// A line of the table.
struct About {
    name: &'static str,
    operation: &'static str,
    crews: &'static [Crew],
    data: fn(&Amounts) -> Data,
}

macro_rules! workloads {
    ($($workload:ident $name:literal, $crews:expr, $data:expr, $operation:literal;)*) => {
        /// A workload; see the module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "the table describes each")]
        pub enum Workload {
            $($workload,)*
        }

        impl Workload {
            /// All workloads, grouped by data set.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$workload),*];

            fn about(self) -> About {
                match self {
                    $(Self::$workload => About {
                        name: $name,
                        operation: $operation,
                        crews: $crews,
                        data: $data,
                    },)*
                }
            }
        }
    };
}

const ONE: &[Crew] = &[(1, 1)];
const TWO: &[Crew] = &[(1, 1), (2, 1), (2, 2)];
const EIGHT: &[Crew] = &[(1, 1), (2, 1), (2, 2), (8, 1)];
const PAIR: &[Crew] = &[(2, 1), (2, 2)];
const BANK: &[Crew] = &[(1, 1), (2, 1), (8, 1), (8, 4)];
const EIGHT_PROCS: &[Crew] = &[(8, 8)];
const DURABLE: &[Crew] = &[(1, 1), (8, 1), (32, 1), (32, 4), (32, 8)];

const RECORDS: fn(&Amounts) -> Data = |of| Data::Records { rows: of.rows };
const DURABLE_RECORDS: fn(&Amounts) -> Data = |of| Data::DurableRecords { rows: of.rows };
const SEED: fn(&Amounts) -> Data = |of| Data::Seed { rows: of.rows, tables: 1, snapshots: false };
const SEED_TABLES: fn(&Amounts) -> Data =
    |of| Data::Seed { rows: of.rows / 4, tables: 2, snapshots: false };
const SEED_SNAPSHOTS: fn(&Amounts) -> Data =
    |of| Data::Seed { rows: of.rows, tables: 1, snapshots: true };
const DURABLE_SEED: fn(&Amounts) -> Data = |of| Data::DurableSeed { rows: of.rows };
const YCSB: fn(&Amounts) -> Data = |of| Data::Ycsb { rows: of.rows / 4 };

workloads! {
    Get "get", TWO, RECORDS,
        "a read in a snapshot of its own; 16 and 100 bytes, uniform";
    GetLong "get-long", &[(1, 1), (2, 1)], RECORDS,
        "a read, 1,000 in a transaction";
    GetRw "get-rw", &[(1, 1), (2, 1)], RECORDS,
        "a read in a transaction of its own that could write";
    Put "put", EIGHT, RECORDS,
        "an update in a transaction of its own, no wait for the disk";
    Batch "batch", ONE, RECORDS,
        "an update, 1,000 in a transaction, no wait for the disk";
    Range10 "range-10", &[(1, 1), (2, 1)], RECORDS,
        "10 records in order from a random key";
    Scan100 "scan-100", &[(1, 1), (2, 1)], RECORDS,
        "100 records in order from a random key";
    ScanAll "scan-all", ONE, RECORDS,
        "a record of a scan of all in order";
    ReadWhileWriting "read-while-writing", PAIR, RECORDS,
        "a read as in get, beside one thread that writes as in put";
    Durable "durable", DURABLE, DURABLE_RECORDS,
        "an update in a transaction of its own, on the disk when it returns";
    Rrand "rrand", TWO, SEED,
        "a read without a transaction; keys of 4 bytes in native order";
    Rhot "rhot", TWO, SEED,
        "the same, always key 0";
    Sepdb "sepdb", PAIR, SEED_TABLES,
        "a read, each thread in a table of its own";
    Snap "snap", TWO, SEED_SNAPSHOTS,
        "a read in a snapshot as long as the window";
    Wrand "wrand", &[(1, 1), (2, 1)], DURABLE_SEED,
        "an update of such a record, on the disk when it returns";
    TprocB1 "tproc-b-1", BANK, |_| Data::Bank { scale: 1 },
        "a transfer: 3 reads and updates, an insert; one branch";
    TprocB10 "tproc-b-10", BANK, |of| Data::Bank { scale: of.scale },
        "the same, many branches";
    YcsbA "ycsb-a", EIGHT, YCSB,
        "half reads, half updates of rows of 1,000 bytes; Zipf 0.99";
    YcsbB "ycsb-b", EIGHT, YCSB,
        "95 % reads, 5 % updates";
    YcsbC "ycsb-c", EIGHT, YCSB,
        "reads";
    YcsbD "ycsb-d", EIGHT, YCSB,
        "95 % reads of the latest, 5 % inserts";
    YcsbE "ycsb-e", EIGHT, YCSB,
        "95 % scans of 1 to 100 rows, 5 % inserts";
    YcsbF "ycsb-f", EIGHT, YCSB,
        "half reads, half read-modify-write";
    Load "load", ONE, |of| Data::Fresh { rows: of.rows },
        "a record put into an empty store in random order, 1,000 in a transaction";
    HeldSnapshot "held-snapshot", ONE,
        |of| Data::History { rows: of.rows, bytes: of.bytes },
        "an update as in put, while one snapshot is held, for --bytes of records";
    KillOne "kill-one", EIGHT_PROCS, |_| Data::Ledger,
        "a transfer between two of 1,000 accounts; p50, p99: the others' longest pause at a kill";
    KillAll "kill-all", EIGHT_PROCS, |_| Data::Ledger,
        "to open what processes left that were killed at once, and to commit";
    Crash "crash", ONE, |of| Data::Crash { rows: of.rows, log: of.bytes },
        "to open what a crash of the machine left, with --bytes of log, and to commit";
}

impl Workload {
    /// The name in rows and on the command line.
    pub fn name(self) -> &'static str {
        self.about().name
    }

    /// The name of one operation.
    pub fn operation(self) -> &'static str {
        self.about().operation
    }

    /// Whether it takes minutes and runs only if it is named.
    pub fn is_long(self) -> bool {
        matches!(
            self,
            Self::Load | Self::HeldSnapshot | Self::KillOne | Self::KillAll | Self::Crash
        )
    }

    /// Whether a commit waits for the disk.
    pub fn is_durable(self) -> bool {
        matches!(self, Self::Durable | Self::Wrand)
    }

    /// Whether its transfers are checked at the end.
    pub(super) fn is_transfer(self) -> bool {
        matches!(self, Self::TprocB1 | Self::TprocB10)
    }

    /// The workloads measured in the same run and on the same data for comparison.
    pub(super) fn beside(self) -> &'static [Self] {
        match self {
            Self::ReadWhileWriting => &[Self::Get, Self::Put],
            _ => &[],
        }
    }

    /// The data set.
    pub(super) fn data(self, amounts: &Amounts) -> Data {
        (self.about().data)(amounts)
    }

    /// The numbers of threads and processes: all, or only a few threads.
    pub(super) fn crews(self, few: bool) -> impl Iterator<Item = Crew> {
        let crews = self.about().crews;
        let alone = crews.iter().filter(|(_, procs)| *procs == 1).count();
        let few = few && alone > 0;
        let many = if few { 2 } else { usize::MAX };
        crews.iter().copied().filter(move |(_, procs)| !few || *procs == 1).take(many)
    }
}
