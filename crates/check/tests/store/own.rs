//! Threads that would wait for themselves.

use core::time::Duration;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use latchwork_check::tasks::block_on;
use latchwork_disk::Simulated;
use latchwork_lockmgr::Error as Lock;
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Store, Table, TransactionGuard, TxnOptions};

use crate::stage::begin;

const ROWS: Table<u64, u64> = Table::new("rows");

fn store() -> Store<Native> {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.put(&ROWS, 1, 0).unwrap();
    store
}

fn labelled(label: &'static str, seconds: u64) -> TxnOptions {
    TxnOptions { label, time: Duration::from_secs(seconds), ..TxnOptions::default() }
}

/// Fails unless the error names this transaction of the same thread.
#[track_caller]
fn is_own<R: core::fmt::Debug>(call: Result<R, Error>, label: &str) {
    let error = call.unwrap_err();
    let Error::OwnTransaction { holder, .. } = &error else { panic!("{error}") };
    assert!(holder.label == label && holder.same_thread && holder.holds, "{error}");
    assert!(error.to_string().contains("another transaction of this thread"), "{error}");
    assert!(!error.is_retryable());
}

/// The calls that request row 1 while another transaction of the thread holds it. Each of them
/// would wait for 20 seconds.
fn calls(store: &Store<Native>, label: &str) {
    let long = labelled("inner", 20);
    is_own(store.write_with(&long, |tx| tx.put(&ROWS, 1, 2)), label);
    is_own(store.write_with(&long, |tx| tx.get(&ROWS, 1)), label);
    is_own(store.write_with(&long, |tx| tx.range(&ROWS, ..).map(|rows| rows.count())), label);
    let mut txn = store.begin_with(&long).unwrap();
    is_own(txn.get(&ROWS, 1), label);
    // The transaction of the call can be used.
    txn.put(&ROWS, 2, 2).unwrap();
    txn.commit().unwrap();
    block_on(async {
        let written = |mut tx: TransactionGuard<Native>| async move { tx.put(&ROWS, 1, 2).await };
        is_own(store.write_async_with(&long, written).await, label);
        let mut txn = store.begin_async_with(&long).await.unwrap();
        is_own(txn.put(&ROWS, 1, 2).await, label);
        is_own(txn.range(&ROWS, ..).await.map(drop), label);
        is_own(txn.with(|tx| tx.put(&ROWS, 1, 2)).await, label);
        txn.put(&ROWS, 2, 3).await.unwrap();
        txn.commit().await.unwrap();
    });
}

#[test]
fn a_call_in_a_closure_does_not_wait_for_the_closures_transaction() {
    let store = store();
    let runs = store.write_with(&labelled("outer", 20), |tx| {
        tx.put(&ROWS, 1, 1)?;
        calls(&store, "outer");
        Ok(())
    });
    assert_eq!(runs.unwrap().runs, 1);
    let mut txn = store.begin_with(&labelled("by hand", 20)).unwrap();
    txn.with(|tx| {
        tx.put(&ROWS, 1, 1)?;
        calls(&store, "by hand");
        Ok(())
    })
    .unwrap();
    txn.commit().unwrap();
    // A transaction that reads a range blocks a writer in it.
    let read = store.write_with(&labelled("reads", 20), |tx| {
        assert_eq!(tx.range(&ROWS, ..)?.count(), 2);
        is_own(store.write_with(&labelled("inner", 20), |tx| tx.put(&ROWS, 7, 7)), "reads");
        Ok(())
    });
    read.unwrap();
}

#[test]
fn a_call_in_a_tasks_closure_does_not_wait_for_the_closures_transaction() {
    let store = store();
    let store = &store;
    let outer = |mut tx: TransactionGuard<Native>| async move {
        tx.put(&ROWS, 1, 1).await?;
        let inner = |mut tx: TransactionGuard<Native>| async move { tx.put(&ROWS, 1, 2).await };
        is_own(store.write_async_with(&labelled("inner", 20), inner).await, "outer");
        is_own(store.write_with(&labelled("inner", 20), |tx| tx.put(&ROWS, 1, 2)), "outer");
        // Also after a closure of its own.
        tx.with(|tx| tx.put(&ROWS, 3, 3)).await?;
        is_own(store.write_with(&labelled("inner", 20), |tx| tx.put(&ROWS, 1, 2)), "outer");
        Ok(())
    };
    assert_eq!(block_on(store.write_async_with(&labelled("outer", 20), outer)).unwrap().runs, 1);
    assert_eq!(store.get(&ROWS, 1), Ok(Some(1)));
}

