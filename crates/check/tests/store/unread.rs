//! Snapshots on a disk that fails to read: an error is reported, never a wrong answer.

use std::ops::Range;
use std::thread;

use latchwork_disk::{Fault, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, ReadTxn, Sizes, Store};

use crate::stage::{TABLE, begin_with, sizes};

const KEY: &[u8] = b"a";
/// The disk calls at which a read fails.
const CALLS: u64 = 3;

/// Runs `work` in a snapshot that sees the second of two versions and needs the log's files to
/// decide so: the writer has committed more often since than its slot remembers, and other records
/// fill the log's buffer.
fn aged(store: &Store<Native>, work: impl Fn(&ReadTxn<'_, Native>)) {
    // An open transaction: not every transaction before the snapshot has ended.
    let mut open = store.begin().unwrap();
    open.put(&TABLE, b"open", b"").unwrap();
    store.put(&TABLE, KEY, b"old").unwrap();
    store.put(&TABLE, KEY, b"new").unwrap();
    let fill = || (0..4000).for_each(|n| store.put(&TABLE, b"filler", &[n as u8; 700]).unwrap());
    let all = store.read(|tx| {
        for number in 0..100u64 {
            store.put(&TABLE, b"other", &number.to_be_bytes())?;
        }
        thread::scope(|scope| scope.spawn(fill).join().unwrap());
        work(tx);
        Ok(())
    });
    all.unwrap();
}

fn get(snapshot: &ReadTxn<'_, Native>) -> Result<Option<Vec<u8>>, Error> {
    snapshot.get(&TABLE, KEY)
}

fn scan(snapshot: &ReadTxn<'_, Native>) -> Result<Option<Vec<u8>>, Error> {
    let first = snapshot.range(&TABLE, ..)?.next().transpose()?;
    Ok(first.filter(|(key, _)| key == KEY).map(|(_, value)| value))
}

/// Reads in a snapshot that sees the second version, with a fault at some disk calls. Returns
/// whether the fault was reported.
fn read(
    disk: &Simulated,
    snapshot: &ReadTxn<'_, Native>,
    read: impl Fn(&ReadTxn<'_, Native>) -> Result<Option<Vec<u8>>, Error>,
    fault: Fault,
    calls: Range<u64>,
) -> bool {
    // The history also contains failed calls.
    let now = disk.history().len() as u64;
    calls.clone().for_each(|call| disk.plan(now + call, fault));
    let told = match read(snapshot) {
        Ok(found) => {
            assert_eq!(found.as_deref(), Some(&b"new"[..]), "{fault:?} at {calls:?}");
            false
        }
        Err(Error::Log(_)) => true,
        Err(why) => panic!("{why}"),
    };
    disk.heal();
    assert_eq!(read(snapshot), Ok(Some(b"new".to_vec())), "the next read must succeed");
    told
}

#[test]
fn an_unreadable_commit_is_an_error() {
    let disk = Simulated::new();
    let large = Sizes { log_budget: 16 << 20, history: 64 << 20, threads: 64, ..sizes(Mode::None) };
    let store = begin_with(&disk, large).unwrap();
    for call in 0..CALLS {
        for fails in [1, 2, 3, 1000] {
            let calls = call..call + fails;
            aged(&store, |tx| assert!(read(&disk, tx, get, Fault::Device, calls.clone())));
            // A scan retries what it could not decide.
            let again = fails > 1;
            aged(&store, |tx| {
                assert_eq!(read(&disk, tx, scan, Fault::Device, calls.clone()), again);
            });
        }
        // A short read that is retried, and a flipped bit in unread data, may go unreported.
        for fault in [Fault::ShortRead, Fault::FlippedBit] {
            aged(&store, |tx| _ = read(&disk, tx, get, fault, call..call + 2));
            aged(&store, |tx| _ = read(&disk, tx, scan, fault, call..call + 3));
        }
    }
}

/// A kept snapshot has learned the state when it was created and reads no disk.
#[test]
fn a_held_snapshot_reads_the_commits_before_it() {
    let disk = Simulated::new();
    let large = Sizes { log_budget: 16 << 20, history: 64 << 20, threads: 64, ..sizes(Mode::None) };
    let store = begin_with(&disk, large).unwrap();
    let mut open = store.begin().unwrap();
    open.put(&TABLE, b"open", b"").unwrap();
    store.put(&TABLE, KEY, b"new").unwrap();
    let kept = store.snapshot().unwrap();
    for number in 0..100u64 {
        store.put(&TABLE, b"other", &number.to_be_bytes()).unwrap();
    }
    let fill = || (0..4000).for_each(|n| store.put(&TABLE, b"filler", &[n as u8; 700]).unwrap());
    thread::scope(|scope| scope.spawn(fill).join().unwrap());
    let calls = disk.history().len();
    assert_eq!(get(&kept), Ok(Some(b"new".to_vec())));
    assert_eq!(disk.history().len(), calls);
    assert_eq!(scan(&kept), Ok(Some(b"new".to_vec())));
}
