//! A store moves to a server and back: all of it, also after kills, and never half.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use latchwork_remote::{Database, Postgres, from_server, to_server};
use latchwork_store::{
    Error, Multi, Options, Raw, ReadOps, Sequence, ServerFailure, Store, Table, TableInfo, WriteOps,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::{Stage, Test};

pub(crate) const TESTS: &[Test] = &[
    ("a_store_moves_to_a_server_and_back", moves),
    ("a_copy_that_is_killed_goes_on", killed),
    ("a_copy_is_one_snapshot_while_others_write", snapshot),
    ("a_copy_goes_on_after_a_crash_of_the_server", crashed),
];

const FRUIT: Table<&str, u64> = Table::new("fruit").with_version(3);
const BLOBS: Table<(u64, i32), Vec<u8>> = Table::new("blobs");
const TAGS: Multi<&str, u64> = Multi::new("tags");
const JOB: Sequence = Sequence::new("job");

pub(crate) type All = Vec<(TableInfo, BTreeMap<Vec<u8>, Vec<u8>>)>;

/// All tables and records.
pub(crate) fn all(db: &Database) -> All {
    let infos = db.table_infos().unwrap();
    let rows = |info: TableInfo| {
        let table: Table<Raw, Raw> = Table::named(&info.name);
        let rows = db.read(|tx| tx.range(&table, ..)?.collect::<Result<_, _>>()).unwrap();
        (info, rows)
    };
    infos.into_iter().map(rows).collect()
}

/// A folder for a store that does not exist.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("lwcopy-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

pub(crate) fn filled(path: &Path, rows: u64) -> Store {
    let store = Store::open_with(path, &Options::small()).unwrap();
    let mut random = StdRng::seed_from_u64(5);
    for chunk in 0..rows / 500 {
        store
            .write(|tx| {
                for number in 0..500 {
                    let value = vec![number as u8; random.random_range(0..60)];
                    tx.put(&BLOBS, (chunk * 500 + number, -(number as i32)), &value)?;
                }
                Ok(())
            })
            .unwrap();
    }
    store.write(|tx| tx.put(&BLOBS, (u64::MAX, 0), &vec![9; 3 << 20])).unwrap();
    store.put(&FRUIT, "pear", 3).unwrap();
    store.write(|tx| tx.insert_value(&TAGS, "red", 7).map(drop)).unwrap();
    assert_eq!(store.next_number(&JOB).unwrap(), 1);
    let raw: Table<Raw, Raw> = Table::new("of a tool");
    store.put(&raw, &[0, 1, 0xff, 7], b"").unwrap();
    store
}

fn moves(stage: &mut Stage) {
    let (path, back) = (folder("moves"), folder("moves-back"));
    let store = filled(&path, 3000);
    let address = stage.server.fresh("moves");
    let mut told = 0;
    let copied = to_server(&store, &address, &mut |_| told += 1).unwrap();
    assert!((copied.records, copied.found) == (3005, 0) && told > 5, "{copied:?}");
    let server = Database::open(&address).unwrap();
    assert_eq!(all(&server), all(&Database::from(store.clone())));
    let again = to_server(&store, &address, &mut |_| {});
    assert!(matches!(again, Err(Error::TableExists { .. })), "{again:?}");
    // The program continues on the server, and returns.
    assert!(server.next_number(&JOB).unwrap() > 1);
    server.write(|tx| tx.update(&FRUIT, "pear", |old| old.map(|old| old + 1))).unwrap();
    let other = Table::<&str, u64>::new("fruit");
    assert!(matches!(server.get(&other, "pear"), Err(Error::TableType { .. })));
    let returned = from_server(&address, &back, &mut |_| {}).unwrap();
    assert_eq!(returned.records, 3005);
    let home = Database::open(back.to_str().unwrap()).unwrap();
    assert_eq!(all(&home), all(&server));
    assert_eq!(home.get(&FRUIT, "pear").unwrap(), Some(4));
    assert!(from_server(&address, &back, &mut |_| {}).is_err(), "the folder exists");
    drop((store, home));
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::remove_dir_all(&back).unwrap();
}

/// Copies from one address to the other, as a process of its own.
pub(crate) fn copy(from: &str, to: &str) {
    let slowly = &mut |_: &latchwork_remote::CopyProgress| {
        println!("so far");
        std::thread::sleep(Duration::from_millis(5));
    };
    match latchwork_remote::is_server(from) {
        true => from_server(from, Path::new(to), slowly).unwrap(),
        false => to_server(&Store::open(from).unwrap(), to, slowly).unwrap(),
    };
}

/// Runs a copy in a process that is killed when it has told so often how far it is; returns whether
/// it was.
fn copy_and_kill(from: &str, to: &str, after: usize) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["client-copy", from, to]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told = lines.take(after).map_while(Result::ok).count();
    let _ = child.kill();
    child.wait().unwrap();
    told == after
}

