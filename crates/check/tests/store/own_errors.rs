//! Closures with an error type of the caller: such errors are returned, deadlocks are retried.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use latchwork_check::tasks::block_on;
use latchwork_disk::Simulated;
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Store, Table, TxnOptions, WriteTxn};

use crate::stage::begin;

const ROWS: Table<u64, u64> = Table::new("rows");

/// Errors without any part of the store's.
#[derive(Debug, PartialEq)]
enum Mine {
    Refused(Box<u64>),
    Store,
}

impl From<Error> for Mine {
    fn from(_: Error) -> Self {
        Self::Store
    }
}

fn filled() -> Store<Native> {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.write(|tx| (0..2).try_for_each(|row| tx.put(&ROWS, row, 0))).unwrap();
    store
}

fn add(tx: &mut WriteTxn<'_, '_, Native>, row: u64) -> Result<(), Error> {
    tx.update(&ROWS, row, |old| Some(old.unwrap_or(0) + 1)).map(drop)
}

/// How a closure returns an error of the store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Makes {
    /// Converts it by `?`.
    Mine,
    /// Returns a different error.
    Refused,
    /// Ignores it, as if the call had succeeded.
    Nothing,
}

/// Two threads meet in a deadlock in their first attempt. Returns how often both ran, and the
/// victim's error.
fn deadlock(makes: Makes) -> (u32, String) {
    let store = filled();
    let (both, runs, told) = (Barrier::new(2), AtomicU32::new(0), Mutex::new(String::new()));
    let run = |first: u64| {
        let mut again = false;
        let done = store.write_with_as(&TxnOptions::default(), |tx| {
            add(tx, first)?;
            if !again {
                again = true;
                both.wait();
            }
            let added = add(tx, 1 - first);
            if let Err(why) = &added {
                *told.lock().unwrap() += &why.to_string();
            }
            match (added, makes) {
                (Err(why), Makes::Mine) => Err(why)?,
                (Err(_), Makes::Refused) => return Err(Mine::Refused(Box::new(first))),
                _ => {}
            }
            Ok(first)
        });
        let done = done.unwrap();
        assert_eq!(done.value, first);
        runs.fetch_add(done.runs, Relaxed);
    };
    thread::scope(|scope| {
        scope.spawn(|| run(0));
        scope.spawn(|| run(1));
    });
    let found = store.read_as(|tx| Ok::<_, Mine>((tx.get(&ROWS, 0)?, tx.get(&ROWS, 1)?)));
    assert_eq!(found, Ok((Some(2), Some(2))), "{makes:?}");
    assert_eq!(store.counts().unwrap().locks, 0);
    (runs.into_inner(), told.into_inner().unwrap())
}

#[test]
fn a_deadlock_is_retried_without_an_error() {
    for makes in [Makes::Mine, Makes::Refused, Makes::Nothing] {
        let (runs, told) = deadlock(makes);
        assert_eq!(runs, 3, "{makes:?}");
        // Keys as the caller gave them, not as they are stored.
        assert!(told.contains("of rows: deadlock of 2 transactions"), "{told}");
        for key in ["waits for key 0 of tree", "waits for key 1 of tree"] {
            assert_eq!(told.matches(key).count(), 1, "{told}");
        }
    }
}

#[test]
fn the_callers_error_rolls_back_and_is_returned_unchanged() {
    let store = filled();
    let boxed = Box::new(7);
    let place: *const u64 = &raw const *boxed;
    let mut own = Some(boxed);
    let ended = store.write_as(|tx| {
        add(tx, 0)?;
        add(tx, 9)?;
        Err::<(), _>(Mine::Refused(own.take().unwrap()))
    });
    let Err(Mine::Refused(back)) = ended else { panic!("{ended:?}") };
    assert_eq!(&raw const *back, place, "the error was copied");
    let found = store.read_as(|tx| Ok::<_, Mine>((tx.get(&ROWS, 0)?, tx.get(&ROWS, 9)?)));
    assert_eq!(found, Ok((Some(0), None)));
    let ended = store.read_as(|_| Err::<(), _>(Mine::Refused(Box::new(1))));
    assert_eq!(ended, Err(Mine::Refused(Box::new(1))));
    assert_eq!(store.counts().unwrap().locks, 0);
}

#[test]
fn other_errors_are_converted_to_the_callers_type() {
    let store = filled();
    let mut runs = 0;
    let ended = store.write_as(|tx| {
        runs += 1;
        tx.insert(&ROWS, 0, 1)?;
        Ok::<_, Mine>(())
    });
    assert_eq!((ended, runs), (Err(Mine::Store), 1));
    // A deadline as well: another transaction holds the row.
    let mut other = store.begin().unwrap();
    other.put(&ROWS, 0, 5).unwrap();
    let short = TxnOptions { time: Duration::from_millis(5), ..TxnOptions::default() };
    let told = store.write_with_as(&short, |tx| tx.get_for_update(&ROWS, 0).map_err(Some));
    assert!(matches!(told, Err(Some(Error::Deadline { .. }))), "{told:?}");
    let told =
        store.write_with_as(&short, |tx| tx.get_for_update(&ROWS, 0).map_err(|_| Mine::Store));
    assert_eq!(told, Err(Mine::Store));
}

#[test]
fn tasks_return_their_own_errors() {
    let store = filled();
    let mut runs = 0;
    // Its first attempts meet a lock, until the deadline; each error is returned as the caller's.
    let refused = block_on(store.write_async_as(|mut tx| async move {
        tx.put(&ROWS, 0, 9).await?;
        Err::<(), _>(Mine::Refused(Box::new(3)))
    }));
    assert_eq!(refused, Err(Mine::Refused(Box::new(3))));
    assert_eq!(store.get(&ROWS, 0), Ok(Some(0)));
    let mut other = store.begin().unwrap();
    other.put(&ROWS, 0, 5).unwrap();
    let short = TxnOptions { time: Duration::from_millis(5), ..TxnOptions::default() };
    let told = block_on(store.write_async_with_as(&short, |mut tx| {
        runs += 1;
        async move { tx.get(&ROWS, 0).await.map_err(|_| Mine::Store) }
    }));
    assert_eq!(told, Err(Mine::Store));
    drop(other);
    let done = block_on(store.write_async_as(|mut tx| async move {
        tx.put(&ROWS, 0, 9).await?;
        Ok::<_, Mine>(())
    }));
    assert_eq!((done, store.get(&ROWS, 0)), (Ok(()), Ok(Some(9))));
    assert!(runs >= 1);
}
