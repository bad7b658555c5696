//! A thousand tasks on two threads of tokio run durable transactions on shared rows. A task that
//! waits for a lock or for the disk does not block its thread.
//!
//! `cargo run --release -p latchwork --example store_async`

use std::time::Instant;

use latchwork::store::{Error, Options, Store, Table};

const TASKS: u64 = 1000;
const EACH: u64 = 5;
const STOCK: Table<u64, i64> = Table::new("stock");
const ORDERS: Table<(u64, u64), u64> = Table::new("orders");

/// Takes one piece of an article and records the order, in one transaction.
async fn order(store: &Store, customer: u64, number: u64) -> Result<(), Error> {
    let article = (customer * 7 + number) % 20;
    store
        .write_async(|mut tx| async move {
            let left = tx.get_for_update(&STOCK, article).await?.unwrap_or(0);
            tx.put(&STOCK, article, left - 1).await?;
            tx.insert(&ORDERS, (customer, number), article).await
        })
        .await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("latchwork-async-{}", std::process::id()));
    let store = Store::open_with(&path, &Options::default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    let begun = Instant::now();
    runtime.block_on(async {
        let customer = |customer| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    order(&store, customer, number).await?;
                }
                Ok::<_, Error>(())
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(customer).collect();
        for task in tasks {
            task.await??;
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    let took = begun.elapsed();
    let (stock, orders) = store.read(|tx| {
        let stock = tx.range(&STOCK, ..)?.map(|row| Ok(row?.1)).sum::<Result<i64, Error>>()?;
        Ok((stock, tx.range(&ORDERS, ..)?.count() as u64))
    })?;
    println!("{orders} orders by {TASKS} tasks in {took:.1?}; the stock says {stock}");
    assert_eq!((orders, -stock), (TASKS * EACH, (TASKS * EACH) as i64));
    drop(store);
    std::fs::remove_dir_all(&path)?;
    Ok(())
}
