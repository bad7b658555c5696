//! Commits that do not wait for the disk, and waiting for all of them at once.

use std::thread;
use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_check::tasks::block_on;
use latchwork_disk::{Disk, Fault, Operation, Simulated};
use latchwork_log::Error as LogError;
use latchwork_machine::Native;
use latchwork_region::Region;
use latchwork_store::{AsyncTransaction, Error, Mode, Store, Table, Transaction, WriteTxn};

use crate::stage::{TABLE, begin, begin_in, sizes};

const ROWS: Table<u64, u64> = Table::new("rows");
const MODES: [Mode; 3] = [Mode::Write, Mode::None, Mode::Periodic(Duration::from_secs(1000))];
const THREADS: u64 = 3;
const EACH: u64 = 20;

/// How a trial waits for durability.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wait {
    Thread,
    Task,
    /// Not at all.
    No,
}

/// Several threads commit; then one thread waits.
fn commit_and_wait(store: &Store<Native>, wait: Wait) -> Result<(), Error> {
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for row in thread * EACH..(thread + 1) * EACH {
                    store.put(&ROWS, row, row).unwrap();
                }
            });
        }
    });
    match wait {
        Wait::Thread => store.sync(),
        Wait::Task => block_on(store.sync_async()),
        Wait::No => Ok(()),
    }
}

/// Returns how many awaited rows are lost after a crash of the machine: all of them if the disk
/// lied and the log reports damage. Further rows are written afterwards without waiting.
fn lost(mode: Mode, wait: Wait, fault: Option<u64>, seed: u64) -> u64 {
    let disk = Simulated::new();
    let store = begin(&disk, mode).unwrap();
    if let Some(call) = fault {
        disk.plan(disk.calls().total() + call, Fault::LostSync);
    }
    commit_and_wait(&store, wait).unwrap();
    let mut random = Random(seed);
    for _ in 0..random.below(10) {
        store.put(&ROWS, 1000 + random.below(10), seed).unwrap();
    }
    disk.crash();
    drop(store);
    disk.restart(seed);
    let store = match begin(&disk, mode) {
        Err(Error::Log(LogError::LogDamaged { .. })) if fault.is_some() => return THREADS * EACH,
        opened => opened.unwrap(),
    };
    store.verify().unwrap();
    let found = store.read(|tx| tx.count(&ROWS, ..THREADS * EACH)).unwrap();
    THREADS * EACH - found
}

#[test]
fn an_awaited_commit_survives_a_crash() {
    for mode in MODES {
        for (seed, wait) in (1..25).zip([Wait::Thread, Wait::Task].into_iter().cycle()) {
            assert_eq!(lost(mode, wait, None, seed), 0, "{mode:?} {wait:?} {seed}");
        }
        // The controls: no wait, or a disk that lies.
        let some = |what: &str, mut lost: Box<dyn FnMut(u64) -> u64>| {
            assert!((1..25).any(|seed| lost(seed) > 0), "{mode:?}: {what} is not detected");
        };
        some("a missing wait", Box::new(move |seed| lost(mode, Wait::No, None, seed)));
        let lie = move |seed| (0..200).map(|call| lost(mode, Wait::Thread, Some(call), seed)).max();
        some("a skipped sync", Box::new(move |seed| lie(seed).unwrap()));
    }
}

#[test]
fn nothing_is_synced_without_commits() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    commit_and_wait(&store, Wait::Thread).unwrap();
    let calls = disk.calls().total();
    store.sync().unwrap();
    block_on(store.sync_async()).unwrap();
    store.read(|tx| tx.get(&ROWS, 1)).unwrap();
    store.sync().unwrap();
    assert_eq!(disk.calls().total(), calls);
    // Inside a transaction `sync` neither waits for that transaction nor makes it durable.
    store
        .write(|tx| {
            tx.put(&ROWS, 1, 7)?;
            store.sync()
        })
        .unwrap();
    assert!(disk.calls().total() > calls);
}

#[test]
fn a_failed_sync_is_an_error_and_undoes_nothing() {
    let fails = [Fault::Device, Fault::NoSpace, Fault::Dropped];
    for (wait, fault) in [Wait::Thread, Wait::Task].into_iter().flat_map(|w| fails.map(|f| (w, f)))
    {
        let disk = Simulated::new();
        let store = begin(&disk, Mode::None).unwrap();
        store.put(&ROWS, 0, 0).unwrap();
        store.sync().unwrap();
        disk.plan(disk.calls().total() + 1, fault);
        let told = commit_and_wait(&store, wait);
        assert!(matches!(told, Err(Error::CommitUnknown { .. })), "{wait:?}: {told:?}");
        assert_eq!(disk.fired(), 1);
        assert_eq!(store.get(&ROWS, 1), Ok(Some(1)), "the commit was taken back");
        assert!(store.sync().is_err(), "a later sync reports durability");
    }
}

