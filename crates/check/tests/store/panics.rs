//! Closures that panic: no part of their writes is committed, and no lock is left.

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

/// The error of later calls of a transaction in which a closure has panicked.
fn panicked() -> Error {
    Error::Aborted { why: Box::new(Error::Panicked) }
}

fn panics<R>(work: impl FnOnce() -> R) {
    assert!(catch_unwind(AssertUnwindSafe(work)).is_err(), "no panic");
}

/// Writes one row and panics before it writes the other.
fn half(tx: &mut WriteTxn<'_, '_, Native>) -> Result<(), Error> {
    tx.put(&ROWS, 0, 90)?;
    panic!("between two writes")
}

/// A last write, which the commit would perform, followed by a panic.
fn half_last(tx: &mut WriteTxn<'_, '_, Native>) -> Result<(), Error> {
    tx.put_final(&ROWS, 0, 90)?;
    panic!("behind a last write")
}

thread_local! {
    /// After how many changes of pages this thread panics. 0: never.
    static CHANGES: Cell<u32> = const { Cell::new(0) };
    /// At which step of that change.
    static STEP: Cell<&'static str> = const { Cell::new(DONE) };
}

/// Steps of a change: before its record is logged, and after the change.
const INTENDED: &str = "change.intended";
const DONE: &str = "change.done";

fn at_step(step: &'static str) {
    if step == STEP.get() && CHANGES.get() > 0 {
        CHANGES.set(CHANGES.get() - 1);
        assert!(CHANGES.get() > 0, "a page is changed");
    }
}

/// Returns whether `work` panicked in its `change`th change of a page.
fn panics_in(change: u32, work: impl FnOnce()) -> bool {
    latchwork_pool::set_point_hook(at_step);
    CHANGES.set(change);
    let ended = catch_unwind(AssertUnwindSafe(work));
    CHANGES.set(0);
    ended.is_err()
}

/// A write whose record is logged before the panic is undone with the others. If it was the last
/// write, it has committed the transaction.
#[test]
fn a_write_that_panics_after_its_record_is_undone() {
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
        // The next commit of this thread commits nothing else.
        store.write(|tx| tx.put(&ROWS, 2, 1)).unwrap();
        assert_eq!(rows(&store)[..2], is_whole, "first: {first}, last: {last}");
        assert_eq!(store.counts().unwrap().locks, 0);
        store.verify().unwrap();
    }
}

/// A thread undoes another's transaction that keeps too much of the log, and panics. The owner of
/// the transaction undoes the rest.
#[test]
fn a_panic_in_undoing_for_another_leaves_the_rest_to_that_thread() {
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

/// A thread panics while it rolls back a prepared transaction; a sweep completes the rollback.
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
fn a_panicking_closure_commits_nothing() {
    for half in [half, half_last] {
        let store = filled();
        let mut txn = store.begin().unwrap();
        txn.put(&ROWS, 2, 1).unwrap();
        let here = txn.savepoint().unwrap();
        panics(|| txn.with(half));
        // The transaction can only be rolled back as a whole.
        assert_eq!(txn.get(&ROWS, 0), Err(panicked()));
        assert_eq!(txn.put(&ROWS, 1, 110), Err(panicked()));
        assert_eq!(txn.roll_back_to(here), Err(panicked()));
        assert!(!panicked().is_retryable(), "a retry would panic again");
        assert_eq!(txn.commit(), Err(panicked()));
        assert_eq!(rows(&store), BEFORE);
        assert_eq!(store.counts().unwrap().locks, 0);
    }
}

#[test]
fn a_transaction_restarted_after_a_panic_commits() {
    let store = filled();
    let mut txn = store.begin().unwrap();
    panics(|| txn.with(half));
    txn.restart().unwrap();
    txn.put(&ROWS, 0, 95).unwrap();
    assert!(txn.commit().unwrap().is_some());
    assert_eq!(rows(&store), [(0, 95), (1, 100)]);
    // A prepared transaction could be committed by other threads.
    let mut txn = store.begin().unwrap();
    panics(|| txn.with(half));
    assert_eq!(txn.prepare(b"half"), Err(panicked()));
    assert!(store.prepared().unwrap().is_empty());
}

#[test]
fn a_panicking_task_commits_nothing() {
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
fn panicking_closures_of_a_store_or_a_record_change_nothing() {
    let store = filled();
    panics(|| store.write(half));
    panics(|| store.write_as(half));
    panics(|| store.write(|tx| tx.update(&ROWS, 0, |_| panic!("no new value"))));
    assert_eq!(rows(&store), BEFORE);
    // The closure of one record panics before the record is written: if the panic is caught inside
    // the transaction, the transaction continues.
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

/// A single call that writes several records to the log.
type Call = fn(&mut WriteTxn<'_, '_, Native>) -> Result<(), Error>;

fn rolls_back(tx: &mut WriteTxn<'_, '_, Native>) -> Result<(), Error> {
    let here = tx.savepoint()?;
    let changes = CHANGES.replace(0);
    (0..2).try_for_each(|row| tx.put(&ROWS, row, 90))?;
    CHANGES.set(changes);
    tx.roll_back_to(here)
}

/// Returns how a transaction ends that catches the panic of such a call at a change, or None if the
/// call makes fewer changes. The transaction has written a row before.
fn ends(store: &Store<Native>, call: Call, change: u32) -> Option<Result<(), Error>> {
    let mut panicked = false;
    let ended = store.write(|tx| {
        tx.put(&ROWS, 2, 1)?;
        panicked = panics_in(change, || drop(call(tx)));
        Ok(())
    });
    panicked.then_some(ended)
}

/// A closure that catches the panic of such a call and returns commits no part of the call.
#[test]
fn a_panicking_call_commits_nothing() {
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
                // Either nothing of the call was written, or the transaction failed.
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
            assert!(refused > 0 && change > 2, "no call was interrupted at {step}");
        }
    }
}

/// A panic in the iterator of a load has the effect of an error.
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

/// A thread-local value that uses the store when the thread ends.
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

/// A store that is used while thread-local values are dropped returns an error and does not end the
/// process. Values are dropped in reverse order of creation.
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
