//! Prepared transactions in folders: of processes killed at each step of preparing and deciding, of
//! processes that have ended, and in copies.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use latchwork_check::parts::side_by_side;
use latchwork_store::{
    Error, Store, Transaction, TxnOptions, discard_shared_memory, restore, salvage,
};

use crate::stage::{ACCOUNTS, COUNT, EACH, Place, ROWS, all, die_after, fill, open, options, sum};

/// A number from this process's environment, or 0.
fn told(name: &str) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn prepare(store: &Store, gid: &[u8]) {
    let mut tx = store.begin().unwrap();
    let from = tx.get_for_update(&ACCOUNTS, 0).unwrap().unwrap();
    tx.put(&ACCOUNTS, 0, from - 10).unwrap();
    let to = tx.get(&ACCOUNTS, 1).unwrap().unwrap();
    tx.put(&ACCOUNTS, 1, to + 10).unwrap();
    tx.put(&ROWS, 1 << 20, &[5; 9000]).unwrap();
    tx.with(|tx| Ok(tx.range(&ROWS, 5..10)?.count())).unwrap();
    tx.prepare(gid).unwrap();
}

/// A transaction that only reads.
fn prepare_empty(store: &Store) {
    let mut tx = store.begin().unwrap();
    tx.get_for_update(&ACCOUNTS, 0).unwrap();
    tx.prepare(b"one").unwrap();
}

fn decide(store: &Store, commits: bool) -> Result<(), Error> {
    match commits {
        true => store.commit_prepared(b"one").map(drop),
        false => store.roll_back_prepared(b"one"),
    }
}

/// A process that prepares or decides a transaction and is killed in between.
#[test]
fn preparer() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    if !fs::exists(place.at("prepared")).unwrap() {
        if told("PREPARES") != 0 {
            die_after(told("STEP"));
        }
        match told("EMPTY") {
            0 => prepare(&store, b"one"),
            _ => prepare_empty(&store),
        }
        fs::write(place.at("prepared"), "").unwrap();
    }
    die_after(told("STEP"));
    decide(&store, told("COMMITS") != 0).unwrap();
    die_after(0);
    // Exits without closing the store, which the other process does.
    std::process::exit(0);
}

