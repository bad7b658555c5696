//! Loaded tables equal written ones, and exist completely or not at all.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_check::tasks::{Task, block_on, join};
use latchwork_disk::{Disk, Fault, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Sizes, Store, Table, TxnOptions};

use crate::stage::{begin, begin_in, begin_with, sizes};

const LOADED: Table<&[u8], &[u8]> = Table::new("loaded");
const WRITTEN: Table<&[u8], &[u8]> = Table::new("written");

const NUMBERS: Table<u64, u64> = Table::new("numbers");
const NUMBERED: Table<u64, &[u8]> = Table::new("numbered");
const AGAIN: Table<u64, &[u8]> = Table::new("again");

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Sorted rows: keys with and without common prefixes, some of the maximum length.
fn rows(count: u64, seed: u64) -> Rows {
    let mut random = Random(seed);
    let mut all: Rows = (0..count)
        .map(|_| {
            let number = random.below(1 << 40);
            let key = match random.below(20) {
                0 => vec![number as u8; random.below(300) as usize],
                1..5 => format!("a longer beginning that many have {number:012}").into_bytes(),
                _ => number.to_be_bytes().to_vec(),
            };
            (
                key,
                vec![
                    number as u8;
                    random.below(if number.is_multiple_of(50) { 600 } else { 90 }) as usize
                ],
            )
        })
        .collect();
    all.sort();
    all.dedup_by(|a, b| a.0 == b.0);
    all
}

fn load(store: &Store<Native>, rows: &Rows) -> Result<u64, Error> {
    store.load_sorted(&LOADED, rows.iter().map(|(key, value)| (&key[..], &value[..])))
}

fn found(store: &Store<Native>) -> Rows {
    store.read(|tx| tx.range(&LOADED, ..)?.collect::<Result<_, _>>()).unwrap()
}

fn bytes(disk: &Simulated) -> usize {
    disk.peek(Path::new("/home/store/data")).map_or(0, |data| data.len())
}

/// The last page of a level has no upper fence, so prefix truncation is not used there.
#[test]
fn any_number_of_keys_with_one_prefix_is_loaded() {
    for count in (100..1500).step_by(7).chain([9000, 20_000]) {
        let store = begin(&Simulated::new(), Mode::None).unwrap();
        let key = |n: u64| format!("a beginning that all of them have, and it is long:{n:012}");
        let rows: Rows = (0..count).map(|n| (key(n).into_bytes(), vec![7; 8])).collect();
        assert_eq!(load(&store, &rows), Ok(count), "{count}");
        assert!(found(&store) == rows, "{count}");
        store.verify().unwrap();
    }
}

/// A loaded table is visible to all later transactions, whatever its session commits afterwards and
/// whichever transactions are open.
#[test]
fn a_table_is_loaded_while_transactions_are_open() {
    let disk = Simulated::new();
    let (region, store) = begin_in(&disk, sizes(Mode::None)).unwrap();
    let mut open = store.begin().unwrap();
    open.put(&WRITTEN, b"open", b"").unwrap();
    let rows = rows(300, 5);
    load(&store, &rows).unwrap();
    const PUT: Table<&[u8], &[u8]> = Table::new("put");
    for _ in 0..200 {
        store.put(&PUT, b"a", b"1").unwrap();
    }
    // A store handle without cached table names.
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let folder = Path::new("/home/store");
    let other = Store::in_region(&region, &disk, folder, &sizes(Mode::None)).unwrap();
    for store in [&store, &other] {
        assert!(found(store) == rows);
        assert_eq!(store.get(&PUT, b"a"), Ok(Some(b"1".to_vec())));
        assert_eq!(store.read(|tx| tx.count(&LOADED, ..)), Ok(300));
    }
    assert_eq!(other.drop_table(LOADED.name(), &mut |_| {}), Ok(300));
    drop(open);
}

