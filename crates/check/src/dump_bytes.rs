//! Arbitrary bytes as a dump of a store for the fuzz target and the tests.

use latchwork_store::{DumpError, DumpItem, DumpReader, DumpSummary, DumpWriter};

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);
/// The contents of a dump: tables and their records.
pub type Tables = Vec<(String, Vec<Record>)>;

/// The text of a dump of these tables.
pub fn written(tables: &Tables, page: u32, at: u64) -> (Vec<u8>, DumpSummary) {
    let mut dump = DumpWriter::new(Vec::new(), page, at).unwrap();
    for (name, records) in tables {
        dump.table(name).unwrap();
        records.iter().for_each(|(key, value)| dump.record(key, value).unwrap());
    }
    dump.finish().unwrap()
}

/// Reads bytes as a dump.
///
/// # Errors
///
/// The defect of the dump.
pub fn read(bytes: &[u8]) -> Result<(Tables, DumpSummary), DumpError> {
    let mut dump = DumpReader::new(bytes)?;
    let mut tables = Tables::new();
    while let Some(item) = dump.next_item()? {
        match (item, tables.last_mut()) {
            (DumpItem::Table(table), _) => tables.push((table.name, Vec::new())),
            (DumpItem::Record { key, value }, Some(table)) => table.1.push((key, value)),
            (DumpItem::Record { .. }, None) => panic!("a record of no table"),
        }
    }
    Ok((tables, dump.summary()))
}

/// Reads bytes as a dump. A valid dump, written again, gives the same bytes, except for unnecessary
/// escapes.
pub fn exercise(bytes: &[u8]) {
    let Ok((tables, summary)) = read(bytes) else { return };
    let (text, _) = written(&tables, summary.page, summary.at);
    assert!(text.len() <= bytes.len(), "the written text is longer than the text that was read");
    assert_eq!(read(&text).unwrap().0, tables);
}

/// A dump with every kind of line and every kind of byte.
pub fn sound() -> Vec<u8> {
    let odd = (0..=255).collect::<Vec<u8>>();
    let tables = vec![
        (String::new(), vec![(Vec::new(), Vec::new())]),
        (
            "a table\twith\\odd \u{e9}".to_owned(),
            vec![(b"k".to_vec(), odd), (b"l".to_vec(), vec![])],
        ),
        ("empty".to_owned(), Vec::new()),
        ("fruit".to_owned(), (0..20u8).map(|n| (vec![b'n', n], vec![n; 3])).collect()),
    ];
    written(&tables, 8192, 4096).0
}
