//! Histories of list-append transactions in threads and processes, checked independently of the log
//! by `latchwork_check::adya`, in addition to the serial oracle.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::thread;

use latchwork_check::adya::{Anomaly, NUMBERS, Op, Transaction, check};
use latchwork_check::again;
use latchwork_check::memory_engine::{Bug, Memory};
use latchwork_check::random::Random;
use latchwork_lockmgr::{Manager, granular};
use latchwork_machine::{Clock, Machine, Shared};
use latchwork_store::internals::{self, Snapshot, Txn};
use latchwork_store::{Error, Level, Mode, ReadTxn, Store, Table, TxnOptions, WriteTxn};

use crate::dialogue_stages::options;

const LISTS: Table<u64, &[u8]> = Table::new("lists");
/// Number of lists in use at a time; few, so that transactions conflict.
const COUNT: u64 = 6;
/// Number of transactions of a thread that use the same lists.
const USES: u64 = 60;
/// A list of this length is not appended to.
const LONGEST: usize = 100;

fn numbers(bytes: Option<Vec<u8>>) -> Vec<u64> {
    let bytes = bytes.unwrap_or_default();
    bytes.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Lists, by number.
type Found = Vec<(u64, Vec<u64>)>;

/// The steps of a transaction.
type Body<'b> = dyn FnMut(&mut dyn Lists) -> Result<(), Error> + 'b;

/// Runs a transaction; the flag says whether it may write.
type Run<'r> = dyn FnMut(bool, &mut Body<'_>) -> Result<(), Error> + 'r;

/// Lists in any engine.
trait Lists {
    fn read(&mut self, list: u64) -> Result<Vec<u64>, Error>;
    fn read_to_write(&mut self, list: u64) -> Result<Vec<u64>, Error>;
    fn write(&mut self, list: u64, numbers: &[u64]) -> Result<(), Error>;
    /// All lists from this one on.
    fn all(&mut self, from: u64) -> Result<Found, Error>;
}

impl Lists for WriteTxn<'_, '_, Shared> {
    fn read(&mut self, list: u64) -> Result<Vec<u64>, Error> {
        self.get(&LISTS, list).map(numbers)
    }

    fn read_to_write(&mut self, list: u64) -> Result<Vec<u64>, Error> {
        self.get_for_update(&LISTS, list).map(numbers)
    }

    fn write(&mut self, list: u64, numbers: &[u64]) -> Result<(), Error> {
        self.put(&LISTS, list, &bytes(numbers))
    }

    fn all(&mut self, from: u64) -> Result<Found, Error> {
        let rows = self.range(&LISTS, from..from + COUNT)?;
        rows.map(|row| row.map(|(list, found)| (list, numbers(Some(found))))).collect()
    }
}

/// A snapshot of a store.
struct Reads<'r, 's>(&'r ReadTxn<'s, Shared>);

impl Lists for Reads<'_, '_> {
    fn read(&mut self, list: u64) -> Result<Vec<u64>, Error> {
        self.0.get(&LISTS, list).map(numbers)
    }

    fn read_to_write(&mut self, list: u64) -> Result<Vec<u64>, Error> {
        self.read(list)
    }

    fn write(&mut self, _: u64, _: &[u64]) -> Result<(), Error> {
        panic!("a snapshot writes nothing")
    }

    fn all(&mut self, from: u64) -> Result<Found, Error> {
        let rows = self.0.range(&LISTS, from..from + COUNT)?;
        rows.map(|row| row.map(|(list, found)| (list, numbers(Some(found))))).collect()
    }
}

/// Collects the rows of a scan in memory.
fn row(rows: &mut Found, key: &[u8], value: &[u8]) -> Result<bool, Error> {
    rows.push((u64::from(key[0]), numbers(Some(value.to_vec()))));
    Ok(true)
}

impl Lists for Txn<'_, Memory> {
    fn read(&mut self, list: u64) -> Result<Vec<u64>, Error> {
        self.get_raw(1, &[list as u8]).map(numbers)
    }

    fn read_to_write(&mut self, list: u64) -> Result<Vec<u64>, Error> {
        self.get_raw_for_update(1, &[list as u8]).map(numbers)
    }

    fn write(&mut self, list: u64, numbers: &[u64]) -> Result<(), Error> {
        self.write_raw(1, &[list as u8], Some(&bytes(numbers)))
    }

    fn all(&mut self, from: u64) -> Result<Found, Error> {
        use std::ops::Bound::{Excluded, Included};
        let (mut rows, from, to) = (Vec::new(), [from as u8], [(from + COUNT) as u8]);
        self.scan_raw(1, (Included(&from), Excluded(&to)), false, &mut |key, value| {
            row(&mut rows, key, value)
        })?;
        Ok(rows)
    }
}