/// Trees of one page to three levels.
#[test]
fn pages_of_a_failed_load_are_reused() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let mut pages = 0;
    for round in 0..12 {
        for count in [0, 1, 2, 40, 300, 9000] {
            let mut rows = rows(count, 7);
            rows.push((Vec::new(), vec![1]));
            rows.push((Vec::new(), vec![2]));
            let refused = load(&store, &rows);
            assert!(matches!(refused, Err(Error::OutOfOrder { .. })), "{count}: {refused:?}");
            let space = store.space().unwrap();
            assert_eq!(space.lost, 0, "{count} in round {round}: {space:?}");
            pages = if round == 0 { pages.max(space.pages) } else { pages };
            assert_eq!(space.pages, pages, "{count} in round {round}");
        }
    }
    assert!(pages > 200, "{pages}");
    let rows = rows(9000, 7);
    assert_eq!(load(&store, &rows), Ok(rows.len() as u64));
    assert!(found(&store) == rows);
    store.verify().unwrap();
}

/// The disk is full at every few pages of a load. Freeing pages may fail as well, and is retried.
#[test]
fn a_full_disk_in_a_load_loses_no_page() {
    let rows = rows(3000, 12);
    let (mut refused, mut loaded) = (0, 0);
    for room in (0..).map(|nth| nth * 5 * 4096) {
        let disk = Simulated::new();
        let store = begin(&disk, Mode::None).unwrap();
        store.put(&WRITTEN, &[1][..], &[1][..]).unwrap();
        disk.set_capacity(Some(room));
        let first = load(&store, &rows);
        disk.set_capacity(None);
        match first {
            Ok(_) => loaded += 1,
            Err(why) => {
                assert!(why.is_no_space(), "{room}: {why}");
                refused += 1;
                assert!(found(&store).is_empty(), "{room}");
                assert_eq!(load(&store, &rows), Ok(rows.len() as u64), "{room}");
            }
        }
        assert!(found(&store) == rows, "{room}");
        let space = store.space().unwrap();
        assert_eq!(space.lost, 0, "{room}: {space:?}");
        if loaded == 3 {
            break;
        }
    }
    println!("{refused} loads met a full disk");
    assert!(refused > 10, "{refused}");
}

/// The root page of a failed load is reused as a leaf and becomes empty. On disk it is still that
/// root, above a page that is now a live leaf. A thread that allocates it for a new table and
/// cannot write it must free this page alone.
#[test]
fn an_unwritten_root_refers_to_no_page() {
    let disk = Simulated::new();
    let calm = Sizes {
        cache: 4 << 20,
        log_buffer: 4 << 20,
        log_segment: 4 << 20,
        log_budget: 64 << 20,
        history: 64 << 20,
        ..sizes(Mode::None)
    };
    let store = begin_with(&disk, calm).unwrap();
    let put = |row: u64| store.put(&NUMBERED, row, &[7; 300]);
    (0..100).try_for_each(put).unwrap();
    let before = store.free_pages().unwrap();
    let row = |number| (number, &[8; 300][..]);
    let checkpointed = std::iter::once_with(|| {
        thread::scope(|scope| scope.spawn(|| store.checkpoint().unwrap()).join().unwrap());
        row(0)
    });
    let refused = store.load_sorted(&AGAIN, (0..100).map(row).chain(checkpointed));
    assert!(matches!(refused, Err(Error::OutOfOrder { .. })), "{refused:?}");
    let free = || store.free_pages().unwrap().0;
    assert!(before.0 == 0 && free() > 5, "{} pages are free", free());
    // The root is allocated first, so it is the last of the pages to be reused.
    let mut rows = 100..;
    let mut fill = |to: u64| {
        rows.find(|row| {
            put(*row).unwrap();
            free() <= to
        })
        .unwrap()
    };
    let all = free();
    let gone = fill(all - 1)..fill(all - 2);
    let last = fill(0);
    store.write(|tx| tx.remove_range(&NUMBERED, gone.clone())).unwrap();
    for _ in 0..1000 {
        put(last).unwrap();
    }
    assert_eq!(free(), 1);
    disk.set_capacity(Some(0));
    assert!((0..100_000).any(|_| put(last).is_err()), "the log is not full");
    while store.put(&NUMBERED, last, &[]).is_ok() {}
    let refused = store.put(&AGAIN, 1, &[1]).unwrap_err();
    assert!(refused.is_no_space(), "{refused}");
    disk.set_capacity(None);
    store.put(&AGAIN, 1, &[1]).unwrap();
    store.verify().unwrap();
    let count = store.read(|tx| tx.count(&NUMBERED, ..)).unwrap();
    assert_eq!(count, last + 1 - (gone.end - gone.start));
    assert_eq!(store.space().unwrap().lost, 0);
}