#[test]
fn a_sync_that_found_no_room_is_repeated() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    store.put(&ROWS, 0, 0).unwrap();
    disk.plan(disk.calls().total(), Fault::NoSpace);
    assert!(matches!(store.sync(), Err(Error::CommitUnknown { .. })));
    assert_eq!(disk.fired(), 1);
    store.sync().unwrap();
    disk.crash();
    drop(store);
    disk.restart(1);
    assert_eq!(begin(&disk, Mode::None).unwrap().get(&ROWS, 0), Ok(Some(0)));
}

/// A store with durable commits, in which row 0 is durable as 0, and committed as 1 but not
/// durable.
fn begun(disk: &Simulated) -> Store<Native> {
    begun_in(disk).1
}

fn begun_in(disk: &Simulated) -> (Region<Native>, Store<Native>) {
    let (region, store) = begin_in(disk, sizes(Mode::Full)).unwrap();
    store.put(&ROWS, 0, 0).unwrap();
    store.put(&TABLE, b"", b"").unwrap();
    disk.plan(disk.calls().total(), Fault::NoSpace);
    assert!(matches!(store.put(&ROWS, 0, 1), Err(Error::CommitUnknown { .. })));
    assert_eq!((disk.fired(), store.get(&ROWS, 0)), (1, Ok(Some(0))), "visible before durable");
    (region, store)
}

/// Creating a table reveals no commit of others that is not durable.
#[test]
fn a_new_table_shows_no_commit_of_others() {
    const NEW: Table<u64, u64> = Table::new("new");
    let disk = Simulated::new();
    let store = begun(&disk);
    disk.plan(disk.calls().total(), Fault::NoSpace);
    let looked = store.write(|tx| tx.get(&NEW, 0));
    assert!(matches!(looked, Err(Error::ReadsUnknown { ended: None, .. })), "{looked:?}");
    assert_eq!(disk.fired(), 2);
    assert_eq!((store.get(&ROWS, 0), store.get(&NEW, 0)), (Ok(Some(0)), Ok(None)));
    // Tools that list the owners of pages know the table.
    assert_eq!(store.space().unwrap().lost, 0);
    assert!(store.pages().unwrap().iter().any(|table| table.name == NEW.name()));
    store.put(&NEW, 0, 5).unwrap();
    assert_eq!((store.get(&NEW, 0), store.get(&ROWS, 0)), (Ok(Some(5)), Ok(Some(1))));
}

/// A transaction that fails waits for the commits of others, and not for its own changes or those
/// of an open transaction.
#[test]
fn a_failing_transaction_waits_for_committed_changes_only() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::Full).unwrap();
    store.put(&ROWS, 0, 0).unwrap();
    let mut open = store.begin().unwrap();
    open.put(&ROWS, 7, 7).unwrap();
    let before = disk.calls()[Operation::Sync];
    let fails = || Err::<(), _>(Error::Rejected("no".to_owned()));
    for _ in 0..10 {
        store.write(|tx| tx.put(&ROWS, 1, 1).and_then(|()| fails())).unwrap_err();
        store.write(|tx| tx.get(&ROWS, 0)).unwrap();
    }
    assert_eq!(disk.calls()[Operation::Sync], before);
    open.commit().unwrap();
}

/// Reads row 0 and fails to commit, because its last write is too long.
fn read_and_fail(tx: &mut WriteTxn<'_, '_, Native>) -> Result<(), Error> {
    assert_eq!(tx.get(&ROWS, 0), Ok(Some(1)));
    tx.put_final(&TABLE, &[7; 1000], b"")
}

fn by_hand(store: &Store<Native>) -> Result<Transaction<Native>, Error> {
    let mut txn = store.begin()?;
    txn.with(read_and_fail).map(|()| txn)
}

async fn in_task(store: &Store<Native>) -> Result<AsyncTransaction<Native>, Error> {
    let mut txn = store.begin_async().await?;
    txn.with(read_and_fail).await.map(|()| txn)
}

/// A transaction that fails.
type Way<'w> = &'w dyn Fn(&Store<Native>) -> Result<(), Error>;

