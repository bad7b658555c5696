//! The types of tables are recorded and checked.

use latchwork_check::tasks::block_on;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{
    AnyKey, Error, Key, KeyPart, Mode, Multi, Raw, Sequence, Store, Table, Type, Value,
};
use std::sync::Barrier;

use crate::stage::begin;

const FRUIT: Table<&str, u64> = Table::new("fruit");
const WRONG: Table<&str, f64> = Table::new("fruit");

fn stage() -> Store<Native> {
    begin(&Simulated::new(), Mode::None).unwrap()
}

fn is_refused<R: core::fmt::Debug>(done: Result<R, Error>) {
    let why = done.unwrap_err();
    let Error::TableType { table, stored, requested } = &why else { panic!("{why:?}") };
    assert_eq!((&table[..], &stored[..]), ("fruit", "str -> u64"));
    assert!(requested.ends_with("f64") || requested.contains("version"), "{requested}");
    assert!(why.to_string().contains("migrate"), "{why}");
    assert!(!why.is_retryable() && !why.is_damage());
}

#[test]
fn other_types_are_refused_by_every_call_and_change_nothing() {
    let store = stage();
    store.put(&FRUIT, "pear", 3).unwrap();
    is_refused(store.get(&WRONG, "pear"));
    is_refused(store.put(&WRONG, "pear", 0.5));
    is_refused(store.remove(&WRONG, "pear"));
    store
        .read(|tx| {
            is_refused(tx.get(&WRONG, "pear"));
            is_refused(tx.get_with(&WRONG, "pear", |_| ()));
            is_refused(tx.range(&WRONG, ..).map(|_| ()));
            is_refused(tx.scan(&WRONG, .., &mut |_, _| Ok(true)));
            is_refused(tx.cursor(&WRONG).map(|_| ()));
            is_refused(tx.first(&WRONG));
            is_refused(tx.count(&WRONG, ..));
            Ok(())
        })
        .unwrap();
    store
        .write(|tx| {
            is_refused(tx.get(&WRONG, "pear"));
            is_refused(tx.get_for_update(&WRONG, "pear"));
            is_refused(tx.insert(&WRONG, "plum", 0.5));
            is_refused(tx.remove(&WRONG, "pear"));
            is_refused(tx.remove_range(&WRONG, ..));
            is_refused(tx.update(&WRONG, "pear", |_| None));
            is_refused(tx.pop_first(&WRONG));
            // The transaction continues.
            tx.put(&FRUIT, "fig", 4)
        })
        .unwrap();
    let mut by_hand = store.begin().unwrap();
    is_refused(by_hand.put(&WRONG, "pear", 0.5));
    by_hand.put(&FRUIT, "date", 5).unwrap();
    by_hand.commit().unwrap();
    let rows = store.read(|tx| tx.range(&FRUIT, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
    let named = |(name, count): &(&str, u64)| (name.to_string(), *count);
    assert_eq!(rows, [("date", 5), ("fig", 4), ("pear", 3)].iter().map(named).collect::<Vec<_>>());
}

#[test]
fn other_types_are_refused_by_every_call_of_tasks() {
    let store = stage();
    store.put(&FRUIT, "pear", 3).unwrap();
    let mut tx = block_on(store.begin_async()).unwrap();
    is_refused(block_on(tx.get(&WRONG, "pear")));
    is_refused(block_on(tx.get_for_update(&WRONG, "pear")));
    is_refused(block_on(tx.put(&WRONG, "pear", 0.5)));
    is_refused(block_on(tx.insert(&WRONG, "fig", 0.5)));
    is_refused(block_on(tx.remove(&WRONG, "pear")));
    is_refused(block_on(tx.range(&WRONG, ..)).map(|_| ()));
    is_refused(block_on(tx.with(|tx| tx.put(&WRONG, "pear", 0.5))));
    block_on(tx.put(&FRUIT, "fig", 4)).unwrap();
    block_on(tx.commit()).unwrap();
    assert_eq!(store.read(|tx| tx.count(&FRUIT, ..)), Ok(2));
    let kept = store.snapshot().unwrap();
    is_refused(kept.get(&WRONG, "pear"));
}

/// A key of another type would sort among the others and make every later scan fail.
#[test]
fn a_text_key_is_not_put_into_a_table_of_numbers() {
    let store = stage();
    let numbers: Table<u64, u64> = Table::new("numbers");
    let texts: Table<&str, u64> = Table::new("numbers");
    store.put(&numbers, 7, 1).unwrap();
    assert!(matches!(store.put(&texts, "seven", 1), Err(Error::TableType { .. })));
    assert_eq!(store.read(|tx| tx.count(&numbers, ..)), Ok(1));
    let pairs: Multi<u64, u64> = Multi::new("numbers");
    let insert = store.write(|tx| tx.insert_value(&pairs, 7, 8));
    assert!(matches!(insert, Err(Error::TableType { .. })));
}

#[test]
fn a_load_records_types() {
    let store = stage();
    assert_eq!(store.load_sorted(&FRUIT, [("fig", 1), ("pear", 3)]), Ok(2));
    is_refused(store.get(&WRONG, "pear"));
    assert_eq!(store.get(&FRUIT, "pear"), Ok(Some(3)));
}

#[test]
fn sequences_have_a_table_of_their_own() {
    let store = stage();
    assert_eq!(store.next_number(&Sequence::new("order")), Ok(1));
    let table: Table<&str, u64> = Table::named("latchwork sequences");
    assert_eq!(store.get(&table, "order"), Ok(Some(65)));
}

#[test]
fn another_schema_version_is_refused() {
    let store = stage();
    store.put(&FRUIT, "pear", 3).unwrap();
    is_refused(store.get(&FRUIT.with_version(2), "pear"));
    let newer: Table<&str, u64> = Table::new("newer").with_version(2);
    store.put(&newer, "pear", 3).unwrap();
    let why = store.get(&newer.with_version(0), "pear").unwrap_err();
    assert!(why.to_string().contains("str -> u64, version 2"), "{why}");
    let of = |name: &str| {
        let infos = store.table_infos().unwrap();
        infos.into_iter().find(|info| info.name == name).unwrap()
    };
    assert_eq!((of("fruit").version, of("newer").version), (0, 2));
}

#[test]
fn tools_read_and_write_every_table() {
    let store = stage();
    store.put(&FRUIT, "pear", 3).unwrap();
    let raw: Table<Raw, Raw> = Table::new("fruit");
    let any: Table<AnyKey, Raw> = Table::new("fruit");
    let pear = FRUIT.key(&"pear").unwrap();
    assert_eq!(store.get(&raw, &pear), Ok(Some(3u64.to_le_bytes().to_vec())));
    store.put(&raw, &pear, &4u64.to_le_bytes()).unwrap();
    let key = [KeyPart::Text("pear".to_owned())];
    assert_eq!(store.get(&any, &key), Ok(Some(4u64.to_le_bytes().to_vec())));
    assert_eq!(store.get(&FRUIT, "pear"), Ok(Some(4)));
    // Bytes are a type like any other.
    let bytes: Table<&str, &[u8]> = Table::new("fruit");
    assert!(matches!(store.get(&bytes, "pear"), Err(Error::TableType { .. })));
}

/// A table without types, created by a tool or by format 5, gets the types of the first program
/// that writes to it; a read changes nothing.
#[test]
fn the_first_typed_write_records_types() {
    let store = stage();
    let raw: Table<Raw, Raw> = Table::new("fruit");
    let pear = FRUIT.key(&"pear").unwrap();
    store.put(&raw, &pear, &3u64.to_le_bytes()).unwrap();
    let types = || store.table_infos().unwrap().pop().unwrap().value;
    assert_eq!(store.get(&FRUIT, "pear"), Ok(Some(3)));
    assert_eq!(store.get(&WRONG, "pear").map(|found| found.is_some()), Ok(true));
    assert_eq!(types(), None);
    // A version that no table without types can have.
    let newer = store.put(&FRUIT.with_version(1), "pear", 4);
    assert!(matches!(newer, Err(Error::TableType { .. })));
    store.put(&FRUIT, "pear", 4).unwrap();
    assert_eq!(types().as_deref(), Some("u64"));
    is_refused(store.put(&WRONG, "pear", 0.5));
    assert_eq!(store.get(&FRUIT, "pear"), Ok(Some(4)));
}

#[test]
fn one_of_two_different_types_of_a_new_table_is_refused() {
    for round in 0..50 {
        let store = stage();
        let raw: Table<Raw, Raw> = Table::new("fruit");
        if round % 2 == 0 {
            // The table exists and has no types.
            store.put(&raw, b"\x02a\0", &[0; 8]).unwrap();
        }
        let both = Barrier::new(2);
        let (one, other) = std::thread::scope(|scope| {
            let one = scope.spawn(|| {
                both.wait();
                store.put(&FRUIT, "pear", 3)
            });
            both.wait();
            let other = store.put(&WRONG, "plum", 0.5);
            (one.join().unwrap(), other)
        });
        let refused = |done: &Result<(), Error>| matches!(done, Err(Error::TableType { .. }));
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        assert!(refused(&one) || refused(&other), "{one:?} {other:?}");
    }
}

#[test]
fn types_outlive_the_memory() {
    let disk = Simulated::new();
    let store = begin(&disk, Mode::Full).unwrap();
    store.put(&FRUIT.with_version(0), "pear", 3).unwrap();
    drop(store);
    let store = begin(&disk, Mode::Full).unwrap();
    is_refused(store.get(&WRONG, "pear"));
    assert_eq!(store.get(&FRUIT, "pear"), Ok(Some(3)));
}

/// Two names in one string: a prefix of a table's name is another table.
#[test]
fn the_prefix_of_a_name_is_another_table() {
    let store = stage();
    let whole: &'static str = "fruits";
    let (short, long): (Table<&str, u64>, Table<&str, u64>) =
        (Table::new(&whole[..5]), Table::new(whole));
    store.put(&short, "pear", 3).unwrap();
    assert_eq!(store.get(&long, "pear"), Ok(None));
    assert_eq!(store.get(&FRUIT, "pear"), Ok(Some(3)));
}

#[test]
fn equal_types_have_one_description() {
    type Long = ((u8, String), Option<[u8; 3]>, Vec<u8>, i128, bool, f32);
    type Same = ((u8, &'static str), Option<[u8; 3]>, &'static [u8], i128, bool, f32);
    assert_eq!(<Long as Key>::TYPE.to_string(), <Same as Key>::TYPE.to_string());
    let text = "((u8,str),opt(bytes(3)),bytes,i128,bool,f32)";
    assert_eq!(<Long as Value>::TYPE.to_string(), text);
    assert_eq!(<() as Value>::TYPE.to_string(), "()");
    assert_eq!(<(u64,) as Key>::TYPE.to_string(), "(u64,)");
    const FIELDS: Type =
        Type::Struct(&[("name", <&str as Value>::TYPE), ("age", <u16 as Value>::TYPE)]);
    assert_eq!(FIELDS.to_string(), "{name:str,age:u16}");
    const UNIT: &Type = &Type::Tuple(&[]);
    const VARIANTS: Type = Type::Enum(&[
        (0, "Red", UNIT),
        (5, "Green", &Type::Tuple(&[&Type::Bytes(4), &Type::Own("city")])),
        (6, "Blue", &Type::Struct(&[("x", &Type::Any)])),
    ]);
    assert_eq!(VARIANTS.to_string(), "<Red|Green=5(bytes(4),own(city))|Blue{x:any}>");
}

/// Descriptions longer than a record of the catalog are compared as well.
#[test]
fn long_descriptions_are_compared() {
    type Ten = (u64, u64, u64, u64, u64, u64);
    type Many = (Ten, Ten, Ten, Ten, Ten, Ten);
    type Most = (Many, Many, Many, Many, Many, Many);
    type Other =
        (Many, Many, Many, Many, Many, (Ten, Ten, Ten, Ten, Ten, (u64, u64, u64, u64, u64, i64)));
    let store = stage();
    let name = "n".repeat(900);
    let (most, other) = (Table::<u64, Most>::named(&name), Table::<u64, Other>::named(&name));
    let value = <Most as Value>::decode(&[7; 8 * 216]).unwrap();
    store.put(&most, 1, value).unwrap();
    assert_eq!(store.get(&most, 1), Ok(Some(value)));
    assert!(matches!(store.get(&other, 1), Err(Error::TableType { .. })));
}
