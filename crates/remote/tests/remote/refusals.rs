//! Each refusal of a server is an error of its own, and nothing is committed.

use std::time::Duration;

use latchwork_remote::{Database, Postgres, VALUE_MAX};
use latchwork_store::{
    Error, ReadOps, ServerFailure, Table, TxnOptions, Type, Value, ValueError, WriteOps,
};

use crate::cuts::{Proxy, Rule};
use crate::server::Server;
use crate::{Stage, Test};

pub(crate) const TESTS: &[Test] = &[
    ("each_refusal_of_an_address_is_named", addresses),
    ("users_without_rights_are_named", users),
    ("tables_that_are_not_ours_are_named", foreign),
    ("a_standby_is_named", standby),
    ("a_lower_level_is_named", level),
    ("a_long_value_is_refused_before_it_is_sent", long),
    ("waits_end_at_the_deadline", deadline),
    ("more_threads_than_connections_take_turns", turns),
];

const FRUIT: Table<&str, u64> = Table::new("fruit");
const BLOBS: Table<u64, Vec<u8>> = Table::new("blobs");

/// A value that is too long. Its memory is never touched.
struct Huge;

impl Value for Huge {
    type Of<'v> = ();
    type Owned = ();
    const TYPE: &'static Type = &Type::Own("huge");

    fn encode((): &(), to: &mut Vec<u8>) {
        *to = vec![0; VALUE_MAX + 1];
    }

    fn decode(_: &[u8]) -> Result<(), ValueError> {
        Ok(())
    }

    fn lend((): &()) {}
}

const HUGE: Table<u64, Huge> = Table::new("huge");

pub(crate) fn refused(done: Result<impl Sized, Error>) -> ServerFailure {
    match done {
        Ok(_) => panic!("it is not refused"),
        Err(Error::Server(why)) => {
            assert!(why.to_string().len() > 20, "{why}");
            why.kind
        }
        Err(other) => panic!("{other}"),
    }
}

fn addresses(stage: &mut Stage) {
    let server = &stage.server;
    assert_eq!(refused(Postgres::open("postgres://h:port/x")), ServerFailure::Address);
    assert_eq!(refused(Postgres::open("postgres://h/x?color=red")), ServerFailure::Address);
    let nothing = "postgres://postgres@127.0.0.1:1/postgres";
    assert_eq!(refused(Postgres::open(nothing)), ServerFailure::Unreachable);
    let tls = format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=require", server.port);
    let kind = if cfg!(feature = "tls") { ServerFailure::Tls } else { ServerFailure::Address };
    assert_eq!(refused(Postgres::open(&tls)), kind);
    assert_eq!(
        refused(Postgres::open(&format!("{tls}&sslrootcert=%2Fno"))),
        ServerFailure::Address
    );
    let database = format!("postgres://postgres@127.0.0.1:{}/nothing", server.port);
    assert_eq!(refused(Postgres::open(&database)), ServerFailure::NoDatabase);
}

fn users(stage: &mut Stage) {
    let server = &stage.server;
    server.sql(
        "CREATE ROLE locked LOGIN PASSWORD 'right'; \
         CREATE ROLE late LOGIN PASSWORD 'right' VALID UNTIL '2000-01-01'; \
         CREATE ROLE nothing LOGIN; CREATE ROLE reader LOGIN; \
         ALTER ROLE reader SET default_transaction_read_only = on",
    );
    let address = server.fresh("users");
    server.sql("GRANT ALL ON SCHEMA users TO locked, reader, late");
    for user in ["locked:wrong", "late:right", "locked"] {
        let kind = refused(Postgres::open(&server.address(user, "users")));
        assert_eq!(kind, ServerFailure::Credentials, "{user}");
    }
    Postgres::open(&server.address("locked:right", "users")).unwrap();
    drop(Postgres::open(&address));
    assert_eq!(
        refused(Postgres::open(&server.address("nothing", "users"))),
        ServerFailure::NoDatabase
    );
    server.sql("GRANT USAGE ON SCHEMA users TO nothing");
    let read_only = server.address("nothing", "users");
    assert_eq!(refused(Postgres::open(&read_only)), ServerFailure::Privilege);
    server.sql("GRANT SELECT ON ALL TABLES IN SCHEMA users TO nothing");
    assert_eq!(refused(Postgres::open(&read_only)), ServerFailure::Privilege);
    server.sql("GRANT INSERT ON ALL TABLES IN SCHEMA users TO nothing");
    let db = Postgres::open(&read_only).unwrap();
    assert_eq!(refused(db.put(&FRUIT, "pear", 1)), ServerFailure::Privilege);
    assert_eq!(
        refused(Postgres::open(&server.address("reader", "users"))),
        ServerFailure::ReadOnly
    );
    // A table that another program renames.
    server.fresh("users2");
    let db = Postgres::open(&server.address("postgres", "users2")).unwrap();
    db.put(&FRUIT, "pear", 1).unwrap();
    server.sql("DROP OWNED BY nothing");
    server.sql("ALTER TABLE users2.latchwork_records RENAME TO gone");
    let why = db.put(&FRUIT, "pear", 2);
    assert_eq!(refused(why), ServerFailure::ForeignTable);
}

