//! A page that the disk damages, loses or misplaces is rebuilt from the log, as long as the log has
//! its records, while other threads continue.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_disk::{Disk, Fault, Operation, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, ReadTxn, Sizes, Store};

use crate::stage::{TABLE, begin, sizes};
use crate::stuck::{PAGE, data, filled_with, key, value};

const ROWS: u64 = 3000;

/// Sets the flag when it is dropped, also by a panic, so that the other threads end.
struct Ends<'d>(&'d AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The bytes on disk of each page with records.
fn pages(disk: &Simulated) -> Vec<(u64, Vec<u8>)> {
    let is_leaf = |page: &[u8]| page.windows(5).any(|bytes| bytes == b"value");
    let file = data(disk);
    let pages = (0..).step_by(PAGE).zip(file.chunks(PAGE));
    pages.filter(|(_, page)| is_leaf(page)).map(|(at, page)| (at, page.to_vec())).collect()
}

/// Sizes with which no checkpoint is made, so that the log keeps all records.
fn whole_log() -> Sizes {
    Sizes { log_budget: 1 << 30, history: 1 << 30, ..sizes(Mode::None) }
}

fn all(store: &Store<Native>) -> Result<u64, Error> {
    store.read(|tx: &ReadTxn<'_, Native>| {
        let mut found = 0;
        for (number, row) in (0..).zip(tx.range(&TABLE, ..)?) {
            let (at, what) = row?;
            assert!(at == key(number) && what.starts_with(b"value"), "row {number}");
            found += 1;
        }
        Ok(found)
    })
}

