//! Roles of dialogues: what a thread or a process does in a transaction when it is told to; and the
//! stages on which they meet: an engine in memory, a store on files with threads, and with
//! processes.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::ops::Bound;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use latchwork_check::again;
use latchwork_check::memory_engine::{Bug, Memory};
use latchwork_lockmgr::{Error as Lock, Manager, View, granular};
use latchwork_machine::Shared;
use latchwork_region::Region;
use latchwork_store::{
    Attempts, Error, Mode, Options, Patience, ReadTxn, Snapshot, Store, Table, Txn, WriteTxn,
};

use crate::dialogue::{Level, Role, Stage};

type Rows = Vec<(u64, i64)>;

/// What a step can do, whatever it does it to. Rows from 100 on are in a table of their own.
trait Hand {
    fn get(&mut self, row: u64) -> Result<Option<i64>, Error>;
    fn get_for_update(&mut self, row: u64) -> Result<Option<i64>, Error>;
    fn put(&mut self, row: u64, value: i64) -> Result<(), Error>;
    fn insert(&mut self, row: u64, value: i64) -> Result<(), Error>;
    fn remove(&mut self, row: u64) -> Result<bool, Error>;
    fn range(&mut self, from: u64, to: u64) -> Result<Rows, Error>;
}

/// Does a step, and says what came of it.
fn step(hand: &mut dyn Hand, text: &str) -> Result<String, Error> {
    let words: Vec<_> = text.split_whitespace().collect();
    let number = |at: usize| words[at].parse::<i64>().expect("a number");
    let row = |at: usize| number(at) as u64;
    let value = |found: Option<i64>| found.map_or("none".to_owned(), |value| value.to_string());
    let done = |_: ()| "done".to_owned();
    let rows = |rows: Rows| match rows.as_slice() {
        [] => "none".to_owned(),
        rows => rows.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" "),
    };
    let said = match words[0] {
        // The first step begins the transaction, whatever it is.
        "begin" => Ok("done".to_owned()),
        "get" => hand.get(row(1)).map(value),
        "get-for-update" => hand.get_for_update(row(1)).map(value),
        "put" => hand.put(row(1), number(2)).map(done),
        "insert" => hand.insert(row(1), number(2)).map(done),
        "remove" => hand.remove(row(1)).map(|there| if there { "done" } else { "none" }.to_owned()),
        "all" => hand.range(0, 99).map(rows),
        "range" => hand.range(row(1), row(2)).map(rows),
        other => panic!("no such step: {other}"),
    };
    match said {
        Err(Error::Exists { .. }) => Ok("exists".to_owned()),
        said => said,
    }
}

/// What a role is told, one line after the other, and where it answers.
pub(crate) struct Lines<'l> {
    pub(crate) next: &'l mut dyn FnMut() -> String,
    pub(crate) say: &'l mut dyn FnMut(&str),
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Commit,
    RollBack,
    /// It was the victim of a deadlock.
    Deadlock,
    /// It was to answer, and waited instead.
    TimedOut,
    /// With the role.
    Exit,
}

fn rejected() -> Error {
    Error::Rejected("as told".to_owned())
}

/// A transaction, from its first step on.
fn play(hand: &mut dyn Hand, first: &str, lines: &mut Lines<'_>) -> Result<Ended, Error> {
    let mut text = first.to_owned();
    loop {
        match text.as_str() {
            "commit" => return Ok(Ended::Commit),
            "roll-back" => return Ok(Ended::RollBack),
            "end" => return Ok(Ended::Exit),
            other => match step(hand, other) {
                Ok(answer) => (lines.say)(&answer),
                Err(error) => return Err(error),
            },
        }
        text = (lines.next)();
    }
}

/// Transactions, one after the other, until the role ends. `transaction` runs one, with its body,
/// which says whether it commits.
fn perform(
    lines: &mut Lines<'_>,
    transaction: impl Fn(&mut dyn FnMut(&mut dyn Hand) -> Result<(), Error>) -> Result<(), Error>,
) {
    loop {
        let first = (lines.next)();
        if first == "end" {
            return;
        }
        let (mut ended, mut run) = (Ended::Commit, false);
        let result = transaction(&mut |hand| {
            // It was told to fail, and is not run again.
            if std::mem::replace(&mut run, true) {
                return Err(rejected());
            }
            ended = play(hand, &first, lines).inspect_err(|error| {
                ended = match error {
                    Error::Lock { why: Lock::Deadlock(_), .. } => Ended::Deadlock,
                    Error::Lock { why: Lock::TimedOut, .. } => Ended::TimedOut,
                    other => panic!("{other}"),
                };
            })?;
            if ended == Ended::Commit { Ok(()) } else { Err(rejected()) }
        });
        match (ended, result) {
            (Ended::Commit, Ok(())) | (Ended::RollBack, Err(Error::Rejected(_))) => {
                (lines.say)("done");
            }
            (Ended::Deadlock, Err(Error::Rejected(_))) => (lines.say)("deadlock"),
            (Ended::TimedOut, Err(_)) => (lines.say)("waits too long"),
            (Ended::Exit, _) => return,
            (_, result) => panic!("{result:?}"),
        }
    }
}

