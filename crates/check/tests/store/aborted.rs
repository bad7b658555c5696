//! Errors of a transaction that an earlier error has aborted.

use core::time::Duration;

use latchwork_check::tasks::block_on;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Store, Table, Transaction, TxnOptions};

use crate::stage::begin;

const ROWS: Table<u64, u64> = Table::new("rows");

/// A transaction that waits for no lock.
fn impatient() -> TxnOptions {
    TxnOptions { time: Duration::ZERO, ..TxnOptions::default() }
}

/// Fails unless the call reports first that the transaction is aborted, and then why.
#[track_caller]
fn is_aborted<R: core::fmt::Debug>(call: Result<R, Error>, first: &Error) {
    let error = call.unwrap_err();
    assert_eq!(error, Error::Aborted { why: Box::new(first.clone()) });
    let words = error.to_string();
    assert!(words.starts_with("the transaction is aborted"), "{words}");
    assert!(words.ends_with(&first.to_string()), "{words}");
    assert_eq!(error.is_retryable(), first.is_retryable());
}

fn store() -> Store<Native> {
    begin(&Simulated::new(), Mode::None).unwrap()
}

/// A transaction that has locked a row.
fn locked(store: &Store<Native>) -> Transaction<Native> {
    let mut holder = store.begin().unwrap();
    holder.put(&ROWS, 1, 1).unwrap();
    holder
}

#[test]
fn calls_after_a_lock_timeout_say_that_the_transaction_is_aborted() {
    let store = store();
    let holder = locked(&store);
    for prepares in [false, true] {
        let mut txn = store.begin_with(&impatient()).unwrap();
        txn.put(&ROWS, 3, 3).unwrap();
        let before = txn.savepoint().unwrap();
        let first = txn.put(&ROWS, 1, 2).unwrap_err();
        assert!(matches!(first, Error::Lock { .. }) && first.is_retryable(), "{first}");
        is_aborted(txn.put(&ROWS, 2, 2), &first);
        is_aborted(txn.get(&ROWS, 3), &first);
        is_aborted(txn.range(&ROWS, ..).map(drop), &first);
        is_aborted(txn.savepoint(), &first);
        is_aborted(txn.roll_back_to(before), &first);
        match prepares {
            false => is_aborted(txn.commit(), &first),
            true => is_aborted(txn.prepare(b"aborted"), &first),
        }
    }
    holder.commit().unwrap();
    assert_eq!(store.get(&ROWS, 3).unwrap(), None);
}

#[test]
fn a_restarted_transaction_is_not_aborted() {
    let store = store();
    let holder = locked(&store);
    let mut txn = store.begin_with(&impatient()).unwrap();
    txn.put(&ROWS, 1, 2).unwrap_err();
    holder.roll_back().unwrap();
    txn.restart().unwrap();
    txn.put(&ROWS, 1, 2).unwrap();
    assert!(txn.commit().unwrap().is_some());
}

#[test]
fn calls_of_a_task_say_that_its_transaction_is_aborted() {
    let store = store();
    let holder = locked(&store);
    block_on(async {
        let mut txn = store.begin_async_with(&impatient()).await.unwrap();
        let first = txn.put(&ROWS, 1, 2).await.unwrap_err();
        is_aborted(txn.put(&ROWS, 2, 2).await, &first);
        is_aborted(txn.with(|tx| tx.get(&ROWS, 2)).await, &first);
        is_aborted(txn.commit().await, &first);
    });
    drop(holder);
}

#[test]
fn calls_of_a_closure_after_an_error_say_that_it_is_aborted() {
    let store = store();
    let holder = locked(&store);
    let ended = store.write_with(&impatient(), |tx| {
        let first = tx.put(&ROWS, 1, 2).unwrap_err();
        is_aborted(tx.put(&ROWS, 2, 2), &first);
        Ok(())
    });
    // The commit fails as the calls did, so the transaction is retried until its deadline.
    let Err(Error::Deadline { last, .. }) = ended else { panic!("{ended:?}") };
    assert!(matches!(*last, Error::Aborted { .. }) && last.is_retryable(), "{last}");
    drop(holder);
}
