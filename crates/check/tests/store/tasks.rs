//! Transactions of tasks: many on one thread, which no lock and no sync blocks.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use latchwork_check::forked::in_child;
use latchwork_check::random::Random;
use latchwork_check::tasks::{Task, block_on, join, pause};
use latchwork_disk::{Disk, Fault, Simulated};
use latchwork_machine::Native;
use latchwork_store::{AsyncTransaction, Error, Level, Mode, Sizes, Store, Table, TxnOptions};

use crate::stage::{TABLE, begin, begin_in, sizes};

const ACCOUNTS: Table<u64, i64> = Table::new("accounts");

type Tx<'t> = &'t mut AsyncTransaction<Native>;

fn nothing_is_left(store: &Store<Native>) {
    let counts = store.counts().unwrap();
    assert_eq!((counts.locks, counts.transactions), (0, 0));
}

fn poll<T>(future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

async fn transfer(tx: Tx<'_>, from: u64, to: u64) -> Result<(), Error> {
    let has = tx.get_for_update(&ACCOUNTS, from).await?.unwrap_or(0);
    // Other tasks of the thread run here.
    pause().await;
    let other = tx.get_for_update(&ACCOUNTS, to).await?.unwrap_or(0);
    tx.put(&ACCOUNTS, from, has - 1).await?;
    tx.put(&ACCOUNTS, to, other + 1).await
}

#[test]
fn a_thousand_tasks_of_one_thread_move_money() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let (most, now, runs) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let task = |number: u64| {
        let (store, most, now, runs) = (&store, &most, &now, &runs);
        let task: Task<'_> = Box::pin(async move {
            let mut random = Random(0x9E37_79B9 + number);
            let patience = TxnOptions { time: Duration::from_secs(100), ..TxnOptions::default() };
            for _ in 0..3 {
                let (from, by) = (random.below(40), 1 + random.below(39));
                let done = store.write_async_with(&patience, |mut tx| async move {
                    now.set(now.get() + 1);
                    most.set(now.get().max(most.get()));
                    let moved = transfer(&mut tx, from, (from + by) % 40).await;
                    now.set(now.get() - 1);
                    moved
                });
                let done = done.await.unwrap();
                runs.set(runs.get() + done.runs);
            }
        });
        Some(task)
    };
    join((0..1000).map(task).collect());
    // At most a quarter of the thread slots, and some deadlocks.
    assert_eq!(most.get(), 12);
    assert!(runs.get() > 3000, "{}", runs.get());
    let all = store.read(|tx| tx.range(&ACCOUNTS, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
    assert_eq!(all.iter().map(|(_, has)| has).sum::<i64>(), 0);
    assert_eq!(all.len(), 40);
    nothing_is_left(&store);
}

/// A call whose future is leaked stops waiting: the transaction continues and commits.
#[test]
fn a_leaked_call_leaves_nothing() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.put(&ACCOUNTS, 0, 100).unwrap();
    for (commits, again) in [(true, false), (true, true), (false, false)] {
        let mut holder = store.begin().unwrap();
        holder.put(&ACCOUNTS, 0, 101).unwrap();
        let mut tx = block_on(store.begin_async()).unwrap();
        block_on(tx.put(&ACCOUNTS, 1, 100)).unwrap();
        let mut waits = Box::pin(tx.get(&ACCOUNTS, 0));
        assert!(poll(waits.as_mut()).is_pending());
        std::mem::forget(waits);
        if again {
            assert_eq!(block_on(tx.get(&ACCOUNTS, 1)), Ok(Some(100)));
        }
        match commits {
            true => assert!(block_on(tx.commit()).unwrap().is_some()),
            false => block_on(tx.roll_back()).unwrap(),
        }
        drop(holder);
        nothing_is_left(&store);
    }
    assert_eq!(store.get(&ACCOUNTS, 1), Ok(Some(100)));
}

/// Each call that can wait, against a lock of another transaction.
async fn all_calls(tx: Tx<'_>, call: u32) -> Result<(), Error> {
    let (k, l) = (&b"k"[..], &b"l"[..]);
    match call {
        0 => tx.get(&TABLE, k).await.map(drop),
        1 => tx.get_for_update(&TABLE, k).await.map(drop),
        2 => tx.put(&TABLE, k, b"task").await,
        3 => tx.insert(&TABLE, k, b"task").await,
        4 => tx.remove(&TABLE, k).await.map(drop),
        5 => tx.range(&TABLE, l..).await.map(drop),
        6 => {
            let written = tx.with(|tx| {
                tx.put(&TABLE, b"a", b"with")?;
                tx.put(&TABLE, k, b"with")
            });
            written.await
        }
        _ => tx.with(|tx| tx.put_final(&TABLE, b"m", b"last")).await,
    }
}

