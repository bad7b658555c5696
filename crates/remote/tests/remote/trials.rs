//! One failure at a time that a server, a network or a program may have.

use std::time::{Duration, Instant};

use latchwork_remote::{Postgres, PostgresOptions};
use latchwork_store::{Error, ReadOps, ServerFailure, Table, TxnOptions, WriteOps};

use crate::{Stage, Test};

pub(crate) const TESTS: &[Test] = &[
    ("a_transaction_may_have_many_keys", many_keys),
    ("values_may_be_long", long_values),
    ("the_child_of_a_fork_leaves_connections_alone", forked),
    ("a_connection_that_the_server_ends_is_replaced", ended),
    ("a_server_that_hangs_costs_a_deadline", hangs),
    ("a_handle_may_be_dropped_in_its_transaction", dropped),
    ("a_timeout_of_the_server_is_an_error", timed_out),
    ("a_role_without_free_connections_is_named", limited),
];

const NUMBERS: Table<u64, u64> = Table::new("numbers");
const BLOBS: Table<u64, Vec<u8>> = Table::new("blobs");

/// The processes of the server that serve handles of this test.
const OURS: &str = "FROM pg_stat_activity WHERE application_name = 'latchwork'";

fn soon(millis: u64) -> TxnOptions {
    TxnOptions { time: Duration::from_millis(millis), ..TxnOptions::default() }
}

fn many_keys(stage: &mut Stage) {
    stage.both("many_keys", |db| {
        const MANY: u64 = 25_000;
        db.write(|tx| (0..MANY).try_for_each(|key| tx.put(&NUMBERS, key, key + 1))).unwrap();
        assert_eq!(db.read(|tx| tx.count(&NUMBERS, ..)).unwrap(), MANY);
        // In an order that is not that of the keys, one twice, one absent.
        let keys = || (0..MANY).map(|key| key * 7919 % MANY).chain([5, MANY]);
        let values = db.read(|tx| tx.get_many(&NUMBERS, keys())).unwrap();
        let wanted = keys().map(|key| (key < MANY).then_some(key + 1));
        assert!(values.into_iter().eq(wanted));
        assert_eq!(db.read(|tx| tx.get_many(&NUMBERS, [])).unwrap(), []);
        assert_eq!(db.write(|tx| tx.remove_range(&NUMBERS, ..)).unwrap(), MANY);
    });
}

fn long_values(stage: &mut Stage) {
    let db = Postgres::open(&stage.server.fresh("long_values")).unwrap();
    let long: Vec<u8> = (0..64_u32 << 20).map(|at| (at % 251) as u8).collect();
    db.put(&BLOBS, 1000, &long).unwrap();
    assert!(db.get(&BLOBS, 1000).unwrap().unwrap() == long);
    // Not all of them are in memory at once.
    db.write(|tx| (0..600).try_for_each(|key| tx.put(&BLOBS, key, &long[..100_000]))).unwrap();
    let before = db.round_trips();
    let read = db.read(|tx| {
        let mut count = 0;
        for row in tx.range(&BLOBS, ..)?.rev() {
            let (key, value) = row?;
            assert_eq!(value.len(), if key == 1000 { 64 << 20 } else { 100_000 });
            count += 1;
        }
        Ok(count)
    });
    assert_eq!(read.unwrap(), 601);
    let trips = db.round_trips() - before;
    assert!((6..20).contains(&trips), "{trips} round trips");
}

/// Runs `child` in a child process; returns its exit code.
fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child uses memory of this thread alone, and ends by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
        // SAFETY: the call does not return.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: it is a child of this process, and the pointer is to a local.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    libc::WEXITSTATUS(status)
}

fn forked(stage: &mut Stage) {
    let db = Postgres::open(&stage.server.fresh("forked")).unwrap();
    db.put(&NUMBERS, 1, 1).unwrap();
    let address = stage.server.address("postgres", "forked");
    let mut handle = Some(db.clone());
    drop(db);
    let code = fork(|| {
        let db = handle.take().unwrap();
        let Err(Error::Options(why)) = db.get(&NUMBERS, 1) else { return 1 };
        assert!(why.contains("fork"), "{why}");
        // The list of sockets to wait for is the parent's as well.
        drop(db);
        let own = Postgres::open(&address).unwrap();
        i32::from(own.put(&NUMBERS, 2, 2).is_err()) * 2
    });
    assert_eq!(code, 0);
    let db = handle.unwrap();
    let begun = Instant::now();
    assert_eq!(db.get(&NUMBERS, 2).unwrap(), Some(2));
    assert!(begun.elapsed() < Duration::from_secs(2), "the parent did not hear: {begun:?}");
    assert_eq!(stage.server.sql(&format!("SELECT count(*) {OURS}")), "1", "another connection");
    // In the middle of a transaction.
    let mut runs = 0;
    db.write(|tx| {
        runs += 1;
        tx.update(&NUMBERS, 1, |old| old.map(|old| old + 1))?;
        assert_eq!(fork(|| i32::from(tx.get(&NUMBERS, 1).is_ok())), 0);
        tx.update(&NUMBERS, 1, |old| old.map(|old| old + 1))
    })
    .unwrap();
    assert_eq!((runs, db.get(&NUMBERS, 1).unwrap()), (1, Some(3)));
}

