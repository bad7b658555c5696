//! Values in formats of other crates.

use std::error::Error as _;

use latchwork_disk::Simulated;
use latchwork_store::{Error, Json, Mode, Plain, Postcard, Table, TypeName, Value, ValueError};
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::stage::begin;

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Order {
    what: String,
    count: u32,
    of: Vec<Option<u8>>,
}

impl TypeName for Order {
    const NAME: &'static str = "order";
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Debug, PartialEq)]
#[repr(C)]
struct Point {
    id: U32,
    at: [U64; 2],
}

impl TypeName for Point {
    const NAME: &'static str = "point";
}

/// Its alignment is more than that of bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Debug, PartialEq)]
#[repr(C, align(16))]
struct Wide([u64; 2]);

impl TypeName for Wide {
    const NAME: &'static str = "wide";
}

fn order() -> Order {
    Order { what: "tea".to_owned(), count: 2, of: vec![None, Some(7)] }
}

#[test]
fn values_of_each_format_are_read_as_written() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let json: Table<u64, Json<Order>> = Table::new("json");
    let compact: Table<u64, Postcard<Order>> = Table::new("compact");
    let plain: Table<u64, Plain<Point>> = Table::new("plain");
    let point = Point { id: U32::new(3), at: [U64::new(4), U64::new(5)] };
    store.put(&json, 1, &order()).unwrap();
    store.put(&compact, 1, &order()).unwrap();
    store.put(&plain, 1, &point).unwrap();
    assert_eq!(store.get(&json, 1), Ok(Some(order())));
    assert_eq!(store.get(&compact, 1), Ok(Some(order())));
    let at = |bytes: &[u8]| Plain::<Point>::view(bytes, |point| point.at[1].get());
    assert_eq!(store.read(|tx| tx.get_with(&plain, 1, at)), Ok(Some(Ok(5))));
    assert_eq!(store.get(&plain, 1), Ok(Some(point)));
    // A value of one format is not read as another; each format has its name.
    let other: Table<u64, Postcard<Order>> = Table::new("json");
    assert!(matches!(store.get(&other, 1), Err(Error::TableType { .. })));
    let said = [<Json<Order>>::TYPE, <Postcard<Order>>::TYPE, <Plain<Point>>::TYPE];
    let said = said.map(ToString::to_string);
    assert_eq!(said, ["json(order)", "postcard(order)", "plain(point,20)"]);
}

#[test]
fn misaligned_values_are_copied() {
    let mut bytes = vec![0];
    Plain::<Wide>::encode(&&Wide([7, 8]), &mut bytes);
    bytes.insert(0, 0);
    for at in 0..3 {
        bytes.rotate_left(1);
        let found = Plain::<Wide>::view(&bytes[1..17], |wide| wide.0);
        assert!(found.is_ok(), "{at}");
    }
    let short = ValueError::Length { found: 3, wanted: 16 };
    assert_eq!(Plain::<Wide>::view(&[0; 3], |_| ()), Err(short));
}

#[test]
fn a_decoders_error_is_the_cause_of_the_error() {
    let table: Table<u64, Json<Order>> = Table::new("json");
    let why = table.value_of(b"{\"what\": 7}").unwrap_err();
    assert!(why.to_string().contains("invalid type: integer `7`"), "{why}");
    let value = why.source().unwrap().downcast_ref::<ValueError>().unwrap();
    assert!(value.source().unwrap().to_string().contains("line 1 column"));
    assert_eq!(value.clone(), *value);
    let compact: Table<u64, Postcard<Order>> = Table::new("compact");
    let mut bytes = compact.value(&&order());
    assert_eq!(compact.value_of(&bytes), Ok(order()));
    bytes.push(0);
    let long = compact.value_of(&bytes).unwrap_err();
    assert!(matches!(long, Error::Value { why: ValueError::Length { .. }, .. }), "{long}");
    assert!(compact.value_of(&bytes[..3]).unwrap_err().source().is_some());
}
