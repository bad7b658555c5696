//! Counters for a monitoring system, of all processes, including killed ones.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use latchwork_store::{Error, Mode, TxnOptions};

use crate::stage::{ACCOUNTS, Place, ROWS, open, transfer};

/// Counters grow with the work of this test's store.
#[test]
fn operations_are_counted() {
    let place = Place::new("metrics");
    let store = open(place.at("one"));
    store.put(&ACCOUNTS, 1, 100).unwrap();
    store.put(&ACCOUNTS, 2, 100).unwrap();
    let before = store.metrics().unwrap();
    (0..50).for_each(|_| transfer(&store, 1, 2));
    let rejected = store.write(|_| Err::<(), _>(Error::Rejected("no".to_owned())));
    assert!(rejected.is_err());
    // A lock timeout.
    store
        .write(|tx| {
            tx.put(&ACCOUNTS, 1, 0)?;
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let time = Duration::from_millis(20);
                    let patience = TxnOptions { time, ..TxnOptions::default() };
                    store.write_with(&patience, |tx| tx.put(&ACCOUNTS, 1, 7)).map(drop)
                });
                assert!(other.join().unwrap().is_err());
            });
            Ok(())
        })
        .unwrap();
    store.checkpoint().unwrap();
    let after = store.metrics().unwrap();
    let grown = |name: &str| after.value(name).unwrap() - before.value(name).unwrap();
    let by = |name: &str, label: &str| {
        after.labelled(name, label).unwrap() - before.labelled(name, label).unwrap()
    };
    assert_eq!(grown("latchwork_commits_total"), 51.0);
    assert_eq!(by("latchwork_commit_seconds", "+Inf"), 51.0);
    assert_eq!(by("latchwork_aborts_total", "rejected"), 1.0);
    assert!(by("latchwork_aborts_total", "timeout") >= 1.0, "{after}");
    assert!(by("latchwork_waits_total", "lock") >= 1.0, "{after}");
    let waited = by("latchwork_wait_seconds_total", "lock");
    assert!(waited > 0.0 && waited < 100.0, "{waited}");
    assert_eq!(grown("latchwork_checkpoints_total"), 1.0);
    assert!(grown("latchwork_syncs_total") >= 51.0, "{after}");
    assert!(grown("latchwork_log_appended_bytes_total") > 1000.0);
    assert_eq!(after.value("latchwork_processes"), Some(1.0));
    // In a mode without waiting, commits are not timed.
    let quick = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
    store.write_with(&quick, |tx| tx.put(&ACCOUNTS, 1, 7)).unwrap();
    let then = store.metrics().unwrap();
    let timed = |metrics: &latchwork_store::Metrics| {
        metrics.labelled("latchwork_commit_seconds", "+Inf").unwrap()
    };
    assert_eq!(timed(&then), timed(&after));
}

/// Commits, and kills itself.
#[test]
fn counts_before_a_death() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    for row in 0..320 {
        store.put(&ROWS, row, &[1; 20]).unwrap();
    }
    // SAFETY: signals this process.
    unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
}

#[test]
fn counts_outlive_the_process_that_counted() {
    let place = Place::new("metrics-death");
    let store = open(place.at("one"));
    store.put(&ROWS, 1000, &[1; 20]).unwrap();
    let before = store.metrics().unwrap();
    for round in 1..=2 {
        let end = place.start("metrics::counts_before_a_death").wait().unwrap();
        assert_eq!(end.signal(), Some(libc::SIGKILL));
        store.sweep().unwrap();
        let after = store.metrics().unwrap();
        let grown = |name: &str| after.value(name).unwrap() - before.value(name).unwrap();
        assert_eq!(grown("latchwork_commits_total"), 320.0 * f64::from(round));
        let timed = after.labelled("latchwork_commit_seconds", "+Inf").unwrap()
            - before.labelled("latchwork_commit_seconds", "+Inf").unwrap();
        assert_eq!(timed, 320.0 * f64::from(round));
        // The last sixteen may not have been published.
        assert!(grown("latchwork_syncs_total") >= 300.0 * f64::from(round), "{after}");
    }
}
