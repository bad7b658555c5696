//! Processes that are killed while they load a table of sorted rows: all of it is there, or
//! nothing.

use std::os::unix::process::ExitStatusExt;

use latchwork_store::{Error, Store, Table, forget_memory};

use crate::stage::{COUNT, EACH, Place, die_after, fill, open, sum};

const LOADED: Table<u64, &[u8]> = Table::new("loaded");
const LOADED_ROWS: u64 = 3_000;

fn load(store: &Store) -> Result<u64, Error> {
    let rows: Vec<_> = (0..LOADED_ROWS).map(|row| (row, [row as u8; 200])).collect();
    store.load_sorted(&LOADED, rows.iter().map(|(row, value)| (*row, &value[..])))
}

/// A process that loads, and is killed on the way.
#[test]
fn loader() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    die_after(std::env::var("STEP").unwrap().parse().unwrap());
    assert_eq!(load(&store), Ok(LOADED_ROWS));
    die_after(0);
    // It does not close the store: that is the other's.
    std::process::exit(0);
}

/// Whether the table is there: then all of it is.
fn is_loaded(store: &Store, case: &str) -> bool {
    let rows = store.read(|tx| {
        tx.range(&LOADED, ..)?.try_fold(0, |rows, row| {
            let (key, value) = row?;
            assert!(key == rows && value == [key as u8; 200], "{case}: row {key}");
            Ok::<_, Error>(rows + 1)
        })
    });
    let rows = rows.unwrap();
    assert!(rows == 0 || rows == LOADED_ROWS, "{case}: {rows} rows");
    rows != 0
}

/// Kills a process at every so many steps, and once behind the last one.
fn killed_in_a_load(crash: bool) {
    let (mut step, mut nth, mut absent) = (1_u32, 0, 0);
    loop {
        let place = Place::new("sorted");
        let mut store = Some(open(place.at("one")));
        fill(store.as_ref().unwrap(), 20);
        if crash {
            store = None;
        }
        let line = format!("STEP={step} exec \"$0\" \"$@\"");
        let ended = place.start_by(&line, "sorted::loader").wait().unwrap();
        let case = format!("crash {crash}, step {step}");
        assert!(ended.success() || ended.signal() == Some(libc::SIGKILL), "{case}: {ended}");
        if crash && !ended.success() {
            assert!(forget_memory(place.at("one")).unwrap() > 0);
        }
        let store = store.unwrap_or_else(|| open(place.at("one")));
        store.sweep().unwrap();
        let loaded = is_loaded(&store, &case);
        assert!(loaded || !ended.success(), "{case}: it was answered for");
        absent += u32::from(!loaded);
        // A process that loads again fills the table, or is told that it is there.
        match load(&store) {
            Ok(rows) => assert!(rows == LOADED_ROWS && !loaded, "{case}"),
            Err(why) => assert!(matches!(why, Error::Exists { .. }) && loaded, "{case}: {why}"),
        }
        assert!(is_loaded(&store, &case));
        assert_eq!(sum(&store), COUNT as i64 * EACH, "{case}");
        let counts = store.counts().unwrap();
        assert_eq!((counts.locks, counts.transactions), (0, 0), "{case}");
        store.verify().unwrap();
        if ended.success() {
            println!("{nth} deaths in {step} steps and less, {absent} left no table");
            assert!(nth > 10 && absent > 5, "{nth} deaths, {absent} left no table");
            return;
        }
        nth += 1;
        step += 1 + step / 3;
    }
}

#[test]
fn a_death_in_a_load_leaves_all_or_nothing() {
    killed_in_a_load(false);
}

#[test]
fn a_crash_in_a_load_leaves_all_or_nothing() {
    killed_in_a_load(true);
}
