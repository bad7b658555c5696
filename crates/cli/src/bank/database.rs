//! The bank in a database on a server: the same transactions as in a store.
//!
//! A process may lose its connection, and the server may restart: a transfer whose commit was sent
//! may be done or not, and the total is the same in either case.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use latchwork_remote::Database;
use latchwork_store::{Error, ReadOps, Table, TxnOptions, WriteOps};

use super::Left;
use super::ledger::OPENING;
use super::teller::{Counted, Part, Tick, Voice};
use super::vault::{NOTHING, account, add, bytes, serve};

/// Balance, and number of changes. Not a name that a program of the same database has.
const ACCOUNTS: Table<u64, &[u8]> = Table::new("latchwork bank");

/// How long a transaction is tried before its process reports that it is alive.
const SOON: Duration = Duration::from_secs(2);

/// Whether this is the address of a server, and not a folder.
pub(super) fn is_server(folder: &Path) -> bool {
    folder.to_str().is_some_and(latchwork_remote::is_server)
}

/// Accepts the address of a server.
pub(super) fn address(text: &str) -> Result<String, String> {
    match latchwork_remote::is_server(text) {
        true => Ok(text.to_owned()),
        false => Err("it does not begin with postgres://".to_owned()),
    }
}

/// Opens a database whose server may be about to restart.
fn open(address: &Path, over: &AtomicBool) -> Result<Database, Error> {
    let address = address.to_str().unwrap_or_default();
    loop {
        match Database::open(address) {
            Err(why) if why.is_retryable() && !over.load(Relaxed) => {
                thread::sleep(Duration::from_millis(50));
            }
            done => return done,
        }
    }
}

/// Creates the accounts, in place of those that a killed run has left.
pub(super) fn fill(address: &Path, accounts: u64) -> Result<(), Error> {
    let db = open(address, &AtomicBool::new(true))?;
    db.write(|tx| tx.remove_range(&ACCOUNTS, ..))?;
    for from in (0..accounts).step_by(1000) {
        db.write(|tx| {
            let mut numbers = from..accounts.min(from + 1000);
            numbers.try_for_each(|number| tx.put(&ACCOUNTS, number, &bytes(OPENING, 0)))
        })?;
    }
    Ok(())
}

/// Removes the accounts.
pub(super) fn clear(address: &Path) -> Result<(), Error> {
    open(address, &AtomicBool::new(true))?.write(|tx| tx.remove_range(&ACCOUNTS, ..)).map(drop)
}

/// Works on accounts in a database.
pub(super) fn work(
    address: &Path,
    part: Part,
    over: &AtomicBool,
    voice: &Arc<Voice>,
) -> anyhow::Result<()> {
    let db = open(address, over)?;
    let accounts = persist(&mut Tick::default(), || db.read(|tx| tx.count(&ACCOUNTS, ..)))?;
    let audit = |tick: &mut Tick, kind| {
        persist(tick, || match kind {
            0 => db.write(|tx| tx.range(&ACCOUNTS, ..)?.try_fold(NOTHING, add)),
            _ => count(&db),
        })
    };
    let transfer = |tick: &mut Tick, from, to, amount| {
        let options = TxnOptions { time: SOON, ..TxnOptions::default() };
        let runs = persist(tick, || {
            let done = db.write_with(&options, |tx| {
                let (balance, changes) = account(tx.get_for_update(&ACCOUNTS, from)?)?;
                tx.put(&ACCOUNTS, from, &bytes(balance - amount, changes + 1))?;
                let (balance, changes) = account(tx.get_for_update(&ACCOUNTS, to)?)?;
                tx.put(&ACCOUNTS, to, &bytes(balance + amount, changes + 1))
            });
            match done {
                // It is done or not: no more is to be known.
                Err(Error::CommitUnknown { .. }) => Ok(1),
                done => done.map(|done| done.runs),
            }
        })?;
        tick.deadlocks += u64::from(runs - 1);
        Ok(())
    };
    // The server rolls back the transactions of dead processes and does not count them.
    serve(accounts, part, (over, voice), audit, transfer, || Ok(0))
}

/// Repeats a transaction while the server is away.
fn persist<R>(tick: &mut Tick, mut run: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
    loop {
        match run() {
            Err(Error::Deadline { .. } | Error::CommitUnknown { .. }) => tick.deadlocks += 1,
            done => return done,
        }
    }
}

fn count(db: &Database) -> Result<Counted, Error> {
    db.read(|tx| tx.range(&ACCOUNTS, ..)?.try_fold(NOTHING, add))
}

/// Counts what remains after all processes have ended.
pub(super) fn settle(address: &Path) -> anyhow::Result<Left> {
    let counted = count(&open(address, &AtomicBool::new(false))?)?;
    let (sum, transfers) = (counted.sum, counted.transfers / 2);
    Ok(Left { sum, transfers, sound: true, ..Left::default() })
}
