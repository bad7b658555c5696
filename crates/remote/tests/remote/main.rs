//! The same transactions on a store in a folder, and on a PostgreSQL server that this program
//! starts.
//!
//! It has a harness of its own because the server has to end with it. Arguments that begin with no
//! dash select tests by a part of their names.

mod bad_input;
mod calls;
mod clients;
mod copies;
mod cuts;
#[cfg(feature = "tls")]
mod encrypted;
mod histories;
mod refusals;
mod server;
mod tasks;
mod trials;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Instant;

use latchwork_remote::Database;
use latchwork_store::{Options, Store};

use crate::server::Server;

/// The environment of a test: a running server.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) bin: PathBuf,
}

/// A test: its name, and what it does.
type Test = (&'static str, fn(&mut Stage));

impl Stage {
    /// Runs `test` on a new store in a folder, and in a new schema of the server.
    pub(crate) fn both(&self, name: &str, test: impl Fn(&Database)) {
        let folder = std::env::temp_dir().join(format!("lwremote-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let store = Store::open_with(&folder, &Options::small()).unwrap();
        test(&Database::from(store));
        std::fs::remove_dir_all(&folder).unwrap();
        test(&Database::open(&self.server.fresh(name)).unwrap());
    }

    /// Another handle of the server's schema; of a store the same one.
    pub(crate) fn reopened(&self, db: &Database, name: &str) -> Database {
        match db {
            Database::Postgres(_) => {
                Database::open(&self.server.address("postgres", name)).unwrap()
            }
            other => other.clone(),
        }
    }
}

fn main() {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if clients::is_client(&args) {
        return;
    }
    let tests: Vec<Test> = [
        calls::TESTS,
        histories::TESTS,
        refusals::TESTS,
        cuts::TESTS,
        clients::TESTS,
        copies::TESTS,
        tasks::TESTS,
        trials::TESTS,
        bad_input::TESTS,
        #[cfg(feature = "tls")]
        encrypted::TESTS,
    ]
    .concat();
    if args.iter().any(|arg| arg == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let Some(bin) = server::programs() else {
        println!("SKIPPED: no PostgreSQL server in /usr/lib/postgresql; install `postgresql`");
        eprintln!("SKIPPED: no PostgreSQL server in /usr/lib/postgresql; install `postgresql`");
        return;
    };
    let words: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let large = bad_input::LARGE.iter().filter(|(name, _)| words.iter().any(|word| word == name));
    let mut server = Server::create(&bin, "main");
    server.start();
    let mut stage = Stage { server, bin };
    let mut failed = 0;
    for (name, test) in tests.into_iter().chain(large.copied()) {
        if !words.is_empty() && !words.iter().any(|word| name.contains(*word)) {
            continue;
        }
        let begun = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| test(&mut stage)));
        let said = if done.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {said} ({:.2} s)", begun.elapsed().as_secs_f64());
        failed += i32::from(done.is_err());
    }
    drop(stage);
    println!("{failed} tests failed");
    std::process::exit(i32::from(failed > 0));
}