/// The error of a failed transaction may reveal what it has read, so that is made durable as well.
#[test]
fn a_failing_transaction_makes_the_commits_it_read_durable() {
    let poor = || Error::Rejected("poor".to_owned());
    let ways: [Way<'_>; 10] = [
        &|store| store.write(|tx| tx.insert(&ROWS, 0, 7)),
        &|store| store.write_as(|tx| tx.get(&ROWS, 0).map_err(|_| poor()).and(Err(poor()))),
        &|store| block_on(store.write_async(|mut tx| async move { tx.insert(&ROWS, 0, 7).await })),
        &|store| {
            let body = |mut tx: latchwork_store::TransactionGuard<Native>| async move {
                tx.get(&ROWS, 0).await.and(Err(poor()))
            };
            block_on(store.write_async(body))
        },
        &|store| by_hand(store)?.roll_back().and(Err(poor())),
        &|store| by_hand(store)?.commit().map(drop),
        &|store| by_hand(store)?.prepare(b"id"),
        &|store| {
            let mut restarted = by_hand(store)?;
            restarted.restart()?;
            restarted.roll_back().and(Err(poor()))
        },
        &|store| block_on(async { in_task(store).await?.roll_back().await.and(Err(poor())) }),
        &|store| block_on(async { in_task(store).await?.commit().await.map(drop) }),
    ];
    for (way, fail) in ways.into_iter().enumerate() {
        let disk = Simulated::new();
        let store = begun(&disk);
        let told = fail(&store);
        let is_its = |why: &Error| {
            matches!(why, Error::Exists { .. } | Error::Rejected(_) | Error::KeyTooLong { .. })
        };
        assert!(told.as_ref().is_err_and(is_its), "{way}: {told:?}");
        disk.crash();
        drop(store);
        disk.restart(way as u64);
        let store = begin(&disk, Mode::Full).unwrap();
        assert_eq!(store.get(&ROWS, 0), Ok(Some(1)), "{way}");
    }
}

/// If the data that a transaction has read cannot be made durable, its caller gets that error, with
/// the original error in it.
#[test]
fn a_failed_log_is_reported_to_readers() {
    let rejected = || Error::Rejected("it is 1".to_owned());
    let rejects = |read: Option<u64>| assert_eq!(read, Some(1));
    let ways: [(bool, Way<'_>); 8] = [
        (false, &|store| store.write(|tx| tx.get(&ROWS, 0)).map(rejects)),
        (true, &|store| store.write(|tx| tx.get(&ROWS, 0).map(rejects).and(Err(rejected())))),
        (false, &|store| {
            store.write_as(|tx| tx.get(&ROWS, 0).map(rejects).and(Err::<(), _>(rejected())))
        }),
        (true, &|store| {
            let body = |mut tx: latchwork_store::TransactionGuard<Native>| async move {
                tx.get(&ROWS, 0).await.map(rejects).and(Err(rejected()))
            };
            block_on(store.write_async(body))
        }),
        (false, &|store| by_hand(store)?.roll_back()),
        (true, &|store| by_hand(store)?.commit().map(drop)),
        (false, &|store| block_on(async { in_task(store).await?.roll_back().await })),
        (true, &|store| block_on(async { in_task(store).await?.commit().await.map(drop) })),
    ];
    for (way, (with_end, read)) in ways.into_iter().enumerate() {
        let disk = Simulated::new();
        let store = begun(&disk);
        disk.plan(disk.calls().total(), Fault::Device);
        let Err(Error::ReadsUnknown { ended, why }) = read(&store) else { panic!("{way}") };
        assert_eq!(ended.is_some(), with_end, "{way}: {ended:?}");
        assert!(matches!(*why, Error::Log(LogError::Broken)), "{way}: {why}");
        assert_eq!(disk.fired(), 2);
    }
}

/// After the death of all threads that commit durably, a sweep makes their commits durable, so that
/// snapshots see them as transactions do.
#[test]
fn a_sweep_makes_commits_of_dead_threads_durable() {
    let disk = Simulated::new();
    let (region, store) = begun_in(&disk);
    assert_eq!(store.sweep(), Ok(0));
    assert_eq!(store.get(&ROWS, 0), Ok(Some(0)));
    let dead = region.thread().unwrap();
    dead.abandon();
    drop(dead);
    assert_eq!(store.sweep(), Ok(1));
    assert_eq!(store.get(&ROWS, 0), Ok(Some(1)));
    disk.crash();
    drop(store);
    disk.restart(1);
    assert_eq!(begin(&disk, Mode::Full).unwrap().get(&ROWS, 0), Ok(Some(1)));
}