fn is_free(store: &Store, account: u64) -> bool {
    let patience = TxnOptions { time: Duration::from_millis(30), ..TxnOptions::default() };
    let mut tx = store.begin_with(&patience).unwrap();
    match tx.put(&ACCOUNTS, account, -1) {
        Ok(()) => true,
        Err(Error::Lock { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// Returns whether the transfer is visible; checks that all or nothing of it is.
fn is_seen(store: &Store) -> bool {
    assert_eq!(sum(store), COUNT as i64 * EACH);
    let moved = store.get(&ACCOUNTS, 1).unwrap() != Some(EACH);
    assert_eq!(
        store.get(&ROWS, 1 << 20).unwrap().is_some(),
        moved,
        "part of the transfer is missing"
    );
    moved
}

/// A transaction that is already rolled back to its start: the next record it logs is its end.
fn ends_next(store: &Store) -> Transaction {
    let mut tx = store.begin().unwrap();
    let before = tx.savepoint().unwrap();
    tx.put(&ROWS, 2 << 20, &[6; 10]).unwrap();
    tx.roll_back_to(before).unwrap();
    tx
}

/// Before any listing of prepared transactions: an id that the killed process has not prepared, or
/// has decided, is free.
fn prepare_another(store: &Store, case: &str) {
    let again = || {
        let mut tx = store.begin().unwrap();
        tx.put(&ROWS, 3 << 20, &[7; 10]).unwrap();
        tx.prepare(b"one")
    };
    let mut tried = again();
    // Another thread may be sweeping it.
    while tried.as_ref().is_err_and(Error::is_retryable) {
        tried = again();
    }
    match tried {
        Ok(()) => store.roll_back_prepared(b"one").unwrap(),
        Err(Error::Prepared { .. }) => assert_eq!(store.prepared().unwrap().len(), 1, "{case}"),
        Err(other) => panic!("{case}: {other}"),
    }
}

/// The parts of the store that remain when a process is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    /// Another process, which continues.
    Another,
    /// The memory, for the next process that opens the store.
    Memory,
    /// Only the files, as after a crash of the machine.
    Files,
}

/// Kills processes at each step of the log, the pool and the lock manager; returns the step count.
fn killed_at_each_step(prepares: bool, commits: bool, left: Left) -> u32 {
    let mut step = 0;
    loop {
        step += 1;
        let place = Place::new(&format!("prepared-{prepares}-{commits}-{left:?}"));
        let mut store = Some(open(place.at("one")));
        fill(store.as_ref().unwrap(), 20);
        if left != Left::Another {
            store = None;
        }
        let line = format!(
            "PREPARES={} COMMITS={} STEP={step} exec \"$0\" \"$@\"",
            u32::from(prepares),
            u32::from(commits)
        );
        let ends = store.as_ref().map(ends_next);
        let ended = place.start_by(&line, "prepared::preparer").wait().unwrap();
        drop(ends);
        let prepared = fs::exists(place.at("prepared")).unwrap();
        if left == Left::Files && !ended.success() {
            assert!(discard_shared_memory(place.at("one")).unwrap() > 0);
        }
        let store = store.unwrap_or_else(|| open(place.at("one")));
        let case = format!("prepares {prepares}, commits {commits}, left {left:?}, step {step}");
        assert!(ended.success() || ended.signal() == Some(libc::SIGKILL), "{case}: {ended}");
        if left == Left::Another && step % 2 == 0 {
            prepare_another(&store, &case);
        }
        let listed = store.prepared().unwrap();
        assert_eq!(store.sweep(), Ok(0), "{case}");
        // A commit that is not durable is not visible, and the killed process did not wait.
        store.checkpoint().unwrap();
        if let Some(one) = listed.first() {
            assert_eq!(one.gid, b"one");
            assert!(!ended.success() && !is_seen(&store), "{case}");
            assert!(!is_free(&store, 0) && !is_free(&store, 1) && is_free(&store, 2), "{case}");
            decide(&store, commits).unwrap();
            assert_eq!(is_seen(&store), commits, "{case}");
        } else {
            assert!(!prepared || is_seen(&store) == commits, "{case}");
            assert!(!ended.success() || is_seen(&store) == commits, "{case}");
        }
        assert!(matches!(decide(&store, commits), Err(Error::NotPrepared { .. })), "{case}");
        assert!((0..COUNT).all(|account| is_free(&store, account)), "{case}");
        let counts = store.counts().unwrap();
        assert_eq!((counts.locks, counts.transactions), (0, 0), "{case}");
        assert_eq!(store.activity().unwrap().oldest_write, None, "{case}: the log is kept");
        store.verify().unwrap();
        if ended.success() {
            return step - 1;
        }
    }
}

#[test]
fn a_death_at_each_step_of_preparing_leaves_it_prepared_or_undone() {
    side_by_side([Left::Another, Left::Files], |left| {
        let steps = killed_at_each_step(true, true, left);
        assert!(steps > 20, "{left:?}: {steps}");
    });
}

#[test]
fn a_death_at_each_step_of_deciding_leaves_it_decided_or_prepared() {
    let lefts = [Left::Another, Left::Memory, Left::Files];
    let cases = lefts.into_iter().flat_map(|left| [(left, true), (left, false)]);
    side_by_side(cases, |(left, commits)| {
        let steps = killed_at_each_step(false, commits, left);
        assert!(steps > 10, "{left:?}: {steps}");
    });
}

/// A process that stops while it sweeps what another process left.
#[test]
fn sweeper() {
    let Some(place) = Place::told() else { return };
    latchwork_log::set_point_hook(|step| {
        if step == "repair: claims" {
            // SAFETY: signals this process.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    });
    let store = open(place.at("one"));
    store.sweep().unwrap();
    // Exits without closing the store, which the other process does.
    std::process::exit(0);
}

/// A prepared transaction of a dead thread is listed, also while a stopped process is sweeping it.
#[test]
fn a_prepared_transaction_being_swept_is_listed() {
    let place = Place::new("swept");
    let store = open(place.at("one"));
    fill(&store, 20);
    // The process dies after it has claimed the slot in order to decide.
    let line = "COMMITS=1 STEP=1 exec \"$0\" \"$@\"";
    let ended = place.start_by(line, "prepared::preparer").wait().unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGKILL));
    let mut sweeper = place.start("prepared::sweeper");
    let (process, mut status) = (sweeper.id() as i32, 0);
    // SAFETY: a place for the status; a child process, which stops before it ends.
    unsafe { libc::waitpid(process, &mut status, libc::WUNTRACED) };
    assert!(libc::WIFSTOPPED(status), "the process swept nothing");
    let listed = store.prepared().unwrap();
    assert_eq!(listed.iter().map(|one| &one.gid[..]).collect::<Vec<_>>(), [b"one"]);
    // SAFETY: a child process that has not been waited for.
    unsafe { libc::kill(process, libc::SIGCONT) };
    // During the sweep or after it.
    decide(&store, true).unwrap();
    assert!(is_seen(&store) && store.prepared().unwrap().is_empty());
    assert!(sweeper.wait().unwrap().success());
    assert!((0..COUNT).all(|account| is_free(&store, account)));
}

/// Without a change to undo, only the end record of a rollback shows the decision. The result must
/// be the same with living memory and after reading the log.
#[test]
fn a_prepared_transaction_without_writes_is_decided_durably() {
    for step in 1.. {
        let place = Place::new("prepared-empty");
        let store = open(place.at("one"));
        fill(&store, 20);
        let line = format!("EMPTY=1 COMMITS=0 STEP={step} exec \"$0\" \"$@\"");
        let ended = place.start_by(&line, "prepared::preparer").wait().unwrap();
        assert!(ended.success() || ended.signal() == Some(libc::SIGKILL), "{step}: {ended}");
        store.sweep().unwrap();
        let listed = store.prepared().unwrap().len();
        store.backup(place.at("copy"), &mut |_| {}).unwrap();
        restore(place.at("copy"), place.at("two"), &mut |_| {}).unwrap();
        assert_eq!(open(place.at("two")).prepared().unwrap().len(), listed, "{step}");
        assert_eq!(is_free(&store, 0), listed == 0, "{step}");
        if ended.success() {
            assert!(step > 8 && listed == 0, "{step}");
            return;
        }
    }
}

/// All processes end, or they are killed and their memory is lost.
#[test]
fn a_prepared_transaction_survives_closing() {
    let place = Place::new("waits");
    let store = open(place.at("one"));
    fill(&store, 300);
    prepare(&store, b"one");
    drop(store);
    assert!(!place.at("one").join("region").exists(), "the memory was not removed");
    let store = open(place.at("one"));
    let before = all(&store);
    assert_eq!(store.prepared().unwrap().len(), 1);
    assert!(!is_seen(&store) && !is_free(&store, 0) && !is_free(&store, 1));

    // A copy and a store restored from it also have the transaction; each decides separately.
    store.backup(place.at("copy"), &mut |_| {}).unwrap();
    restore(place.at("copy"), place.at("two"), &mut |_| {}).unwrap();
    let two = open(place.at("two"));
    assert_eq!(all(&two), before);
    assert!(!is_free(&two, 0));
    two.commit_prepared(b"one").unwrap();
    assert!(is_seen(&two) && is_free(&two, 0) && !is_seen(&store));

    // A compact copy, which has no prepared transactions, is refused.
    let refused = store.compact_into(place.at("small"), &mut |_| {});
    assert_eq!(refused, Err(Error::Prepared { gid: b"one".to_vec() }));
    assert!(!place.at("small").exists());
    store.verify().unwrap();
    drop(store);
    let salvaged = salvage(place.at("one"), place.at("saved")).unwrap();
    assert_eq!(salvaged.prepared, [b"one".to_vec()]);
    assert_eq!(all(&open(place.at("saved"))), before);
    let store = open(place.at("one"));
    store.roll_back_prepared(b"one").unwrap();
    assert!(!is_seen(&store) && is_free(&store, 0));
    assert!(store.compact_into(place.at("small"), &mut |_| {}).unwrap() > 300);
}

/// Calls in the child of a fork fail and change nothing of the parent's transactions.
#[test]
fn the_child_of_a_fork_decides_nothing() {
    let place = Place::new("forked");
    let store = Store::open_with(place.at("one"), &options()).unwrap();
    fill(&store, 10);
    prepare(&store, b"one");
    let mut open = store.begin().unwrap();
    open.put(&ACCOUNTS, 5, 0).unwrap();
    // SAFETY: the child only makes calls that fail at once, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |error: Error| matches!(error, Error::Region(latchwork_region::Error::Forked));
        let refused = open.prepare(b"two").is_err()
            && store.commit_prepared(b"one").is_err_and(forked)
            && store.roll_back_prepared(b"one").is_err_and(forked)
            && store.prepared().is_err_and(forked)
            && store.sync().is_err_and(forked);
        // SAFETY: ends the child without running the parent's code.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(store.prepared().unwrap().len(), 1);
    open.prepare(b"two").unwrap();
    store.commit_prepared(b"one").unwrap();
    store.roll_back_prepared(b"two").unwrap();
    assert!(is_seen(&store) && (0..COUNT).all(|account| is_free(&store, account)));
}
