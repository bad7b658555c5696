//! A migration whose process is killed, while another one uses the store.

use std::os::unix::process::ExitStatusExt;

use latchwork_store::{Error, Store, Table};

use crate::stage::{Place, die_after, open};

const OLD: Table<u64, u64> = Table::new("prices");
const NEW: Table<u64, &str> = Table::new("prices").with_version(1);
const ROWS: u64 = 2500;

fn convert(row: u64, value: u64) -> Result<(u64, String), Error> {
    assert_eq!(value, 7 * row);
    Ok((row, value.to_string()))
}

fn migrate(store: &Store) -> Result<u64, Error> {
    store.migrate(&OLD, &NEW, convert, &mut |_| {})
}

/// What the child does.
#[test]
fn migrates_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    die_after(std::env::var("STEP").unwrap().parse().unwrap());
    let _ = migrate(&store);
    die_after(0);
}

/// This process has looked up the table before, and keeps the store open: it sees all of the old
/// rows, or all of the new ones, or is refused.
#[test]
fn a_killed_migration_is_gone_on_with_by_the_next_process() {
    let (mut killed, mut refused) = (0, 0);
    for step in [1, 40, 300, 1500, 4000, 9000, 14_000, 20_000, 27_000, 35_000] {
        let place = Place::new("migrate");
        let store = open(place.at("one"));
        store.load_sorted(&OLD, (0..ROWS).map(|row| (row, 7 * row))).unwrap();
        assert_eq!(store.get(&OLD, 7), Ok(Some(49)));
        let line = format!("STEP={step} exec \"$0\" \"$@\"");
        let mut child = place.start_by(&line, "migrate::migrates_until_it_is_killed");
        let status = child.wait().unwrap();
        killed += u32::from(status.signal() == Some(9));
        store.sweep().unwrap();
        match store.read(|tx| tx.count(&OLD, ..)) {
            Ok(count) => assert_eq!(count, ROWS, "step {step}"),
            Err(Error::Migrating { .. }) => refused += 1,
            Err(Error::TableType { .. }) => assert!(status.success(), "step {step}"),
            Err(why) => panic!("step {step}: {why}"),
        }
        migrate(&store).unwrap();
        let rows = store.read(|tx| tx.range(&NEW, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
        let expected = (0..ROWS).map(|row| (row, (7 * row).to_string()));
        assert!(rows.into_iter().eq(expected), "step {step}");
        assert!(matches!(store.put(&OLD, 1, 1), Err(Error::TableType { .. })));
        store.verify().unwrap();
        assert_eq!(store.space().unwrap().lost, 0, "step {step}");
    }
    assert!(killed > 3 && refused > 1, "{killed} were killed, {refused} in the middle");
}
