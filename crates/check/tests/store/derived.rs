//! Derived keys and values.

use latchwork_derive::{Key, Value};
use latchwork_disk::Simulated;
use latchwork_store::{Error, Key, KeyError, Mode, Table, Value, ValueError};
use proptest::prelude::*;

use crate::stage::begin;

#[derive(Key, Value, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[latchwork(crate = latchwork_store)]
struct Customer(u64);

#[derive(Key, Value, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[latchwork(crate = latchwork_store)]
struct Line {
    customer: Customer,
    #[latchwork(name = "order")]
    number: i32,
    text: String,
    mark: Option<Vec<u8>>,
}

#[derive(Key, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[latchwork(crate = latchwork_store)]
struct Pair((u8, String), bool);

#[derive(Key, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[latchwork(crate = latchwork_store)]
#[repr(i8)]
enum Place {
    Nowhere,
    Below(i16) = -3,
    At { row: u8, name: String },
    Of(Box2, Option<Customer>) = 7,
}

#[derive(Key, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[latchwork(crate = latchwork_store)]
struct Box2(Pair);

#[derive(Value, Clone, Debug, PartialEq)]
#[latchwork(crate = latchwork_store)]
struct Nothing;

#[derive(Value, Clone, Copy, Debug, PartialEq)]
#[latchwork(crate = latchwork_store)]
enum Colour {
    Red,
    Green = 5,
}

#[derive(Value, Clone, Debug, PartialEq)]
#[latchwork(crate = latchwork_store)]
struct Person {
    colour: Colour,
    r#type: u16,
    name: String,
    of: Event,
    weight: f64,
}

#[derive(Value, Clone, Debug, PartialEq)]
#[latchwork(crate = latchwork_store)]
enum Event {
    Born,
    Moved(String, u8),
    Met { whom: String, when: (u32, Option<u8>) },
}

fn bytes<K: Key>(key: &K::Of<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    K::encode(key, &mut bytes);
    bytes
}

fn value<V: Value>(value: &V::Of<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    V::encode(value, &mut bytes);
    bytes
}

prop_compose! {
    fn customer()(number in prop_oneof![any::<u64>(), 0..3u64]) -> Customer { Customer(number) }
}

prop_compose! {
    fn line()(
        customer in customer(),
        number in prop_oneof![any::<i32>(), -2..3i32],
        text in "[\\x00ab]{0,3}",
        mark in prop::option::of(prop::collection::vec(prop_oneof![Just(0), Just(255), 0..3u8], 0..3)),
    ) -> Line {
        Line { customer, number, text, mark }
    }
}

prop_compose! {
    fn pair()(small in 0..3u8, text in "[\\x00ab]{0,2}", is in any::<bool>()) -> Pair {
        Pair((small, text), is)
    }
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::Nowhere),
        any::<i16>().prop_map(Place::Below),
        (0..3u8, "[\\x00ab]{0,2}").prop_map(|(row, name)| Place::At { row, name }),
        (pair(), prop::option::of(customer())).prop_map(|(pair, of)| Place::Of(Box2(pair), of)),
    ]
}

/// Encoded keys, alone and inside other keys, sort as the derived `Ord`; and decode to the same
/// value.
fn keeps_order<K>(one: &K, other: &K) -> Result<(), TestCaseError>
where
    K: for<'k> Key<Of<'k> = &'k K, Owned = K> + Ord + core::fmt::Debug,
{
    let order = one.cmp(other);
    prop_assert_eq!(bytes::<K>(&one).cmp(&bytes::<K>(&other)), order, "{:?} {:?}", one, other);
    let nested = |key| bytes::<(Option<K>, u8)>(&(Some(key), 1));
    prop_assert_eq!(nested(one).cmp(&nested(other)), order);
    let deep = |key| bytes::<((u8, K), u8)>(&((1, key), 1));
    prop_assert_eq!(deep(one).cmp(&deep(other)), order);
    prop_assert_eq!(&K::decode(&bytes::<K>(&one)).unwrap(), one);
    let again = <((u8, K), u8)>::decode(&deep(one)).unwrap();
    prop_assert_eq!(&again.0.1, one);
    Ok(())
}

