//! The commits of processes that are killed, and the check that none is lost.
//!
//! A *client* is a number used by one process only, once. Each of its commits stores the commit's
//! number under a key of the client. After the commit has returned, its number is written to the
//! client's file of acknowledgements, which survives the death of the process. The store must
//! contain all acknowledged commits and at most one more. Fewer are a loss.
//!
//! | commits | a commit | is right if |
//! |---|---|---|
//! | `Transfers` | moves an amount between two accounts | all accounts add up to nothing |
//! | `Batches` | 1,000 updates at random | each of its records has the last batch there is |

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use latchwork_rivals::{Reads, Session, StoreError, StoreResult, Writes};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::keys::{self, VALUE};

/// Accounts: few, so that other processes soon need those of a killed one.
pub(super) const ACCOUNTS: u64 = 1000;
/// Updates of a batch.
pub(super) const BATCH: u64 = 1000;
/// Shorter pauses are not recorded.
pub(super) const LEAST_PAUSE: u64 = 100_000;

fn failed(call: &'static str) -> impl Fn(io::Error) -> StoreError {
    move |why| StoreError::Failed(call, why.to_string())
}

/// The commits of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commits {
    Transfers,
    Batches { rows: u64 },
}

/// The files of acknowledgements of a store.
pub(super) struct Acks(PathBuf);

impl Acks {
    /// The files next to the store in this directory.
    pub(super) fn of(folder: &Path) -> Self {
        Self(folder.with_extension("acks"))
    }

    /// Removes all acknowledgements.
    pub(super) fn clear(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        fs::create_dir(&self.0)
    }

    /// The file of a client for its process.
    pub(super) fn client(&self, client: u64) -> StoreResult<Client> {
        let acks = File::create(self.0.join(client.to_string())).map_err(failed("acks"))?;
        let pauses = OpenOptions::new().create(true).append(true).open(self.pauses_of(client));
        Ok(Client { acks, pauses: pauses.map_err(failed("pauses"))?, number: client, done: 0 })
    }

    fn pauses_of(&self, client: u64) -> PathBuf {
        self.0.join(format!("{client}.pauses"))
    }

    /// Acknowledged commits of a client.
    pub(super) fn done(&self, client: u64) -> u64 {
        let bytes = fs::read(self.0.join(client.to_string())).unwrap_or_default();
        bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Begin and end of a client's pauses.
    pub(super) fn pauses(&self, client: u64) -> Vec<(u64, u64)> {
        let bytes = fs::read(self.pauses_of(client)).unwrap_or_default();
        let (pairs, _) = bytes.as_chunks::<16>();
        let time =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        pairs.iter().map(|pair| (time(&pair[..8]), time(&pair[8..]))).collect()
    }

    /// Acknowledged commits of all clients.
    pub(super) fn all_done(&self) -> io::Result<u64> {
        Ok(self.clients()?.into_iter().map(|client| self.done(client)).sum())
    }

    /// All clients with a file.
    fn clients(&self) -> io::Result<Vec<u64>> {
        let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }
}

/// A client, in its process.
pub(super) struct Client {
    acks: File,
    pauses: File,
    number: u64,
    done: u64,
}

/// The key of a client's commit number.
fn counter(client: u64) -> [u8; 16] {
    keys::record(1 << 32 | client)
}

/// The number at offset `at` of a value.
fn number(value: &[u8], at: usize) -> StoreResult<u64> {
    let bytes = value.get(at..).and_then(|value| value.first_chunk());
    let bytes = bytes.ok_or(StoreError::Failed("get", "a short value".to_owned()))?;
    Ok(u64::from_le_bytes(*bytes))
}

/// Creates the accounts with a balance of zero.
pub(super) fn load(session: &mut dyn Session) -> StoreResult {
    let all = session.write(&mut |txn: &mut dyn Writes| {
        (0..ACCOUNTS).try_for_each(|account| txn.put(0, &keys::record(account), &[0; VALUE]))
    });
    all.map(|_| ())
}

/// The contents of a batch: the keys, and the number stored in each value.
fn batch(client: u64, number: u64, rows: u64) -> (impl Iterator<Item = u64>, u64) {
    let of = client << 32 | number;
    let mut rng = SmallRng::seed_from_u64(of);
    ((0..BATCH).map(move |_| rng.random_range(0..rows)), of)
}

impl Client {
    /// Commits once and acknowledges the commit.
    pub(super) fn commit(
        &mut self,
        session: &mut dyn Session,
        commits: Commits,
        rng: &mut SmallRng,
    ) -> StoreResult {
        match commits {
            Commits::Batches { rows } => self.write_batch(session, rows, rng)?,
            Commits::Transfers => self.transfer(session, rng)?,
        }
        self.acks.write_all_at(&self.done.to_le_bytes(), 0).map_err(failed("acks"))
    }

    /// Moves an amount between two accounts. They are locked in order, so that no transaction is
    /// rolled back and a pause is not a retry.
    fn transfer(&mut self, session: &mut dyn Session, rng: &mut SmallRng) -> StoreResult {
        let one = rng.random_range(0..ACCOUNTS);
        let other = (one + rng.random_range(1..ACCOUNTS)) % ACCOUNTS;
        let amount = rng.random_range(1..=500u64);
        let mut changes = [(one, amount), (other, amount.wrapping_neg())];
        changes.sort_unstable();
        let (done, key) = (self.done + 1, counter(self.number));
        let mut row = Vec::with_capacity(VALUE);
        session.write(&mut |txn: &mut dyn Writes| {
            for (account, amount) in changes {
                let key = keys::record(account);
                if !txn.get_for_update(0, &key, &mut row)? {
                    return Err(StoreError::Failed("get", "a missing account".to_owned()));
                }
                let sum = number(&row, 0)?.wrapping_add(amount);
                row[..8].copy_from_slice(&sum.to_le_bytes());
                txn.put(0, &key, &row)?;
            }
            txn.put_final(0, &key, &done.to_le_bytes())
        })?;
        self.done = done;
        Ok(())
    }

