//! Closures that panic: half of what they write is committed by nobody, and nothing stays locked.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use latchwork_check::tasks::block_on;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Sequence, Store, Table, WriteTxn};

use crate::stage::begin;

const ROWS: Table<u64, u64> = Table::new("rows");
const LONG: Table<u64, &[u8]> = Table::new("long");

fn filled() -> Store<Native> {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.write(|tx| (0..2).try_for_each(|row| tx.put(&ROWS, row, 100))).unwrap();
    store
}

fn rows(store: &Store<Native>) -> Vec<(u64, u64)> {
    store.read(|tx| tx.range(&ROWS, ..)?.collect()).unwrap()
}

const BEFORE: [(u64, u64); 2] = [(0, 100), (1, 100)];

/// What the next call of a transaction says in which something has panicked.
fn panicked() -> Error {
    Error::Aborted { why: Box::new(Error::Panicked) }
}

fn panics<R>(work: impl FnOnce() -> R) {
    assert!(catch_unwind(AssertUnwindSafe(work)).is_err(), "it did not panic");
}

/// Takes from one row, and dies before it gives to the other.
fn half(tx: &mut WriteTxn<'_, '_, Native>) -> Result<(), Error> {
    tx.put(&ROWS, 0, 90)?;
    panic!("between two writes")
}

/// The last write, which the commit would do.
fn half_last(tx: &mut WriteTxn<'_, '_, Native>) -> Result<(), Error> {
    tx.put_final(&ROWS, 0, 90)?;
    panic!("behind a last write")
}

thread_local! {
    /// How many more pages this thread changes until it panics; 0 if it does not.
    static CHANGES: Cell<u32> = const { Cell::new(0) };
    /// At which step of that change.
    static STEP: Cell<&'static str> = const { Cell::new(DONE) };
}

/// Steps of a change: before its record is in the log, and behind all of it.
const INTENDED: &str = "change.intended";
const DONE: &str = "change.done";

fn at_step(step: &'static str) {
    if step == STEP.get() && CHANGES.get() > 0 {
        CHANGES.set(CHANGES.get() - 1);
        assert!(CHANGES.get() > 0, "a page is changed");
    }
}

/// Whether it panicked in its `change`th change of a page.
fn panics_in(change: u32, work: impl FnOnce()) -> bool {
    latchwork_pool::set_point_hook(at_step);
    CHANGES.set(change);
    let ended = catch_unwind(AssertUnwindSafe(work));
    CHANGES.set(0);
    ended.is_err()
}

/// A write that is in the log when something panics is undone with the others, be it the first, and
/// has committed the transaction if it was the last.
#[test]
fn a_write_that_panics_behind_its_record_is_no_half() {
    for (first, last) in [(true, false), (false, false), (false, true)] {
        let store = filled();
        let panicked = panics_in(if first { 1 } else { 2 }, || {
            let _ = store.write(|tx| {
                if !first {
                    tx.put(&ROWS, 1, 110)?;
                }
                if last { tx.put_final(&ROWS, 0, 90) } else { tx.put(&ROWS, 0, 90) }
            });
        });
        assert!(panicked);
        let is_whole = if last { [(0, 90), (1, 110)] } else { BEFORE };
        assert_eq!(rows(&store), is_whole, "first: {first}, last: {last}");
        // By the same thread, whose next commit commits nothing else.
        store.write(|tx| tx.put(&ROWS, 2, 1)).unwrap();
        assert_eq!(rows(&store)[..2], is_whole, "first: {first}, last: {last}");
        assert_eq!(store.counts().unwrap().locks, 0);
        store.verify().unwrap();
    }
}

/// What a thread that panics has not undone of another's transaction, which keeps too much of the
/// log, that one undoes.
#[test]
fn a_panic_in_undoing_for_another_leaves_the_rest_to_it() {
    for change in 1.. {
        let store = filled();
        let mut old = store.begin().unwrap();
        (0..2).for_each(|row| old.put(&ROWS, row, 90).unwrap());
        let long = |tx: &mut WriteTxn<'_, '_, Native>| {
            (0..200).try_for_each(|row| tx.put(&LONG, row, &[1; 100_000]))
        };
        store.write(long).unwrap();
        let panicked = panics_in(change, || store.checkpoint().unwrap());
        assert!(old.put(&ROWS, 2, 1).is_err() || panicked, "it was not too old");
        drop(old);
        assert_eq!(rows(&store), BEFORE, "{change}");
        assert_eq!(store.counts().unwrap().locks, 0, "{change}");
        if !panicked {
            assert!(change > 2, "nothing was undone");
            break;
        }
    }
}

