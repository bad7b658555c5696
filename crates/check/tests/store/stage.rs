//! A store on a simulated disk in ordinary memory, and random transactions.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use latchwork_check::random::Random;
use latchwork_check::serial::Step;
use latchwork_disk::{Disk, Simulated};
use latchwork_machine::Native;
use latchwork_region::Region;
use latchwork_store::{Error, Mode, ReadTxn, Sizes, Store, Table, WriteTxn};

/// The oracle's number of the table.
pub(crate) const TREE: u32 = 1;
pub(crate) const TABLE: Table<&[u8], &[u8]> = Table::new("table");

pub(crate) fn sizes(mode: Mode) -> Sizes {
    Sizes {
        cache: 1 << 20,
        cache_max: 0,
        page: 4096,
        log_buffer: 1 << 20,
        log_segment: 1 << 20,
        log_budget: 128 << 10,
        history: 4 << 20,
        threads: 48,
        locks: 64 << 20,
        mode,
    }
}

thread_local! {
    /// Number of redo threads of recoveries that this thread starts.
    pub(crate) static LANES: Cell<usize> = const { Cell::new(1) };
}

/// Opens a store with new memory on the disk as it is.
pub(crate) fn begin(disk: &Simulated, mode: Mode) -> Result<Store<Native>, Error> {
    begin_with(disk, sizes(mode))
}

pub(crate) fn begin_with(disk: &Simulated, sizes: Sizes) -> Result<Store<Native>, Error> {
    Ok(begin_in(disk, sizes)?.1)
}

/// Also returns the memory.
pub(crate) fn begin_in(
    disk: &Simulated,
    sizes: Sizes,
) -> Result<(Region<Native>, Store<Native>), Error> {
    begin_within(disk, sizes, 64 << 20)
}

/// With this limit of memory for locks.
pub(crate) fn begin_within(
    disk: &Simulated,
    sizes: Sizes,
    limit: u64,
) -> Result<(Region<Native>, Store<Native>), Error> {
    let options = latchwork_region::Options {
        threads: sizes.threads,
        processes: 4,
        waiters: 64,
        limit,
        ..latchwork_region::Options::default()
    };
    let region = Region::private(&options).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    disk.make_folder(Path::new("/home"))?;
    disk.sync_folder(Path::new("/"))?;
    let folder = Path::new("/home/store");
    let store = Store::in_region_with(&region, &disk, folder, &sizes, LANES.get())?;
    disk.sync_folder(Path::new("/home"))?;
    Ok((region, store))
}

/// The distribution of keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) keys: u64,
    /// Bytes of the longest value.
    pub(crate) longest: u64,
}

impl Shape {
    pub(crate) fn key(self, random: &mut Random) -> Vec<u8> {
        format!("{:05}", random.below(self.keys)).into_bytes()
    }

    pub(crate) fn value(self, random: &mut Random) -> Vec<u8> {
        let number = random.below(1 << 40);
        let mut value = number.to_be_bytes().to_vec();
        // Values that are alike except for their beginning, and others.
        let rest = if number.is_multiple_of(2) { b'v' } else { number as u8 };
        value.resize(8 + random.below(self.longest) as usize, rest);
        value
    }
}

/// A random step of a transaction.
pub(crate) fn step(
    txn: &mut WriteTxn<'_, '_, Native>,
    random: &mut Random,
    shape: Shape,
    steps: &mut Vec<Step>,
) -> Result<(), Error> {
    let key = shape.key(random);
    let value = shape.value(random);
    match random.below(10) {
        0..=1 => {
            let found = txn.get(&TABLE, &key)?;
            steps.push(Step::Read((TREE, key), found));
        }
        2 => {
            let found = txn.get_for_update(&TABLE, &key)?;
            steps.push(Step::Read((TREE, key), found));
        }
        3 => match txn.insert(&TABLE, &key, &value) {
            Ok(()) => {
                steps.push(Step::Read((TREE, key.clone()), None));
                steps.push(Step::Write((TREE, key), Some(value)));
            }
            Err(Error::Exists { .. }) => {}
            Err(error) => return Err(error),
        },
        4 => {
            txn.remove(&TABLE, &key)?;
            steps.push(Step::Write((TREE, key), None));
        }
        5 => {
            let to = shape.key(random);
            let (from, to) = if key < to { (key, to) } else { (to, key) };
            let rows = txn.range(&TABLE, &from[..]..&to[..])?;
            let mut found = Vec::new();
            if random.below(2) == 0 {
                for row in rows.rev() {
                    found.insert(0, row?);
                }
            } else {
                for row in rows {
                    found.push(row?);
                }
            }
            steps.push(Step::Scan(TREE, from, to, found));
        }
        6 => {
            // Rolled back to a savepoint: the reads stay, the writes do not.
            let here = txn.savepoint()?;
            txn.put(&TABLE, &key, &value)?;
            txn.remove(&TABLE, &shape.key(random))?;
            txn.roll_back_to(here)?;
        }
        _ => {
            match random.below(2) {
                0 => txn.put(&TABLE, &key, &value)?,
                // The write is deferred to the next call or to the commit.
                _ => txn.put_final(&TABLE, &key, &value)?,
            }
            steps.push(Step::Write((TREE, key), Some(value)));
        }
    }
    Ok(())
}

/// Keys and values.
pub(crate) type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// All records, in either direction.
pub(crate) fn all(txn: &ReadTxn<'_, Native>, back: bool) -> Result<Rows, Error> {
    let rows = txn.range(&TABLE, ..)?;
    if !back {
        return rows.collect();
    }
    let mut all = rows.rev().collect::<Result<Vec<_>, _>>()?;
    all.reverse();
    Ok(all)
}