#[test]
fn loaded_rows_are_read() {
    for (count, seed) in [(0, 1), (1, 2), (2, 3), (3, 4), (40, 5), (300, 6), (9000, 7)] {
        let disk = Simulated::new();
        let store = begin(&disk, Mode::Full).unwrap();
        let rows = rows(count, seed);
        store
            .read(|tx| {
                let before = tx.at();
                assert_eq!(load(&store, &rows), Ok(rows.len() as u64));
                assert_eq!(before, tx.at());
                assert_eq!(tx.range(&LOADED, ..)?.count(), 0, "an older snapshot sees the load");
                Ok(())
            })
            .unwrap();
        assert!(found(&store) == rows, "{count}");
        store.verify().unwrap();
        assert!(matches!(load(&store, &rows), Err(Error::TableExists { .. })));
        // It can be used like any other table.
        let mut model: std::collections::BTreeMap<_, _> = rows.iter().cloned().collect();
        let mut random = Random(seed);
        for _ in 0..300 {
            let key = match rows.get(random.roll(rows.len().max(1))) {
                Some(row) if random.below(2) == 0 => row.0.clone(),
                _ => random.below(1 << 40).to_be_bytes().to_vec(),
            };
            if random.below(3) == 0 {
                store.write(|tx| tx.remove(&LOADED, &key)).unwrap();
                model.remove(&key);
            } else {
                store.write(|tx| tx.put(&LOADED, &key, &[7; 200])).unwrap();
                model.insert(key, vec![7; 200]);
            }
        }
        let model: Rows = model.into_iter().collect();
        assert!(found(&store) == model, "{count}, written");
        store.verify().unwrap();
        drop(store);
        disk.crash();
        disk.restart(seed);
        let store = begin(&disk, Mode::Full).unwrap();
        assert!(found(&store) == model, "{count}, after a crash");
        store.verify().unwrap();
    }
}

#[test]
fn loaded_pages_are_full() {
    let (one, other) = (Simulated::new(), Simulated::new());
    let rows: Rows =
        (0..20_000u64).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 100])).collect();
    let store = begin(&one, Mode::None).unwrap();
    load(&store, &rows).unwrap();
    store.checkpoint().unwrap();
    let store = begin(&other, Mode::None).unwrap();
    for part in rows.chunks(500) {
        let put = |row: &(Vec<u8>, Vec<u8>)| (row.0.clone(), row.1.clone());
        let part: Vec<_> = part.iter().map(put).collect();
        store
            .write(|tx| part.iter().try_for_each(|(key, value)| tx.put(&WRITTEN, key, value)))
            .unwrap();
    }
    store.checkpoint().unwrap();
    println!("{} bytes loaded, {} written", bytes(&one), bytes(&other));
    assert!(bytes(&one) < 20_000 * 150, "{} bytes a record", bytes(&one) / 20_000);
    assert!(bytes(&one) <= bytes(&other) + 65 * 4096);
}

