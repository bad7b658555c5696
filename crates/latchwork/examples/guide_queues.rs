//! A queue, a sequence of numbers and a secondary index, maintained in the same transactions.
//!
//! `cargo run --release -p latchwork --example guide_queues`

use latchwork::store::{Error, Level, Multi, Sequence, Store, Table, TxnOptions};

const NUMBERS: Sequence = Sequence::new("job numbers");
/// Jobs that wait, by number: a queue.
const WAITING: Table<u64, String> = Table::new("waiting jobs");
/// Finished jobs by number, and an index of them by result.
const FINISHED: Table<u64, String> = Table::new("finished jobs");
const BY_RESULT: Multi<&str, u64> = Multi::new("finished jobs by result");

/// Appends a job. Numbers are unique and ascending per thread; gaps are possible.
fn push(store: &Store, job: &str) -> Result<(), Error> {
    let number = store.next_number(&NUMBERS)?;
    store.write(|tx| tx.insert(&WAITING, number, job))
}

/// Takes the oldest job that no other worker has, and finishes it. If the process is killed, the
/// job is still waiting.
fn work(store: &Store) -> Result<bool, Error> {
    let options = TxnOptions { level: Level::ReadCommitted, ..TxnOptions::default() };
    let done = store.write_with(&options, |tx| {
        let Some((number, job)) = tx.pop_first(&WAITING)? else { return Ok(false) };
        let result = if job.contains('!') { "failed" } else { "done" };
        tx.put(&FINISHED, number, job.as_str())?;
        tx.insert_value(&BY_RESULT, result, number)?;
        Ok(true)
    })?;
    Ok(done.value)
}

fn main() -> Result<(), Error> {
    let path = std::env::temp_dir().join(format!("latchwork-queues-{}", std::process::id()));
    let store = Store::open(&path)?;
    for job in ["mail ann", "mail bob", "crash!", "mail cid"] {
        push(&store, job)?;
    }
    // Workers in threads; processes work in the same way.
    std::thread::scope(|scope| {
        let worker = || -> Result<u32, Error> {
            let mut jobs = 0;
            while work(&store)? {
                jobs += 1;
            }
            Ok(jobs)
        };
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        let jobs = workers.map(|worker| worker.join().expect("a worker panicked"));
        for done in jobs {
            println!("a worker finished {} jobs", done?);
        }
        Ok::<_, Error>(())
    })?;

    let failed = store.read(|tx| {
        let numbers = tx.values(&BY_RESULT, "failed")?.collect::<Result<Vec<_>, _>>()?;
        numbers.into_iter().map(|number| tx.get(&FINISHED, number)).collect::<Result<Vec<_>, _>>()
    })?;
    assert_eq!(failed, [Some("crash!".to_owned())]);
    assert_eq!(store.read(|tx| tx.count(&FINISHED, ..))?, 4);

    drop(store);
    std::fs::remove_dir_all(&path).expect("the store's folder can be removed");
    Ok(())
}