/// A prepared transaction of which a thread that panicked has undone a part is a sweep's.
#[test]
fn a_panic_in_rolling_back_a_prepared_transaction_leaves_it_to_a_sweep() {
    for change in 1..3 {
        let store = filled();
        let mut tx = store.begin().unwrap();
        (0..2).for_each(|row| tx.put(&ROWS, row, 90).unwrap());
        tx.prepare(b"one").unwrap();
        assert!(panics_in(change, || store.roll_back_prepared(b"one").unwrap()));
        store.sweep().unwrap();
        assert_eq!(rows(&store), BEFORE, "{change}");
        assert_eq!((store.prepared().unwrap().len(), store.counts().unwrap().locks), (0, 0));
    }
}

#[test]
fn half_of_a_closure_is_not_committed() {
    for half in [half, half_last] {
        let store = filled();
        let mut txn = store.begin().unwrap();
        txn.put(&ROWS, 2, 1).unwrap();
        let here = txn.savepoint().unwrap();
        panics(|| txn.with(half));
        // It can be rolled back, as a whole, and nothing else.
        assert_eq!(txn.get(&ROWS, 0), Err(panicked()));
        assert_eq!(txn.put(&ROWS, 1, 110), Err(panicked()));
        assert_eq!(txn.roll_back_to(here), Err(panicked()));
        assert!(!panicked().is_retryable(), "run again, it would panic again");
        assert_eq!(txn.commit(), Err(panicked()));
        assert_eq!(rows(&store), BEFORE);
        assert_eq!(store.counts().unwrap().locks, 0);
    }
}

#[test]
fn begun_anew_it_goes_on() {
    let store = filled();
    let mut txn = store.begin().unwrap();
    panics(|| txn.with(half));
    txn.restart().unwrap();
    txn.put(&ROWS, 0, 95).unwrap();
    assert!(txn.commit().unwrap().is_some());
    assert_eq!(rows(&store), [(0, 95), (1, 100)]);
    // One that is prepared would be committed by others.
    let mut txn = store.begin().unwrap();
    panics(|| txn.with(half));
    assert_eq!(txn.prepare(b"half"), Err(panicked()));
    assert!(store.prepared().unwrap().is_empty());
}

#[test]
fn a_task_commits_no_half_either() {
    let store = filled();
    let mut txn = block_on(store.begin_async()).unwrap();
    block_on(txn.put(&ROWS, 2, 1)).unwrap();
    panics(|| block_on(txn.with(half)));
    assert_eq!(block_on(txn.get(&ROWS, 0)), Err(panicked()));
    assert_eq!(block_on(txn.commit()), Err(panicked()));
    assert_eq!(rows(&store), BEFORE);
    assert_eq!(store.counts().unwrap().locks, 0);
}

#[test]
fn closures_of_the_store_and_of_a_record_change_nothing() {
    let store = filled();
    panics(|| store.write(half));
    panics(|| store.write_as(half));
    panics(|| store.write(|tx| tx.update(&ROWS, 0, |_| panic!("no new value"))));
    assert_eq!(rows(&store), BEFORE);
    // A closure of one record panics before the record is written: who catches that inside goes on.
    let caught = store.write(|tx| {
        tx.put(&ROWS, 1, 101)?;
        panics(|| tx.update(&ROWS, 0, |_| panic!("no new value")));
        Ok(())
    });
    assert_eq!((caught, rows(&store)), (Ok(()), vec![(0, 100), (1, 101)]));
    panics(|| store.read(|_| -> Result<(), Error> { panic!("in a snapshot") }));
    assert_eq!(store.counts().unwrap().locks, 0);
    store.verify().unwrap();
}