fn killed(stage: &mut Stage) {
    let (path, back) = (folder("killed"), folder("killed-back"));
    let store = filled(&path, 6000);
    let (from, back_to) = (path.to_str().unwrap(), back.to_str().unwrap());
    let address = stage.server.fresh("killed");
    for round in 0..4 {
        assert!(copy_and_kill(from, &address, 1 + 2 * round), "the copy was done in round {round}");
        let half = Postgres::open(&address);
        let is_half =
            |why: &Error| matches!(why, Error::Server(why) if why.kind == ServerFailure::Copying);
        assert!(half.as_ref().is_err_and(is_half), "{half:?}");
        // The source changes before the next run.
        let number = round as u64;
        store
            .write(|tx| {
                tx.put(&BLOBS, (number * 700, 1), b"new")?;
                tx.remove(&BLOBS, (number * 500 + 3, -3))
            })
            .unwrap();
    }
    let copied = to_server(&store, &address, &mut |_| {}).unwrap();
    assert!(copied.found > 5000, "{copied:?}");
    let server = Database::open(&address).unwrap();
    assert_eq!(all(&server), all(&Database::from(store.clone())));
    for round in 0..4 {
        assert!(copy_and_kill(&address, back_to, 1 + 2 * round), "it was done in round {round}");
        assert!(!back.exists(), "half a copy has its name");
        server.write(|tx| tx.remove(&BLOBS, (round as u64 * 500 + 9, -9))).unwrap();
    }
    let copied = from_server(&address, &back, &mut |_| {}).unwrap();
    assert!(copied.found > 5000, "{copied:?}");
    let home = Database::open(back_to).unwrap();
    assert_eq!(all(&home), all(&server));
    drop(home);
    drop(store);
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::remove_dir_all(&back).unwrap();
}

fn snapshot(stage: &mut Stage) {
    let path = folder("snapshot");
    let store = Store::open_with(&path, &Options::small()).unwrap();
    const PAIRS: Table<u64, u64> = Table::new("pairs");
    // Each transaction writes pairs of records that add up to 1000.
    let write = |tx: &mut latchwork_store::WriteTxn<'_, '_>| {
        for pair in 0..200 {
            let part = rand::rng().random_range(0..1000);
            tx.put(&PAIRS, pair, part)?;
            tx.put(&PAIRS, 1_000_000 - pair, 1000 - part)?;
        }
        Ok(())
    };
    store.write(write).unwrap();
    let address = stage.server.fresh("snapshot");
    let (ends, store) = (&AtomicBool::new(false), &store);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !ends.load(Relaxed) {
                store.write(write).unwrap();
            }
        });
        let copied = to_server(store, &address, &mut |_| {});
        ends.store(true, Relaxed);
        copied.unwrap();
    });
    let server = Database::open(&address).unwrap();
    let is_whole = |db: &Database| {
        let rows: BTreeMap<u64, u64> =
            db.read(|tx| tx.range(&PAIRS, ..)?.collect::<Result<_, _>>()).unwrap();
        (0..200).all(|pair| rows[&pair] + rows[&(1_000_000 - pair)] == 1000)
    };
    assert!(is_whole(&server));
    // And back, from a server on which transactions read and write.
    server.write(|tx| (1000..30_000).try_for_each(|other| tx.put(&PAIRS, other, 7))).unwrap();
    for round in 0..2 {
        let back = folder("snapshot-back");
        let (ends, address) = (&AtomicBool::new(false), &address);
        std::thread::scope(|scope| {
            for writer in 0..3 {
                scope.spawn(move || {
                    let server = Postgres::open(address).unwrap();
                    let mut pair = writer;
                    while !ends.load(Relaxed) {
                        pair = (pair + 7) % 200;
                        let moves = |tx: &mut latchwork_remote::WriteTxn| {
                            let part = tx.get(&PAIRS, pair)?.unwrap();
                            tx.get(&PAIRS, (pair + 1) % 200)?;
                            tx.put(&PAIRS, pair, (part + 1) % 1000)?;
                            tx.put(&PAIRS, 1_000_000 - pair, 1000 - (part + 1) % 1000)
                        };
                        server.write(moves).unwrap();
                    }
                });
            }
            let slowly = &mut |_: &latchwork_remote::CopyProgress| {
                std::thread::sleep(Duration::from_millis(20));
            };
            let copied = from_server(address, &back, slowly);
            ends.store(true, Relaxed);
            copied.unwrap_or_else(|why| panic!("round {round}: {why}"));
        });
        assert!(is_whole(&Database::open(back.to_str().unwrap()).unwrap()));
        std::fs::remove_dir_all(&back).unwrap();
    }
    std::fs::remove_dir_all(&path).unwrap();
}

/// The server crashes in the middle of a copy, in both directions. The contents of the bulk load at
/// that moment are committed, and found by the next copy.
fn crashed(stage: &mut Stage) {
    let (path, back) = (folder("crashed"), folder("crashed-back"));
    let store = filled(&path, 20_000);
    // Long values in the middle: the bulk load ends there.
    store.put(&BLOBS, (7000, 1), &vec![1; 40_000]).unwrap();
    store.put(&BLOBS, (7001, 1), &vec![1; 3000]).unwrap();
    let address = stage.server.fresh("crashed");
    let server = std::cell::RefCell::new(&mut stage.server);
    let crash_at = |call: u32| {
        let (mut told, server) = (0, &server);
        move |_: &latchwork_remote::CopyProgress| {
            told += 1;
            if told == call {
                server.borrow_mut().stop(libc::SIGQUIT);
            }
        }
    };
    let lost = |done: Result<latchwork_remote::CopySummary, Error>| {
        assert!(matches!(&done, Err(Error::Server(_))), "{done:?}");
        server.borrow_mut().start();
    };
    lost(to_server(&store, &address, &mut crash_at(2)));
    let copied = to_server(&store, &address, &mut |_| {}).unwrap();
    assert_eq!(copied.records, 20_007);
    for call in [2, 6] {
        lost(from_server(&address, &back, &mut crash_at(call)));
        assert!(!back.exists(), "half a copy has its name");
    }
    let copied = from_server(&address, &back, &mut |_| {}).unwrap();
    assert!(copied.records == 20_007 && copied.found > 1000, "{copied:?}");
    let home = Database::open(back.to_str().unwrap()).unwrap();
    assert_eq!(all(&home), all(&Database::from(store.clone())));
    drop((store, home));
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::remove_dir_all(&back).unwrap();
}
