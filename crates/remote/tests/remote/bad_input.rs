//! Servers and programs that are wrong or change at the wrong moment: a clear error each, nothing
//! committed twice, and nothing half.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use latchwork_remote::{Database, Postgres, PostgresOptions, from_server, to_server};
use latchwork_store::{Error, ReadOps, ServerFailure, Store, Table, TxnOptions, WriteOps};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::copies::{all, filled, folder};
use crate::cuts::{Proxy, Rule};
use crate::refusals::refused;
use crate::server::Server;
use crate::{Stage, Test};

pub(crate) const TESTS: &[Test] = &[
    ("an_address_of_another_service_is_named", no_server),
    ("a_server_may_become_read_only", read_only),
    ("a_server_may_become_a_standby", demoted),
    ("a_key_beyond_an_index_of_the_server_is_refused", long_key),
    ("two_versions_of_a_table_exclude_each_other", versions),
    ("a_connection_may_be_cut_while_it_is_opened", cut_opening),
    ("a_copy_may_be_cut_at_any_message", cut_copies),
];

/// Takes gigabytes of memory: run if it is named.
pub(crate) const LARGE: &[Test] = &[("a_value_of_one_gigabyte_moves", gigabyte)];

const FRUIT: Table<&str, u64> = Table::new("fruit");
const BLOBS: Table<Vec<u8>, Vec<u8>> = Table::new("blobs");
const HUGE: Table<u64, Vec<u8>> = Table::new("huge");

/// The address of the server's schema, by a proxy.
fn by(proxy: &Proxy, schema: &str) -> String {
    format!(
        "postgres://postgres@127.0.0.1:{}/postgres?options=-c%20search_path%3D{schema}",
        proxy.port
    )
}

/// The port of a service that answers each connection with these bytes, and then closes it or not.
fn service(answer: &'static [u8], closes: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 64]);
            let _ = client.write_all(answer);
            if !closes {
                open.push(client);
            }
        }
    });
    port
}

fn no_server(_: &mut Stage) {
    let mut options = PostgresOptions::default();
    options.connect = Duration::from_millis(500);
    for (answer, closes) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], true),
        (b"SSH-2.0-OpenSSH_9.2\r\n", true),
        (b"R\0\0\0\x08\0\0\0\x63", false),
        (b"R\0\0\0\x02", false),
        (b"", true),
        (b"", false),
    ] {
        let address =
            format!("postgres://postgres@127.0.0.1:{}/x?sslmode=disable", service(answer, closes));
        let begun = Instant::now();
        let opened = Postgres::open_with(&address, &options);
        assert_eq!(refused(opened), ServerFailure::Unreachable, "{answer:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{answer:?}");
    }
}

fn read_only(stage: &mut Stage) {
    let server = &stage.server;
    let db = Postgres::open(&server.fresh("read_only")).unwrap();
    db.put(&FRUIT, "pear", 1).unwrap();
    // The session that turns it off has to be allowed to write.
    let set = |sql: &str| {
        server.sql(&format!("BEGIN READ WRITE; ALTER DATABASE postgres {sql}; COMMIT"));
    };
    set("SET default_transaction_read_only = on");
    let opened = Postgres::open(&server.address("postgres", "read_only"));
    let kind = refused(opened);
    set("RESET default_transaction_read_only");
    assert_eq!(kind, ServerFailure::ReadOnly);
    assert_eq!(db.get(&FRUIT, "pear").unwrap(), Some(1));
}

fn demoted(stage: &mut Stage) {
    let mut server = Server::create(&stage.bin, "demoted");
    server.start();
    let db = Postgres::open(&server.fresh("demoted")).unwrap();
    db.put(&FRUIT, "pear", 1).unwrap();
    server.stop(libc::SIGINT);
    server.write("standby.signal", "");
    server.start();
    for _ in 0..2 {
        assert_eq!(refused(db.put(&FRUIT, "pear", 2)), ServerFailure::Recovery);
        assert_eq!(refused(db.read(|tx| tx.get(&FRUIT, "pear"))), ServerFailure::Recovery);
    }
    server.stop(libc::SIGINT);
    std::fs::remove_file(server.folder.join("data/standby.signal")).unwrap();
    server.start();
    assert_eq!(db.get(&FRUIT, "pear").unwrap(), Some(1));
    db.put(&FRUIT, "pear", 3).unwrap();
    drop(server);
}