const ROWS: Table<u64, i64> = Table::new("rows");
const OTHERS: Table<u64, i64> = Table::new("others");

fn table(row: u64) -> &'static Table<u64, i64> {
    if row < 100 { &ROWS } else { &OTHERS }
}

impl Hand for WriteTxn<'_, '_, Shared> {
    fn get(&mut self, row: u64) -> Result<Option<i64>, Error> {
        WriteTxn::get(self, table(row), row)
    }

    fn get_for_update(&mut self, row: u64) -> Result<Option<i64>, Error> {
        WriteTxn::get_for_update(self, table(row), row)
    }

    fn put(&mut self, row: u64, value: i64) -> Result<(), Error> {
        WriteTxn::put(self, table(row), row, value)
    }

    fn insert(&mut self, row: u64, value: i64) -> Result<(), Error> {
        WriteTxn::insert(self, table(row), row, value)
    }

    fn remove(&mut self, row: u64) -> Result<bool, Error> {
        WriteTxn::remove(self, table(row), row)
    }

    fn range(&mut self, from: u64, to: u64) -> Result<Rows, Error> {
        WriteTxn::range(self, table(from), from..=to)?.collect()
    }
}

/// A snapshot of a store.
struct Reads<'r, 's>(&'r ReadTxn<'s, Shared>);

/// What only reads writes nothing.
macro_rules! reads_only {
    () => {
        fn get_for_update(&mut self, _: u64) -> Result<Option<i64>, Error> {
            panic!("a snapshot writes nothing")
        }

        fn put(&mut self, _: u64, _: i64) -> Result<(), Error> {
            panic!("a snapshot writes nothing")
        }

        fn insert(&mut self, _: u64, _: i64) -> Result<(), Error> {
            panic!("a snapshot writes nothing")
        }

        fn remove(&mut self, _: u64) -> Result<bool, Error> {
            panic!("a snapshot writes nothing")
        }
    };
}

impl Hand for Reads<'_, '_> {
    fn get(&mut self, row: u64) -> Result<Option<i64>, Error> {
        self.0.get(table(row), row)
    }

    fn range(&mut self, from: u64, to: u64) -> Result<Rows, Error> {
        self.0.range(table(from), from..=to)?.collect()
    }

    reads_only!();
}

/// What a role does in a store until it ends.
pub(crate) fn act_in(store: &Store, role: &'static str, level: Level, lines: &mut Lines<'_>) {
    let patience = patience(role, level);
    perform(lines, |body| match level {
        Level::Snapshot => store.read(|tx| body(&mut Reads(tx))),
        _ => store.write_with(&patience, |tx| body(tx)).map(|_| ()),
    });
}

/// How a role's transactions run: a dialogue that is wrong ends after a while.
fn patience(role: &'static str, level: Level) -> Patience {
    let level = match level {
        Level::ReadCommitted => latchwork_store::Level::ReadCommitted,
        _ => latchwork_store::Level::Serializable,
    };
    Patience { label: role, level, time: Duration::from_secs(5), ..Patience::default() }
}

fn tree(row: u64) -> u32 {
    1 + u32::from(row >= 100)
}