/// Random bytes, misplaced pages and flipped bits on pages while threads write: no call fails, and
/// the store is sound in the end.
#[test]
fn damaged_pages_are_rebuilt_while_others_run() {
    let (disk, store) = filled_with(whole_log());
    let (done, path) = (AtomicBool::new(false), Path::new("/home/store/data"));
    thread::scope(|scope| {
        for id in 0..2 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let _ends = Ends(done);
                let mut random = Random(id);
                while !done.load(Relaxed) {
                    let number = random.below(ROWS);
                    store.put(&TABLE, &key(number), &value(number)).unwrap();
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let _ends = Ends(&done);
        let mut random = Random(9);
        for round in 0..24 {
            let whole = pages(&disk);
            let (at, page) = &whole[random.roll(whole.len())];
            let mut bytes = match round % 3 {
                0 => vec![0xee; PAGE],
                1 => whole[random.roll(whole.len())].1.clone(),
                _ => page.clone(),
            };
            if round % 3 != 1 {
                bytes[random.roll(PAGE)] ^= 1 << random.below(8);
            }
            assert!(disk.damage(path, *at, &bytes));
            if round % 8 == 7 {
                assert_eq!(all(&store).unwrap(), ROWS);
            }
        }
        assert_eq!(all(&store).unwrap(), ROWS);
    });
    assert_eq!(all(&store).unwrap(), ROWS);
    store.checkpoint().unwrap();
    store.verify().unwrap();
    // Rebuilt pages were also written: they are found after a crash.
    disk.crash();
    drop(store);
    disk.restart(1);
    assert_eq!(all(&begin(&disk, Mode::None).unwrap()).unwrap(), ROWS);
}

/// The device fails to read a page, which is rebuilt from the log.
#[test]
fn an_unreadable_page_is_rebuilt() {
    let (disk, store) = filled_with(whole_log());
    let mut fired = 0;
    for round in 0..8 {
        let next = disk.calls().total();
        disk.plan(next + round % 4, Fault::Device);
        assert_eq!(all(&store).unwrap(), ROWS, "round {round}");
        fired += disk.fired();
        disk.heal();
    }
    assert!(fired > 0 && disk.history().contains(&Operation::Read));
}

/// A page whose records have left the log cannot be rebuilt: the error names the page.
#[test]
fn a_page_without_its_log_records_is_an_error() {
    let (disk, store) = filled_with(Sizes { history: 128 << 10, ..sizes(Mode::None) });
    store.checkpoint().unwrap();
    // Until the beginning of the log is recycled.
    for part in 0..4 * ROWS {
        store.put(&TABLE, &key(ROWS - 1), &value(part)).unwrap();
    }
    store.checkpoint().unwrap();
    let (path, (at, page)) = (Path::new("/home/store/data"), pages(&disk).remove(0));
    assert!(disk.damage(path, at, &[0xee; PAGE]));
    let told = (0..100).find_map(|_| {
        let others = store.read(|tx| Ok(tx.range(&TABLE, &key(200)[..]..)?.count()));
        assert_eq!(others.unwrap() as u64, ROWS - 200, "other pages must be readable");
        all(&store).err()
    });
    let told = told.expect("the page stays in the pool").to_string();
    assert!(told.contains(&format!("page {}", at / PAGE as u64)), "{told}");
    assert!(disk.damage(path, at, &page));
    assert_eq!(all(&store).unwrap(), ROWS);
}

/// After a snapshot older than its history, the log begins in the middle of a record. A page that
/// has changed since the last checkpoint is still rebuilt.
#[test]
fn a_page_is_rebuilt_from_a_log_that_begins_mid_record() {
    let (disk, store) = filled_with(Sizes { history: 128 << 10, ..sizes(Mode::None) });
    store
        .read(|_| {
            for round in 0..3 {
                for number in 0..300 {
                    store.put(&TABLE, &key(number * 10 % ROWS), &value(round))?;
                }
            }
            // An open transaction keeps the log from before the change.
            let mut open = store.begin()?;
            open.put(&TABLE, &key(2500), &value(0))?;
            store.put(&TABLE, &key(10), b"value, changed here")?;
            store.checkpoint()?;
            let path = Path::new("/home/store/data");
            let is_here =
                |(_, page): &(u64, Vec<u8>)| page.windows(12).any(|at| at == b"changed here");
            let (at, page) = pages(&disk).into_iter().find(is_here).unwrap();
            assert!(disk.damage(path, at, &[0xee; PAGE]));
            let others = |tx: &ReadTxn<'_, Native>| Ok(tx.range(&TABLE, &key(200)[..]..)?.count());
            let made = (0..100).any(|_| {
                assert_eq!(store.read(others).unwrap() as u64, ROWS - 200);
                let here = store.read(|tx| tx.get(&TABLE, &key(10))).unwrap();
                assert_eq!(here.unwrap(), b"value, changed here");
                data(&disk)[at as usize..][..PAGE] == page
            });
            assert!(made, "the page stays in the pool");
            open.commit()?;
            Ok(())
        })
        .unwrap();
    assert_eq!(all(&store).unwrap(), ROWS);
}

/// The class of an error about the disk depends neither on the layer that met it nor on the error
/// that wraps it.
#[test]
fn damage_and_a_full_disk_are_errors_of_every_call() {
    use latchwork_disk::Error::{Device, NoSpace, Permission};
    use latchwork_log::{Error as Log, Lsn};
    use latchwork_store::Refusal;

    let missing = Simulated::new().list("/there".as_ref()).unwrap_err();
    let subject = || missing.subject().clone();
    let all = |why: Error| {
        let (table, key) = ("table".to_owned(), Vec::new());
        let stuck = Error::NotUndone { table, page: 7, key, why: Box::new(why.clone()) };
        [why, stuck]
    };
    let of_disk = |why: latchwork_disk::Error| {
        let tree = latchwork_tree::Error::Pool(latchwork_pool::Error::Disk(why.clone()));
        [Error::Disk(why.clone()), Error::Log(Log::Disk(why)), Error::Tree(tree)]
    };
    let open = |why| Error::Open { path: "/there".into(), why };
    let what = "it is cut off";
    let damage = [
        Error::Log(Log::LogDamaged { at: Lsn(1), flushed: Lsn(2) }),
        Error::Log(Log::Corrupt { what }),
        Error::Log(Log::NoControl),
        open(Refusal::Damaged { file: "log", what }),
    ];
    for why in of_disk(Device(subject())).into_iter().chain(damage).flat_map(all) {
        assert!(why.is_damage() && !why.is_no_space(), "{why:?}");
    }
    for why in of_disk(NoSpace(subject())).into_iter().flat_map(all) {
        assert!(why.is_no_space() && !why.is_damage(), "{why:?}");
    }
    let other = [Error::Log(Log::Broken), open(Refusal::ReadOnly)];
    for why in of_disk(Permission(subject())).into_iter().chain(other).flat_map(all) {
        assert!(!why.is_no_space() && !why.is_damage(), "{why:?}");
    }
}