    fn write_batch(
        &mut self,
        session: &mut dyn Session,
        rows: u64,
        rng: &mut SmallRng,
    ) -> StoreResult {
        let (done, key) = (self.done + 1, counter(self.number));
        let mut value = [0; VALUE];
        session.write(&mut |txn: &mut dyn Writes| {
            let (numbers, of) = batch(self.number, done, rows);
            for number in numbers {
                keys::fill(&mut value, number, rng);
                value[8..16].copy_from_slice(&of.to_le_bytes());
                txn.put(0, &keys::record(number), &value)?;
            }
            txn.put_final(0, &key, &done.to_le_bytes())
        })?;
        self.done = done;
        Ok(())
    }

    /// Records a pause between two commits.
    pub(super) fn paused(&mut self, from: u64, to: u64) -> StoreResult {
        if to - from < LEAST_PAUSE {
            return Ok(());
        }
        let [from, to] = [from, to].map(u64::to_le_bytes);
        self.pauses.write_all(&[from, to].concat()).map_err(failed("pauses"))
    }
}

/// One commit of a client without acknowledgements.
pub(super) fn touch(session: &mut dyn Session, client: u64) -> StoreResult {
    session.put(0, &counter(client), &1u64.to_le_bytes())
}

/// Counts acknowledged commits that are missing.
///
/// # Errors
///
/// If the store contains something that was not written, or a part of a commit.
pub(super) fn lost(session: &mut dyn Session, commits: Commits, acks: &Acks) -> StoreResult<u64> {
    let clients = acks.clients().map_err(failed("acks"))?;
    let (mut lost, mut value) = (0, Vec::new());
    let wrong = |what: String| Err(StoreError::Failed("what killed processes left", what));
    session.read(&mut |txn: &mut dyn Reads| {
        lost = 0;
        // The expected contents of the records of a batch.
        let mut last = HashMap::new();
        for client in &clients {
            let there = txn.get(0, &counter(*client), &mut value)?;
            let there = if there { number(&value, 0)? } else { 0 };
            let done = acks.done(*client);
            if there > done + 1 {
                return wrong(format!("{there} commits of a client that began {}", done + 1));
            }
            lost += done.saturating_sub(there);
            if let Commits::Batches { rows } = commits {
                for (numbers, of) in (1..=there).map(|one| batch(*client, one, rows)) {
                    last.extend(numbers.map(|number| (number, of)));
                }
            }
        }
        for (record, of) in &last {
            if !txn.get(0, &keys::record(*record), &mut value)? || number(&value, 8)? != *of {
                return wrong(format!("record {record} is not of batch {of:x}"));
            }
        }
        let mut sum = 0u64;
        if commits == Commits::Transfers {
            let accounts = txn.scan(0, &keys::record(0), ACCOUNTS as usize, &mut |_, row| {
                sum = sum.wrapping_add(number(row, 0).unwrap_or(1));
            })?;
            if sum != 0 || accounts as u64 != ACCOUNTS {
                return wrong(format!("{accounts} accounts add up to {}", sum.cast_signed()));
            }
        }
        Ok(())
    })?;
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::data::Data;
    use crate::store::ours::Ours;
    use latchwork_rivals::Store;

    fn check(data: Data) {
        let folder = crate::dir::Dir::new(None).unwrap();
        let (commits, rows) = (data.commits(), data.rows());
        let (at, mut rng) = (folder.path().join("one"), SmallRng::seed_from_u64(1));
        fs::create_dir(&at).unwrap();
        let store = Ours::open(&at, &data.options(8 << 20, false)).unwrap();
        data.load(&store).unwrap();
        let acks = Acks::of(&at);
        acks.clear().unwrap();
        let mut client = acks.client(7).unwrap();
        let mut session = store.session().unwrap();
        let session = session.as_mut();
        for _ in 0..5 {
            client.commit(session, commits, &mut rng).unwrap();
        }
        assert_eq!((acks.done(7), lost(session, commits, &acks)), (5, Ok(0)));
        // Acknowledged commits that are missing are counted.
        acks.client(8).unwrap().acks.write_all_at(&9u64.to_le_bytes(), 0).unwrap();
        assert_eq!(lost(session, commits, &acks), Ok(9));
        // More commits than were begun are an error, and so is a record of no commit.
        client.acks.write_all_at(&3u64.to_le_bytes(), 0).unwrap();
        assert!(lost(session, commits, &acks).is_err());
        client.acks.write_all_at(&5u64.to_le_bytes(), 0).unwrap();
        let (mut numbers, _) = batch(7, 5, rows);
        let record = keys::record(if data == Data::Ledger { 3 } else { numbers.next().unwrap() });
        session.put(0, &record, &[1; VALUE]).unwrap();
        assert!(lost(session, commits, &acks).is_err());
        client.paused(5, 5 + LEAST_PAUSE).unwrap();
        client.paused(6, 7).unwrap();
        assert_eq!(acks.pauses(7), [(5, 5 + LEAST_PAUSE)]);
    }

    #[test]
    fn what_is_lost_is_counted_and_what_is_wrong_is_told() {
        check(Data::Ledger);
        check(Data::Crash { rows: 500, log: 1 << 20 });
    }
}