fn number(bytes: Option<Vec<u8>>) -> Option<i64> {
    bytes.map(|bytes| i64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

/// All rows of a range, with a scan.
fn rows(
    (from, to): (u64, u64),
    scan: impl FnOnce(
        Bound<&[u8]>,
        Bound<&[u8]>,
        &mut latchwork_store::EachRecord<'_>,
    ) -> Result<(), Error>,
) -> Result<Rows, Error> {
    let mut rows = Vec::new();
    let (from, to) = (from.to_be_bytes(), to.to_be_bytes());
    scan(Bound::Included(&from), Bound::Included(&to), &mut |key, value| {
        let key = u64::from_be_bytes(key.try_into().expect("8 bytes"));
        rows.extend(number(Some(value.to_vec())).map(|value| (key, value)));
        Ok(true)
    })?;
    Ok(rows)
}

impl Hand for Txn<'_, Memory> {
    fn get(&mut self, row: u64) -> Result<Option<i64>, Error> {
        self.get_raw(tree(row), &row.to_be_bytes()).map(number)
    }

    fn get_for_update(&mut self, row: u64) -> Result<Option<i64>, Error> {
        self.get_raw_for_update(tree(row), &row.to_be_bytes()).map(number)
    }

    fn put(&mut self, row: u64, value: i64) -> Result<(), Error> {
        self.write_raw(tree(row), &row.to_be_bytes(), Some(&value.to_le_bytes()))
    }

    fn insert(&mut self, row: u64, value: i64) -> Result<(), Error> {
        self.insert_raw(tree(row), &row.to_be_bytes(), &value.to_le_bytes())
    }

    fn remove(&mut self, row: u64) -> Result<bool, Error> {
        let there = Hand::get_for_update(self, row)?.is_some();
        self.write_raw(tree(row), &row.to_be_bytes(), None).map(|()| there)
    }

    fn range(&mut self, from: u64, to: u64) -> Result<Rows, Error> {
        rows((from, to), |a, b, each| self.scan_raw(tree(from), (a, b), false, each))
    }
}

impl Hand for Snapshot<'_, Memory> {
    fn get(&mut self, row: u64) -> Result<Option<i64>, Error> {
        self.get_raw(tree(row), &row.to_be_bytes()).map(number)
    }

    fn range(&mut self, from: u64, to: u64) -> Result<Rows, Error> {
        rows((from, to), |a, b, each| self.scan_raw(tree(from), (a, b), false, each))
    }

    reads_only!();
}

/// A role's name, for its owner's label.
fn label(role: char) -> &'static str {
    const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";
    let at = role as usize - 'a' as usize;
    &LETTERS[at..=at]
}

/// Whether an owner with this label waits.
fn is_waiting<M: latchwork_machine::ConstMachine>(view: &View<M>, role: char) -> bool {
    let Ok(seen) = view.look() else { return false };
    seen.rows.iter().any(|row| row.wanted.is_some() && row.label == label(role))
}