/// Each call waits without blocking the thread. Dropped while it waits, it has no effect and the
/// transaction continues; awaited, it takes effect once.
#[test]
fn each_call_waits_and_may_be_dropped() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    for call in 0..8 {
        for drops in [true, false] {
            store.remove_all();
            store.put(&TABLE, b"m", b"there").unwrap();
            let mut holder = store.begin().unwrap();
            holder.put(&TABLE, b"k", b"holder").unwrap();
            holder.range(&TABLE, &b"l"[..]..).unwrap();
            holder.put(&TABLE, b"m", b"holder").unwrap();
            let mut tx = block_on(store.begin_async()).unwrap();
            block_on(tx.put(&TABLE, b"0wn", b"0wn")).unwrap();
            let whole = async {
                all_calls(&mut tx, call).await?;
                tx.commit().await
            };
            if drops {
                let mut whole = Box::pin(whole);
                assert!(poll(whole.as_mut()).is_pending(), "{call}");
                drop(whole);
                holder.commit().unwrap();
                assert_eq!(store.get(&TABLE, b"0wn").unwrap(), None, "{call}");
                assert_eq!(store.get(&TABLE, b"a").unwrap(), None, "{call}");
                assert_eq!(store.get(&TABLE, b"k").unwrap().unwrap(), b"holder", "{call}");
            } else {
                let mut whole = Box::pin(whole);
                assert!(poll(whole.as_mut()).is_pending(), "{call}");
                holder.commit().unwrap();
                let end = block_on(whole);
                let exists = call == 3;
                assert_eq!(end.is_ok(), !exists, "{call}: {end:?}");
                let expected: &[u8] = match call {
                    2 => b"task",
                    6 => b"with",
                    _ => b"holder",
                };
                let k = store.get(&TABLE, b"k").unwrap();
                assert_eq!(k.as_deref(), (call != 4).then_some(expected), "{call}");
                let own = store.get(&TABLE, b"0wn").unwrap();
                assert_eq!(own.is_some(), !exists, "{call}");
                assert_eq!(store.get(&TABLE, b"a").unwrap().is_some(), call == 6);
                assert_eq!(store.get(&TABLE, b"m").unwrap().unwrap() == b"last", call == 7);
            }
            nothing_is_left(&store);
        }
    }
}

/// A savepoint performs the deferred last write before it, and waits for that write's range.
#[test]
fn a_savepoint_waits_for_the_write_before_it() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    store.put(&TABLE, b"m", b"there").unwrap();
    let mut holder = store.begin().unwrap();
    holder.range(&TABLE, &b"l"[..]..).unwrap();
    let mut tx = block_on(store.begin_async()).unwrap();
    block_on(tx.with(|tx| tx.put_final(&TABLE, b"n", b"last"))).unwrap();
    let mut saves = Box::pin(tx.savepoint());
    assert!(poll(saves.as_mut()).is_pending());
    holder.commit().unwrap();
    let savepoint = block_on(saves).unwrap();
    block_on(tx.put(&TABLE, b"o", b"undone")).unwrap();
    tx.roll_back_to(savepoint).unwrap();
    block_on(tx.commit()).unwrap();
    assert!(store.get(&TABLE, b"n").unwrap().is_some());
    assert_eq!(store.get(&TABLE, b"o").unwrap(), None);
    nothing_is_left(&store);
}

/// A last write meets a range only when the transaction commits: it waits there and is not lost.
#[test]
fn a_last_write_waits_with_its_commit() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    store.put(&TABLE, b"m", b"there").unwrap();
    for drops in [true, false] {
        let mut holder = store.begin().unwrap();
        holder.range(&TABLE, &b"l"[..]..).unwrap();
        let mut tx = block_on(store.begin_async()).unwrap();
        block_on(tx.with(|tx| tx.put_final(&TABLE, b"n", b"last"))).unwrap();
        let mut commits = Box::pin(tx.commit());
        assert!(poll(commits.as_mut()).is_pending());
        match drops {
            true => drop(commits),
            false => {
                holder.commit().unwrap();
                assert!(block_on(commits).unwrap().is_some());
            }
        }
        assert_eq!(store.get(&TABLE, b"n").unwrap().is_some(), !drops);
    }
    nothing_is_left(&store);
}

trait RemoveAll {
    fn remove_all(&self);
}

