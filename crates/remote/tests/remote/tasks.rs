//! The asynchronous form: the calls do the same, tasks take turns, and a task that is dropped
//! commits nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use latchwork_remote::{AsyncPostgres, AsyncReadTxn, AsyncWriteTxn, Postgres, PostgresOptions};
use latchwork_store::{Error, Multi, ReadOps, Sequence, Table, TxnOptions};
use tokio::runtime::Builder;

use crate::{Stage, Test};

pub(crate) const TESTS: &[Test] = &[
    ("tasks_make_the_same_calls", calls),
    ("tasks_take_turns_and_keep_the_total", turns),
    ("a_task_that_is_dropped_commits_nothing", dropped),
];

const FRUIT: Table<&str, u64> = Table::new("fruit");
const NUMBERS: Table<u64, u64> = Table::new("numbers");
const TAGS: Multi<&str, u64> = Multi::new("tags");
const JOBS: Sequence = Sequence::new("jobs");

fn run<T>(work: impl Future<Output = Result<T, Error>>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(work).unwrap()
}

/// Reads in each way; returns the numbers that were read forwards and not backwards.
async fn reads(tx: &AsyncReadTxn) -> Result<Vec<u64>, Error> {
    assert_eq!(tx.get_many(&FRUIT, ["plum", "nut", "pear"]).await?, [Some(4), None, Some(3)]);
    assert_eq!(tx.first(&FRUIT).await?, Some(("fig".to_owned(), 7)));
    assert_eq!(tx.last(&FRUIT).await?, Some(("plum".to_owned(), 4)));
    assert_eq!(tx.count(&NUMBERS, 10..20).await?, 10);
    let mut rows = tx.range(&NUMBERS, 5..=995)?;
    let mut all = Vec::new();
    while let Some((number, double)) = rows.next().await? {
        assert_eq!(double, number * 2);
        all.push(number);
    }
    assert_eq!(rows.next().await?, None);
    let mut rows = tx.range(&NUMBERS, 5..=995)?.rev();
    while let Some((number, _)) = rows.next().await? {
        assert_eq!(all.pop(), Some(number));
    }
    Ok(all)
}

fn calls(stage: &mut Stage) {
    let address = stage.server.fresh("tasks");
    let numbers = run(async {
        let db = AsyncPostgres::open(&address).await?;
        assert_eq!(db.get(&FRUIT, "pear").await?, None);
        db.put(&FRUIT, "pear", 3).await?;
        db.write(|tx| async move {
            tx.insert(&FRUIT, "plum", 4).await?;
            let exists = tx.insert(&FRUIT, "plum", 5).await;
            assert!(matches!(exists, Err(Error::Exists { .. })), "{exists:?}");
            let here = tx.savepoint().await?;
            tx.put(&FRUIT, "lost", 1).await?;
            assert!(tx.contains(&FRUIT, "lost").await?);
            tx.roll_back_to(here).await?;
            assert_eq!(tx.update(&FRUIT, "fig", |old| Some(old.unwrap_or(7))).await?, Some(7));
            assert_eq!(tx.get_for_update(&FRUIT, "fig").await?, Some(7));
            for number in 0..1000 {
                tx.put(&NUMBERS, number, number * 2).await?;
            }
            assert!(tx.insert_value(&TAGS, "red", 1).await?);
            assert!(!tx.insert_value(&TAGS, "red", 1).await?);
            Ok(())
        })
        .await?;
        assert!(db.read(|tx| async move { reads(&tx).await }).await?.is_empty());
        db.write(|tx| async move {
            assert_eq!(tx.pop_first(&FRUIT).await?, Some(("fig".to_owned(), 7)));
            assert_eq!(tx.pop_last(&FRUIT).await?, Some(("plum".to_owned(), 4)));
            assert_eq!(tx.remove_values(&TAGS, "red").await?, 1);
            assert_eq!(tx.remove_range(&NUMBERS, 100..).await?, 900);
            Ok(())
        })
        .await?;
        assert!(db.remove(&FRUIT, "pear").await? && !db.remove(&FRUIT, "pear").await?);
        let names: Vec<_> = db.table_infos().await?.into_iter().map(|table| table.name).collect();
        assert_eq!(names, ["fruit", "numbers", "tags"]);
        let failed = db.write(|tx| async move {
            tx.put(&FRUIT, "no", 1).await?;
            tx.get(&FRUIT, "no").await?;
            Err::<(), _>(Error::Rejected("no".to_owned()))
        });
        assert!(matches!(failed.await, Err(Error::Rejected(_))));
        let mut numbers = Vec::new();
        for _ in 0..3 {
            numbers.push(db.next_number(&JOBS).await?);
        }
        Ok(numbers)
    });
    assert_eq!(numbers, [1, 2, 3]);
    let db = Postgres::open(&address).unwrap();
    assert_eq!(db.read(|tx| tx.count(&FRUIT, ..)).unwrap(), 0);
    assert_eq!(db.read(|tx| tx.count(&NUMBERS, ..)).unwrap(), 100);
    assert!(db.next_number(&JOBS).unwrap() > 3);
    // The form that blocks says so, also where a connection is free, and ends in a task.
    let blocked = run(async move {
        let blocked = db.get(&FRUIT, "pear");
        drop(db);
        Ok(blocked)
    });
    assert!(matches!(&blocked, Err(Error::Options(why)) if why.contains("AsyncPostgres")));
}