/// A role that is a thread.
fn thread_role(act: impl FnOnce(&mut Lines<'_>) + Send + 'static) -> Role {
    let (tell, told): (Sender<String>, Receiver<String>) = channel();
    let (say, heard) = channel();
    let thread = thread::spawn(move || {
        let mut next = || told.recv().unwrap_or_else(|_| "end".to_owned());
        let mut say = |answer: &str| drop(say.send(answer.to_owned()));
        act(&mut Lines { next: &mut next, say: &mut say });
    });
    Role {
        tell: Box::new(move |line| drop(tell.send(line.to_owned()))),
        heard,
        gone: Box::new(move || thread.join().expect("a role that ended well")),
        kill: None,
    }
}

/// The engine in memory, and a lock manager for all roles; or one for each, which stops nobody.
pub(crate) struct InMemory {
    bug: Bug,
    memory: RefCell<Arc<Memory>>,
    manager: Arc<Manager>,
    view: View,
}

impl InMemory {
    pub(crate) fn new(bug: Bug) -> Self {
        let manager = Arc::new(Manager::private(granular::modes()).unwrap());
        let view = View::new(manager.region().clone()).unwrap().unwrap();
        Self { bug, memory: RefCell::new(Arc::new(Memory::new(bug))), manager, view }
    }
}

impl Stage for InMemory {
    fn set(&self) {
        *self.memory.borrow_mut() = Arc::new(Memory::new(self.bug));
        let session = self.manager.session().unwrap();
        let memory = self.memory.borrow();
        let mut txn =
            Txn::new(&**memory, session.owner().unwrap(), 99, latchwork_store::Level::Serializable);
        Hand::put(&mut txn, 1, 10).unwrap();
        Hand::put(&mut txn, 2, 20).unwrap();
        txn.commit().unwrap();
    }

    fn enter(&self, role: char, level: Level) -> Role {
        let (memory, slot) = (self.memory.borrow().clone(), u16::from(role as u8 - b'a') + 1);
        let manager = match level {
            Level::Unlocked => Arc::new(Manager::private(granular::modes()).unwrap()),
            _ => self.manager.clone(),
        };
        thread_role(move |lines| {
            let session = manager.session().unwrap();
            let patience = patience(label(role), level);
            perform(lines, |body| match level {
                Level::Snapshot => body(&mut Snapshot::new(&*memory, slot)?),
                _ => {
                    Attempts::run(&*memory, &session, slot, &patience, |txn| body(txn)).map(|_| ())
                }
            });
        })
    }

    fn waits(&self, role: char) -> bool {
        is_waiting(&self.view, role)
    }
}

/// A store on files, whose roles are threads of this process or processes of their own.
pub(crate) struct OnFiles {
    path: PathBuf,
    store: Option<Store>,
    view: View<Shared>,
    processes: bool,
}

pub(crate) fn options() -> Options {
    let mut options = Options::default();
    options.sizes.cache = 2 << 20;
    options.sizes.log_buffer = 1 << 20;
    options.sizes.log_segment = 4 << 20;
    options.sizes.threads = 64;
    options.sizes.mode = Mode::None;
    options
}

/// The region of an open store: its place is in the second line.
pub(crate) fn region_of(path: &std::path::Path) -> PathBuf {
    let text = std::fs::read_to_string(path.join("region")).unwrap();
    PathBuf::from(text.lines().nth(1).unwrap()).join("region")
}

impl OnFiles {
    pub(crate) fn new(name: &str, processes: bool) -> Self {
        let path = std::env::temp_dir().join(format!("latchwork-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let store = Some(Store::open_with(&path, &options()).unwrap());
        let region = latchwork_region::Options::default();
        let region = Region::<Shared>::view(region_of(&path), &region).unwrap();
        let view = View::new(region).unwrap().unwrap();
        Self { path, store, view, processes }
    }

    pub(crate) fn store(&self) -> &Store {
        self.store.as_ref().expect("it is open until the end")
    }
}

impl Drop for OnFiles {
    fn drop(&mut self) {
        drop(self.store.take());
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl Stage for OnFiles {
    fn set(&self) {
        let set = self.store().write(|tx| {
            tx.remove_range(&ROWS, ..)?;
            tx.remove_range(&OTHERS, ..)?;
            tx.put(&ROWS, 1, 10)?;
            tx.put(&ROWS, 2, 20)
        });
        set.unwrap();
    }

    fn enter(&self, role: char, level: Level) -> Role {
        assert!(level != Level::Unlocked, "a store has no such level");
        if self.processes {
            return process_role(&self.path, role, level);
        }
        let store = self.store().clone();
        thread_role(move |lines| act_in(&store, label(role), level, lines))
    }

    fn waits(&self, role: char) -> bool {
        is_waiting(&self.view, role)
    }
}

/// A role that is a process: this test program again.
fn process_role(path: &std::path::Path, role: char, level: Level) -> Role {
    let mut child = again(module_path!(), "child")
        .env("LATCHWORK_ROLE", role.to_string())
        .env("LATCHWORK_LEVEL", level.name())
        .env("LATCHWORK_STORE", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let from = BufReader::new(child.stdout.take().unwrap());
    let (say, heard) = channel();
    let reader = thread::spawn(move || {
        // The test harness writes to the same place.
        for line in from.lines().map_while(Result::ok) {
            if let Some(answer) = line.strip_prefix("> ") {
                let _ = say.send(answer.to_owned());
            }
        }
    });
    let pid = child.id() as i32;
    Role {
        tell: Box::new(move |line| drop(writeln!(to, "{line}"))),
        heard,
        gone: Box::new(move || {
            // One that was killed has no code.
            let code = child.wait().unwrap().code();
            assert!(code.is_none_or(|code| code == 0), "a role that failed");
            reader.join().unwrap();
        }),
        // SAFETY: it is our child, and nobody has waited for it.
        kill: Some(Box::new(move || assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0))),
    }
}

/// What a process does that is a role; nothing, as a test.
#[test]
fn child() {
    let Some(path) = std::env::var_os("LATCHWORK_STORE") else { return };
    let role = std::env::var("LATCHWORK_ROLE").unwrap().chars().next().unwrap();
    let level = std::env::var("LATCHWORK_LEVEL").unwrap().parse().unwrap();
    let store = Store::open_with(path, &options()).unwrap();
    // The harness may have begun a line.
    println!();
    let mut next = || {
        let mut line = String::new();
        match std::io::stdin().read_line(&mut line) {
            Ok(1..) => line.trim_end().to_owned(),
            _ => "end".to_owned(),
        }
    };
    let mut say = |answer: &str| println!("> {answer}");
    act_in(&store, label(role), level, &mut Lines { next: &mut next, say: &mut say });
}