fn long_key(stage: &mut Stage) {
    let server = &stage.server;
    let db = Postgres::open(&server.fresh("long_key")).unwrap();
    let mut random = StdRng::seed_from_u64(3);
    let mut long = vec![0; 1800];
    random.fill_bytes(&mut long);
    db.put(&BLOBS, &long[1000..], &[1]).unwrap();
    // An engine whose indexes have shorter entries: this one has an entry that is longer.
    server.sql("CREATE INDEX ON long_key.latchwork_records ((key || key))");
    let written = db.write(|tx| {
        tx.put(&FRUIT, "pear", 1)?;
        tx.put(&BLOBS, &long, &[2])
    });
    assert_eq!(refused(written), ServerFailure::TooLarge);
    let read = db.write(|tx| Ok((tx.get(&FRUIT, "pear")?, tx.count(&BLOBS, ..)?)));
    assert_eq!(read.unwrap(), (None, 1));
}

fn versions(stage: &mut Stage) {
    let tables = [FRUIT.with_version(1), FRUIT.with_version(2)];
    let mut winners = [0, 0];
    for round in 0..20 {
        let address = &stage.server.fresh("versions");
        Postgres::open(address).unwrap();
        let done = std::thread::scope(|scope| {
            let start = |table| {
                scope.spawn(move || {
                    let db = Postgres::open(address).unwrap();
                    db.write(|tx| (0..3).try_for_each(|at| tx.put(table, KEYS[at], at as u64)))
                })
            };
            let order: Vec<_> = [0, 1].map(|at| start(&tables[(at + round) % 2])).into();
            let mut done: Vec<_> = order.into_iter().map(|one| one.join().unwrap()).collect();
            done.rotate_left(round % 2);
            done
        });
        let winner = done.iter().position(Result::is_ok).expect("one of them is the first");
        assert!(matches!(done[1 - winner], Err(Error::TableType { .. })), "{done:?}");
        let db = Postgres::open(address).unwrap();
        assert_eq!(db.read(|tx| tx.count(&tables[winner], ..)).unwrap(), 3);
        winners[winner] += 1;
    }
    println!("versions that were first: {winners:?}");
}

const KEYS: [&str; 3] = ["fig", "pear", "plum"];

fn cut_opening(stage: &mut Stage) {
    let proxy = Proxy::start(stage.server.port);
    let open_and_put = || {
        let db = Postgres::open(&by(&proxy, "opening"))?;
        db.put(&FRUIT, "pear", 1)
    };
    stage.server.fresh("opening");
    proxy.set(Rule::Pass);
    open_and_put().unwrap();
    let most = proxy.seen();
    assert!(most > 30, "{most} messages");
    let (mut refusals, mut unknown) = (0, 0);
    for number in (0..most).step_by(2) {
        let direct = stage.server.fresh("opening");
        proxy.set(Rule::Cut(number, number % 4 == 0));
        let done = open_and_put();
        proxy.set(Rule::Pass);
        let found = Postgres::open(&direct).unwrap().get(&FRUIT, "pear").unwrap();
        match done {
            Ok(()) => assert_eq!(found, Some(1), "at message {number}"),
            Err(Error::CommitUnknown { .. }) => unknown += 1,
            other => {
                assert_eq!(refused(other), ServerFailure::Unreachable, "at message {number}");
                assert_eq!(found, None, "at message {number}");
                refusals += 1;
            }
        }
    }
    assert!(refusals > 20 && unknown < 20, "{refusals} refusals, {unknown} unknown of {most}");
}