impl Lists for Snapshot<'_, Memory> {
    fn read(&mut self, list: u64) -> Result<Vec<u64>, Error> {
        self.get_raw(1, &[list as u8]).map(numbers)
    }

    fn read_to_write(&mut self, list: u64) -> Result<Vec<u64>, Error> {
        self.read(list)
    }

    fn write(&mut self, _: u64, _: &[u64]) -> Result<(), Error> {
        panic!("a snapshot writes nothing")
    }

    fn all(&mut self, from: u64) -> Result<Found, Error> {
        let (mut rows, from, to) = (Vec::new(), [from as u8], [(from + COUNT) as u8]);
        self.scan_raw(1, &from[..]..&to[..], false, &mut |key, value| row(&mut rows, key, value))?;
        Ok(rows)
    }
}

/// Runs some steps of a transaction. Lists that a scan does not find are empty.
fn steps(
    lists: &mut dyn Lists,
    random: &mut Random,
    (id, base, writes): (u64, u64, bool),
    ops: &mut Vec<Op>,
) -> Result<(), Error> {
    let mut next = id * NUMBERS;
    for _ in 0..1 + random.below(4) {
        let list = base + random.below(COUNT);
        match random.below(6) {
            0 => {
                let all = lists.all(base)?;
                for list in base..base + COUNT {
                    let found = all.iter().find(|(one, _)| *one == list);
                    ops.push(Op::Read(list, found.map_or(Vec::new(), |found| found.1.clone())));
                }
            }
            kind @ 1..=3 if writes => {
                // With or without a lock for update, the append follows what was read.
                let mut found =
                    if kind == 1 { lists.read(list)? } else { lists.read_to_write(list)? };
                ops.push(Op::Read(list, found.clone()));
                if found.len() < LONGEST {
                    found.push(next);
                    lists.write(list, &found)?;
                    ops.push(Op::Append(list, next));
                    next += 1;
                }
            }
            _ => ops.push(Op::Read(list, lists.read(list)?)),
        }
        if random.below(3) == 0 {
            thread::yield_now();
        }
    }
    Ok(())
}

fn now() -> u64 {
    Shared::now(Clock::Monotonic)
}

/// The history of one thread. `run` runs each transaction as often as necessary; each attempt is
/// recorded as a transaction. The lists begin with number `base`.
fn history(
    (seed, base): (u64, u64),
    count: u64,
    run: &mut Run<'_>,
    told: &mut dyn FnMut(Transaction),
) {
    let mut random = Random(seed + 1);
    let mut id = seed << 24;
    for number in 0..count {
        let base = base + number / USES * COUNT;
        let (writes, rejected) = (random.below(4) != 0, random.below(10) == 0);
        let (mut attempts, begun) = (Vec::new(), now());
        let result = run(writes, &mut |lists| {
            id += 1;
            attempts.push(Transaction { id, time: (begun, 0), committed: false, ops: Vec::new() });
            let last = attempts.last_mut().expect("an attempt was pushed");
            steps(lists, &mut random, (id, base, writes), &mut last.ops)?;
            if rejected { Err(Error::Rejected(String::new())) } else { Ok(()) }
        });
        let end = now();
        let last = attempts.len().saturating_sub(1);
        for (index, mut one) in attempts.into_iter().enumerate() {
            one.committed = index == last && result.is_ok();
            one.time.1 = end;
            told(one);
        }
        assert!(matches!(result, Ok(()) | Err(Error::Rejected(_))), "{result:?}");
    }
}

/// Records a thread's history in a store.
fn of_store(
    store: &Store,
    from: (u64, u64),
    count: u64,
    level: Level,
    told: &mut dyn FnMut(Transaction),
) {
    let patience = TxnOptions { level, ..TxnOptions::default() };
    let mut run = |writes: bool, body: &mut Body<'_>| match writes {
        true => store.write_with(&patience, |tx| body(tx)).map(|_| ()),
        false => store.read(|tx| body(&mut Reads(tx))),
    };
    history(from, count, &mut run, told);
}

