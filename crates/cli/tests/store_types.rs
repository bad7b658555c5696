//! Keys and values by the types that a table has recorded.

use std::path::PathBuf;
use std::process::{Command, Output};

use latchwork_store::{Store, Table};
use serde_json::Value;

/// A folder of a test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let id = std::process::id();
        let path = std::env::temp_dir().join(format!("latchwork-store-types-{name}-{id}"));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn store(&self) -> String {
        self.0.join("shop").to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn store(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_latchwork")).arg("store").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn done(args: &[&str]) -> String {
    let output = store(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn rows(args: &[&str]) -> Vec<Value> {
    done(args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The error output of a command that fails.
fn store_said(args: &[&str]) -> String {
    let output = store(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    text(&output.stderr)
}

#[derive(latchwork_derive::Key)]
#[latchwork(crate = latchwork_store)]
enum Place {
    Aisle { row: u16 },
    Shelf(String, i8),
}

#[derive(latchwork_derive::Value, Debug, PartialEq)]
#[latchwork(crate = latchwork_store)]
struct Item {
    name: String,
    price: Option<f64>,
    size: (u8, u128),
}

#[test]
fn records_are_printed_and_read_by_the_types_of_the_table() {
    let folder = Folder::new("types");
    let s = &folder.store();
    let fruit: Table<&str, u64> = Table::new("fruit");
    let items: Table<Place, Item> = Table::new("items").with_version(2);
    let flags: Table<(bool, f32), Option<i16>> = Table::new("flags");
    let open = Store::open(s).unwrap();
    open.put(&fruit, "pear", 3).unwrap();
    let shelf = Place::Shelf("left".into(), -1);
    let item = Item { name: "tea".into(), price: Some(2.5), size: (1, u128::MAX) };
    open.put(&items, &shelf, &item).unwrap();
    open.put(&items, &Place::Aisle { row: 7 }, &item).unwrap();
    open.put(&flags, (true, 0.5), Some(-2)).unwrap();
    assert_eq!(done(&["get", s, "--table", "fruit", "pear"]), "3\n");
    assert_eq!(store(&["get", s, "--table", "fruit", "pear", "--raw"]).stdout, 3u64.to_le_bytes());
    assert_eq!(rows(&["get", s, "--table", "fruit", "pear", "--json"])[0]["value"], 3);
    done(&["put", s, "--table", "fruit", "fig", "18446744073709551615"]);
    assert_eq!(open.get(&fruit, "fig"), Ok(Some(u64::MAX)));
    for value in ["many", "-1", "18446744073709551616", "0.5", ""] {
        let wrong = store_said(&["put", s, "--table", "fruit", "--", "fig", value]);
        assert!(wrong.contains("no value of the table, which has str -> u64"), "{wrong}");
    }
    // JSON, where the keys are text.
    done(&["del", s, "--table", "fruit", "--typed", "\"fig\""]);
    assert_eq!(done(&["scan", s, "--table", "fruit"]), "pear\t3\n");
    let line = "{\"name\":\"tea\",\"price\":2.5,\
                \"size\":[1,{\"integer\":\"340282366920938463463374607431768211455\"}]}";
    assert_eq!(
        done(&["scan", s, "--table", "items"]),
        format!("{{\"Aisle\":{{\"row\":7}}}}\t{line}\n{{\"Shelf\":[\"left\",-1]}}\t{line}\n")
    );
    let key = "{\"Shelf\":[\"left\",-1]}";
    let new = "{\"name\":\"jam\",\"price\":null,\"size\":[0,9]}";
    done(&["put", s, "--table", "items", key, new]);
    let jam = Item { name: "jam".into(), price: None, size: (0, 9) };
    assert_eq!(open.get(&items, &shelf), Ok(Some(jam)));
    assert_eq!(done(&["get", s, "--table", "items", key]), format!("{new}\n"));
    let wrong = store_said(&["put", s, "--table", "items", key, "{\"name\":\"jam\"}"]);
    assert!(wrong.contains("the field price is missing"), "{wrong}");
    let wrong = store_said(&["get", s, "--table", "items", "\"Cellar\""]);
    assert!(wrong.contains("Cellar: no variant; there are Aisle, Shelf"), "{wrong}");
    assert_eq!(done(&["scan", s, "--table", "flags", "[true]"]), "(true, 0.5)\t-2\n");
    assert_eq!(done(&["scan", s, "--table", "flags", "[false]", "[true]"]), "");
    let tables = rows(&["tables", s, "--json"]);
    let of = |name: &str| tables.iter().find(|row| row["table"] == name).unwrap().clone();
    assert_eq!(of("flags")["key"], "(bool,f32)");
    assert_eq!((&of("items")["version"], &of("fruit")["value"]), (&2.into(), &"u64".into()));
    assert!(done(&["tables", s]).starts_with("table  key"));
}

/// A dump, a compact copy, a backup and what is salvaged have the types of the tables.
#[test]
fn copies_have_the_types() {
    let folder = Folder::new("copies");
    let s = &folder.store();
    let fruit: Table<&str, u64> = Table::new("fruit").with_version(3);
    Store::open(s).unwrap().put(&fruit, "pear", 3).unwrap();
    let at = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let (dump, loaded, small, copy, restored, salvaged) =
        (at("dump"), at("loaded"), at("small"), at("copy"), at("restored"), at("salvaged"));
    done(&["dump", s, "--to", &dump]);
    done(&["load", &loaded, &dump]);
    done(&["compact", s, &small]);
    done(&["backup", s, &copy]);
    done(&["restore", &copy, &restored]);
    assert_eq!(store(&["salvage", s, &salvaged]).status.code(), Some(0));
    for place in [&loaded, &small, &restored, &salvaged] {
        let row = &rows(&["tables", place, "--json"])[0];
        assert_eq!((&row["key"], &row["value"]), (&"str".into(), &"u64".into()), "{place}");
        assert_eq!(row["version"], 3, "{place}");
        assert_eq!(done(&["get", place, "pear", "--table", "fruit"]), "3\n");
    }
    // Rows of other types are not merged.
    let other = at("other");
    let texts: Table<&str, &str> = Table::new("fruit");
    Store::open(&other).unwrap().put(&texts, "fig", "four").unwrap();
    let wrong = store_said(&["load", &other, &dump, "--merge"]);
    assert!(wrong.contains("table fruit holds str -> str"), "{wrong}");
}

#[test]
fn a_missing_table_is_an_error() {
    let folder = Folder::new("notable");
    let s = &folder.store();
    done(&["put", s, "a", "1"]);
    for args in [
        &["scan", s, "--table", "nosuch"][..],
        &["scan", s, "--table", "nosuch", "--json"],
        &["get", s, "a", "--table", "nosuch"],
        &["del", s, "a", "--table", "nosuch"],
        &["dump", s, "nosuch"],
        &["dump", s, "nosuch", "--to", &format!("{s}.dump")],
    ] {
        let output = store(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(text(&output.stderr).contains("there is no table nosuch"), "{args:?}");
    }
    assert_eq!(done(&["put", s, "b", "2", "--table", "new"]), "");
    let row = rows(&["tables", s, "--json"]).pop().unwrap();
    assert_eq!((&row["key"], &row["value"]), (&"str".into(), &"bytes".into()));
}
