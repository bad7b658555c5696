//! Processes that are killed while they load a table of sorted rows, or free the pages of a failed
//! load: the table is complete or absent, and no page is lost.

use std::os::unix::process::ExitStatusExt;

use latchwork_store::{Error, Store, Table, discard_shared_memory};

use crate::stage::{COUNT, EACH, Place, die_after, fill, open, sum};

const LOADED: Table<u64, &[u8]> = Table::new("loaded");
const LOADED_ROWS: u64 = 3_000;
const TAKEN: Table<u64, &[u8]> = Table::new("taken");

fn load(store: &Store) -> Result<u64, Error> {
    let rows: Vec<_> = (0..LOADED_ROWS).map(|row| (row, [row as u8; 200])).collect();
    store.load_sorted(&LOADED, rows.iter().map(|(row, value)| (*row, &value[..])))
}

/// A process that is killed while it loads.
#[test]
fn loader() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    die_after(std::env::var("STEP").unwrap().parse().unwrap());
    assert_eq!(load(&store), Ok(LOADED_ROWS));
    die_after(0);
    // Exits without closing the store, which the other process does.
    std::process::exit(0);
}

/// Returns whether the table exists; checks that it is complete.
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

/// Kills a process at increasing numbers of steps, and once after the last one.
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
            assert!(discard_shared_memory(place.at("one")).unwrap() > 0);
        }
        let store = store.unwrap_or_else(|| open(place.at("one")));
        store.sweep().unwrap();
        let loaded = is_loaded(&store, &case);
        assert!(loaded || !ended.success(), "{case}: an acknowledged load was lost");
        is_of_somebody(&store, 1, &case);
        absent += u32::from(!loaded);
        // A second load fills the table, or returns an error because it exists.
        match load(&store) {
            Ok(rows) => assert!(rows == LOADED_ROWS && !loaded, "{case}"),
            Err(why) => {
                assert!(matches!(why, Error::TableExists { .. }) && loaded, "{case}: {why}")
            }
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

/// A death between the allocation of a page and the intent word may lose one page.
fn is_of_somebody(store: &Store, deaths: u64, case: &str) {
    let space = store.space().unwrap();
    assert!(space.lost <= deaths, "{case}: {space:?}");
}

/// A process that is killed while it sweeps.
#[test]
fn sweeper() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    die_after(std::env::var("STEP").unwrap().parse().unwrap());
    store.sweep().unwrap();
    die_after(0);
    std::process::exit(0);
}

/// When one thread dies while freeing pages, another continues.
#[test]
fn deaths_while_pages_of_a_load_are_returned_lose_no_page() {
    let place = Place::new("given back");
    let store = open(place.at("one"));
    fill(&store, 20);
    let (mut most, mut deaths, mut step, mut idle) = (0, 0, 1_u32, 0);
    loop {
        let killed = place.start_by("STEP=1000 exec \"$0\" \"$@\"", "sorted::loader").wait();
        assert_eq!(killed.unwrap().signal(), Some(libc::SIGKILL));
        // They die one after another, each a little later, until one completes.
        let died = deaths;
        for later in 0.. {
            let line = format!("STEP={} exec \"$0\" \"$@\"", step + later);
            let ended = place.start_by(&line, "sorted::sweeper").wait().unwrap();
            if ended.success() {
                break;
            }
            assert_eq!(ended.signal(), Some(libc::SIGKILL));
            deaths += 1;
            // Each must make progress, or this would not end.
            assert!(later < 1000, "step {step}");
            // Freed pages are reused.
            let taken = store.write(|tx| {
                (0..40).try_for_each(|row| tx.put(&TAKEN, deaths * 40 + row, &[1; 300]))
            });
            taken.unwrap();
            if later == 5 {
                store.sweep().unwrap();
            }
        }
        let case = format!("sweepers that die from step {step} on, {deaths} deaths");
        store.sweep().unwrap();
        is_of_somebody(&store, deaths, &case);
        let (space, taken) = (store.space().unwrap(), store.read(|tx| tx.count(&TAKEN, ..)));
        assert_eq!(taken, Ok(deaths * 40), "{case}");
        most = if most == 0 { space.pages } else { most };
        // If a thread of this process has swept first, no sweeper has died yet.
        let bound = most + (2 * deaths).max(1);
        assert!(space.pages < bound, "{case}: {space:?}, at first {most}");
        if deaths != died {
            step += 1 + step / 2;
        } else if deaths > 20 || idle == 10 {
            break;
        } else {
            // A thread of this process has swept first.
            idle += 1;
        }
    }
    println!("{deaths} deaths of sweepers, the last at step {step}");
    assert!(deaths > 20, "{deaths}");
    assert_eq!(load(&store), Ok(LOADED_ROWS));
    assert!(is_loaded(&store, "at the end"));
    assert_eq!(sum(&store), COUNT as i64 * EACH);
    store.verify().unwrap();
}

#[test]
fn a_death_in_a_load_leaves_all_or_nothing() {
    killed_in_a_load(false);
}

#[test]
fn a_crash_in_a_load_leaves_all_or_nothing() {
    killed_in_a_load(true);
}
