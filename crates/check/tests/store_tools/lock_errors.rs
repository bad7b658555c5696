//! Errors about locks name the holders, and say if their process is stopped.

use core::ops::Bound::{Excluded, Included};
use core::time::Duration;
use std::process::Child;

use latchwork_lockmgr::Error as Lock;
use latchwork_store::{Error, Holder, Store, TxnOptions};

use crate::stage::{ACCOUNTS, Place, options};

fn patience(label: &'static str) -> TxnOptions {
    TxnOptions { time: Duration::from_millis(30), label, ..TxnOptions::default() }
}

/// The only holder that the error names.
fn holder(error: &Error) -> &Holder {
    let last = match error {
        Error::Deadline { last, .. } => last,
        error => error,
    };
    let Error::Lock { holders, why: Lock::TimedOut, .. } = last else { panic!("{error}") };
    assert_eq!(holders.len(), 1, "{error}");
    &holders[0]
}

/// A child that locks an account and stops itself.
fn stopped(place: &Place) -> Child {
    let child = place.start("lock_errors::a_stopped_process_that_holds_a_lock_is_named");
    let mut status = 0;
    // SAFETY: a child process, and a place for its status.
    let waited = unsafe { libc::waitpid(child.id() as i32, &mut status, libc::WUNTRACED) };
    assert!(waited == child.id() as i32 && libc::WIFSTOPPED(status), "{status:#x}");
    child
}

#[test]
fn a_stopped_process_that_holds_a_lock_is_named() {
    if let Some(place) = Place::told() {
        let store = Store::open_with(place.at("one"), &options()).unwrap();
        let mut txn = store.begin_with(&patience("import")).unwrap();
        txn.put(&ACCOUNTS, 7, 1).unwrap();
        // SAFETY: stops this process.
        unsafe { libc::raise(libc::SIGSTOP) };
        loop {
            std::thread::park();
        }
    }
    let place = Place::new("lock-errors");
    let store = Store::open_with(place.at("one"), &options()).unwrap();
    store.put(&ACCOUNTS, 7, 0).unwrap();
    let mut child = stopped(&place);
    for stops in [true, false] {
        let error = store.write_with(&patience(""), |tx| tx.put(&ACCOUNTS, 7, 2)).unwrap_err();
        let holder = holder(&error);
        assert_eq!((holder.pid, &holder.label[..]), (Some(child.id()), "import"), "{error}");
        assert!(holder.holds && !holder.same_thread && holder.stopped == stops, "{error}");
        let words = error.to_string();
        let named = format!("key 7 of accounts: timed out; held by process {}", child.id());
        assert!(words.contains(&named) && words.contains("\"import\""), "{words}");
        assert_eq!(words.contains("is stopped"), stops, "{words}");
        // SAFETY: a child process.
        unsafe { libc::kill(child.id() as i32, libc::SIGCONT) };
        let mut status = 0;
        // SAFETY: as above. The child continues, if it was stopped.
        unsafe { libc::waitpid(child.id() as i32, &mut status, libc::WCONTINUED | libc::WNOHANG) };
    }
    child.kill().unwrap();
    child.wait().unwrap();
    store.put(&ACCOUNTS, 7, 2).unwrap();
}

#[test]
fn a_refused_range_is_named_by_its_ends() {
    let place = Place::new("lock-errors");
    let store = Store::open_with(place.at("one"), &options()).unwrap();
    store.put(&ACCOUNTS, 5, 0).unwrap();
    let bytes = |key: u64| ACCOUNTS.key(&key).unwrap();
    let mut reader = store.begin_with(&patience("report")).unwrap();
    assert_eq!(reader.range(&ACCOUNTS, 3..8).unwrap().count(), 1);
    // A writer requests the key within the range.
    let error = store.write_with(&patience(""), |tx| tx.put(&ACCOUNTS, 6, 2)).unwrap_err();
    assert_eq!(holder(&error).label, "report");
    assert!(error.to_string().contains("key 6 of accounts: timed out; held by "), "{error}");
    drop(reader);
    // A reader meets a writer inside its range.
    let mut other = store.begin_with(&patience("other")).unwrap();
    assert_eq!(other.range(&ACCOUNTS, 20..).unwrap().count(), 0);
    let mut writer = store.begin_with(&patience("writer")).unwrap();
    writer.put(&ACCOUNTS, 6, 2).unwrap();
    let mut reader = store.begin_with(&patience("")).unwrap();
    let error = reader.range(&ACCOUNTS, 3..8).map(drop).unwrap_err();
    assert_eq!(holder(&error).label, "writer");
    let words = error.to_string();
    assert!(words.starts_with("keys from 3 before 8 of accounts: timed out; held by"), "{words}");
    let Error::Lock { range, key, .. } = error else { panic!("{error}") };
    assert_eq!(range.as_deref(), Some(&(Included(bytes(3)), Excluded(bytes(8)))));
    assert_eq!(key, bytes(3));
}

#[test]
fn a_deadlock_error_names_the_blocking_transaction() {
    let place = Place::new("lock-errors");
    let store = Store::open_with(place.at("one"), &options()).unwrap();
    let long = |label| TxnOptions { time: Duration::from_secs(30), ..patience(label) };
    let mut one = store.begin_with(&long("one")).unwrap();
    let mut two = store.begin_with(&long("two")).unwrap();
    one.put(&ACCOUNTS, 1, 1).unwrap();
    two.put(&ACCOUNTS, 2, 2).unwrap();
    let waits = std::thread::spawn(move || (one.put(&ACCOUNTS, 2, 1), one));
    let second = two.put(&ACCOUNTS, 1, 2);
    if second.is_err() {
        drop(two);
    }
    let (first, _one) = waits.join().unwrap();
    let (error, other) = match (first, second) {
        (Err(error), Ok(())) => (error, "two"),
        (Ok(()), Err(error)) => (error, "one"),
        both => panic!("{both:?}"),
    };
    let Error::Lock { why: Lock::Deadlock(_), holders, .. } = &error else { panic!("{error}") };
    assert!(matches!(&holders[..], [holder] if holder.label == other), "{error:?}");
    let named = format!("held by this process ({}), label {other:?}", std::process::id());
    assert!(error.to_string().ends_with(&named), "{error}");
}