proptest! {
    #[test]
    fn derived_keys_are_in_the_order_of_ord(
        lines in (line(), line()),
        pairs in (pair(), pair()),
        places in (place(), place()),
        customers in (customer(), customer()),
    ) {
        keeps_order(&lines.0, &lines.1)?;
        keeps_order(&pairs.0, &pairs.1)?;
        keeps_order(&places.0, &places.1)?;
        keeps_order(&customers.0, &customers.1)?;
        prop_assert_eq!(&<Line as Value>::decode(&value::<Line>(&&lines.0)).unwrap(), &lines.0);
    }
}

#[test]
fn a_derived_key_is_the_tuple_of_its_fields() {
    let line = Line { customer: Customer(7), number: -1, text: "tea".into(), mark: None };
    let tuple = bytes::<(u64, i32, &str, Option<Vec<u8>>)>(&(7, -1, "tea", None));
    assert_eq!(bytes::<Line>(&&line), tuple);
    assert_eq!(bytes::<Place>(&&Place::Below(9)), bytes::<(i8, i16)>(&(-3, 9)));
    assert_eq!(Place::decode(&bytes::<(i8, u8)>(&(6, 0))), Err(KeyError::Variant { found: 6 }));
    assert_eq!(Place::decode(&bytes::<(i8, u8)>(&(0, 0))), Err(KeyError::Long));
}

#[test]
fn derived_values_are_read_as_they_were_written() {
    let events = [
        Event::Born,
        Event::Moved("Bergen".into(), 3),
        Event::Met { whom: "ann".into(), when: (7, Some(1)) },
    ];
    for of in events {
        let person =
            Person { colour: Colour::Green, r#type: 9, name: "bob".into(), of, weight: 0.5 };
        let bytes = value::<Person>(&&person);
        assert_eq!(Person::decode(&bytes), Ok(person.clone()));
        assert!(Person::decode(&bytes[1..]).is_err());
        let pair = value::<(Person, u8)>(&(&person, 7));
        assert_eq!(<(Person, u8)>::decode(&pair), Ok((person, 7)));
    }
    assert_eq!((Colour::WIDTH, Nothing::WIDTH, Event::WIDTH), (Some(1), Some(0), None));
    assert_eq!(value::<Colour>(&&Colour::Green), [5]);
    assert_eq!(Colour::decode(&[1]), Err(ValueError::Variant { found: 1 }));
    assert!(Colour::decode(&[0, 0]).is_err() && Nothing::decode(&[0]).is_err());
    assert_eq!(Colour::decode(&[0]), Ok(Colour::Red));
    assert_eq!(Nothing::decode(&[]), Ok(Nothing));
}

#[test]
fn derived_types_describe_what_is_stored() {
    assert_eq!(<Customer as Key>::TYPE.to_string(), "u64");
    let line = "{customer:u64,order:i32,text:str,mark:opt(bytes)}";
    assert_eq!(<Line as Key>::TYPE.to_string(), line);
    let place = "<Nowhere|Below=-3(i16)|At{row:u8,name:str}|Of=7(((u8,str),bool),opt(u64))>";
    assert_eq!(<Place as Key>::TYPE.to_string(), place);
    assert_eq!(
        <Person as Value>::TYPE.to_string(),
        "{colour:<Red|Green=5>,type:u16,name:str,of:<Born|Moved(str,u8)|\
         Met{whom:str,when:(u32,opt(u8))}>,weight:f64}"
    );
    assert_eq!(<Nothing as Value>::TYPE.to_string(), "()");
}

#[test]
fn a_table_of_derived_types_is_checked() {
    const LINES: Table<Line, Person> = Table::new("lines");
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let line = Line { customer: Customer(7), number: 1, text: "tea".into(), mark: None };
    let (colour, of, name) = (Colour::Red, Event::Born, "bob".to_owned());
    let person = Person { colour, r#type: 9, name, of, weight: 0.5 };
    store.put(&LINES, &line, &person).unwrap();
    assert_eq!(store.get(&LINES, &line), Ok(Some(person)));
    // The same encoding without the names is a different type.
    type Tuple = (u64, i32, &'static str, Option<Vec<u8>>);
    let tuples: Table<Tuple, Person> = Table::new("lines");
    let read = store.get(&tuples, (7, 1, "tea", None));
    assert!(matches!(read, Err(Error::TableType { .. })));
}