fn ended(stage: &mut Stage) {
    let db = Postgres::open(&stage.server.fresh("ended")).unwrap();
    db.put(&NUMBERS, 1, 1).unwrap();
    let end = || stage.server.sql(&format!("SELECT count(pg_terminate_backend(pid, 2000)) {OURS}"));
    // In use just now, and idle for long.
    for idle in [0, 300] {
        std::thread::sleep(Duration::from_millis(idle));
        assert_eq!(end(), "1");
        std::thread::sleep(Duration::from_millis(idle));
        db.put(&NUMBERS, 2, idle).unwrap();
        assert_eq!(end(), "1");
        assert_eq!(db.get(&NUMBERS, 2).unwrap(), Some(idle));
    }
    let mut runs = 0;
    db.write(|tx| {
        runs += 1;
        let old = tx.get_for_update(&NUMBERS, 1)?.unwrap();
        if runs == 1 {
            assert_eq!(end(), "1");
        }
        tx.get(&NUMBERS, 2)?;
        tx.put(&NUMBERS, 1, old + 1)
    })
    .unwrap();
    assert_eq!((runs, db.get(&NUMBERS, 1).unwrap()), (2, Some(2)));
    let mut runs = 0;
    let read = db.read(|tx| {
        runs += 1;
        let one = tx.get(&NUMBERS, 1)?;
        if runs == 1 {
            assert_eq!(end(), "1");
        }
        Ok((one, tx.get(&NUMBERS, 2)?))
    });
    assert_eq!((runs, read.unwrap()), (2, (Some(2), Some(300))));
}

fn hangs(stage: &mut Stage) {
    let db = Postgres::open(&stage.server.fresh("hangs")).unwrap();
    db.put(&NUMBERS, 1, 1).unwrap();
    let pid: i32 = stage.server.sql(&format!("SELECT pid {OURS}")).parse().unwrap();
    // SAFETY: it is a process of the test's server.
    let signal = |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    signal(libc::SIGSTOP);
    let begun = Instant::now();
    let read = db.read_with(&soon(400), |tx| tx.get(&NUMBERS, 1));
    assert!(matches!(read, Err(Error::Deadline { .. })), "{read:?}");
    // On a connection of its own.
    assert_eq!(db.get(&NUMBERS, 1).unwrap(), Some(1));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    signal(libc::SIGCONT);
    let pid: i32 = loop {
        let pids = stage.server.sql(&format!("SELECT pid {OURS}"));
        if let Ok(pid) = pids.parse() {
            break pid;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // A commit without an answer: it may be done.
    let write = db.write_with(&soon(400), |tx| {
        tx.update(&NUMBERS, 1, |old| old.map(|old| old + 1))?;
        // SAFETY: it is a process of the test's server.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        Ok(())
    });
    assert!(matches!(write, Err(Error::CommitUnknown { .. })), "{write:?}");
    // SAFETY: it is a process of the test's server.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGCONT) }, 0);
    // The cancel request may have come too late.
    assert!(matches!(db.write(|tx| tx.get_for_update(&NUMBERS, 1)).unwrap(), Some(1 | 2)));
}

fn dropped(stage: &mut Stage) {
    let db = Postgres::open(&stage.server.fresh("dropped")).unwrap();
    let mut handle = Some(db.clone());
    let number = db.write(|tx| {
        tx.update(&NUMBERS, 1, |old| Some(old.unwrap_or(0) + 1))?;
        drop(handle.take());
        tx.update(&NUMBERS, 1, |old| Some(old.unwrap_or(0) + 1))
    });
    assert_eq!((number.unwrap(), db.get(&NUMBERS, 1).unwrap()), (Some(2), Some(2)));
    drop(db);
    let begun = Instant::now();
    while stage.server.sql(&format!("SELECT count(*) {OURS}")) != "0" {
        assert!(begun.elapsed() < Duration::from_secs(5), "connections are left");
    }
}

fn timed_out(stage: &mut Stage) {
    let address = stage.server.fresh("timed_out");
    let db = Postgres::open(&address).unwrap();
    db.put(&NUMBERS, 1, 1).unwrap();
    let hasty = Postgres::open(&format!("{address}%20-c%20statement_timeout%3D100")).unwrap();
    db.write(|tx| {
        tx.get_for_update(&NUMBERS, 1)?;
        let waited = hasty.write(|tx| {
            tx.put(&NUMBERS, 2, 2)?;
            tx.get_for_update(&NUMBERS, 1)
        });
        let Err(Error::Server(why)) = waited else { panic!("{waited:?}") };
        assert_eq!((why.kind, &why.state[..]), (ServerFailure::Other, "57014"));
        Ok(())
    })
    .unwrap();
    assert_eq!(hasty.get(&NUMBERS, 2).unwrap(), None);
    assert_eq!(hasty.write(|tx| tx.get_for_update(&NUMBERS, 1)).unwrap(), Some(1));
}

fn limited(stage: &mut Stage) {
    stage.server.fresh("limited");
    stage.server.sql(
        "CREATE ROLE limited LOGIN CONNECTION LIMIT 1; GRANT ALL ON SCHEMA limited TO limited",
    );
    let address = stage.server.address("limited", "limited");
    let db = Postgres::open(&address).unwrap();
    let other = Postgres::open(&address);
    let is_it = |why: &Error| matches!(why, Error::Server(why) if why.kind == ServerFailure::Unreachable && why.state == "53300");
    assert!(other.as_ref().is_err_and(is_it), "{other:?}");
    // Two threads, and a role that lets one in: the second tries again until the first is done.
    let mut options = PostgresOptions::default();
    options.connections = 2;
    drop(db);
    while stage.server.sql(&format!("SELECT count(*) {OURS}")) != "0" {}
    let db = Postgres::open_with(&address, &options).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..5 {
                    db.write(|tx| tx.update(&NUMBERS, 1, |old| Some(old.unwrap_or(0) + 1)))
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(db.get(&NUMBERS, 1).unwrap(), Some(10));
    drop(db);
    stage.server.sql("DROP OWNED BY limited; DROP ROLE limited");
}
