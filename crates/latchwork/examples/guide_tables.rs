//! Tables with tuple keys, derived values, ranges, prefixes and several values per key.
//!
//! `cargo run --release -p latchwork --example guide_tables`

use latchwork::store::{Error, Multi, Store, Table, Value};

#[derive(Value, Clone, Debug, PartialEq)]
struct Order {
    article: String,
    pieces: u32,
}

/// Orders by customer and number: all orders of a customer are adjacent.
const ORDERS: Table<(&str, u64), Order> = Table::new("orders");
/// Several customers for each article.
const BUYERS: Multi<&str, &str> = Multi::new("buyers");

fn main() -> Result<(), Error> {
    let path = std::env::temp_dir().join(format!("latchwork-tables-{}", std::process::id()));
    let store = Store::open(&path)?;
    let order = |article: &str, pieces| Order { article: article.to_owned(), pieces };

    store.write(|tx| {
        for (customer, number, order) in
            [("ann", 1, order("tea", 2)), ("ann", 2, order("cake", 1)), ("bob", 1, order("tea", 1))]
        {
            tx.insert(&ORDERS, (customer, number), &order)?; // fails if the key exists
            tx.insert_value(&BUYERS, order.article.as_str(), customer)?;
        }
        Ok(())
    })?;

    store.read(|tx| {
        // All keys that begin with "ann".
        let ann = tx.prefix::<&str, _, _>(&ORDERS, "ann")?.collect::<Result<Vec<_>, _>>()?;
        assert_eq!(ann.len(), 2);
        assert_eq!(ann[0], (("ann".to_owned(), 1), order("tea", 2)));

        // A range in descending order.
        let last = tx.range(&ORDERS, ("ann", 1)..=("ann", u64::MAX))?.rev().next();
        assert_eq!(last.transpose()?.map(|(key, _)| key.1), Some(2));

        let buyers = tx.values(&BUYERS, "tea")?.collect::<Result<Vec<_>, _>>()?;
        assert_eq!(buyers, ["ann", "bob"]);
        println!("{ann:?}\ntea was bought by {buyers:?}");
        Ok(())
    })?;

    // The store has recorded the types and refuses others.
    const WRONG: Table<u64, u64> = Table::new("orders");
    assert!(matches!(store.get(&WRONG, 1), Err(Error::TableType { .. })));

    drop(store);
    std::fs::remove_dir_all(&path).expect("the store's folder can be removed");
    Ok(())
}
