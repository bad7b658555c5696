//! Transfers between accounts: the sum is the same in each snapshot, even if a thread dies during a
//! transfer.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{Machine, Word};
use latchwork_sim::Simulated;
use latchwork_store::{Error, Level};

use crate::ledger::{Acts, LATER, Life, Program, SOON, has, nothing, number};
use crate::records::Rows;

/// The number of accounts and their initial balance.
const ACCOUNTS: u64 = 4;
const EACH: u64 = 100;
/// Keys from here on: each thread counts its transfers.
const COUNTS: u64 = 100;

fn accounts(life: &Life<'_>) {
    life.write(|acts| (0..ACCOUNTS).try_for_each(|account| acts.put(account, Some(&has(EACH)))));
}

/// Moves money from one account to another; the amount may exceed the balance. Two transfers in
/// opposite directions may deadlock.
fn move_some(life: &Life<'_>, acts: &mut Acts<'_>, from: u64, to: u64) -> Result<(), Error> {
    let for_update = life.odd.level == Level::Serializable;
    let amount = 1 + life.dice.below(9);
    let had = number(acts.get(from, for_update)?);
    let has_got = number(acts.get(to, for_update)?);
    acts.put(from, Some(&has(had.wrapping_sub(amount))))?;
    acts.put(to, Some(&has(has_got.wrapping_add(amount))))
}

fn add(acts: &mut Acts<'_>, to: u64, amount: u64) -> Result<(), Error> {
    let had = number(acts.get(to, true)?);
    acts.put(to, Some(&has(had.wrapping_add(amount))))
}

fn transfer(life: &Life<'_>) {
    life.begins("transfer");
    let from = life.dice.below(ACCOUNTS);
    let to = (from + 1 + life.dice.below(ACCOUNTS - 1)) % ACCOUNTS;
    let count = life.ledger.begun[life.me].get() + 1;
    life.ledger.begun[life.me].set(count);
    if life.odd.in_two {
        let amount = 1 + life.dice.below(9);
        life.write(|acts| add(acts, from, 0u64.wrapping_sub(amount)));
        life.write(|acts| add(acts, to, amount));
    }
    life.write(|acts| {
        if !life.odd.in_two {
            move_some(life, acts, from, to)?;
        }
        match life.dice.one_in(2) {
            true => acts.put(COUNTS + life.me as u64, Some(&has(count))),
            false => acts.put_final(COUNTS + life.me as u64, &has(count)),
        }
    });
    life.ledger.ended[life.me].set(count);
}

/// Checks the sum, and that each thread's transfers that had committed when the snapshot began are
/// visible, and none that had not begun.
fn sum_up(life: &Life<'_>) {
    life.begins("a look at all accounts");
    let counts = || life.ledger.ended.each_ref().map(Cell::get);
    let mut least = counts();
    let (mut sum, back) = (0, life.dice.one_in(2));
    life.read(|seen| {
        if life.odd.early {
            (0..200).for_each(|_| Simulated::relax());
            least = counts();
        }
        let all = if life.odd.in_two { ACCOUNTS / 2 } else { ACCOUNTS };
        sum = sum_of(seen.scan(0, all, back)?);
        for (thread, least) in least.iter().enumerate() {
            let most = life.ledger.begun[thread].get();
            let found = number(seen.get(COUNTS + thread as u64)?);
            if !(*least..=most).contains(&found) {
                life.flaw(format!("{found} transfers of {thread}, not {least} to {most}"));
            }
        }
        Ok(())
    });
    if life.odd.in_two {
        life.read(|seen| {
            sum += sum_of(seen.scan(ACCOUNTS / 2, ACCOUNTS, back)?);
            Ok(())
        });
    }
    if sum != ACCOUNTS * EACH {
        life.flaw(format!("all accounts have {sum}"));
    }
}

fn sum_of(rows: Rows) -> u64 {
    rows.into_iter().map(|(_, value)| number(Some(value))).fold(0, u64::wrapping_add)
}

/// Transfers, and reads all accounts.
fn transfers(life: &Life<'_>) {
    for _ in 0..4 {
        match life.dice.below(3) {
            0 => sum_up(life),
            _ => transfer(life),
        }
    }
    sum_up(life);
}

pub(crate) const TRANSFERS: Program =
    Program { begins: accounts, does: transfers, ends: nothing, patience: SOON };

/// The first thread is killed after at most this many accesses of the last thread.
const LIFE: u64 = 16_000;

/// All threads transfer, the first one longest; the last one kills it and undoes its transaction.
fn one_dies(life: &Life<'_>) {
    match life.me {
        0 => (0..12).for_each(|_| transfer(life)),
        me if life.is_last() => {
            let word = <Simulated as Machine>::AtomicU64::default();
            (0..life.dice.below(LIFE)).for_each(|_| _ = word.load(Relaxed));
            (life.kill)();
            match me % 2 {
                0 => life.sweep(),
                // The next thread that waits for a lock sweeps, or this one at the end.
                _ => transfer(life),
            }
        }
        _ => (0..4).for_each(|_| transfer(life)),
    }
    if !life.odd.in_two {
        sum_up(life);
    }
}

/// The interrupted transaction must be complete or absent.
fn after_death(life: &Life<'_>) {
    life.sweep();
    let (begun, ended) = (life.ledger.begun[0].get(), life.ledger.ended[0].get());
    life.read(|seen| {
        let sum = sum_of(seen.scan(0, ACCOUNTS, false)?);
        if sum != ACCOUNTS * EACH {
            life.flaw(format!("all accounts have {sum}"));
        }
        let found = number(seen.get(COUNTS)?);
        if found != begun && found != ended {
            life.flaw(format!("{found} transfers, not {ended} or {begun}"));
        }
        life.ledger.unknown.set(found != ended);
        Ok(())
    });
}

pub(crate) const DEATHS: Program =
    Program { begins: accounts, does: one_dies, ends: after_death, patience: LATER };
