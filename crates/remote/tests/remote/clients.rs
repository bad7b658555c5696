//! Processes that are killed while they work on a server, which is restarted: the bank's total
//! stays, and each job of a queue is done once.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use latchwork_remote::Database;
use latchwork_store::{Error, ReadOps, Sequence, Table, WriteOps};
use rand::RngExt;

use crate::{Stage, Test};

pub(crate) const TESTS: &[Test] = &[
    ("the_bank_keeps_its_total_while_clients_are_killed", bank),
    ("each_job_of_a_queue_is_done_once", queue),
];

const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
const COUNT: u64 = 30;

const JOBS: Table<u64, String> = Table::new("jobs");
const DONE: Table<u64, String> = Table::new("done");
const JOB: Sequence = Sequence::new("job");

/// Runs as a client, if the arguments say so.
pub(crate) fn is_client(args: &[String]) -> bool {
    if let [what, from, to] = args
        && what == "client-copy"
    {
        crate::copies::copy(from, to);
        return true;
    }
    let [what, address] = args else { return false };
    match &what[..] {
        "client-bank" => transfers(&opened(address)),
        "client-queue" => works(&opened(address)),
        _ => return false,
    }
    true
}

/// Opens a database whose server may be about to restart.
fn opened(address: &str) -> Database {
    loop {
        match Database::open(address) {
            Ok(db) => return db,
            Err(why) => assert!(why.is_retryable(), "{why}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn client(what: &str, address: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args([what, address]).stdin(Stdio::null()).spawn().unwrap()
}

fn transfer(tx: &mut impl WriteOps, from: u64, to: u64, amount: i64) -> Result<(), Error> {
    tx.update(&ACCOUNTS, from, |old| Some(old.unwrap_or(0) - amount))?;
    tx.update(&ACCOUNTS, to, |old| Some(old.unwrap_or(0) + amount))?;
    Ok(())
}

fn transfers(db: &Database) {
    loop {
        let [from, to] = std::array::from_fn(|_| rand::rng().random_range(0..COUNT));
        match db.write(|tx| transfer(tx, from, to, 1)) {
            Ok(()) | Err(Error::CommitUnknown { .. }) => {}
            Err(why) => assert!(matches!(why, Error::Deadline { .. }), "{why}"),
        }
    }
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn bank(stage: &mut Stage) {
    let address = stage.server.fresh("bank");
    let db = Database::open(&address).unwrap();
    db.write(|tx| (0..COUNT).try_for_each(|account| tx.put(&ACCOUNTS, account, 100))).unwrap();
    let total = |tx: &mut latchwork_remote::DatabaseReadTxn<'_, '_>| {
        tx.range(&ACCOUNTS, ..)?.map(|row| row.map(|(_, balance)| balance)).sum::<Result<i64, _>>()
    };
    let mut clients: Vec<_> = (0..4).map(|_| client("client-bank", &address)).collect();
    let (begun, mut kills, mut restarts, mut reads) = (Instant::now(), 0, 0, 0);
    while begun.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(60));
        let at = rand::rng().random_range(0..clients.len());
        kill(&mut clients[at]);
        clients[at] = client("client-bank", &address);
        kills += 1;
        if begun.elapsed() > Duration::from_secs(2 * restarts + 1) {
            stage.server.stop([libc::SIGQUIT, libc::SIGINT][restarts as usize % 2]);
            stage.server.start();
            restarts += 1;
        }
        assert_eq!(db.read(total).unwrap(), 100 * COUNT as i64);
        reads += 1;
    }
    clients.iter_mut().for_each(kill);
    assert_eq!(db.read(total).unwrap(), 100 * COUNT as i64);
    assert!(kills > 10 && restarts == 2 && reads > 10, "{kills} {restarts} {reads}");
    let moved = db.read(|tx| tx.range(&ACCOUNTS, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
    assert!(moved.iter().any(|(_, balance)| *balance != 100), "nothing was transferred");
}

/// Takes jobs until there are none.
fn works(db: &Database) {
    loop {
        let did = db.write(|tx| {
            let Some((number, job)) = tx.pop_first(&JOBS)? else { return Ok(false) };
            tx.insert(&DONE, number, &job)?;
            Ok(true)
        });
        match did {
            Ok(false) => return,
            Ok(true) | Err(Error::CommitUnknown { .. }) => {}
            Err(why) => assert!(matches!(why, Error::Deadline { .. }), "{why}"),
        }
    }
}

fn queue(stage: &mut Stage) {
    let address = stage.server.fresh("queue");
    let db = Database::open(&address).unwrap();
    let mut numbers = BTreeSet::new();
    for _ in 0..150 {
        let number = db.next_number(&JOB).unwrap();
        numbers.insert(number);
        db.write(|tx| tx.insert(&JOBS, number, &format!("job {number}"))).unwrap();
    }
    let mut clients: Vec<_> = (0..3).map(|_| client("client-queue", &address)).collect();
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(40));
        kill(&mut clients[0]);
        clients[0] = client("client-queue", &address);
    }
    for client in &mut clients {
        assert!(client.wait().unwrap().success());
    }
    let done = db.read(|tx| tx.range(&DONE, ..)?.collect::<Result<Vec<_>, _>>()).unwrap();
    let done: Vec<_> = done.into_iter().map(|(number, _)| number).collect();
    assert_eq!(done, numbers.into_iter().collect::<Vec<_>>());
    assert_eq!(db.read(|tx| tx.count(&JOBS, ..)).unwrap(), 0);
}