fn foreign(stage: &mut Stage) {
    let server = &stage.server;
    for (at, sql) in [
        "CREATE TABLE foreign%.latchwork_records (x INT)",
        "CREATE TABLE foreign%.latchwork_records \
         (tree BIGINT NOT NULL, key BYTEA NOT NULL, value BYTEA NOT NULL)",
        "CREATE TABLE foreign%.latchwork_tables (tree BIGINT NOT NULL, name BYTEA NOT NULL, \
         key_type TEXT, value_type TEXT, version BIGINT NOT NULL, PRIMARY KEY (name))",
    ]
    .iter()
    .enumerate()
    {
        let address = server.fresh(&format!("foreign{at}"));
        server.sql(&sql.replace('%', &at.to_string()));
        assert_eq!(refused(Postgres::open(&address)), ServerFailure::ForeignTable, "{sql}");
    }
    let address = server.fresh("foreign_format");
    Postgres::open(&address).unwrap();
    server.sql("UPDATE foreign_format.latchwork_tables SET version = 9");
    assert_eq!(refused(Postgres::open(&address)), ServerFailure::ForeignTable);
    // A name whose number another table has.
    let address = server.fresh("foreign_name");
    let db = Postgres::open(&address).unwrap();
    db.put(&FRUIT, "pear", 1).unwrap();
    server.sql("UPDATE foreign_name.latchwork_tables SET name = 'other' WHERE tree <> 0");
    let db = Postgres::open(&address).unwrap();
    assert_eq!(refused(db.put(&FRUIT, "pear", 1)), ServerFailure::ForeignTable);
    assert_eq!(refused(db.get(&FRUIT, "pear")), ServerFailure::ForeignTable);
}

fn standby(stage: &mut Stage) {
    let mut standby = Server::create(&stage.bin, "standby");
    standby.write("standby.signal", "");
    standby.start();
    let kind = refused(Postgres::open(&standby.address("postgres", "public")));
    assert_eq!(kind, ServerFailure::Recovery);
}

fn level(stage: &mut Stage) {
    let proxy = Proxy::start(stage.server.port);
    stage.server.fresh("level");
    let address = |port| {
        format!("postgres://postgres@127.0.0.1:{port}/postgres?options=-c%20search_path%3Dlevel")
    };
    let db = Postgres::open(&address(proxy.port)).unwrap();
    db.put(&FRUIT, "pear", 1).unwrap();
    // A server that takes the setting and reports another one.
    proxy.set(Rule::Replace(b"serializable", b"read commits"));
    assert_eq!(refused(Postgres::open(&address(proxy.port))), ServerFailure::Isolation);
}

fn long(stage: &mut Stage) {
    let db = Database::open(&stage.server.fresh("long")).unwrap();
    assert_eq!(refused(db.write(|tx| tx.insert(&HUGE, 1, ()))), ServerFailure::TooLarge);
    assert_eq!(refused(db.put(&HUGE, 1, ())), ServerFailure::TooLarge);
    db.put(&BLOBS, 1, &vec![7; 8 << 20]).unwrap();
    assert_eq!(db.get(&BLOBS, 1).unwrap().unwrap().len(), 8 << 20);
}

fn deadline(stage: &mut Stage) {
    let db = Postgres::open(&stage.server.fresh("deadline")).unwrap();
    db.put(&FRUIT, "pear", 1).unwrap();
    let options = TxnOptions { time: Duration::from_millis(200), ..TxnOptions::default() };
    db.write(|tx| {
        tx.get_for_update(&FRUIT, "pear")?;
        let late = db.write_with(&options, |tx| tx.get_for_update(&FRUIT, "pear"));
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
        tx.put(&FRUIT, "pear", 2)
    })
    .unwrap();
    assert_eq!(db.get(&FRUIT, "pear").unwrap(), Some(2));
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    assert_eq!(stage.server.sql(waiting), "0", "the server still waits for one that is gone");
}

fn turns(stage: &mut Stage) {
    let mut options = latchwork_remote::PostgresOptions::default();
    options.connections = 2;
    let db = Postgres::open_with(&stage.server.fresh("turns"), &options).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10 {
                    db.write(|tx| tx.update(&FRUIT, "pear", |old| Some(old.unwrap_or(0) + 1)))
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(db.read(|tx| tx.get(&FRUIT, "pear")).unwrap(), Some(80));
    // Calls in calls need a connection each.
    let options = TxnOptions { time: Duration::from_millis(300), ..TxnOptions::default() };
    let third = db.write(|tx| {
        tx.get(&FRUIT, "pear")?;
        db.write(|tx| {
            tx.get(&FRUIT, "pear")?;
            db.read_with(&options, |tx| tx.get(&FRUIT, "pear"))
        })
    });
    assert!(matches!(third, Err(Error::Deadline { .. })), "{third:?}");
}
