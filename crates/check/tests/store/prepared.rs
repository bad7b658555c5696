//! Prepared transactions keep their locks until they are decided, after their thread has ended and
//! after a crash at any disk call.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use latchwork_check::parts::side_by_side;
use latchwork_check::random::Random;
use latchwork_check::stops::{at_step, stop_at};
use latchwork_disk::{Disk, Fault, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Refusal, Sizes, Store, Transaction, TxnOptions};

use crate::hands::{LINES, TAKEN, TURN, area};
use crate::stage::{LANES, TABLE, begin, begin_in, begin_with, sizes};

const MODES: [Mode; 3] = [Mode::Full, Mode::Write, Mode::None];

fn get(store: &Store<Native>, key: &str) -> Option<Vec<u8>> {
    store.read(|tx| tx.get(&TABLE, key.as_bytes())).unwrap()
}

fn put(tx: &mut Transaction<Native>, key: &str, value: &[u8]) {
    tx.put(&TABLE, key.as_bytes(), value).unwrap();
}

fn gids(store: &Store<Native>) -> Vec<String> {
    let all = store.prepared().unwrap().into_iter();
    all.map(|one| String::from_utf8(one.gid).unwrap()).collect()
}

/// Returns whether another transaction can write a record within 20 ms.
fn is_free(store: &Store<Native>, key: &str) -> bool {
    let patience = TxnOptions { time: Duration::from_millis(20), ..TxnOptions::default() };
    let mut tx = store.begin_with(&patience).unwrap();
    match tx.put(&TABLE, key.as_bytes(), b"another's") {
        Ok(()) => tx.roll_back().map(|()| true).unwrap(),
        Err(Error::Lock { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// Crashes the machine and opens the store again.
fn crashed(disk: &Simulated, store: Store<Native>, mode: Mode) -> Store<Native> {
    disk.crash();
    drop(store);
    disk.restart(7);
    begin(disk, mode).unwrap()
}

/// A store with three records and two prepared transactions, whose writes, one of them a long
/// value, are not visible.
fn two_prepared(disk: &Simulated, mode: Mode) -> Store<Native> {
    let store = begin(disk, mode).unwrap();
    for key in ["a", "b", "c"] {
        store.put(&TABLE, key.as_bytes(), b"old").unwrap();
    }
    let (mut one, mut two) = (store.begin().unwrap(), store.begin().unwrap());
    put(&mut one, "a", b"of one");
    let here = one.savepoint().unwrap();
    put(&mut one, "taken back", b"of one");
    one.roll_back_to(here).unwrap();
    put(&mut one, "long", &[7; 30_000]);
    one.prepare(b"one").unwrap();
    two.remove(&TABLE, b"b").unwrap();
    assert_eq!(two.get(&TABLE, b"c").unwrap(), Some(b"old".to_vec()));
    two.with(|tx| tx.put_final(&TABLE, b"two", b"of two")).unwrap();
    two.prepare(b"two").unwrap();
    store
}

/// A handle remembers where transactions are prepared, and another handle has decided these and
/// prepared others under the same ids. The first handle decides the transactions that exist now.
#[test]
fn the_slot_of_a_prepared_transaction_may_be_reused() {
    let disk = Simulated::new();
    let (region, store) = begin_in(&disk, sizes(Mode::None)).unwrap();
    let same: Arc<dyn Disk> = Arc::new(disk.clone());
    let folder = Path::new("/home/store");
    let other = Store::in_region_with(&region, &same, folder, &sizes(Mode::None), LANES.get());
    let other = other.unwrap();
    let prepare = |gids: &[&str], value: &[u8]| {
        for gid in gids {
            let mut tx = store.begin().unwrap();
            put(&mut tx, gid, value);
            tx.prepare(gid.as_bytes()).unwrap();
        }
    };
    prepare(&["a", "b", "c", "d"], b"first");
    // This call searches all slots and remembers the other transactions.
    other.commit_prepared(b"d").unwrap();
    for gid in ["a", "b", "c"] {
        store.commit_prepared(gid.as_bytes()).unwrap();
    }
    prepare(&["c", "b"], b"second");
    let none = other.commit_prepared(b"a");
    assert!(matches!(none, Err(Error::NotPrepared { .. })), "{none:?}");
    for gid in ["b", "c"] {
        other.commit_prepared(gid.as_bytes()).unwrap();
    }
    for (key, value) in [("a", "first"), ("b", "second"), ("c", "second"), ("d", "first")] {
        assert_eq!(get(&store, key), Some(value.into()), "{key}");
    }
    assert!(gids(&other).is_empty());
}

/// A thread takes over the transaction of a dead thread and dies before it has checked whether that
/// is prepared. Nothing is decided.
#[test]
fn a_prepared_transaction_is_not_undone_with_its_dead_decider() {
    let (region, store) = begin_in(&Simulated::new(), sizes(Mode::None)).unwrap();
    let mut tx = store.begin().unwrap();
    put(&mut tx, "a", b"new");
    tx.prepare(b"one").unwrap();
    let slot = (0..48).find(|slot| region.is_retained(*slot)).unwrap();
    let taker = region.thread().unwrap();
    let turn = 64 + u64::from(slot) * LINES + TURN;
    area(&region).word(turn).unwrap().store(u64::from(taker.number()) << 8 | TAKEN, Relaxed);
    taker.abandon();
    drop(taker);
    assert_eq!(store.sweep(), Ok(1));
    assert_eq!(gids(&store), ["one"]);
    assert!(!is_free(&store, "a"));
    store.commit_prepared(b"one").unwrap();
    assert_eq!(get(&store, "a"), Some(b"new".to_vec()));
}

#[test]
fn prepared_transactions_are_invisible_and_locked_until_decided() {
    for crash in [false, true] {
        let disk = Simulated::new();
        let mut store = two_prepared(&disk, Mode::Full);
        if crash {
            store = crashed(&disk, store, Mode::Full);
        }
        assert_eq!(gids(&store), ["one", "two"]);
        let all = store.prepared().unwrap();
        assert!(all[0].since < all[0].at && all[0].at < all[1].at);
        let activity = store.activity().unwrap();
        assert_eq!((activity.prepared, activity.oldest_prepared), (2, Some(all[0].since)));
        for (key, old) in [("a", true), ("b", true), ("long", false), ("two", false)] {
            assert_eq!(get(&store, key), old.then(|| b"old".to_vec()), "{key}");
            assert!(!is_free(&store, key), "{key} is not locked");
        }
        // Its reads and its writes before a savepoint rollback are locked.
        assert!(!is_free(&store, "c") && !is_free(&store, "taken back") && is_free(&store, "d"));
        assert_eq!(store.sweep(), Ok(0));

        // Any thread may decide, after commits of others.
        for number in 0..100_u64 {
            store.put(&TABLE, &number.to_be_bytes(), b"more").unwrap();
        }
        let (before, other) = (store.snapshot().unwrap(), store.clone());
        thread::spawn(move || other.commit_prepared(b"one").unwrap()).join().unwrap();
        store.roll_back_prepared(b"two").unwrap();
        assert_eq!(before.get(&TABLE, b"a").unwrap(), Some(b"old".to_vec()));
        assert_eq!(before.get(&TABLE, &5_u64.to_be_bytes()).unwrap(), Some(b"more".to_vec()));
        assert_eq!(get(&store, "a"), Some(b"of one".to_vec()));
        assert_eq!(get(&store, "long"), Some(vec![7; 30_000]));
        assert_eq!((get(&store, "b"), get(&store, "two")), (Some(b"old".to_vec()), None));
        assert!(["a", "b", "c", "long", "two"].into_iter().all(|key| is_free(&store, key)));
        assert!(gids(&store).is_empty());
        let counts = store.counts().unwrap();
        assert_eq!((counts.locks, counts.transactions), (0, 0));
        store.verify().unwrap();

        let over = crashed(&disk, store, Mode::Full);
        assert!(gids(&over).is_empty());
        assert_eq!(get(&over, "a"), Some(b"of one".to_vec()));
        assert_eq!((get(&over, "b"), get(&over, "two")), (Some(b"old".to_vec()), None));
    }
}

/// A range that was read stays locked.
#[test]
fn a_range_is_held_over_a_crash() {
    for crash in [false, true] {
        let disk = Simulated::new();
        let mut store = begin(&disk, Mode::Full).unwrap();
        store.put(&TABLE, b"b", b"old").unwrap();
        let mut tx = store.begin().unwrap();
        let rows = tx.with(|tx| Ok(tx.range(&TABLE, &b"b"[..]..&b"d"[..])?.count())).unwrap();
        assert_eq!(rows, 1);
        put(&mut tx, "x", b"sum");
        tx.prepare(b"reader").unwrap();
        if crash {
            store = crashed(&disk, store, Mode::Full);
        }
        assert!(!is_free(&store, "c") && !is_free(&store, "b") && !is_free(&store, "x"));
        assert!(is_free(&store, "e") && is_free(&store, "a"));
        store.commit_prepared(b"reader").unwrap();
        assert!(is_free(&store, "c") && is_free(&store, "b") && is_free(&store, "x"));
    }
}

#[test]
fn an_id_names_one_transaction_and_is_decided_once() {
    let disk = Simulated::new();
    let mut store = two_prepared(&disk, Mode::Full);
    for _ in 0..2 {
        let mut again = store.begin().unwrap();
        put(&mut again, "z", b"again");
        let twice = again.prepare(b"one");
        assert_eq!(twice, Err(Error::Prepared { gid: b"one".to_vec() }));
        assert!(get(&store, "z").is_none() && is_free(&store, "z"));
        store = crashed(&disk, store, Mode::Full);
    }
    for length in [0, 129] {
        let refused = store.begin().unwrap().prepare(&vec![b'g'; length]);
        assert_eq!(refused, Err(Error::Gid { length }));
    }
    let unknown = Err(Error::NotPrepared { gid: b"three".to_vec() });
    assert_eq!(store.commit_prepared(b"three"), unknown.clone());
    assert_eq!(store.roll_back_prepared(b"three"), unknown.map(drop));
    store.commit_prepared(b"one").unwrap();
    assert!(matches!(store.commit_prepared(b"one"), Err(Error::NotPrepared { .. })));
    assert!(matches!(store.roll_back_prepared(b"one"), Err(Error::NotPrepared { .. })));
    // The id is free again, also for a transaction without writes.
    let longest = [b'1'; 128];
    store.begin().unwrap().prepare(b"one").unwrap();
    store.begin().unwrap().prepare(&longest).unwrap();
    let mut store = crashed(&disk, store, Mode::Full);
    assert_eq!(store.prepared().unwrap().len(), 3);
    store.roll_back_prepared(b"one").unwrap();
    store.commit_prepared(&longest).unwrap();
    store = crashed(&disk, store, Mode::Full);
    assert_eq!(gids(&store), ["two"]);
}

#[test]
fn one_of_two_concurrent_decisions_succeeds() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    store.put(&TABLE, b"k", b"old").unwrap();
    let mut commits = 0;
    for round in 0..300_u32 {
        let value = round.to_be_bytes();
        let mut tx = store.begin().unwrap();
        put(&mut tx, "k", &value);
        tx.prepare(b"both").unwrap();
        let decided = AtomicU32::new(0);
        let done = thread::scope(|scope| {
            let commit = scope.spawn(|| store.commit_prepared(b"both").map(drop));
            let undo = scope.spawn(|| store.roll_back_prepared(b"both"));
            let ends = [commit.join().unwrap(), undo.join().unwrap()];
            for end in &ends {
                match end {
                    Ok(()) => _ = decided.fetch_add(1, Relaxed),
                    Err(Error::NotPrepared { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            ends[0].is_ok()
        });
        assert_eq!(decided.load(Relaxed), 1);
        assert_eq!(get(&store, "k") == Some(value.to_vec()), done);
        assert!(is_free(&store, "k"));
        commits += u32::from(done);
    }
    assert!(commits > 0);
    assert_eq!(store.counts().unwrap().transactions, 0);
}

/// A thread that decides a transaction is stopped while its slot names a record that is not in the
/// log yet. A second thread that decides waits for it; a listing of prepared transactions does not.
#[test]
fn a_decision_waits_for_a_concurrent_one() {
    latchwork_log::set_point_hook(at_step);
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    for commits in [true, false] {
        store.put(&TABLE, b"k", b"old").unwrap();
        let mut tx = store.begin().unwrap();
        put(&mut tx, "k", b"new");
        tx.prepare(b"one").unwrap();
        thread::scope(|scope| {
            let (armed, stopped) = stop_at("append: copied");
            let store = &store;
            let first = scope.spawn(move || {
                armed.here();
                match commits {
                    true => store.commit_prepared(b"one").map(drop),
                    false => store.roll_back_prepared(b"one"),
                }
            });
            stopped.wait();
            assert_eq!(store.prepared().unwrap(), []);
            let second = scope.spawn(|| store.commit_prepared(b"one"));
            thread::sleep(Duration::from_millis(30));
            assert!(!second.is_finished());
            stopped.go_on();
            assert_eq!(first.join().unwrap(), Ok(()));
            let ended = second.join().unwrap();
            assert_eq!(ended, Err(Error::NotPrepared { gid: b"one".to_vec() }));
        });
        let expected: &[u8] = if commits { b"new" } else { b"old" };
        assert_eq!(get(&store, "k").unwrap(), expected);
        assert!(is_free(&store, "k"));
    }
}

/// All thread slots but one, then all, have prepared transactions: the next one gets an error.
#[test]
fn preparing_fails_when_slots_run_out() {
    let disk = Simulated::new();
    let many = Sizes { threads: 100, ..sizes(Mode::None) };
    let store = begin_with(&disk, many).unwrap();
    store.put(&TABLE, b"k", b"old").unwrap();
    let mut count = 0_u32;
    let full = loop {
        let mut tx = match store.begin() {
            Ok(tx) => tx,
            Err(why) => break why,
        };
        put(&mut tx, &format!("key {count}"), &count.to_be_bytes());
        tx.prepare(&count.to_be_bytes()).unwrap();
        count += 1;
    };
    assert!(full.to_string().contains("thread slots"), "{full}");
    assert!((96..=100).contains(&count), "{count}");
    assert_eq!(store.prepared().unwrap().len() as u32, count);
    // Opening with fewer threads is refused. With as many, all transactions return and fill all
    // slots.
    let end = store.log_end();
    store.commit_prepared(&0_u32.to_be_bytes()).unwrap();
    assert!(store.log_end() > end);
    let full = TxnOptions { mode: Some(Mode::Full), ..TxnOptions::default() };
    store.write_with(&full, |tx| tx.put(&TABLE, b"k", b"new")).unwrap();
    disk.crash();
    drop(store);
    disk.restart(3);
    let few = begin_with(&disk, sizes(Mode::None)).map(drop).unwrap_err();
    let Error::Open { why: Refusal::Threads { needed }, .. } = few else { panic!("{few}") };
    assert!((96..=100).contains(&needed), "{needed}");
    let store = begin_with(&disk, many).unwrap();
    assert_eq!(store.prepared().unwrap().len() as u32, count - 1);
    for number in 1..count {
        match number % 2 {
            0 => drop(store.commit_prepared(&number.to_be_bytes()).unwrap()),
            _ => store.roll_back_prepared(&number.to_be_bytes()).unwrap(),
        }
    }
    for number in 0..count {
        let there = get(&store, &format!("key {number}"));
        assert_eq!(there.is_some(), number % 2 == 0, "{number}");
    }
    assert_eq!(get(&store, "k"), Some(b"new".to_vec()));
    store.verify().unwrap();
}

/// A prepared transaction keeps the log beyond the bound on history and is not undone for that.
#[test]
fn a_prepared_transaction_is_never_too_old() {
    let disk = Simulated::new();
    let small = Sizes { history: 1 << 20, ..sizes(Mode::None) };
    let store = begin_with(&disk, small).unwrap();
    let mut tx = store.begin().unwrap();
    put(&mut tx, "a", b"waits");
    tx.prepare(b"one").unwrap();
    let since = store.prepared().unwrap()[0].since;
    for number in 0..6000_u64 {
        store.put(&TABLE, &(number % 500).to_be_bytes(), &[1; 700]).unwrap();
    }
    store.checkpoint().unwrap();
    let activity = store.activity().unwrap();
    assert!(activity.end > since + (4 << 20), "too little was logged");
    assert!(activity.oldest <= since && activity.redo <= since, "{activity:?}");
    assert_eq!(gids(&store), ["one"]);
    let store = crashed(&disk, store, Mode::None);
    assert_eq!(gids(&store), ["one"]);
    assert!(!is_free(&store, "a"));
    assert_eq!(store.read(|tx| tx.count(&TABLE, ..)).unwrap(), 500);
    store.commit_prepared(b"one").unwrap();
    assert_eq!(get(&store, "a"), Some(b"waits".to_vec()));
    store.checkpoint().unwrap();
    store.put(&TABLE, b"last", b"1").unwrap();
    store.checkpoint().unwrap();
    assert!(store.activity().unwrap().redo > since + (4 << 20));
}

/// On a full disk both decisions can be made, before and after a crash.
#[test]
fn a_full_disk_stops_no_decision() {
    for crash in [false, true] {
        let disk = Simulated::new();
        let mut store = two_prepared(&disk, Mode::Full);
        if crash {
            store = crashed(&disk, store, Mode::Full);
        }
        disk.set_capacity(Some(0));
        // Until even the smallest record has no room in the log.
        let mut written = 0;
        while store.put(&TABLE, b"base", b"").is_ok() {
            written += 1;
        }
        store.commit_prepared(b"one").unwrap();
        store.roll_back_prepared(b"two").unwrap();
        assert_eq!(get(&store, "a"), Some(b"of one".to_vec()));
        assert_eq!((get(&store, "b"), get(&store, "two")), (Some(b"old".to_vec()), None));
        disk.set_capacity(None);
        assert!(written > 1000, "{written}");
        assert!(is_free(&store, "a") && is_free(&store, "b"));
        store.verify().unwrap();
    }
}

/// The calls of the script that have succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answered {
    prepared: [bool; 2],
    decided: [bool; 2],
    asked: [bool; 2],
}

const SCRIPT: [(&str, &str, bool); 2] = [("one", "a", true), ("two", "b", false)];

/// Two transactions are prepared; others commit; one is committed and one is rolled back.
fn script(disk: &Simulated, mode: Mode, answered: &mut Answered) -> Result<(), Error> {
    let store = begin(disk, mode)?;
    if get_or(&store, "base")?.is_none() {
        store.put(&TABLE, b"base", b"old")?;
    }
    for (index, (gid, key, _)) in SCRIPT.into_iter().enumerate() {
        let mut tx = store.begin()?;
        tx.put(&TABLE, key.as_bytes(), &[9; 900])?;
        tx.put(&TABLE, format!("{key} 2").as_bytes(), &[8; 3000])?;
        tx.prepare(gid.as_bytes())?;
        answered.prepared[index] = true;
        store.put(&TABLE, b"base", gid.as_bytes())?;
    }
    store.checkpoint()?;
    for (index, (gid, _, commits)) in SCRIPT.into_iter().enumerate() {
        answered.asked[index] = true;
        match commits {
            true => drop(store.commit_prepared(gid.as_bytes())?),
            false => store.roll_back_prepared(gid.as_bytes())?,
        }
        answered.decided[index] = true;
        store.put(&TABLE, b"base", gid.as_bytes())?;
    }
    Ok(())
}

fn get_or(store: &Store<Native>, key: &str) -> Result<Option<Vec<u8>>, Error> {
    store.read(|tx| tx.get(&TABLE, key.as_bytes()))
}

/// Checks the state of one of the two transactions after a crash.
fn judge(
    store: &Store<Native>,
    index: usize,
    answered: Answered,
    full: bool,
) -> Result<(), String> {
    let (gid, key, commits) = SCRIPT[index];
    let listed = gids(store).iter().any(|one| one == gid);
    let (first, second) = (get(store, key), get(store, &format!("{key} 2")));
    let seen = first.is_some();
    let told = format!("{gid}: listed {listed}, seen {seen}, {answered:?}");
    if seen != second.is_some() || (seen && listed) || (seen && !commits) {
        return Err(told);
    }
    if listed == is_free(store, key) {
        return Err(format!("{told}: locks"));
    }
    let (prepared, decided) = (answered.prepared[index], answered.decided[index]);
    if full && prepared && !answered.asked[index] && !listed {
        return Err(format!("{told}: lost"));
    }
    if full && decided && (listed || seen != commits) {
        return Err(format!("{told}: the decision was lost"));
    }
    // A transaction that is to commit must be visible or still be prepared.
    if full && prepared && commits && !listed && !seen {
        return Err(format!("{told}: it was undone"));
    }
    if listed {
        store.commit_prepared(gid.as_bytes()).map_err(|why| why.to_string())?;
        if get(store, key) != Some(vec![9; 900]) {
            return Err(format!("{told}: committed, but not visible"));
        }
    }
    Ok(())
}

#[test]
fn a_crash_at_each_call_loses_no_prepared_transaction() {
    let mut listed = 0;
    for mode in MODES {
        let calm = Simulated::new();
        script(&calm, mode, &mut Answered::default()).unwrap();
        let calls = calm.calls().total();
        for number in 0..calls {
            let disk = Simulated::new();
            disk.plan(number, Fault::Crash);
            let mut answered = Answered::default();
            let ended = script(&disk, mode, &mut answered);
            assert!(ended.is_err() || disk.is_down() || number + 40 > calls, "{number}");
            disk.crash();
            disk.restart(number);
            if number % 2 == 0 {
                // A second crash, in recovery.
                disk.plan(disk.calls().total() + number % 40, Fault::Crash);
                drop(begin(&disk, mode));
                disk.crash();
                disk.restart(number + 1);
            }
            disk.heal();
            let store = begin(&disk, mode).unwrap();
            listed += gids(&store).len();
            for index in 0..2 {
                let judged = judge(&store, index, answered, mode == Mode::Full);
                judged.unwrap_or_else(|why| panic!("{mode:?}, call {number} of {calls}: {why}"));
            }
            store.verify().unwrap();
        }
    }
    assert!(listed > 20, "{listed}");
}

/// A reading transaction takes locks, and the log is full when it is prepared: it is rolled back
/// and leaves nothing behind. Returns how many of these had logged some of their locks.
fn refused_on_a_full_disk(names: u64) -> u32 {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    store.write(|tx| (0..60_u64).try_for_each(|n| tx.put(&TABLE, &n.to_be_bytes(), b"v"))).unwrap();
    disk.set_capacity(Some(0));
    // In another thread, which returns its reserved part of the log when it ends.
    let fill = || while store.put(&TABLE, &0_u64.to_be_bytes(), b"").is_ok() {};
    thread::scope(|scope| scope.spawn(fill).join().unwrap());
    let (mut logged, mut refused, mut round) = (0, 0, 0_u64);
    while refused < 3 {
        round += 1;
        let mut tx = store.begin().unwrap();
        for number in 0..names {
            tx.get(&TABLE, &number.to_be_bytes()).unwrap();
        }
        let end = store.log_end();
        match tx.prepare(&round.to_be_bytes()) {
            Ok(_) => store.roll_back_prepared(&round.to_be_bytes()).unwrap(),
            Err(why) => {
                let full = why.to_string().contains("the file system is full");
                assert!(full, "{names} names: {why}");
                refused += 1;
                logged += u32::from(store.log_end() > end);
            }
        }
        let counts = store.counts().unwrap();
        let left = (counts.locks, counts.transactions);
        assert_eq!(left, (0, 0), "{names} names, try {round}");
    }
    logged
}

#[test]
fn failing_to_prepare_on_a_full_disk_leaves_nothing() {
    let logged = (0..50).map(refused_on_a_full_disk).sum::<u32>();
    assert!(logged > 4, "{logged}");
}

/// Random transactions are prepared after savepoint rollbacks, some are decided, and the machine
/// crashes.
#[test]
fn random_runs_decide_prepared_transactions_correctly() {
    // Each part runs every fourth seed.
    let lives = |first: u64| (first..40).step_by(4).map(random_life).sum::<usize>();
    let recovered: usize = side_by_side(1..5, lives).into_iter().sum();
    assert!(recovered > 50, "{recovered}");
}

/// The records of a prepared transaction by key. None: the record is removed.
type Wrote = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Returns what a transaction has written, with some savepoint rollbacks, or None if it needs a
/// lock of a prepared transaction.
fn writes(tx: &mut Transaction<Native>, random: &mut Random, round: u8) -> Option<Wrote> {
    let mut wrote = Wrote::new();
    for _ in 0..1 + random.below(5) {
        let (here, before) = (tx.savepoint().unwrap(), wrote.clone());
        for _ in 0..1 + random.below(4) {
            let key = random.below(4000).to_be_bytes().to_vec();
            let long = if random.below(12) == 0 { 20_000 } else { 600 };
            let value = vec![round; random.below(long) as usize];
            let value = (random.below(3) != 0).then_some(value);
            let done = match &value {
                Some(value) if random.below(2) == 0 => tx.put(&TABLE, &key, value),
                Some(value) => tx.with(|tx| tx.put_final(&TABLE, &key, value)),
                None => tx.remove(&TABLE, &key).map(drop),
            };
            done.ok()?;
            wrote.insert(key, value);
        }
        if random.below(3) == 0 {
            tx.roll_back_to(here).unwrap();
            wrote = before;
        }
    }
    Some(wrote)
}

/// Checks the rows of a store, and that the records of prepared transactions are locked.
fn agrees(
    store: &Store<Native>,
    rows: &BTreeMap<Vec<u8>, Vec<u8>>,
    waiting: &BTreeMap<Vec<u8>, Wrote>,
) -> Result<(), String> {
    let found = store.read(|tx| tx.range(&TABLE, ..)?.collect::<Result<Vec<_>, _>>());
    let rows: Vec<_> = rows.clone().into_iter().collect();
    if found.unwrap() != rows {
        return Err("other rows".to_owned());
    }
    let soon = TxnOptions { time: Duration::from_millis(1), ..TxnOptions::default() };
    for key in waiting.values().flat_map(BTreeMap::keys) {
        let mut tx = store.begin_with(&soon).unwrap();
        match tx.put(&TABLE, key, b"another's") {
            Err(Error::Lock { .. }) => {}
            other => return Err(format!("{key:?} is not locked: {other:?}")),
        }
    }
    Ok(())
}

fn random_life(seed: u64) -> usize {
    let (disk, mut random, mut recovered) = (Simulated::new(), Random(seed), 0);
    let mut store = begin(&disk, Mode::Full).unwrap();
    let mut rows = BTreeMap::new();
    let mut waiting: BTreeMap<Vec<u8>, Wrote> = BTreeMap::new();
    let soon = TxnOptions { time: Duration::from_millis(1), ..TxnOptions::default() };
    for round in 0..120_u64 {
        let mut tx = store.begin_with(&soon).unwrap();
        let wrote = writes(&mut tx, &mut random, round as u8);
        let gid = round.to_be_bytes().to_vec();
        let Some(wrote) = wrote else { continue };
        match random.below(4) {
            0 if waiting.len() < 12 => {
                tx.prepare(&gid).unwrap();
                waiting.insert(gid, wrote);
            }
            1 => tx.roll_back().unwrap(),
            _ => {
                tx.commit().unwrap();
                take(&mut rows, wrote);
            }
        }
        if random.below(6) == 0
            && let Some((gid, wrote)) = waiting.pop_first()
        {
            match random.below(2) {
                0 => store.roll_back_prepared(&gid).unwrap(),
                _ => {
                    store.commit_prepared(&gid).unwrap();
                    take(&mut rows, wrote);
                }
            }
        }
        match random.below(24) {
            0 => store.checkpoint().unwrap(),
            1 => {
                LANES.set(1 + random.roll(4));
                let mut open = store.begin_with(&soon).unwrap();
                for _ in 0..20 {
                    let _ = open.put(&TABLE, &random.below(4000).to_be_bytes(), b"undone");
                }
                disk.crash();
                drop(open);
                drop(store);
                disk.restart(seed * 1000 + round);
                store = begin(&disk, Mode::Full).unwrap();
                recovered += waiting.len();
                let all = store.prepared().unwrap().into_iter().map(|one| one.gid);
                assert!(all.eq(waiting.keys().cloned()), "seed {seed}, round {round}");
                assert_eq!(store.space().unwrap().lost, 0, "seed {seed}, round {round}");
            }
            _ => continue,
        }
        agrees(&store, &rows, &waiting)
            .unwrap_or_else(|why| panic!("seed {seed}, round {round}: {why}"));
    }
    for (gid, wrote) in waiting {
        store.commit_prepared(&gid).unwrap();
        take(&mut rows, wrote);
    }
    let found = store.read(|tx| tx.range(&TABLE, ..)?.collect::<Result<Vec<_>, _>>());
    assert!(found.unwrap() == rows.into_iter().collect::<Vec<_>>(), "seed {seed}");
    store.verify().unwrap();
    assert_eq!(store.counts().unwrap().locks, 0);
    recovered
}

fn take(rows: &mut BTreeMap<Vec<u8>, Vec<u8>>, wrote: Wrote) {
    for (key, value) in wrote {
        match value {
            Some(value) => _ = rows.insert(key, value),
            None => _ = rows.remove(&key),
        }
    }
}

/// Writes that a prepared transaction had rolled back are not undone again after a crash.
#[test]
fn undoing_twice_takes_no_additional_room() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::Full).unwrap();
    let mut tx = store.begin().unwrap();
    put(&mut tx, "a", b"new");
    for number in 0..30_u64 {
        let before = tx.savepoint().unwrap();
        (0..50).for_each(|_| tx.put(&TABLE, b"b", &[number as u8; 1000]).unwrap());
        tx.roll_back_to(before).unwrap();
    }
    put(&mut tx, "c", b"new");
    tx.prepare(b"one").unwrap();
    let segments = || disk.list(Path::new("/home/store/log")).unwrap().len();
    disk.crash();
    drop(store);
    disk.restart(7);
    let before = segments();
    let store = begin(&disk, Mode::Full).unwrap();
    // The next segment is created, but none for a second undo.
    assert!(segments() <= before + 1, "{} of {before}", segments());
    store.roll_back_prepared(b"one").unwrap();
    assert_eq!(["a", "b", "c"].map(|key| get(&store, key)), [None, None, None]);
    store.verify().unwrap();
}