#[test]
fn a_refused_load_leaves_no_rows() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let mut rows = rows(2000, 9);
    rows.swap(700, 701);
    let why = load(&store, &rows).unwrap_err();
    assert!(matches!(&why, Error::OutOfOrder { table, .. } if table == "loaded"), "{why}");
    let numbers = store.load_sorted(&NUMBERS, [(7, 1), (5, 1)]).unwrap_err();
    assert_eq!(numbers.to_string(), "key 5 of numbers is not above the one before it");
    assert_eq!(store.tables().unwrap(), [""; 0]);
    assert!(found(&store).is_empty());
    rows.swap(700, 701);
    rows.push((vec![0xff; 400], vec![1; 5000]));
    let why = load(&store, &rows).unwrap_err();
    assert!(why.to_string().contains("may have"), "{why}");
    rows.pop();
    assert_eq!(load(&store, &rows), Ok(rows.len() as u64));
    assert!(found(&store) == rows);
    store.verify().unwrap();
}

#[test]
fn a_crash_leaves_all_of_a_load_or_nothing() {
    let rows = rows(1500, 10);
    let calls = |disk: &Simulated| Arc::new(disk.clone()).calls().total();
    let disk = Simulated::new();
    let store = begin(&disk, Mode::Full).unwrap();
    let first = calls(&disk);
    load(&store, &rows).unwrap();
    store.checkpoint().unwrap();
    let last = calls(&disk);
    let (mut whole, mut none) = (0, 0);
    for number in first..last {
        let disk = Simulated::new();
        disk.plan(number, Fault::Crash);
        let store = begin(&disk, Mode::Full).unwrap();
        let answered = load(&store, &rows).is_ok();
        let _ = store.checkpoint();
        drop(store);
        disk.crash();
        disk.restart(number);
        let store = begin(&disk, Mode::Full).unwrap();
        let there = found(&store);
        assert!(there == rows || there.is_empty() && !answered, "call {number}");
        *(if there.is_empty() { &mut none } else { &mut whole }) += 1;
        if there.is_empty() {
            load(&store, &rows).unwrap();
        }
        store.verify().unwrap();
    }
    println!("{whole} whole, {none} not at all, of {} crashes", last - first);
    assert!(whole > 0 && none > 0);
}

/// The limit on a table's name is that of other calls.
#[test]
fn a_load_creates_no_unusable_table() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    for length in [900, 901] {
        let table: Table<u64, u64> = Table::named(&"n".repeat(length));
        let loaded = store.load_sorted(&table, [(1, 2)]);
        match length {
            900 => assert_eq!((loaded, store.get(&table, 1)), (Ok(1), Ok(Some(2)))),
            _ => assert!(matches!(loaded, Err(Error::NameTooLong { .. })), "{loaded:?}"),
        }
    }
    assert_eq!(store.tables().unwrap().len(), 1);
}

/// A table that is being loaded counts as locked: a transaction waits for it within its time, and
/// gets the error of a lock.
#[test]
fn waiting_for_a_load_equals_waiting_for_a_lock() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let rows = std::iter::from_fn({
        let (store, mut left) = (&store, 1);
        move || {
            left = u64::checked_sub(left, 1)?;
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    for time in [Duration::ZERO, Duration::from_millis(5)] {
                        let patience = TxnOptions { time, ..TxnOptions::default() };
                        let mut tx = store.begin_with(&patience).unwrap();
                        let refused = tx.put(&NUMBERS, 1, 1).unwrap_err();
                        assert!(matches!(refused, Error::Lock { .. }), "{refused}");
                        assert!(refused.is_retryable());
                        let refused = store.write_with(&patience, |tx| tx.get(&NUMBERS, 1));
                        assert!(matches!(refused, Err(Error::Deadline { .. })), "{refused:?}");
                    }
                });
                other.join().unwrap();
            });
            Some((7, 7))
        }
    });
    assert_eq!(store.load_sorted(&NUMBERS, rows), Ok(1));
    assert_eq!(store.get(&NUMBERS, 7), Ok(Some(7)));
}

