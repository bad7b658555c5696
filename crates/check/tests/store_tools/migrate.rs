//! A migration whose process is killed while another process uses the store.

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

fn back(row: u64, value: String) -> Result<(u64, u64), Error> {
    Ok((row, value.parse().unwrap()))
}

fn abandon(store: &Store) -> Result<u64, Error> {
    store.abandon_migration(&OLD, &NEW, back, &mut |_| {})
}

/// The process that migrates.
#[test]
fn migrates_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    die_after(std::env::var("STEP").unwrap().parse().unwrap());
    let _ = migrate(&store);
    die_after(0);
}

/// The process that abandons the migration.
#[test]
fn reverts_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    die_after(std::env::var("STEP").unwrap().parse().unwrap());
    let _ = abandon(&store);
    die_after(0);
}

fn is_old(store: &Store, what: &str) {
    let rows = store.read(|tx| tx.range(&OLD, ..)?.collect::<Result<Vec<_>, _>>());
    let expected = (0..ROWS).map(|row| (row, 7 * row));
    assert!(rows.unwrap().into_iter().eq(expected), "{what}");
    store.verify().unwrap();
    assert_eq!(store.space().unwrap().lost, 0, "{what}");
}

/// A migration whose function fails for a record leaves the table in migration. It is abandoned,
/// even if the process that does so is killed.
#[test]
fn an_impossible_migration_is_reverted() {
    let (mut killed, mut in_the_middle) = (0, 0);
    for step in [1, 60, 400, 2500, 6000, 12_000, 20_000, 60_000] {
        let place = Place::new("abandon");
        let store = open(place.at("one"));
        store.load_sorted(&OLD, (0..ROWS).map(|row| (row, 7 * row))).unwrap();
        let fails = |row, value| match row == 2200 {
            true => Err(Error::Rejected("it has no new form".to_owned())),
            false => convert(row, value),
        };
        let before = store.snapshot().unwrap();
        let failed = store.migrate(&OLD, &NEW, fails, &mut |_| {}).unwrap_err();
        assert_eq!(failed, Error::Rejected("it has no new form".to_owned()));
        let middle = store.snapshot().unwrap();
        assert!(matches!(store.get(&OLD, 1), Err(Error::Migrating { .. })));
        let other = Table::<u64, &str>::new("prices").with_version(2);
        let wrong = store.abandon_migration(&OLD, &other, back, &mut |_| {});
        assert!(matches!(wrong, Err(Error::TableType { .. })), "{wrong:?}");
        let line = format!("STEP={step} exec \"$0\" \"$@\"");
        let mut child = place.start_by(&line, "migrate::reverts_until_it_is_killed");
        let status = child.wait().unwrap();
        killed += u32::from(status.signal() == Some(9));
        store.sweep().unwrap();
        // A migration that is being abandoned is not continued.
        match migrate(&store) {
            Err(Error::Migrating { .. }) => in_the_middle += 1,
            moved => {
                assert!(moved.is_ok(), "step {step}: {moved:?}");
                assert!(matches!(abandon(&store), Err(Error::TableType { .. })));
                continue;
            }
        }
        abandon(&store).unwrap();
        is_old(&store, &format!("step {step}"));
        assert_eq!(abandon(&store), Ok(0));
        // A snapshot from before has all records; one from the middle is refused.
        assert_eq!(before.count(&OLD, ..), Ok(ROWS));
        let refused = middle.count(&OLD, ..);
        assert!(matches!(refused, Err(Error::SnapshotTooOld { .. })), "{refused:?}");
        // The next migration succeeds.
        drop((before, middle));
        assert_eq!(migrate(&store), Ok(ROWS));
        assert_eq!(store.get(&NEW, 7).unwrap().as_deref(), Some("49"));
    }
    assert!(killed > 3 && in_the_middle > 1, "{killed} killed, {in_the_middle} in the middle");
}

/// A migration that runs while another thread abandons it fails without harm.
#[test]
fn a_migration_in_progress_is_reverted() {
    let place = Place::new("both");
    let store = open(place.at("one"));
    store.load_sorted(&OLD, (0..ROWS).map(|row| (row, 7 * row))).unwrap();
    let mut taken = 0;
    let moved = store.migrate(&OLD, &NEW, convert, &mut |records| {
        if records == 1000 {
            taken = abandon(&store).unwrap();
        }
    });
    assert_eq!(taken, 1000);
    assert!(matches!(moved, Err(Error::TableType { .. })), "{moved:?}");
    is_old(&store, "beside");
}

/// This process has looked up the table before and keeps the store open: it reads all old rows, all
/// new rows, or gets an error.
#[test]
fn a_killed_migration_is_continued_by_the_next_process() {
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