impl RemoveAll for Store<Native> {
    fn remove_all(&self) {
        self.write(|tx| tx.remove_range(&TABLE, ..)).unwrap();
    }
}

/// A call that is dropped while it waits has no effect: the transaction commits.
#[test]
fn a_transaction_outlives_a_call_that_was_dropped() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    for call in 0..7 {
        store.remove_all();
        let mut holder = store.begin().unwrap();
        holder.put(&TABLE, b"k", b"holder").unwrap();
        holder.put(&TABLE, b"m", b"holder").unwrap();
        let mut tx = block_on(store.begin_async()).unwrap();
        block_on(tx.put(&TABLE, b"0wn", b"0wn")).unwrap();
        let mut waits = Box::pin(all_calls(&mut tx, call));
        assert!(poll(waits.as_mut()).is_pending(), "{call}");
        drop(waits);
        block_on(tx.put(&TABLE, b"more", b"0wn")).unwrap();
        assert!(block_on(tx.commit()).unwrap().is_some());
        holder.roll_back().unwrap();
        let rows = store.read(|tx| tx.range(&TABLE, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
        let keys: Vec<_> = rows.iter().map(|(key, _)| key.as_slice()).collect();
        assert_eq!(keys, [&b"0wn"[..], b"more"], "{call}");
        nothing_is_left(&store);
    }
}

#[test]
fn a_call_that_waits_too_long_times_out() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let mut holder = store.begin().unwrap();
    holder.put(&TABLE, b"k", b"holder").unwrap();
    let patience = TxnOptions { time: Duration::from_millis(20), ..TxnOptions::default() };
    let late = block_on(store.write_async_with(&patience, |mut tx| async move {
        tx.put(&TABLE, b"a", b"x").await?;
        tx.put(&TABLE, b"k", b"x").await
    }));
    assert!(matches!(late, Err(Error::Deadline { runs: 1, .. })), "{late:?}");
    let rejected = block_on(store.write_async(|mut tx| async move {
        tx.put(&TABLE, b"a", b"x").await?;
        Err::<(), _>(Error::Rejected("no".to_owned()))
    }));
    assert_eq!(rejected, Err(Error::Rejected("no".to_owned())));
    holder.roll_back().unwrap();
    assert_eq!(store.get(&TABLE, b"a").unwrap(), None);
    nothing_is_left(&store);
}

/// At read committed, a read that has waited keeps no lock.
#[test]
fn read_committed_releases_a_lock_it_waited_for() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    for level in [Level::ReadCommitted, Level::Serializable] {
        let mut holder = store.begin().unwrap();
        holder.put(&TABLE, b"k", b"new").unwrap();
        let patience = TxnOptions { level, time: Duration::from_secs(10), ..TxnOptions::default() };
        let mut tx = block_on(store.begin_async_with(&patience)).unwrap();
        let mut reads = Box::pin(tx.get(&TABLE, b"k"));
        assert!(poll(reads.as_mut()).is_pending());
        holder.commit().unwrap();
        assert_eq!(block_on(reads).unwrap().unwrap(), b"new");
        let short = TxnOptions { time: Duration::ZERO, ..TxnOptions::default() };
        let mut other = store.begin_with(&short).unwrap();
        let free = other.put(&TABLE, b"k", b"other").is_ok();
        assert_eq!(free, level == Level::ReadCommitted);
        drop(other);
        block_on(tx.roll_back()).unwrap();
        nothing_is_left(&store);
    }
}

/// A failed sync is reported to each task that waited for it, and to later ones.
#[test]
fn a_failed_sync_is_an_error() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::Full).unwrap();
    store.put(&ACCOUNTS, 0, 0).unwrap();
    for number in 0..10 {
        disk.plan(disk.calls().total() + number, Fault::Device);
    }
    let told = Cell::new(0);
    let task = |number: u64| {
        let (store, told) = (&store, &told);
        let task: Task<'_> = Box::pin(async move {
            let put =
                store.write_async(|mut tx| async move { tx.put(&ACCOUNTS, number, 1).await }).await;
            assert!(put.is_err(), "{number}");
            told.set(told.get() + u32::from(matches!(put, Err(Error::CommitUnknown { .. }))));
        });
        Some(task)
    };
    join((1..=20).map(task).collect());
    assert!(told.get() > 0);
}

