//! The engines in which simulated threads run transactions: a store, or trees in ordinary memory
//! with deliberate bugs. The checks are the same.

use std::ops::Bound::{Excluded, Included};
use std::path::Path;
use std::sync::Arc;

use latchwork_check::explore::Schedule;
use latchwork_check::memory_engine::{Bug, Memory};
use latchwork_disk::{Disk, Simulated as Files};
use latchwork_lockmgr::{Manager, Session, granular};
use latchwork_machine::Machine;
use latchwork_region::{Options as RegionOptions, Region};
use latchwork_store::internals::{self, Snapshot, Txn};
use latchwork_store::{
    Error, Level, Mode, ReadTxn, Savepoint, Sizes, Store, Table, TxnOptions, WriteTxn,
};

use crate::flawed::Breakable;
use crate::ledger::{Odd, Program, THREADS, Tally, run};

const ROWS: Table<u64, &[u8]> = Table::new("rows");
/// The number of the table for the oracle and for the trees in memory.
pub(crate) const TREE: u32 = 1;

/// Records in the order of their keys.
pub(crate) type Rows = Vec<(u64, Vec<u8>)>;

/// The reads of a transaction or a snapshot.
pub(crate) trait Reads {
    fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error>;
    /// The records from a key to before another, in ascending order even if read backwards.
    fn scan(&mut self, from: u64, to: u64, back: bool) -> Result<Rows, Error>;
}

/// The writes of a transaction.
pub(crate) trait Writes: Reads {
    fn get_for_update(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error>;
    /// Writes a record, or removes it.
    fn put(&mut self, key: u64, value: Option<&[u8]>) -> Result<(), Error>;
    fn put_final(&mut self, key: u64, value: &[u8]) -> Result<(), Error>;
    fn insert(&mut self, key: u64, value: &[u8]) -> Result<(), Error>;
    fn savepoint(&mut self) -> Result<Savepoint, Error>;
    fn roll_back_to(&mut self, here: Savepoint) -> Result<(), Error>;
}

/// The body of a snapshot.
pub(crate) type Look<'b> = dyn FnMut(&mut dyn Reads) -> Result<(), Error> + 'b;
/// The body of a transaction, which may run more than once.
pub(crate) type Body<'b> = dyn FnMut(&mut dyn Writes) -> Result<(), Error> + 'b;

/// An engine for transactions.
pub(crate) trait Place {
    /// Returns the position of the commit, if the transaction wrote, and the number of attempts.
    fn write(&self, level: Level, body: &mut Body<'_>) -> Result<(Option<u64>, u32), Error>;
    /// Returns the snapshot's position.
    fn read(&self, look: &mut Look<'_>) -> Result<u64, Error>;
    /// The last position of the log.
    fn end(&self) -> u64;
    /// Writes all pages back, and unlinks empty leaves.
    fn checkpoint(&self) -> Result<(), Error>;
    /// Undoes transactions of dead threads.
    fn sweep(&self) -> Result<(), Error>;
}

impl Place for Store<Breakable> {
    fn write(&self, level: Level, body: &mut Body<'_>) -> Result<(Option<u64>, u32), Error> {
        let patience = TxnOptions { level, ..TxnOptions::default() };
        self.write_with(&patience, |tx| body(tx)).map(|done| (done.at, done.runs))
    }
    fn read(&self, look: &mut Look<'_>) -> Result<u64, Error> {
        Store::read(self, |tx| look(&mut TransactionGuard(tx)).map(|()| tx.at()))
    }
    fn end(&self) -> u64 {
        self.log_end() - 1
    }
    fn checkpoint(&self) -> Result<(), Error> {
        Store::checkpoint(self)
    }
    fn sweep(&self) -> Result<(), Error> {
        Store::sweep(self).map(drop)
    }
}

/// A snapshot of a store, which is borrowed.
struct TransactionGuard<'t, 'x>(&'t ReadTxn<'x, Breakable>);

impl Reads for TransactionGuard<'_, '_> {
    fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        self.0.get(&ROWS, key)
    }
    fn scan(&mut self, from: u64, to: u64, back: bool) -> Result<Rows, Error> {
        let rows = self.0.range(&ROWS, from..to)?;
        if !back {
            return rows.collect();
        }
        let mut all: Rows = rows.rev().collect::<Result<_, _>>()?;
        all.reverse();
        Ok(all)
    }
}

impl Reads for WriteTxn<'_, '_, Breakable> {
    fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        WriteTxn::get(self, &ROWS, key)
    }
    fn scan(&mut self, from: u64, to: u64, _: bool) -> Result<Rows, Error> {
        self.range(&ROWS, from..to)?.collect()
    }
}

impl Writes for WriteTxn<'_, '_, Breakable> {
    fn get_for_update(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        WriteTxn::get_for_update(self, &ROWS, key)
    }
    fn put(&mut self, key: u64, value: Option<&[u8]>) -> Result<(), Error> {
        match value {
            Some(value) => WriteTxn::put(self, &ROWS, key, value),
            None => self.remove(&ROWS, key).map(drop),
        }
    }
    fn put_final(&mut self, key: u64, value: &[u8]) -> Result<(), Error> {
        WriteTxn::put_final(self, &ROWS, key, value)
    }
    fn insert(&mut self, key: u64, value: &[u8]) -> Result<(), Error> {
        WriteTxn::insert(self, &ROWS, key, value)
    }
    fn savepoint(&mut self) -> Result<Savepoint, Error> {
        WriteTxn::savepoint(self)
    }
    fn roll_back_to(&mut self, here: Savepoint) -> Result<(), Error> {
        WriteTxn::roll_back_to(self, here)
    }
}

/// The trees in memory, with a lock manager on the simulated machine. The trees do not use
/// simulated words, so other threads run between calls and not within them.
pub(crate) struct InMemory<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) session: &'a Session<Breakable>,
    pub(crate) slot: u16,
}