/// Runs `work` while a table is loaded. The load ends when `work` requests it, within 25 seconds,
/// and fails if `fails`.
fn beside_a_load(store: &Store<Native>, fails: bool, work: impl FnOnce(&dyn Fn())) {
    let ((begun, has_begun), (ends, is_to_end)) = (mpsc::channel(), mpsc::channel::<()>());
    thread::scope(|scope| {
        scope.spawn(move || {
            let row = (&b"k"[..], &b"loaded"[..]);
            let first = std::iter::once_with(|| {
                begun.send(()).unwrap();
                is_to_end.recv_timeout(Duration::from_secs(25)).expect("the thread is blocked");
                row
            });
            let loaded = store.load_sorted(&LOADED, first.chain(fails.then_some(row)));
            assert_eq!(loaded.is_err(), fails, "{loaded:?}");
        });
        has_begun.recv().unwrap();
        work(&|| ends.send(()).unwrap());
    });
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A task waits for a table that is loaded without blocking its thread.
#[test]
fn a_task_waits_for_a_load_without_blocking_its_thread() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    beside_a_load(&store, false, |end| {
        let held = &mut [store.begin_async(), store.begin_async()].map(|tx| block_on(tx).unwrap());
        let [tx, reader] = held;
        let mut put = Box::pin(tx.put(&LOADED, b"k", b"put"));
        let mut got = Box::pin(reader.with(|tx| tx.get(&LOADED, b"k")));
        assert!(poll(put.as_mut()).is_pending());
        assert!(poll(got.as_mut()).is_pending());
        // The deadline is observed.
        let short = TxnOptions { time: Duration::from_millis(1), ..TxnOptions::default() };
        let late = store.write_async_with(&short, async |mut tx| tx.get(&LOADED, b"k").await);
        let late = block_on(late).unwrap_err();
        assert!(matches!(&late, Error::Deadline { .. }), "{late:?}");
        assert!(late.to_string().contains("catalog"), "{late}");
        end();
        // In queue order: the writer is first.
        assert!(poll(got.as_mut()).is_pending());
        assert_eq!(block_on(put), Ok(()));
        assert!(poll(got.as_mut()).is_pending(), "the record is locked by its writer");
        drop(got);
    });
    assert_eq!(store.get(&LOADED, b"k"), Ok(Some(b"loaded".to_vec())));
    let counts = store.counts().unwrap();
    assert_eq!((counts.locks, counts.transactions), (0, 0));
}

/// After a failed load the tasks that waited for it create the table.
#[test]
fn tasks_create_the_table_after_a_failed_load() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    beside_a_load(&store, true, |end| {
        let store = &store;
        let put = |key: u8| -> Option<Task<'_>> {
            let mut put =
                Box::pin(store.write_async(move |mut tx| async move {
                    tx.put(&LOADED, &[key], b"put").await
                }));
            assert!(poll(put.as_mut()).is_pending());
            Some(Box::pin(async move { put.await.unwrap() }))
        };
        let puts = (0..3).map(put).collect();
        end();
        join(puts);
    });
    assert_eq!(store.read(|tx| tx.count(&LOADED, ..)), Ok(3));
}

/// A transaction that failed to get the table commits none of its writes.
#[test]
fn a_transaction_that_did_not_get_its_table_commits_nothing() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.put(&WRITTEN, b"k", b"old").unwrap();
    beside_a_load(&store, false, |end| {
        let short = TxnOptions { time: Duration::ZERO, ..TxnOptions::default() };
        let mut tx = store.begin_with(&short).unwrap();
        tx.put(&WRITTEN, b"k", b"new").unwrap();
        let refused = tx.put(&LOADED, b"k", b"new").unwrap_err();
        assert!(matches!(refused, Error::Lock { .. }), "{refused:?}");
        assert_eq!(tx.commit(), Err(Error::Aborted { why: Box::new(refused) }));
        end();
    });
    assert_eq!(store.get(&WRITTEN, b"k"), Ok(Some(b"old".to_vec())));
}