/// Tasks that are dropped while they wait for admission, or after it, pass it on.
#[test]
fn a_turn_is_never_lost() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let mut random = Random(9);
    for _ in 0..50 {
        let mut all: Vec<_> = (0..40).map(|_| Box::pin(store.begin_async())).collect();
        let mut begun = Vec::new();
        while !all.is_empty() {
            let index = random.below(all.len() as u64) as usize;
            match random.below(4) {
                0 => drop(all.swap_remove(index)),
                1 => drop(begun.pop()),
                _ => {
                    if let Poll::Ready(tx) = poll(all[index].as_mut()) {
                        begun.push(tx.unwrap());
                        drop(all.swap_remove(index));
                    }
                }
            }
            assert!(begun.len() <= 12);
        }
        drop(begun);
        // All twelve admissions are available.
        let twelve: Vec<_> = (0..12)
            .map(|_| match poll(Box::pin(store.begin_async()).as_mut()) {
                Poll::Ready(tx) => tx.unwrap(),
                Poll::Pending => panic!("an admission was lost"),
            })
            .collect();
        assert!(poll(Box::pin(store.begin_async()).as_mut()).is_pending());
        drop(twelve);
    }
}

/// Keeping a transaction beyond its closure is an error of that task alone.
#[test]
fn a_closure_cannot_return_its_transaction() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let keeps = std::cell::RefCell::new(None);
    let kept = block_on(store.write_async(|mut tx| async {
        tx.put(&TABLE, b"k", b"kept").await?;
        keeps.replace(Some(tx));
        Ok(())
    }));
    assert!(matches!(kept, Err(Error::Engine(_))), "{kept:?}");
    drop(keeps);
    assert_eq!(store.get(&TABLE, b"k").unwrap(), None);
    nothing_is_left(&store);
}

/// A task may move between threads between any two polls.
#[test]
fn a_task_moves_between_threads() {
    fn sent<T: Send>(task: T) -> T {
        task
    }
    let disk = Simulated::new();
    let store = begin(&disk, Mode::Full).unwrap();
    let of = |number: u64| {
        let store = store.clone();
        sent(async move {
            for _ in 0..20 {
                let mut tx = store.begin_async().await.unwrap();
                loop {
                    let moved = async {
                        let has = tx.get_for_update(&ACCOUNTS, number % 3).await?.unwrap_or(0);
                        tx.put(&ACCOUNTS, number % 3, has - 1).await?;
                        let other = tx.get_for_update(&ACCOUNTS, 3 + number % 2).await?;
                        tx.put(&ACCOUNTS, 3 + number % 2, other.unwrap_or(0) + 1).await?;
                        Ok::<_, Error>(tx.range(&ACCOUNTS, number % 3..=number % 3).await?.count())
                    };
                    match moved.await {
                        Ok(count) => break assert_eq!(count, 1),
                        Err(why) if why.is_retryable() => tx.restart().unwrap(),
                        Err(why) => panic!("{why}"),
                    }
                }
                tx.commit().await.unwrap();
                // The future borrows and is still `Send`.
                let (store, number) = (&store, &number);
                let nothing = store.write_async(|mut tx| async move {
                    tx.get(&ACCOUNTS, *number).await.map(drop)
                });
                nothing.await.unwrap();
            }
        })
    };
    let mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    (0..8).for_each(|number| tasks.push(Box::pin(of(number))));
    // A new thread polls all tasks in each round.
    while !tasks.is_empty() {
        let round = std::thread::spawn(move || {
            tasks.retain_mut(|task| poll(task.as_mut()).is_pending());
            tasks
        });
        tasks = round.join().unwrap();
    }
    let all = store.read(|tx| tx.range(&ACCOUNTS, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
    assert_eq!(all.iter().map(|(_, has)| has).sum::<i64>(), 0);
    assert_eq!(all.iter().take(3).map(|(_, has)| has).sum::<i64>(), -160);
    nothing_is_left(&store);
}

/// A closure that meets a lock is undone to its start and run again. It must not roll back to a
/// savepoint from before it; that is refused whether a lock is met or not.
#[test]
fn a_closure_undoes_only_its_own_changes() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    for waits in [true, false] {
        let mut holder = store.begin().unwrap();
        if waits {
            holder.put(&TABLE, b"k", b"holder").unwrap();
        }
        let mut tx = block_on(store.begin_async()).unwrap();
        let first = block_on(tx.savepoint()).unwrap();
        block_on(tx.put(&TABLE, b"a", b"a")).unwrap();
        let undone = block_on(tx.with(|tx| {
            tx.roll_back_to(first)?;
            tx.put(&TABLE, b"k", b"new")
        }));
        assert_eq!(undone, Err(Error::Savepoint));
        holder.roll_back().unwrap();
        let own = tx.with(|tx| {
            let own = tx.savepoint()?;
            tx.put(&TABLE, b"b", b"b")?;
            tx.roll_back_to(own)
        });
        block_on(own).unwrap();
        assert!(block_on(tx.get(&TABLE, b"a")).unwrap().is_some());
        tx.roll_back_to(first).unwrap();
        assert_eq!(block_on(tx.get(&TABLE, b"a")).unwrap(), None);
        block_on(tx.roll_back()).unwrap();
        nothing_is_left(&store);
    }
}

/// The same for a closure, and for a call that fails or is dropped at its second lock.
#[test]
fn read_committed_releases_locks_on_success_and_error() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    for how in 0..3 {
        let mut holder = store.begin().unwrap();
        holder.put(&TABLE, b"k", b"new").unwrap();
        let mut second = store.begin().unwrap();
        second.put(&TABLE, b"l", b"new").unwrap();
        let time = Duration::from_millis(if how == 1 { 100 } else { 10_000 });
        let patience = TxnOptions { level: Level::ReadCommitted, time, ..TxnOptions::default() };
        let mut tx = block_on(store.begin_async_with(&patience)).unwrap();
        if how == 0 {
            let mut reads = Box::pin(tx.with(|tx| tx.get(&TABLE, b"k")));
            assert!(poll(reads.as_mut()).is_pending());
            holder.commit().unwrap();
            assert_eq!(block_on(reads).unwrap().unwrap(), b"new");
        } else {
            let mut reads = Box::pin(tx.range(&TABLE, ..));
            assert!(poll(reads.as_mut()).is_pending());
            holder.commit().unwrap();
            assert!(poll(reads.as_mut()).is_pending());
            match how {
                1 => assert!(block_on(reads).is_err()),
                _ => drop(reads),
            }
        }
        second.roll_back().unwrap();
        let short = TxnOptions { time: Duration::ZERO, ..TxnOptions::default() };
        let mut other = store.begin_with(&short).unwrap();
        other.put(&TABLE, b"k", b"other").unwrap();
        drop(other);
        block_on(tx.roll_back()).unwrap();
        nothing_is_left(&store);
    }
}

