//! The cost of calls on a server, next to the bare client and to hand-written SQL, in one run.
//!
//! ```text
//! cargo run --release -p latchwork-remote --example server_cost -- ADDRESS [ROWS [PART..]]
//! ```
//!
//! `ADDRESS`: `postgres://postgres@localhost/bench`, an empty database, in which the program leaves
//! its tables. `ROWS`: how many rows are copied, 1,000,000. `PART`: `reads`, `bank`, `layouts`,
//! `copies`; all without it. Rivals take turns, several times; the medians are printed, and their
//! ratios.

use std::str::FromStr;
use std::time::{Duration, Instant};

use latchwork_remote::{CopyProgress, Postgres, from_server, to_server};
use latchwork_store::{Error, ReadOps, Store, Table, WriteOps};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};

const RECORDS: Table<u64, Vec<u8>> = Table::new("records");
const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
const TELLERS: Table<u64, i64> = Table::new("tellers");
const BRANCHES: Table<u64, i64> = Table::new("branches");
const HISTORY: Table<(u64, u64), (u64, u64, u64, i64)> = Table::new("history");

/// Accounts, tellers and branches of the bank.
const SIZES: (u64, u64, u64) = (100_000, 100, 10);
const CLIENTS: usize = 8;

/// The bare client, driven by the thread that waits for it.
struct Bare {
    runtime: Runtime,
    client: Client,
}

impl Bare {
    fn new(address: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let config = tokio_postgres::Config::from_str(address).unwrap();
        let (client, connection) = runtime.block_on(config.connect(NoTls)).unwrap();
        runtime.spawn(connection);
        Self { runtime, client }
    }

    fn run(&self, text: &str) {
        self.runtime.block_on(self.client.batch_execute(text)).unwrap();
    }
}

/// How many calls a rival makes in its turn. With one, each call would also measure how the
/// server's process and its processor wake from their sleep during the other rivals' turns.
const TURN: u64 = 50;

/// The median of the times of a call, of rivals that take turns.
fn medians(rounds: u64, rivals: &mut [&mut dyn FnMut(u64)]) -> Vec<Duration> {
    let mut times = vec![Vec::new(); rivals.len()];
    for turn in 0..rounds / TURN {
        for (rival, times) in rivals.iter_mut().zip(&mut times) {
            for call in 0..TURN {
                let begun = Instant::now();
                rival(turn * TURN + call);
                times.push(begun.elapsed());
            }
        }
    }
    times.into_iter().map(median).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn ratio(of: Duration, to: Duration) -> f64 {
    of.as_secs_f64() / to.as_secs_f64()
}

fn reads(db: &Postgres, address: &str, bare: &Bare) {
    db.write(|tx| (0..1000).try_for_each(|key| tx.put(&RECORDS, key, &[7; 100]))).unwrap();
    let sql = "SELECT value FROM bare WHERE key = $1";
    bare.run("CREATE TABLE bare (key BIGINT PRIMARY KEY, value BYTEA)");
    bare.run("INSERT INTO bare SELECT n, decode(repeat('07', 100), 'hex') FROM generate_series(0, 999) n");
    let statement = bare.runtime.block_on(bare.client.prepare(sql)).unwrap();
    let mut one_row = |round: u64| {
        let key = (round % 1000) as i64;
        drop(bare.runtime.block_on(bare.client.query_one(&statement, &[&key])).unwrap());
    };
    // The statement of `get`, at its level, by the bare client.
    let other = Bare::new(address);
    other.run("SET default_transaction_isolation = 'serializable'; SET enable_seqscan = off");
    let prepare = |sql: &str| other.runtime.block_on(other.client.prepare(sql)).unwrap();
    let tree = prepare("SELECT tree FROM latchwork_tables WHERE name = 'records'");
    let tree: i64 = other.runtime.block_on(other.client.query_one(&tree, &[])).unwrap().get(0);
    let same = prepare("SELECT value FROM latchwork_records WHERE tree = $1 AND key = $2");
    let mut same_row = |round: u64| {
        let key = &RECORDS.key(&(round % 1000)).unwrap();
        drop(other.runtime.block_on(other.client.query_one(&same, &[&tree, &key])).unwrap());
    };
    let mut one = |round: u64| {
        db.read(|tx| tx.get(&RECORDS, round % 1000)).unwrap().unwrap();
    };
    let mut ten = |round: u64| {
        let keys = (0..10).map(|at| (round * 10 + at) % 1000);
        assert_eq!(db.read(|tx| tx.get_many(&RECORDS, keys.clone())).unwrap().len(), 10);
    };
    let mut update = |round: u64| {
        db.write(|tx| tx.update(&RECORDS, round % 1000, |old| old)).unwrap();
    };
    let times =
        medians(10_000, &mut [&mut one_row, &mut one, &mut ten, &mut update, &mut same_row]);
    let trips = |work: &dyn Fn()| {
        let before = db.round_trips();
        work();
        db.round_trips() - before
    };
    println!(
        "one round trip of the bare client: {:?}; of the statement of `get`, serializable: {:?}",
        times[0], times[4]
    );
    let one_trips = trips(&|| drop(db.read(|tx| tx.get(&RECORDS, 1)).unwrap()));
    println!(
        "read of one key: {:?}, {:.2}x, {:.2}x of its statement, {one_trips} round trip (goal 1.1)",
        times[1],
        ratio(times[1], times[0]),
        ratio(times[1], times[4])
    );
    let ten_trips = trips(&|| drop(db.read(|tx| tx.get_many(&RECORDS, 0..10)).unwrap()));
    println!(
        "read of ten keys: {:?}, {:.2}x, {ten_trips} round trip (goal 1.5x)",
        times[2],
        ratio(times[2], times[0])
    );
    let trips = trips(&|| drop(db.write(|tx| tx.update(&RECORDS, 1, |old| old)).unwrap()));
    println!("read, modify, write: {:?}, {trips} round trips (goal 3)", times[3]);
}

/// A number of a small generator.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn tpcb(tx: &mut impl WriteOps, picks: [u64; 3], own: (u64, u64)) -> Result<(), Error> {
    let [account, teller, branch] = picks;
    tx.update(&ACCOUNTS, account, |old| Some(old.unwrap_or(0) + 5))?;
    tx.update(&TELLERS, teller, |old| Some(old.unwrap_or(0) + 5))?;
    tx.update(&BRANCHES, branch, |old| Some(old.unwrap_or(0) + 5))?;
    tx.put(&HISTORY, own, (account, teller, branch, 5))
}