#[test]
fn two_transactions_by_hand_of_one_thread_do_not_wait_for_each_other() {
    let store = store();
    let mut first = store.begin().unwrap();
    first.put(&ROWS, 1, 1).unwrap();
    let mut second = store.begin().unwrap();
    is_own(second.put(&ROWS, 1, 2), "");
    is_own(second.range(&ROWS, ..).map(drop), "");
    // When the first transaction has ended, the second gets the lock.
    first.commit().unwrap();
    second.put(&ROWS, 1, 2).unwrap();
    second.commit().unwrap();
    assert_eq!(store.get(&ROWS, 1), Ok(Some(2)));
}

/// A call waits for a transaction that another thread uses by now.
#[test]
fn a_transaction_that_another_thread_called_last_is_waited_for() {
    let store = store();
    for patient in [true, false] {
        let mut first = store.begin().unwrap();
        first.put(&ROWS, 1, 1).unwrap();
        let (called, calls) = channel();
        let other = thread::spawn(move || {
            if patient {
                first.get(&ROWS, 1).unwrap();
            }
            called.send(()).unwrap();
            thread::sleep(Duration::from_millis(100));
            first.commit().unwrap();
        });
        calls.recv().unwrap();
        let second = if patient { store.begin() } else { store.begin_with(&labelled("", 20)) };
        let mut second = second.unwrap();
        second.put(&ROWS, 1, 2).unwrap();
        second.commit().unwrap();
        other.join().unwrap();
    }
}

/// A transaction with a time limit waits, because another thread may end the first transaction;
/// the error says whose the lock was.
#[test]
fn a_timeout_reports_that_the_thread_held_the_lock_itself() {
    let store = store();
    let mut first = store.begin_with(&labelled("first", 20)).unwrap();
    first.put(&ROWS, 1, 1).unwrap();
    let short = TxnOptions { time: Duration::from_millis(50), ..TxnOptions::default() };
    let began = Instant::now();
    let mut second = store.begin_with(&short).unwrap();
    let error = second.put(&ROWS, 1, 2).unwrap_err();
    assert!(began.elapsed() >= short.time);
    let Error::Lock { holders, why: Lock::TimedOut, .. } = &error else { panic!("{error}") };
    assert!(matches!(&holders[..], [holder] if holder.same_thread), "{error:?}");
    let named = "held by another transaction of this thread, label \"first\"";
    assert!(error.to_string().ends_with(named), "{error}");
    drop(second);
    // A transaction that has ended blocks no other.
    first.commit().unwrap();
    store.put(&ROWS, 1, 3).unwrap();
}

/// As a binding runs a task: in parts, with other tasks of the loop in between.
#[test]
fn a_call_that_blocks_a_loop_does_not_wait_for_a_task_of_that_loop() {
    let store = store();
    let mut task = block_on(store.begin_async_with(&labelled("task", 20))).unwrap();
    let closure = task.closure().unwrap();
    closure.run(|| block_on(task.put(&ROWS, 1, 1))).unwrap();
    let inner = labelled("inner", 20);
    is_own(store.write_with(&inner, |tx| tx.put(&ROWS, 1, 2)), "task");
    is_own(store.begin_with(&inner).unwrap().get(&ROWS, 1), "task");
    closure.run(|| calls(&store, "task"));
    // A waiting task lets the loop continue, so it waits for its time limit.
    let soon = labelled("other", 0);
    let written = |mut tx: TransactionGuard<Native>| async move { tx.put(&ROWS, 1, 2).await };
    let why = block_on(store.write_async_with(&soon, written)).unwrap_err();
    assert!(matches!(why, Error::Deadline { .. } | Error::Lock { .. }), "{why}");
    thread::scope(|scope| {
        let other = scope.spawn(|| store.put(&ROWS, 1, 3));
        thread::sleep(Duration::from_millis(20));
        assert!(!other.is_finished());
        block_on(task.commit()).unwrap();
        other.join().unwrap().unwrap();
    });
    assert_eq!(store.get(&ROWS, 1).unwrap(), Some(3));
}
