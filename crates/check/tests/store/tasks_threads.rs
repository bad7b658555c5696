//! The threads of a store for its tasks, a flusher and a checkpoint thread; and a store without
//! them.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use latchwork_check::again;
use latchwork_check::forked::in_child;
use latchwork_check::tasks::{Task, block_on, join, pause};
use latchwork_disk::{Disk, Operation, Simulated};
use latchwork_store::{Mode, Sizes, Table};

use crate::stage::{begin, begin_with, sizes};

const ACCOUNTS: Table<u64, i64> = Table::new("accounts");

/// Bytes of log between two checkpoints, more than a new store has.
const LOG_BUDGET: u64 = 32 << 10;

/// Twenty tasks commit a thousand records, which survive a crash. Returns whether a checkpoint was
/// made before the crash.
fn tasks_commit(threads: u32) -> bool {
    let few = Sizes { threads, log_budget: LOG_BUDGET, ..sizes(Mode::Full) };
    let disk = Simulated::new();
    let store = begin_with(&disk, few).unwrap();
    let task = |number: u64| {
        let store = &store;
        let task: Task<'_> = Box::pin(async move {
            for n in 0..50 {
                let put = store.write_async(|mut tx| async move {
                    tx.put(&ACCOUNTS, number * 50 + n, 1).await?;
                    pause().await;
                    Ok(())
                });
                put.await.unwrap_or_else(|why| panic!("{threads}: {why}"));
            }
        });
        Some(task)
    };
    join((0..20).map(task).collect());
    let redo = store.activity().unwrap().redo;
    disk.crash();
    drop(store);
    disk.restart(3);
    let store = begin_with(&disk, few).unwrap();
    assert_eq!(store.read(|tx| Ok(tx.range(&ACCOUNTS, ..)?.count())).unwrap(), 1000);
    redo > LOG_BUDGET
}

/// With the minimum of thread slots, none is left for the store's threads.
#[test]
fn few_slots_are_enough() {
    for threads in [2, 3, 4, 8] {
        tasks_commit(threads);
    }
}

/// A process in which no thread can be started, because each would need a stack of 2^50 bytes.
#[test]
fn tasks_commit_without_a_thread() {
    let mut child = again(module_path!(), "tasks_commit_where_no_thread_begins");
    assert!(child.env(NO_THREAD, "1").env("RUST_MIN_STACK", STACK).status().unwrap().success());
}

const NO_THREAD: &str = "LATCHWORK_NO_THREAD";
const STACK: &str = "1125899906842624";

#[test]
fn tasks_commit_where_no_thread_begins() {
    if std::env::var_os(NO_THREAD).is_none() {
        return;
    }
    assert!(std::thread::Builder::new().spawn(|| ()).is_err());
    assert!(tasks_commit(64), "no checkpoint");
}

/// While commits arrive, at most one period passes between two syncs.
#[test]
fn a_periodic_store_syncs_in_time() {
    let disk = Simulated::new();
    let period = Duration::from_millis(100);
    let store = begin(&disk, Mode::Periodic(period)).unwrap();
    let syncs = || disk.calls()[Operation::Sync];
    let (mut seen, mut at, mut longest) = (syncs(), Instant::now(), Vec::new());
    while longest.len() < 8 {
        block_on(store.write_async(|mut tx| async move { tx.put(&ACCOUNTS, 1, 1).await })).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        if syncs() != seen {
            longest.push(at.elapsed());
            (seen, at) = (syncs(), Instant::now());
        }
    }
    // The median of ten: other programs may use the processor.
    longest.sort();
    assert!(longest[4] < period * 3 / 2, "{longest:?}");
}

/// A waker that blocks the flusher until the channel's other end is dropped.
struct Holds {
    is_called: Sender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl Wake for Holds {
    fn wake(self: Arc<Self>) {
        let _ = self.is_called.send(());
        let _ = self.goes_on.lock().unwrap().recv();
    }
}

/// Commits that arrive while the flusher is busy share its next sync.
#[test]
fn many_tasks_share_a_sync() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::Full).unwrap();
    let put = |number: u64| {
        let store = &store;
        let task: Task<'_> = Box::pin(async move {
            let put = store.write_async(|mut tx| async move { tx.put(&ACCOUNTS, number, 1).await });
            put.await.unwrap();
        });
        task
    };
    let ((is_called, called), (go_on, goes_on)) = (channel(), channel::<()>());
    let holds = Waker::from(Arc::new(Holds { is_called, goes_on: Mutex::new(goes_on) }));
    let mut first = put(0);
    // The sync may end before the waker is registered.
    while first.as_mut().poll(&mut Context::from_waker(&holds)).is_ready() {
        first = put(0);
    }
    called.recv().unwrap();
    let before = disk.calls()[Operation::Sync];
    let mut tasks: Vec<_> = (1..=500).map(put).collect();
    for task in &mut tasks {
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(disk.calls()[Operation::Sync], before);
    drop(go_on);
    join(tasks.into_iter().map(Some).collect());
    // The log is synced once; there may be a checkpoint as well.
    let made = disk.calls()[Operation::Sync] - before;
    assert!((1..10).contains(&made), "{made} syncs");
    drop(first);
    disk.crash();
    drop(store);
    disk.restart(3);
    let store = begin(&disk, Mode::Full).unwrap();
    let all = store.read(|tx| Ok(tx.range(&ACCOUNTS, ..)?.count())).unwrap();
    assert_eq!(all, 501);
}

/// In the child of a fork, calls fail at once and never wait, whatever the parent's threads were
/// doing at the fork.
#[test]
fn the_child_of_a_fork_waits_for_no_thread() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    drop(store.begin().unwrap());
                }
            });
        }
        let ended = |_: &u32| {
            let status = in_child(|| {
                // SAFETY: kills this process if it waits.
                unsafe { libc::alarm(20) };
                assert!(store.begin().is_err() && store.snapshot().is_err());
                assert!(store.put(&ACCOUNTS, 1, 1).is_err());
            });
            status == 0
        };
        let all = (0..300).take_while(ended).count();
        stop.store(true, Relaxed);
        assert_eq!(all, 300, "a child waits, or its calls succeed");
    });
}