/// Sometimes lets others run.
fn pause(key: u64) {
    (0..1 + key % 3).for_each(|_| Breakable::relax());
}

fn bytes(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

/// Adds a record to the result of a scan.
fn add(rows: &mut Rows, key: &[u8], value: &[u8]) -> Result<bool, Error> {
    rows.push((key.first_chunk().map_or(u64::MAX, |key| u64::from_be_bytes(*key)), value.to_vec()));
    Ok(true)
}

impl Place for InMemory<'_> {
    fn write(&self, level: Level, body: &mut Body<'_>) -> Result<(Option<u64>, u32), Error> {
        let patience = TxnOptions { level, ..TxnOptions::default() };
        let done =
            internals::run(self.memory, self.session, self.slot, &patience, |txn| body(txn))?;
        Ok((done.at, done.runs))
    }
    fn read(&self, look: &mut Look<'_>) -> Result<u64, Error> {
        let mut snapshot = Snapshot::new(self.memory, self.slot)?;
        look(&mut snapshot)?;
        Ok(snapshot.at())
    }
    fn end(&self) -> u64 {
        self.memory.end()
    }
    fn checkpoint(&self) -> Result<(), Error> {
        Ok(())
    }
    fn sweep(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl Reads for Snapshot<'_, Memory> {
    fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        pause(key);
        self.get_raw(TREE, &bytes(key))
    }
    fn scan(&mut self, from: u64, to: u64, back: bool) -> Result<Rows, Error> {
        pause(from);
        let (mut rows, from, to) = (Rows::new(), bytes(from), bytes(to));
        let mut each = |key: &[u8], value: &[u8]| add(&mut rows, key, value);
        self.scan_raw(TREE, &from[..]..&to[..], back, &mut each)?;
        rows.sort();
        Ok(rows)
    }
}

impl Reads for Txn<'_, Memory, Breakable> {
    fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        pause(key);
        self.get_raw(TREE, &bytes(key))
    }
    fn scan(&mut self, from: u64, to: u64, back: bool) -> Result<Rows, Error> {
        pause(from);
        let (mut rows, from, to) = (Rows::new(), bytes(from), bytes(to));
        let mut each = |key: &[u8], value: &[u8]| add(&mut rows, key, value);
        self.scan_raw(TREE, (Included(&from[..]), Excluded(&to[..])), back, &mut each)?;
        rows.sort();
        Ok(rows)
    }
}

