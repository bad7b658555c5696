//! The bank in a store: accounts are records, transfers and audits are transactions.
//!
//! The store rolls back the transactions of dead processes and releases their locks; nothing here
//! does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use latchwork_store::{Attempts, Error, Mode, Options, Store, Table, TxnOptions};

use super::Left;
use super::ledger::{OPENING, expected};
use super::teller::{Counted, Dice, Part, TICK, Tick, Voice, What};

/// Balance, and number of changes.
const ACCOUNTS: Table<u64, &[u8]> = Table::new("accounts");

fn store_in(folder: &Path) -> PathBuf {
    folder.join("store")
}

fn open(folder: &Path) -> Result<Store, Error> {
    let mut options = Options::default();
    options.sizes.cache = 16 << 20;
    options.sizes.threads = 256;
    // A killed process loses nothing that is in the log, in any mode.
    options.sizes.mode = Mode::None;
    Store::open_with(store_in(folder), &options)
}

pub(super) fn bytes(balance: i64, changes: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&balance.to_le_bytes());
    bytes[8..].copy_from_slice(&changes.to_le_bytes());
    bytes
}

pub(super) fn account(bytes: Option<Vec<u8>>) -> Result<(i64, u64), Error> {
    let bytes = bytes.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| Error::Rejected("an account is not there".to_owned()))?;
    let (balance, changes) = bytes.split_at(8);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok((word(balance) as i64, word(changes)))
}

/// Creates the store, with so many accounts.
pub(super) fn fill(folder: &Path, accounts: u64) -> Result<(), Error> {
    let store = open(folder)?;
    for from in (0..accounts).step_by(1000) {
        store.write(|tx| {
            let mut numbers = from..accounts.min(from + 1000);
            numbers.try_for_each(|number| tx.put(&ACCOUNTS, number, &bytes(OPENING, 0)))
        })?;
    }
    Ok(())
}

/// Works on accounts in a store.
pub(super) fn work(
    folder: &Path,
    part: Part,
    over: &AtomicBool,
    voice: &Arc<Voice>,
) -> anyhow::Result<()> {
    let store = open(folder)?;
    let accounts = store.read(|tx| Ok(tx.range(&ACCOUNTS, ..)?.count()))? as u64;
    let audit = |tick: &mut Tick, kind| match kind {
        // Under locks, concurrently with transfers.
        0 => persist(&store, tick, |tx| tx.range(&ACCOUNTS, ..)?.try_fold(NOTHING, add)),
        // In a snapshot, which never waits.
        _ => count(&store),
    };
    let transfer = |tick: &mut Tick, from, to, amount| {
        persist(&store, tick, |tx| {
            let (balance, changes) = account(tx.get_for_update(&ACCOUNTS, from)?)?;
            tx.put(&ACCOUNTS, from, &bytes(balance - amount, changes + 1))?;
            // The transfer is half done. Other processes run here, and most kills happen here.
            thread::yield_now();
            let (balance, changes) = account(tx.get_for_update(&ACCOUNTS, to)?)?;
            tx.put_final(&ACCOUNTS, to, &bytes(balance + amount, changes + 1))
        })
    };
    let undone = || Ok(store.counts()?.undone);
    serve(accounts, part, (over, voice), audit, transfer, undone)
}

/// Transfers money between accounts, or audits them, until the process is told to end.
pub(super) fn serve(
    accounts: u64,
    part: Part,
    (over, voice): (&AtomicBool, &Voice),
    audit: impl Fn(&mut Tick, u64) -> Result<Counted, Error>,
    transfer: impl Fn(&mut Tick, u64, u64, i64) -> Result<(), Error>,
    undone: impl Fn() -> Result<u64, Error>,
) -> anyhow::Result<()> {
    let expected = expected(accounts);
    let mut dice = Dice(part.seed);
    let (mut tick, mut said) = (Tick::default(), Instant::now());
    voice.say(What::Tick(tick));
    while !over.load(Relaxed) {
        let began = Instant::now();
        if part.audits {
            let counted = audit(&mut tick, dice.below(4))?;
            tick.audits += 1;
            if counted.sum != expected {
                voice.say(What::Wrong { sum: counted.sum });
            }
            thread::sleep(std::time::Duration::from_millis(1));
        } else {
            let from = dice.below(accounts);
            let to = (from + 1 + dice.below(accounts - 1)) % accounts;
            transfer(&mut tick, from, to, 1 + dice.below(100) as i64)?;
            tick.transfers += 1;
        }
        tick.longest = tick.longest.max(began.elapsed().as_nanos() as u64);
        if said.elapsed() >= TICK {
            tick.undone = undone()?;
            voice.say(What::Tick(std::mem::take(&mut tick)));
            said = Instant::now();
        }
    }
    tick.undone = undone()?;
    voice.say(What::Tick(tick));
    Ok(())
}

type Tx<'x, 's> = latchwork_store::WriteTxn<'x, 's, latchwork_machine::Shared>;

/// Runs a transaction until it commits, and counts how often it was a deadlock's victim.
fn persist<R>(
    store: &Store,
    tick: &mut Tick,
    body: impl FnMut(&mut Tx<'_, '_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let Attempts { value, runs, .. } = store.write_with(&TxnOptions::default(), body)?;
    tick.deadlocks += u64::from(runs - 1);
    Ok(value)
}

pub(super) const NOTHING: Counted = Counted { sum: 0, transfers: 0 };

pub(super) fn add(so_far: Counted, row: Result<(u64, Vec<u8>), Error>) -> Result<Counted, Error> {
    let (balance, changes) = account(Some(row?.1))?;
    let (sum, transfers) = (so_far.sum + balance, so_far.transfers + changes);
    Ok(Counted { sum, transfers })
}

/// Counts the money in a snapshot; `transfers` are changes of accounts, two per transfer.
fn count(store: &Store) -> Result<Counted, Error> {
    store.read(|tx| tx.range(&ACCOUNTS, ..)?.try_fold(NOTHING, add))
}

/// Repairs what the last killed processes left, and counts what remains after all processes have
/// ended.
pub(super) fn settle(folder: &Path) -> anyhow::Result<Left> {
    let store = open(folder)?;
    store.sweep()?;
    let counted = count(&store)?;
    let counts = store.counts()?;
    Ok(Left {
        sum: counted.sum,
        transfers: counted.transfers / 2,
        undone: counts.undone,
        held: counts.locks + counts.transactions,
        sound: store.verify().is_ok(),
        ..Left::default()
    })
}
