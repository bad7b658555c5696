//! `locks demo`: a region with locks to inspect.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Scope, scope, sleep};
use std::time::{Duration, Instant};

use anyhow::Context;
use latchwork_lockmgr::granular::{IS, IX, S, X, modes};
use latchwork_lockmgr::{Error, Manager, Mode, Options, OwnerOptions};
use latchwork_machine::Shared;
use latchwork_region::Region;

use crate::output;
use crate::terminal;

/// Create a region in which some owners hold locks and others wait, to inspect for a while
///
/// The file must not exist, and is removed at the end. An owner that is killed is replaced by
/// another.
#[derive(clap::Args)]
#[command(after_help = "Example, in one terminal:
  latchwork locks demo /tmp/locks.region
and in another:
  latchwork locks top /tmp/locks.region
  latchwork locks graph /tmp/locks.region
  latchwork locks deadlocks /tmp/locks.region
  latchwork locks who /tmp/locks.region accounts/1")]
pub(crate) struct Args {
    /// The region to be created
    file: PathBuf,
    /// How long it exists, in seconds
    #[arg(long, value_name = "N", default_value = "60", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
}

/// Whether the demo has ended.
static OVER: AtomicBool = AtomicBool::new(false);

/// The requests of an owner, in order.
type Requests = &'static [(&'static str, Mode)];

/// Owners and their requests. The pauses between them determine their order.
const CAST: [(&str, Requests); 8] = [
    ("transfer 1", &[("accounts", IX), ("accounts/1", X)]),
    ("reader", &[("catalogue", IS)]),
    ("report", &[("rates/EUR", S), ("accounts", IS)]),
    ("editor", &[("rates/EUR", S), ("rates/EUR", X)]),
    ("transfer 2", &[("accounts", IX), ("accounts/1", X)]),
    ("audit", &[("accounts", IS), ("accounts/1", S)]),
    ("transfer 3", &[("accounts", IX), ("accounts/2", X), ("accounts/1", X)]),
    ("backup", &[("accounts", S)]),
];

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = || args.file.display().to_string();
    let region = Region::<Shared>::create(&args.file, &latchwork_region::Options::default());
    let region = region.with_context(name)?;
    let end = act(args, region);
    fs::remove_file(&args.file).with_context(name)?;
    end?;
    Ok(ExitCode::SUCCESS)
}

fn act(args: &Args, region: Region<Shared>) -> anyhow::Result<()> {
    terminal::catch_signals();
    let options = Options { opens_early: true, ..Options::default() };
    let manager = Manager::new(region, modes(), options)?;
    clash(&manager)?;
    let until = Instant::now() + Duration::from_secs(args.seconds);
    scope(|scope| {
        for (label, requests) in CAST {
            play(scope, &manager, label, requests);
            sleep(Duration::from_millis(40));
        }
        play(scope, &manager, "teller", &[]);
        let file = args.file.display();
        let said = output::print(|out| {
            writeln!(out, "ready: try `latchwork locks top {file}` for {} s", args.seconds)
        });
        while said.is_ok() && Instant::now() < until && !terminal::over() {
            sleep(Duration::from_millis(20));
        }
        OVER.store(true, Relaxed);
        said
    })?;
    Ok(())
}

/// Two owners that take two locks in opposite order, and a victim.
fn clash(manager: &Manager<Shared>) -> anyhow::Result<()> {
    let both = Barrier::new(2);
    let take = |label: &str, first: &str, second: &str| -> Result<bool, Error> {
        let session = manager.session()?;
        let owner = session.owner_with(&OwnerOptions { label, ..OwnerOptions::default() })?;
        let taken = owner.lock(first.as_bytes(), X);
        both.wait();
        taken?;
        match owner.lock(second.as_bytes(), X) {
            Err(Error::Deadlock(_)) => Ok(true),
            end => end.map(|()| false),
        }
    };
    let victims = scope(|scope| {
        let other = scope.spawn(|| take("refund", "orders/8", "orders/7"));
        let one = take("order", "orders/7", "orders/8");
        [one, other.join().unwrap_or(Err(Error::NotGranted))]
    });
    anyhow::ensure!(victims.contains(&Ok(true)), "two that clashed had no victim: {victims:?}");
    Ok(())
}

/// A thread that creates one owner after another.
fn play<'s>(
    scope: &'s Scope<'s, '_>,
    manager: &'s Manager<Shared>,
    label: &'static str,
    requests: Requests,
) {
    scope.spawn(move || {
        while !OVER.load(Relaxed) {
            let end =
                if requests.is_empty() { serve(manager) } else { hold(manager, label, requests) };
            if let Err(error) = end {
                let _ = writeln!(io::stderr(), "{label}: {error}");
                sleep(Duration::from_millis(500));
            }
        }
    });
}

/// Takes all locks and keeps them to the end.
fn hold(manager: &Manager<Shared>, label: &str, requests: Requests) -> Result<(), Error> {
    let session = manager.session()?;
    let owner = session.owner_with(&OwnerOptions { label, ..OwnerOptions::default() })?;
    for (object, mode) in requests {
        owner.lock(object.as_bytes(), *mode)?;
    }
    while !OVER.load(Relaxed) {
        sleep(Duration::from_millis(20));
        // An aborted owner gets the error at its next request.
        owner.lock(requests[0].0.as_bytes(), requests[0].1)?;
        owner.unlock(requests[0].0.as_bytes())?;
    }
    Ok(())
}

/// Takes a lock for a moment, and another.
fn serve(manager: &Manager<Shared>) -> Result<(), Error> {
    let session = manager.session()?;
    let label = "teller";
    for turn in 0u32.. {
        if OVER.load(Relaxed) {
            break;
        }
        let owner = session.owner_with(&OwnerOptions { label, ..OwnerOptions::default() })?;
        owner.lock(format!("tellers/{}", turn % 9).as_bytes(), X)?;
        sleep(Duration::from_millis(2));
    }
    Ok(())
}
