//! Connections that are cut at each message: nothing is committed twice, and nothing half.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use latchwork_remote::Postgres;
use latchwork_store::{Error, ReadOps, ServerFailure, Table, WriteOps};

use crate::{Stage, Test};

pub(crate) const TESTS: &[Test] = &[
    ("a_connection_may_be_cut_at_each_message", cut),
    ("a_server_that_restarts_is_found_again", restarted),
];

/// How many connections of ours the server has.
const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'latchwork'";

const LEDGER: Table<u64, u64> = Table::new("ledger");

/// How a proxy treats messages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// Passes them on.
    Pass,
    /// Cuts the connection at the message of this number from now on, counted in both directions:
    /// before or behind it.
    Cut(u64, bool),
    /// Cuts the connection behind a message with these bytes.
    Behind(&'static [u8]),
    /// Replaces bytes that the server sends.
    Replace(&'static [u8], &'static [u8]),
}

/// Passes bytes between clients and a server.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    rule: Arc<Mutex<Rule>>,
    seen: Arc<AtomicU64>,
}

impl Proxy {
    pub(crate) fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (rule, seen) = (Arc::new(Mutex::new(Rule::Pass)), Arc::new(AtomicU64::new(0)));
        let (rules, count) = (rule.clone(), seen.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                client.set_nodelay(true).unwrap();
                upstream.set_nodelay(true).unwrap();
                for (from, to, is_server) in [
                    (client.try_clone().unwrap(), upstream.try_clone().unwrap(), false),
                    (upstream, client, true),
                ] {
                    let (rule, seen) = (rules.clone(), count.clone());
                    std::thread::spawn(move || pass(from, to, is_server, &rule, &seen));
                }
            }
        });
        Self { port, rule, seen }
    }

    /// Sets the rule, and counts messages from here on.
    pub(crate) fn set(&self, rule: Rule) {
        self.seen.store(0, Relaxed);
        *self.rule.lock().unwrap() = rule;
    }

    /// How many messages were seen since.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }
}

/// Splits bytes into messages: a type, and a length that counts itself. A first message of a client
/// has no type; here it is the rest, and passed on as a whole.
fn messages(bytes: &[u8], is_first: bool) -> Vec<&[u8]> {
    let (mut rest, mut all) = (bytes, Vec::new());
    while rest.len() >= 5 && !is_first {
        let length = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize + 1;
        if length > rest.len() {
            break;
        }
        let (message, after) = rest.split_at(length);
        all.push(message);
        rest = after;
    }
    if !rest.is_empty() {
        all.push(rest);
    }
    all
}

fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    is_server: bool,
    rule: &Mutex<Rule>,
    seen: &AtomicU64,
) {
    let (mut buffer, mut is_first) = (vec![0; 64 << 10], !is_server);
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 {
            break;
        }
        for message in messages(&buffer[..count], is_first) {
            let number = seen.fetch_add(1, Relaxed);
            let rule = *rule.lock().unwrap();
            let mut message = message.to_vec();
            if let Rule::Replace(what, by) = rule
                && is_server
                && let Some(at) = message.windows(what.len()).position(|bytes| bytes == what)
            {
                message[at..at + by.len()].copy_from_slice(by);
            }
            let has = |what: &[u8]| message.windows(what.len()).any(|bytes| bytes == what);
            let (cut, behind) = match rule {
                Rule::Cut(at, behind) => (at == number, behind),
                Rule::Behind(what) => (has(what), true),
                _ => (false, false),
            };
            let passed = if cut && !behind { Ok(()) } else { to.write_all(&message) };
            if cut || passed.is_err() {
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
        }
        is_first = false;
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Takes a number, and writes it under its own key.
fn take(tx: &mut impl WriteOps, own: u64) -> Result<u64, Error> {
    let number = tx.update(&LEDGER, 0, |old| Some(old.unwrap_or(0) + 1))?.unwrap_or(0);
    tx.insert(&LEDGER, own, number)?;
    tx.put(&LEDGER, own + 1_000_000, number)?;
    Ok(number)
}

fn cut(stage: &mut Stage) {
    stage.server.fresh("cuts");
    let proxy = Proxy::start(stage.server.port);
    let of = |port| {
        format!("postgres://postgres@127.0.0.1:{port}/postgres?options=-c%20search_path%3Dcuts")
    };
    let direct = Postgres::open(&of(stage.server.port)).unwrap();
    direct.put(&LEDGER, 0, 0).unwrap();
    let (mut own, mut unknown, mut again) = (1, 0, 0);
    // How many messages the transaction has.
    let db = Postgres::open(&of(proxy.port)).unwrap();
    db.get(&LEDGER, 0).unwrap();
    proxy.set(Rule::Pass);
    db.write(|tx| take(tx, own)).unwrap();
    let most = proxy.seen();
    drop(db);
    assert!(most > 15, "{most} messages");
    for number in 0..most {
        for behind in [false, true] {
            own += 1;
            let before = direct.get(&LEDGER, 0).unwrap().unwrap();
            let db = Postgres::open(&of(proxy.port)).unwrap();
            db.get(&LEDGER, 0).unwrap();
            proxy.set(Rule::Cut(number, behind));
            let mut runs = 0;
            let done = db.write(|tx| {
                runs += 1;
                take(tx, own)
            });
            proxy.set(Rule::Pass);
            again += u64::from(runs > 1);
            drop(db);
            // The server may still be at work for a client that is gone.
            while stage.server.sql(SESSIONS) != "1" {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let row = |key| direct.get(&LEDGER, key).unwrap();
            let (after, mine) = (row(0).unwrap(), row(own));
            assert_eq!(mine, row(own + 1_000_000), "half of it at message {number}");
            assert_eq!(after, before + u64::from(mine.is_some()), "twice, at message {number}");
            match done {
                Ok(number) => assert_eq!(mine, Some(number)),
                Err(Error::CommitUnknown { why }) => {
                    assert!(matches!(*why, Error::Server(_)), "{why}");
                    assert!(!Error::CommitUnknown { why }.is_retryable());
                    unknown += 1;
                }
                Err(other) => panic!("at message {number}: {other}"),
            }
        }
    }
    assert!(unknown > 0 && again > 5, "{unknown} unknown, {again} again of {most}");
}

fn restarted(stage: &mut Stage) {
    let address = stage.server.fresh("restarted");
    let db = Postgres::open(&address).unwrap();
    db.put(&LEDGER, 0, 1).unwrap();
    // With connections that are idle, after a crash and after an orderly end.
    for signal in [libc::SIGQUIT, libc::SIGINT] {
        stage.server.stop(signal);
        let down = Postgres::open(&address);
        assert!(matches!(&down, Err(Error::Server(why)) if why.kind == ServerFailure::Unreachable));
        stage.server.start();
        db.write(|tx| tx.update(&LEDGER, 0, |old| old.map(|old| old + 1))).unwrap();
        db.read(|tx| tx.get(&LEDGER, 0)).unwrap();
    }
    // In the middle of a transaction: it is run again, on the server that has come back.
    let mut runs = 0;
    let server = &mut stage.server;
    db.write(|tx| {
        runs += 1;
        let old = tx.get_for_update(&LEDGER, 0)?.unwrap();
        if runs == 1 {
            server.stop(libc::SIGQUIT);
            server.start();
        }
        tx.get(&LEDGER, 0)?;
        tx.put(&LEDGER, 0, old + 1)
    })
    .unwrap();
    assert_eq!((runs, db.get(&LEDGER, 0).unwrap()), (2, Some(4)));
}