async fn transfer(tx: &AsyncWriteTxn, from: u64, to: u64) -> Result<(), Error> {
    tx.update(&NUMBERS, from, |old| Some(old.unwrap_or(1000) - 1)).await?;
    tx.update(&NUMBERS, to, |old| Some(old.unwrap_or(1000) + 1)).await?;
    Ok(())
}

fn turns(stage: &mut Stage) {
    let address = stage.server.fresh("task_turns");
    let total = run(async {
        let mut options = PostgresOptions::default();
        options.connections = 3;
        let db = AsyncPostgres::open_with(&address, &options).await?;
        db.write(|tx| async move {
            for account in 0..5 {
                tx.put(&NUMBERS, account, 1000).await?;
            }
            Ok(())
        })
        .await?;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..12 {
            let db = db.clone();
            // The future of a transaction may move between threads.
            tasks.spawn(async move {
                for step in 0..10 {
                    let (from, to) = ((task + step) % 5, (task + step * 3 + 1) % 5);
                    db.write(|tx| async move { transfer(&tx, from, to).await }).await.unwrap();
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        db.read(|tx| async move {
            let (mut rows, mut total) = (tx.range(&NUMBERS, ..)?, 0);
            while let Some((_, balance)) = rows.next().await? {
                total += balance;
            }
            Ok(total)
        })
        .await
    });
    assert_eq!(total, 5000);
}

fn dropped(stage: &mut Stage) {
    let address = stage.server.fresh("task_dropped");
    run(async {
        let db = AsyncPostgres::open(&address).await?;
        db.put(&FRUIT, "pear", 1).await?;
        let stays = db.write(|tx| async move {
            tx.put(&FRUIT, "pear", 2).await?;
            tx.get(&FRUIT, "pear").await?;
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok(())
        });
        assert!(tokio::time::timeout(Duration::from_millis(200), stays).await.is_err());
        // It has held the lock of the record.
        assert_eq!(
            db.write(|tx| async move { tx.get_for_update(&FRUIT, "pear").await }).await?,
            Some(1)
        );
        // A call that is dropped inside a transaction: the transaction runs again.
        let holder = AsyncPostgres::open(&address).await?;
        let options = TxnOptions { time: Duration::from_secs(5), ..TxnOptions::default() };
        let (runs, db, options) = (&AtomicU64::new(0), &db, &options);
        holder
            .write(|tx| async move {
                tx.get_for_update(&FRUIT, "pear").await?;
                let done = db.write_with(options, |tx| async move {
                    if runs.fetch_add(1, Relaxed) == 0 {
                        let soon = Duration::from_millis(100);
                        let late = tx.get_for_update(&FRUIT, "pear");
                        assert!(tokio::time::timeout(soon, late).await.is_err());
                    }
                    tx.put(&FRUIT, "plum", 5).await
                });
                assert_eq!(done.await?.runs, 2);
                Ok(())
            })
            .await?;
        assert_eq!(db.get(&FRUIT, "plum").await?, Some(5));
        Ok(())
    });
}