/// A closure that fails without waiting, because of a task of the same thread.
#[test]
fn a_retried_task_lets_others_run() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let held = Cell::new(false);
    let (store, held) = (&store, &held);
    let holds: Task<'_> = Box::pin(async move {
        let put = store.write_async(|mut tx| async move {
            tx.put(&ACCOUNTS, 1, 1).await?;
            held.set(true);
            pause().await;
            Ok(())
        });
        put.await.unwrap();
    });
    let fails: Task<'_> = Box::pin(async move {
        while !held.get() {
            pause().await;
        }
        let usual = TxnOptions::default();
        let at_once = TxnOptions { time: Duration::ZERO, ..usual };
        let put = store.write_async_with(&usual, |_| async move {
            let mut other = store.begin_with(&at_once)?;
            other.put(&ACCOUNTS, 1, 2)?;
            other.commit()
        });
        assert!(put.await.unwrap().runs < 100);
    });
    join(vec![Some(holds), Some(fails)]);
    assert_eq!(store.get(&ACCOUNTS, 1).unwrap(), Some(2));
}

/// The last slot belongs to a dead thread, and another thread is sweeping it.
#[test]
fn a_slot_that_is_swept_is_waited_for() {
    let disk = Simulated::new();
    let small = Sizes { threads: 8, ..sizes(Mode::None) };
    let (region, store) = begin_in(&disk, small).unwrap();
    let mut begun: Vec<_> = std::iter::from_fn(|| store.begin().ok()).collect();
    drop(begun.split_off(begun.len() - 2));
    let (sweeps, is_swept) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let region = &region;
        scope.spawn(move || {
            let act = || {
                sweeps.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
            };
            (0..8).find(|slot| region.while_free(*slot, act).unwrap().is_some()).unwrap();
        });
        is_swept.recv().unwrap();
        let all: Vec<_> = std::iter::from_fn(|| store.begin().ok()).collect();
        assert_eq!(all.len(), 2);
    });
}

/// In the child of a fork no transaction begins, and none waits for an admission of the parent.
#[test]
fn the_child_of_a_fork_commits_nothing() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::None).unwrap();
    let mut all: Vec<_> = (0..12).map(|_| block_on(store.begin_async()).unwrap()).collect();
    let end = in_child(|| {
        let begun = poll(Box::pin(store.begin_async()).as_mut());
        assert!(matches!(begun, Poll::Ready(Err(_))));
        drop(all.pop());
        std::mem::forget(std::mem::take(&mut all));
    });
    assert_eq!(end, 0);
    drop(all);
    nothing_is_left(&store);
}
