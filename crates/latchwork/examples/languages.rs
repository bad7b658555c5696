//! Tables that programs in several languages share. `languages write PATH` writes them; `languages
//! check PATH` compares them with the expected contents, whichever program wrote them.
//!
//! `cpp/tests/languages.cpp` is the same program in C++. `go/languages_test.go` reads a part of the
//! tables. `scripts/cpp test` lets each program check the output of the other.

use std::process::ExitCode;

use latchwork::store::{Key, Store, Table, Uuid, Value};

/// A struct is the tuple of its fields.
#[derive(Key, PartialEq, Debug)]
struct OrderId {
    customer: String,
    number: u64,
}

#[derive(Value, PartialEq, Debug)]
struct Order {
    what: String,
    count: u32,
    price: Option<f64>,
}

const FRUIT: Table<&str, u64> = Table::new("fruit");
const SCORES: Table<(&str, i64), Option<f64>> = Table::new("scores");
const ORDERS: Table<OrderId, Order> = Table::new("orders");
const IDS: Table<Uuid, &[u8]> = Table::new("ids");
type NestedKey = (Option<u32>, (bool, f32));
const NESTED: Table<NestedKey, (&str, [u8; 3])> = Table::new("nested");
const WIDE: Table<i128, u128> = Table::new("wide");

fn orders() -> [(OrderId, Order); 2] {
    let id = |customer: &str, number| OrderId { customer: customer.to_owned(), number };
    let order = |what: &str, count, price| Order { what: what.to_owned(), count, price };
    [(id("ann", 8), order("tea", 2, Some(1.5))), (id("bob", 1 << 40), order("", 0, None))]
}

fn write(store: &Store) -> Result<(), latchwork::store::Error> {
    store.write(|tx| {
        tx.put(&FRUIT, "pear", 3)?;
        tx.put(&FRUIT, "p\u{e9}ar\0x", u64::MAX)?;
        tx.put(&SCORES, ("ann", -300), Some(-0.5))?;
        tx.put(&SCORES, ("ann", 7), None)?;
        for (id, order) in &orders() {
            tx.put(&ORDERS, id, order)?;
        }
        tx.put(&IDS, Uuid(*b"0123456789abcdef"), b"\0\xff\0")?;
        tx.put(&NESTED, (None, (true, 0.25)), ("x", [1, 2, 3]))?;
        tx.put(&NESTED, (Some(9), (false, -1.0)), ("", [0, 0, 0]))?;
        tx.put(&WIDE, -(1 << 100), 1 << 120)
    })
}

fn check(store: &Store) -> Result<(), latchwork::store::Error> {
    store.read(|at| {
        assert_eq!(at.get(&FRUIT, "pear")?, Some(3));
        assert_eq!(at.get(&FRUIT, "p\u{e9}ar\0x")?, Some(u64::MAX));
        assert_eq!(at.get(&SCORES, ("ann", -300))?, Some(Some(-0.5)));
        assert_eq!(at.get(&SCORES, ("ann", 7))?, Some(None));
        for (id, order) in &orders() {
            assert_eq!(at.get(&ORDERS, id)?.as_ref(), Some(order));
        }
        let bytes = at.get(&IDS, Uuid(*b"0123456789abcdef"))?;
        assert_eq!(bytes.as_deref(), Some(&b"\0\xff\0"[..]));
        let nested = at.get(&NESTED, (None, (true, 0.25)))?;
        assert_eq!(nested, Some(("x".to_owned(), [1, 2, 3])));
        let nested = at.get(&NESTED, (Some(9), (false, -1.0)))?;
        assert_eq!(nested, Some((String::new(), [0, 0, 0])));
        assert_eq!(at.get(&WIDE, -(1 << 100))?, Some(1 << 120));
        Ok(())
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, verb, path] = arguments.as_slice() else {
        eprintln!("usage: languages write|check PATH");
        return ExitCode::from(2);
    };
    let done = Store::open(path).and_then(|store| match verb.as_str() {
        "write" => write(&store),
        _ => check(&store),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("languages: {why}");
            ExitCode::FAILURE
        }
    }
}