/// Threads of this process in a store.
fn threads(
    store: &Store,
    level: Level,
    seeds: std::ops::Range<u64>,
    count: u64,
) -> Vec<Transaction> {
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for seed in seeds {
            let all = &all;
            scope.spawn(move || {
                of_store(store, (seed, 0), count, level, &mut |one| all.lock().unwrap().push(one))
            });
        }
    });
    all.into_inner().unwrap()
}

/// Threads on the engine in memory.
fn in_memory(bug: Bug, level: Level, seed: u64) -> Vec<Transaction> {
    let (memory, all) = (Memory::new(bug), Mutex::new(Vec::new()));
    let manager = Manager::private(granular::modes()).unwrap();
    thread::scope(|scope| {
        for slot in 1..=4u16 {
            let (memory, manager, all) = (&memory, &manager, &all);
            scope.spawn(move || {
                let session = manager.session().unwrap();
                let patience = TxnOptions { level, ..TxnOptions::default() };
                let mut run = |writes: bool, body: &mut Body<'_>| match writes {
                    true => internals::run(memory, &session, slot, &patience, |txn| body(txn))
                        .map(|_| ()),
                    false => body(&mut Snapshot::new(memory, slot)?),
                };
                let seed = seed * 8 + u64::from(slot);
                history((seed, 0), 150, &mut run, &mut |one| all.lock().unwrap().push(one));
            });
        }
    });
    all.into_inner().unwrap()
}