impl Writes for Txn<'_, Memory, Breakable> {
    fn get_for_update(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        pause(key);
        self.get_raw_for_update(TREE, &bytes(key))
    }
    fn put(&mut self, key: u64, value: Option<&[u8]>) -> Result<(), Error> {
        pause(key);
        self.write_raw(TREE, &bytes(key), value)
    }
    fn put_final(&mut self, key: u64, value: &[u8]) -> Result<(), Error> {
        pause(key);
        self.write_last(TREE, &bytes(key), Some(value))
    }
    fn insert(&mut self, key: u64, value: &[u8]) -> Result<(), Error> {
        pause(key);
        self.insert_raw(TREE, &bytes(key), value)
    }
    fn savepoint(&mut self) -> Result<Savepoint, Error> {
        Txn::savepoint(self)
    }
    fn roll_back_to(&mut self, here: Savepoint) -> Result<(), Error> {
        pause(0);
        Txn::roll_back_to(self, here)
    }
}

fn sizes(schedule: Schedule, odd: Odd) -> Sizes {
    Sizes {
        cache: 1 << 20,
        cache_max: 0,
        page: 4096,
        log_buffer: 1 << 20,
        log_segment: 1 << 20,
        log_budget: odd.budget,
        history: 1 << 30,
        threads: 2 * THREADS as u32 + 4,
        locks: 64 << 20,
        mode: [Mode::None, Mode::Write, Mode::Full][(schedule.0 / 3 % 3) as usize],
    }
}

/// Runs two to four threads on a store, each with its own handle, as separate processes.
pub(crate) fn on_store(schedule: Schedule, odd: Odd, program: Program) -> Result<Tally, String> {
    crate::flawed::renew();
    let told = |error: Error| error.to_string();
    let threads = 2 + (schedule.0 / 8 % (THREADS as u64 - 1)) as usize;
    let sizes = sizes(schedule, odd);
    let options = RegionOptions {
        processes: 1 + threads as u32,
        threads: sizes.threads,
        waiters: 64,
        limit: 16 << 20,
        ..RegionOptions::default()
    };
    let region = Region::<Breakable>::heap(&options).map_err(|error| error.to_string())?;
    let disk: Arc<dyn Disk> = Arc::new(Files::new());
    let regions = (0..threads).map(|_| region.another()).collect::<Result<Vec<_>, _>>();
    let regions = regions.map_err(|error| error.to_string())?;
    let open = |region| Store::in_region(region, &disk, Path::new("/store"), &sizes);
    let mut stores = regions.iter().map(open).collect::<Result<Vec<_>, _>>().map_err(told)?;
    let places: Vec<_> = stores.iter().map(|store| store as &dyn Place).collect();
    let kill = || {
        latchwork_sim::kill(0);
        regions[0].die();
    };
    let ran = run(schedule, odd, program, &places, &kill);
    drop(places);
    let tally = match ran {
        Ok(tally) => tally,
        Err(flaw) => {
            // Threads are stopped inside calls: their objects must not be used again.
            core::mem::forget(stores);
            return Err(flaw);
        }
    };
    // The first thread may be dead.
    stores.reverse();
    let locks = stores[0].counts().map_err(told)?.locks;
    let space = stores[0].space().map_err(told)?;
    if locks != 0 || space.lost != 0 {
        return Err(format!("{locks} locks are held, {space:?}"));
    }
    Ok(Tally { used: space.used, free: space.free, ..tally })
}

/// The same on the trees in memory, with or without a bug.
pub(crate) fn in_memory(
    schedule: Schedule,
    odd: Odd,
    program: Program,
    bug: Bug,
) -> Result<Tally, String> {
    let threads = 2 + (schedule.0 / 8 % (THREADS as u64 - 1)) as usize;
    let options = RegionOptions {
        processes: 1,
        threads: threads as u32,
        waiters: 1,
        limit: 4 << 20,
        ..RegionOptions::default()
    };
    let region = Region::heap(&options).map_err(|error| error.to_string())?;
    let told = |error: latchwork_lockmgr::Error| error.to_string();
    let manager = Manager::new(region, granular::modes(), Default::default()).map_err(told)?;
    let sessions = (0..threads).map(|_| manager.session()).collect::<Result<Vec<_>, _>>();
    let sessions = sessions.map_err(told)?;
    let memory = Memory::new(bug);
    let of = |(slot, session)| InMemory { memory: &memory, session, slot };
    let all: Vec<_> = (1..).zip(&sessions).map(of).collect();
    let places: Vec<_> = all.iter().map(|place| place as &dyn Place).collect();
    let ran = run(schedule, odd, program, &places, &|| {});
    if ran.is_err() {
        core::mem::forget(sessions);
        core::mem::forget(manager);
    }
    ran
}