/// What is one call to its caller, and several writes to the log.
type Call = fn(&mut WriteTxn<'_, '_, Native>) -> Result<(), Error>;

fn rolls_back(tx: &mut WriteTxn<'_, '_, Native>) -> Result<(), Error> {
    let here = tx.savepoint()?;
    let changes = CHANGES.replace(0);
    (0..2).try_for_each(|row| tx.put(&ROWS, row, 90))?;
    CHANGES.set(changes);
    tx.roll_back_to(here)
}

/// How a transaction ends that catches the panic of such a call at a change; none if there was no
/// such change. It has written a row before.
fn ends(store: &Store<Native>, call: Call, change: u32) -> Option<Result<(), Error>> {
    let mut panicked = false;
    let ended = store.write(|tx| {
        tx.put(&ROWS, 2, 1)?;
        panicked = panics_in(change, || drop(call(tx)));
        Ok(())
    });
    panicked.then_some(ended)
}

/// A closure that catches the panic of such a call, and returns, commits no part of it.
#[test]
fn half_of_a_call_is_not_committed() {
    let calls: [(Call, &[(u64, u64)]); 3] = [
        (|tx| tx.put(&LONG, 0, &[1; 100_000]), &BEFORE),
        (|tx| tx.remove_range(&ROWS, ..2).map(drop), &BEFORE),
        (rolls_back, &[(0, 90), (1, 90)]),
    ];
    for (call, untouched) in calls {
        for step in [INTENDED, DONE] {
            let (mut refused, mut change) = (0, 1);
            STEP.set(step);
            loop {
                let store = filled();
                let Some(ended) = ends(&store, call, change) else { break };
                // Nothing of the call was written, or nothing of all.
                let left = match ended {
                    Ok(()) => [untouched, &[(2, 1)]].concat(),
                    Err(why) if why == panicked() => BEFORE.to_vec(),
                    Err(other) => panic!("{other}"),
                };
                refused += u32::from(left.len() == 2);
                assert_eq!(rows(&store), left, "{step} {change}");
                assert_eq!(store.get(&LONG, 0), Ok(None), "{step} {change}");
                assert_eq!(store.counts().unwrap().locks, 0);
                change += 1;
            }
            STEP.set(DONE);
            assert!(refused > 0 && change > 2, "nothing was half done at {step}");
        }
    }
}

/// Rows of a load that panic: as one that fails.
#[test]
fn a_load_that_panics_keeps_no_page() {
    const LOADED: Table<u64, &[u8]> = Table::new("loaded");
    let store = filled();
    for panics_at in [0, 10, 3000] {
        let row = |row| (row, if row == panics_at { panic!("at a row") } else { &[7; 100][..] });
        panics(|| store.load_sorted(&LOADED, (0..4000).map(row)));
        store.put(&ROWS, 0, 100).unwrap();
        let space = store.space().unwrap();
        assert_eq!(space.lost, 0, "{panics_at}: {space:?}");
    }
    let loaded = store.load_sorted(&LOADED, (0..4000).map(|row| (row, &[7; 100][..])));
    assert_eq!((loaded, rows(&store)), (Ok(4000), BEFORE.to_vec()));
}

/// What a thread has at its end, and uses the store once more.
struct AtEnd(Store<Native>, Sender<Result<(), Error>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let _ = self.0.next_number(&Sequence::new("numbers"));
        self.1.send(self.0.put(&ROWS, 7, 7)).unwrap();
    }
}

thread_local! {
    static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
}

/// A store that is used where the values of a thread are dropped says that it is too late, and ends
/// no process: those that came last go first.
#[test]
fn a_store_used_at_a_threads_end_is_no_panic() {
    for early in [true, false] {
        let (store, (said, heard)) = (filled(), channel());
        let put = |store: &Store<Native>| store.put(&ROWS, 1, 100).unwrap();
        let thread = thread::spawn(move || {
            if !early {
                put(&store);
            }
            AT_END.set(Some(AtEnd(store.clone(), said)));
            put(&store);
        });
        thread.join().unwrap();
        let ended = heard.recv().unwrap();
        match early {
            true => assert_eq!(ended, Err(Error::ThreadEnds)),
            false => assert_eq!(ended, Ok(())),
        }
    }
}