/// The rules that cut a connection at some of its messages.
fn some_of(most: u64) -> impl Iterator<Item = Rule> {
    let step = most as usize / 8 + 1;
    (0..most).step_by(step).enumerate().map(|(at, number)| Rule::Cut(number, at % 2 == 0))
}

fn cut_copies(stage: &mut Stage) {
    let (path, back) = (folder("cut"), folder("cut-back"));
    let store = filled(&path, 1000);
    let proxy = Proxy::start(stage.server.port);
    stage.server.fresh("cut_copies");
    proxy.set(Rule::Pass);
    to_server(&store, &by(&proxy, "cut_copies"), &mut |_| {}).unwrap();
    let most = proxy.seen();
    let mut unknown = 0;
    let end = Rule::Behind(b"SET value_type = NULL");
    for rule in some_of(most).chain([end]) {
        let direct = stage.server.fresh("cut_copies");
        proxy.set(rule);
        let cut = to_server(&store, &by(&proxy, "cut_copies"), &mut |_| {});
        proxy.set(Rule::Pass);
        match cut {
            Ok(_) => {}
            // The end was sent: the copy is complete.
            Err(Error::CommitUnknown { .. }) => unknown += 1,
            other => {
                let kind = refused(other);
                use ServerFailure::{ConnectionLost, Unreachable};
                assert!(matches!(kind, ConnectionLost | Unreachable), "{kind:?}: {rule:?}");
                to_server(&store, &direct, &mut |_| {}).unwrap();
            }
        }
        let there = all(&Database::open(&direct).unwrap());
        assert!(there == all(&Database::from(store.clone())), "it differs: {rule:?}");
    }
    assert_eq!(unknown, 1, "the answer to the end was lost once");
    let direct = stage.server.address("postgres", "cut_copies");
    proxy.set(Rule::Pass);
    from_server(&by(&proxy, "cut_copies"), &back, &mut |_| {}).unwrap();
    let most = proxy.seen();
    std::fs::remove_dir_all(&back).unwrap();
    for rule in some_of(most) {
        proxy.set(rule);
        let cut = from_server(&by(&proxy, "cut_copies"), &back, &mut |_| {});
        proxy.set(Rule::Pass);
        if cut.is_err() {
            refused(cut);
            assert!(!back.exists(), "half a copy has its name");
            from_server(&direct, &back, &mut |_| {}).unwrap();
        }
        let home = Store::open(&back).unwrap();
        let there = all(&Database::from(home));
        assert!(there == all(&Database::from(store.clone())), "it differs: {rule:?}");
        std::fs::remove_dir_all(&back).unwrap();
    }
    drop(store);
    std::fs::remove_dir_all(&path).unwrap();
}

fn gigabyte(stage: &mut Stage) {
    let db = Postgres::open(&stage.server.fresh("gigabyte")).unwrap();
    let mut random = vec![0; 1 << 16];
    StdRng::seed_from_u64(1).fill_bytes(&mut random);
    let value = random.repeat(latchwork_remote::VALUE_MAX / random.len());
    assert_eq!(value.len(), latchwork_remote::VALUE_MAX);
    let slow = TxnOptions { time: Duration::from_secs(600), ..TxnOptions::default() };
    db.write_with(&slow, |tx| tx.put(&HUGE, 1, &value)).unwrap();
    assert!(db.read_with(&slow, |tx| tx.get(&HUGE, 1)).unwrap().unwrap() == value);
    let back = folder("gigabyte");
    from_server(&stage.server.address("postgres", "gigabyte"), &back, &mut |_| {}).unwrap();
    let home = Store::open(&back).unwrap();
    assert!(home.read(|tx| tx.get(&HUGE, 1)).unwrap().unwrap() == value);
    drop((value, db));
    to_server(&home, &stage.server.fresh("gigabyte"), &mut |_| {}).unwrap();
    drop(home);
    std::fs::remove_dir_all(&back).unwrap();
}