/// The same transaction in SQL; returns whether it was committed.
fn tpcb_sql(bare: &Bare, statements: &[tokio_postgres::Statement], picks: [u64; 3]) -> bool {
    let keys = picks.map(|pick| pick as i64);
    let work = async {
        bare.client.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE").await?;
        bare.client.execute(&statements[0], &[&keys[0]]).await?;
        bare.client.query(&statements[1], &[&keys[0]]).await?;
        bare.client.execute(&statements[2], &[&keys[1]]).await?;
        bare.client.execute(&statements[3], &[&keys[2]]).await?;
        bare.client.execute(&statements[4], &[&keys[0], &keys[1], &keys[2]]).await?;
        bare.client.batch_execute("COMMIT").await
    };
    let done = bare.runtime.block_on(work).is_ok();
    if !done {
        bare.run("ROLLBACK");
    }
    done
}

/// Transactions a second of eight clients.
fn clients(seconds: f64, client: impl Fn(usize, &dyn Fn() -> bool) -> u64 + Sync) -> f64 {
    let begun = Instant::now();
    let goes_on = || begun.elapsed().as_secs_f64() < seconds;
    let done: u64 = std::thread::scope(|scope| {
        let start = |number| {
            let (client, goes_on) = (&client, &goes_on);
            scope.spawn(move || client(number, goes_on))
        };
        let threads: Vec<_> = (0..CLIENTS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    done as f64 / begun.elapsed().as_secs_f64()
}

fn picks(state: &mut u64) -> [u64; 3] {
    [next(state) % SIZES.0, next(state) % SIZES.1, next(state) % SIZES.2]
}

fn bank(db: &Postgres, address: &str, bare: &Bare) {
    let fill = |table: &Table<u64, i64>, count: u64| {
        (0..count).step_by(5000).for_each(|from| {
            let to = (from + 5000).min(count);
            db.write(|tx| (from..to).try_for_each(|key| tx.put(table, key, 0))).unwrap();
        });
    };
    for (table, count, name) in
        [(&ACCOUNTS, SIZES.0, "a"), (&TELLERS, SIZES.1, "t"), (&BRANCHES, SIZES.2, "b")]
    {
        fill(table, count);
        bare.run(&format!("CREATE TABLE {name} (key BIGINT PRIMARY KEY, balance BIGINT)"));
        bare.run(&format!("INSERT INTO {name} SELECT n, 0 FROM generate_series(0, {count}) n"));
    }
    bare.run("CREATE TABLE h (a BIGINT, t BIGINT, b BIGINT, d BIGINT); ANALYZE");
    let ours = |number: usize, goes_on: &dyn Fn() -> bool| {
        let (mut state, mut done) = (number as u64 * 7919 + 1, 0);
        let run = begun_now();
        while goes_on() {
            let picks = picks(&mut state);
            db.write(|tx| tpcb(tx, picks, (run + number as u64, done))).unwrap();
            done += 1;
        }
        done
    };
    let theirs = |number: usize, goes_on: &dyn Fn() -> bool| {
        let (bare, mut state, mut done) = (Bare::new(address), number as u64 * 7919 + 1, 0);
        let statements: Vec<_> = [
            "UPDATE a SET balance = balance + 5 WHERE key = $1",
            "SELECT balance FROM a WHERE key = $1",
            "UPDATE t SET balance = balance + 5 WHERE key = $1",
            "UPDATE b SET balance = balance + 5 WHERE key = $1",
            "INSERT INTO h VALUES ($1, $2, $3, 5)",
        ]
        .iter()
        .map(|sql| bare.runtime.block_on(bare.client.prepare(sql)).unwrap())
        .collect();
        while goes_on() {
            let picks = picks(&mut state);
            while !tpcb_sql(&bare, &statements, picks) {}
            done += 1;
        }
        done
    };
    let mut rates: Vec<_> = (0..3).map(|_| (clients(2.0, ours), clients(2.0, theirs))).collect();
    rates.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let (ours, theirs) = rates[1];
    println!(
        "TPC-B, {CLIENTS} clients: {ours:.0}/s, in SQL {theirs:.0}/s, {:.2}x (goal 0.9x)",
        ours / theirs
    );
}

/// A number that no run before had.
fn begun_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_micros() as u64 * 16
}

/// How often copies are repeated.
const ROUNDS: usize = 5;

/// How long a copy takes without its comparison, and with it.
fn timed(copy: impl FnOnce(&mut dyn FnMut(&CopyProgress))) -> [Duration; 2] {
    let (begun, mut copied) = (Instant::now(), None);
    copy(&mut |so_far| {
        if so_far.verifying {
            copied.get_or_insert_with(|| begun.elapsed());
        }
    });
    let all = begun.elapsed();
    [copied.unwrap_or(all), all]
}

/// Copies of so many rows, with and without us, in turns.
fn copies(target: &str, bare: &Bare, rows: u64) {
    let path = std::env::temp_dir().join(format!("measure-{}", std::process::id()));
    let (back, file) = (path.with_extension("back"), path.with_extension("copy"));
    let store = Store::open(&path).unwrap();
    store.load_sorted(&RECORDS, (0..rows).map(|key| (key, &[7; 100][..]))).unwrap();
    let copy = |what: &str| format!("COPY {what} '{}' WITH (FORMAT BINARY)", file.display());
    let dump = copy("(SELECT tree, key, value FROM latchwork_records ORDER BY tree, key) TO");
    let create = "DROP TABLE IF EXISTS copied; \
                  CREATE TABLE copied (tree BIGINT, key BYTEA, value BYTEA, \
                  PRIMARY KEY (tree, key))";
    let mut times = [const { Vec::new() }; 6];
    for _ in 0..ROUNDS {
        bare.run("DROP SCHEMA IF EXISTS target CASCADE; CREATE SCHEMA target");
        let [to, to_all] = timed(|told| {
            to_server(&store, target, told).unwrap();
        });
        bare.run("SET search_path = target");
        let [dumped, _] = timed(|_| bare.run(&dump));
        bare.run("RESET search_path");
        bare.run(create);
        let [loaded, _] = timed(|_| bare.run(&copy("copied FROM")));
        let [from, from_all] = timed(|told| {
            from_server(target, &back, told).unwrap();
        });
        std::fs::remove_dir_all(&back).unwrap();
        let new = [to, to_all, loaded, from, from_all, dumped];
        times.iter_mut().zip(new).for_each(|(times, new)| times.push(new));
    }
    let ratios = |ours: usize, theirs: usize| {
        let all = times[theirs].iter().zip(&times[ours]);
        let mut all: Vec<_> = all.map(|(theirs, ours)| ratio(*theirs, *ours)).collect();
        all.sort_by(f64::total_cmp);
        format!("{:.2}x ({:.2} to {:.2}; goal 0.7x)", all[ROUNDS / 2], all[0], all[ROUNDS - 1])
    };
    let (to, from) = (ratios(0, 2), ratios(3, 5));
    let [to_time, to_all, loaded, from_time, from_all, dumped] = times.map(median);
    println!(
        "copy of {rows} rows to the server: {to_time:?}, with the comparison {to_all:?}; COPY FROM \
         {loaded:?}; {to}"
    );
    println!(
        "copy of {rows} rows from the server: {from_time:?}, with the comparison {from_all:?}; \
         COPY TO {dumped:?}; {from}"
    );
    drop(store);
    for folder in [&path, &back] {
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Tables and records of each that the two layouts have.
const LAYOUT: (i64, i64) = (10, 100_000);

/// How many calls of each kind the layouts are measured by.
const CALLS: u64 = 10_000;

/// The three statements of a layout for one of our tables: a read, a write, and a range.
fn layout_sql(table: &str, is_shared: bool) -> [String; 3] {
    let (at, columns, values) = match is_shared {
        true => ("tree = $2 AND ", "tree, key", "$3, $1"),
        false => ("", "key", "$1"),
    };
    [
        format!("SELECT value FROM {table} WHERE {at}key = $1"),
        format!(
            "INSERT INTO {table} ({columns}, value) VALUES ({values}, $2) ON CONFLICT ({columns}) \
             DO UPDATE SET value = excluded.value"
        ),
        format!("SELECT key, value FROM {table} WHERE {at}key >= $1 ORDER BY key LIMIT 100"),
    ]
}

/// One SQL table for all of ours, and one for each, by hand-written SQL.
fn layouts(bare: &Bare) {
    let (tables, records) = LAYOUT;
    let rows = format!(
        "int8send(n), decode(repeat('07', 100), 'hex') FROM generate_series(0, {records} - 1) n"
    );
    let columns = "key BYTEA, value BYTEA NOT NULL";
    bare.run(&format!("CREATE TABLE shared (tree BIGINT, {columns}, PRIMARY KEY (tree, key))"));
    for tree in 0..tables {
        bare.run(&format!("INSERT INTO shared SELECT {tree}, {rows}"));
        bare.run(&format!("CREATE TABLE own{tree} ({columns}, PRIMARY KEY (key))"));
        bare.run(&format!("INSERT INTO own{tree} SELECT {rows}"));
    }
    bare.run("VACUUM ANALYZE");
    bare.run("SET enable_seqscan = off; SET default_transaction_isolation = 'serializable'");
    let prepare = |sql: &String| bare.runtime.block_on(bare.client.prepare(sql)).unwrap();
    let begun = Instant::now();
    let shared = layout_sql("shared", true).each_ref().map(prepare);
    let shared_time = begun.elapsed();
    let begun = Instant::now();
    let own: Vec<_> = (0..tables)
        .map(|tree| layout_sql(&format!("own{tree}"), false).each_ref().map(prepare))
        .collect();
    let own_time = begun.elapsed();
    let (mut state, value) = (7, vec![8_u8; 100]);
    let mut pick = || (next(&mut state) as i64 % tables, next(&mut state) as i64 % records);
    println!("statements of one SQL table: {shared_time:?}, of {tables}: {own_time:?}");
    for (what, name) in ["read", "put", "range of 100"].iter().enumerate() {
        let picks: Vec<_> = (0..CALLS).map(|_| pick()).collect();
        let run = |tree: i64, key: i64, in_shared: bool| {
            let key = key.to_be_bytes();
            let key = &key[..];
            let mut params: Vec<&(dyn ToSql + Sync)> = vec![&key];
            if what == 1 {
                params.push(&value);
            }
            let statement = if in_shared { &shared[what] } else { &own[tree as usize][what] };
            if in_shared {
                params.push(&tree);
            }
            let rows = bare.runtime.block_on(bare.client.query(statement, &params)).unwrap();
            assert_eq!(rows.len(), [1, 0, rows.len().max(1)][what]);
        };
        let mut one = |round: u64| run(picks[round as usize].0, picks[round as usize].1, true);
        let mut each = |round: u64| run(picks[round as usize].0, picks[round as usize].1, false);
        let times = medians(CALLS, &mut [&mut one, &mut each]);
        let [one, each] = times[..] else { unreachable!() };
        println!("{name}: one SQL table {one:?}, one for each {each:?}, {:.2}x", ratio(one, each));
    }
    let size = |sql: &str| {
        let row = bare.runtime.block_on(bare.client.query_one(sql, &[])).unwrap();
        row.get::<_, i64>(0) >> 20
    };
    let (one, each) = (
        size("SELECT pg_total_relation_size('shared')"),
        size(
            "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class \
             WHERE relname LIKE 'own_' AND relkind = 'r'",
        ),
    );
    println!("size: one SQL table {one} MB, one for each {each} MB");
    bare.run("RESET enable_seqscan; RESET default_transaction_isolation");
}

fn main() {
    let mut args = std::env::args().skip(1);
    let address = args.next().expect("the address of an empty database");
    let rows = args.next().map_or(1_000_000, |rows| rows.parse().unwrap());
    let parts: Vec<_> = args.collect();
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let bare = Bare::new(&address);
    let db = Postgres::open(&address).unwrap();
    if wants("reads") {
        reads(&db, &address, &bare);
    }
    if wants("bank") {
        bank(&db, &address, &bare);
    }
    if wants("layouts") {
        layouts(&bare);
    }
    if wants("copies") {
        let separator = if address.contains('?') { '&' } else { '?' };
        let target = format!("{address}{separator}options=-c%20search_path%3Dtarget");
        copies(&target, &bare, rows);
    }
}