fn place(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("latchwork-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn open(path: &std::path::Path, mode: Mode) -> Store {
    let mut options = options();
    options.sizes.mode = mode;
    Store::open_with(path, &options).unwrap()
}

#[test]
fn threads_have_no_anomaly() {
    for (seed, mode) in [(1, Mode::None), (2, Mode::Write), (3, Mode::None), (4, Mode::Full)] {
        let path = place("histories");
        let store = open(&path, mode);
        let count = if mode == Mode::Full { 60 } else { 400 };
        let all = threads(&store, Level::Serializable, seed * 8..seed * 8 + 4, count);
        let failed = all.iter().filter(|one| !one.committed).count();
        let edges = check(all.clone()).unwrap_or_else(|anomaly| {
            explain(&all, &anomaly);
            panic!("{mode:?}: {anomaly}")
        });
        println!("{mode:?}: {edges} edges, {failed} attempts failed");
        assert!(edges > 500 || mode == Mode::Full, "{edges} edges");
        drop(store);
        std::fs::remove_dir_all(&path).unwrap();
    }
}

/// The control on files: one level lower there are anomalies.
#[test]
fn a_lower_level_has_anomalies() {
    let found = (1..=20).find_map(|seed| {
        let path = place("histories-lower");
        let store = open(&path, Mode::None);
        let all = threads(&store, Level::ReadCommitted, seed * 8..seed * 8 + 4, 300);
        drop(store);
        std::fs::remove_dir_all(&path).unwrap();
        check(all).err()
    });
    println!("{}", found.expect("read committed looks serializable"));
}

/// Deliberate bugs in the engine in memory are detected; without one, no anomaly is.
#[test]
fn planted_bugs_are_detected() {
    for seed in 1..=4 {
        check(in_memory(Bug::None, Level::Serializable, seed))
            .unwrap_or_else(|why| panic!("{why}"));
    }
    for bug in [Bug::UndoKeepsValue, Bug::ClaimsIgnored, Bug::LowTooHigh, Bug::NoOldVersions] {
        let found =
            (1..=100).find_map(|seed| check(in_memory(bug, Level::Serializable, seed)).err());
        println!("{bug:?}: {}", found.unwrap_or_else(|| panic!("{bug:?} passed")));
    }
}

/// Formats a transaction as a line, and parses it.
fn line(one: &Transaction) -> String {
    let mut line =
        format!("> {} {} {} {}", one.id, one.time.0, one.time.1, u8::from(one.committed));
    for op in &one.ops {
        let _ = match op {
            Op::Append(list, number) => write!(line, " a,{list},{number}"),
            Op::Read(list, found) => {
                let found: Vec<_> = found.iter().map(u64::to_string).collect();
                write!(line, " r,{list},{}", found.join(","))
            }
        };
    }
    // The end mark: a killed process may leave part of a line.
    line + " ."
}

fn parse(line: &str) -> Option<Transaction> {
    let mut words = line.strip_prefix("> ")?.strip_suffix(" .")?.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (id, from, to, committed) = (number()?, number()?, number()?, number()? != 0);
    let ops = words.map(|word| {
        let mut parts = word.split(',');
        let kind = parts.next()?;
        let mut numbers =
            parts.filter(|part| !part.is_empty()).map(|part| part.parse::<u64>().ok());
        let list = numbers.next()??;
        match kind {
            "a" => Some(Op::Append(list, numbers.next()??)),
            _ => Some(Op::Read(list, numbers.collect::<Option<_>>()?)),
        }
    });
    Some(Transaction { id, time: (from, to), committed, ops: ops.collect::<Option<_>>()? })
}

/// The process whose history is recorded. Does nothing when run as a test.
#[test]
fn child() {
    let Some(path) = std::env::var_os("LATCHWORK_HISTORY") else { return };
    let seed: u64 = std::env::var("LATCHWORK_SEED").unwrap().parse().unwrap();
    let store = open(path.as_ref(), Mode::None);
    println!();
    thread::scope(|scope| {
        for thread in 0..2 {
            let store = &store;
            scope.spawn(move || {
                let mut told = |one| println!("{}", line(&one));
                of_store(
                    store,
                    (seed + thread, seed / 6 * 100),
                    400,
                    Level::Serializable,
                    &mut told,
                );
            });
        }
    });
}

fn start(path: &std::path::Path, seed: u64) -> Child {
    again(module_path!(), "child")
        .env("LATCHWORK_HISTORY", path)
        .env("LATCHWORK_SEED", seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Prints the transactions that an anomaly in a list's order involves.
fn explain(all: &[Transaction], anomaly: &Anomaly) {
    println!("{anomaly}");
    let Anomaly::Orders(list, one, other) = anomaly else { return };
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    for number in [one[same], other[same]] {
        let its = |op: &Op| *op == Op::Append(*list, number);
        let reads =
            |op: &Op| matches!(op, Op::Read(l, r) if l == list && r.get(same) == Some(&number));
        let mut about: Vec<_> =
            all.iter().filter(|t| t.ops.iter().any(|op| its(op) || reads(op))).collect();
        about.sort_by_key(|one| one.time);
        println!("{number}: {} transactions", about.len());
        for one in about.iter().take(6) {
            let ops = one.ops.iter().filter(|op| {
                its(op) || reads(op) || matches!(op, Op::Read(l, r) if l == list && r.len() == same)
            });
            let ops = ops.map(|op| match op {
                Op::Append(..) => "append".to_owned(),
                Op::Read(_, read) => format!("read {} {:?}", read.len(), read.last()),
            });
            let (seed, ops) = (one.id >> 24, ops.collect::<Vec<_>>());
            println!(
                "  {} of {seed}, committed {}, {:?}: {ops:?}",
                one.id, one.committed, one.time
            );
        }
    }
}

/// Three processes of two threads each. With `kills`, one process is killed in each round; what it
/// did not report is known from what others read.
fn processes(name: &str, kills: bool) {
    let path = place(name);
    let store = open(&path, Mode::None);
    let (mut all, mut lost) = (Vec::new(), 0);
    for round in 0..4u64 {
        let children: Vec<_> = (0..3).map(|n| start(&path, 1 + (round * 3 + n) * 2)).collect();
        thread::scope(|scope| {
            let parts: Vec<_> = children
                .into_iter()
                .enumerate()
                .map(|(number, mut child)| {
                    scope.spawn(move || {
                        let from = BufReader::new(child.stdout.take().unwrap());
                        let mut told = Vec::new();
                        for line in from.lines().map_while(Result::ok) {
                            told.extend(parse(&line));
                            if kills && number == 0 && told.len() == 100 + 100 * round as usize {
                                child.kill().unwrap();
                            }
                        }
                        (told, child.wait().unwrap().success())
                    })
                })
                .collect();
            for part in parts {
                let (told, ended) = part.join().unwrap();
                lost += u64::from(!ended);
                all.extend(told);
            }
        });
    }
    store.sweep().unwrap();
    all.extend(threads(&store, Level::Serializable, 200..201, 50));
    println!("{} transactions, {lost} processes killed", all.len());
    assert!((lost >= 2) == kills && all.len() > 4000, "{lost}, {}", all.len());
    match check(all.clone()) {
        Ok(edges) => println!("{edges} edges"),
        Err(anomaly) => {
            explain(&all, &anomaly);
            panic!("{anomaly}");
        }
    }
    store.verify().unwrap();
    drop(store);
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn processes_have_no_anomaly() {
    processes("histories-processes", false);
}

#[test]
fn processes_have_no_anomaly_though_one_is_killed() {
    processes("histories-killed", true);
}
