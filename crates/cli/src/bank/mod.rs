//! `latchwork bank`: an example of the store, and of the lock manager, to read and to run.
//!
//! | file | content |
//! |---|---|
//! | `vault` | the bank in a store: transfers and audits are transactions |
//! | `database` | the bank in a database on a server: the same transactions |
//! | `ledger` | the bank in a file: accounts, and how to undo transfers |
//! | `teller` | a process, and the bank in a file under locks; recovery after a death |
//! | `crew` | starting and killing processes |
//! | `show` | the table |

mod crew;
#[cfg(feature = "postgres")]
mod database;
mod ledger;
mod show;
mod teller;
mod vault;

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::builder::RangedU64ValueParser;
use latchwork_machine::Shared;
use latchwork_region::Region;

use self::crew::Crew;
use self::ledger::Ledger;
use self::show::Summary;
use self::teller::{Branch, Dice, Part, Tick};
use crate::output;
use crate::terminal;

/// How often all processes are killed at once.
const ALL: Duration = Duration::from_secs(3);

/// How long reports are read before the screen is drawn.
const HEARD: Duration = Duration::from_millis(50);

/// The exit code of a process that had to be aborted during a wait.
const STUCK: i32 = 3;

/// Transfer money in many processes, and kill some of them all the time
///
/// Tellers move money between accounts of a store that all processes write; auditors check the
/// total. Processes are killed (-9) at random and replaced, and every few seconds all of them are;
/// kill some yourself, by the pids in the table. The store rolls back the transfers of killed
/// processes. Exits with 1 if the total was ever wrong, or a process was stuck or failed.
///
/// With --in-file the accounts are in a file that only the lock manager protects: the process that
/// finds the locks of a dead process first undoes its transfer.
///
/// With --database the accounts are records on a PostgreSQL server, in a table of their own that is
/// empty at the end. Restart the server meanwhile: the total must stay right. Do not run two banks
/// in one database at the same time.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork bank
  latchwork bank --seconds 5 --processes 16 --accounts 10 --kills-per-second 100
  latchwork bank --json | jq .undone
  latchwork bank --in-file --keep                   # and from a second terminal:
  latchwork locks top FOLDER/locks.region
  latchwork bank --database postgres://ann@db.example.com/bank
  latchwork bank --without-locks                    # in a file: what would happen without
  latchwork bank --without-undo                     # locks alone do not repair")]
pub(crate) struct Args {
    /// Duration in seconds
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Number of processes; every fourth is an auditor
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(2..=120))]
    processes: u32,

    /// Number of accounts
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    accounts: u64,

    /// How many processes are killed and replaced per second
    #[arg(long, value_name = "N", default_value = "20", value_parser = RangedU64ValueParser::<u32>::new().range(0..=1000))]
    kills_per_second: u32,

    /// Seed for victims and transfers; the system decides the timing
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Keep the accounts in a file, under locks alone
    #[arg(long)]
    in_file: bool,

    /// Take no locks in a file, to see the effect: fails
    #[arg(long)]
    without_locks: bool,

    /// Release the locks of dead processes in a file without undoing their transfers: fails
    #[arg(long)]
    without_undo: bool,

    /// Keep the accounts on a server that speaks the protocol of PostgreSQL
    #[cfg(feature = "postgres")]
    #[arg(long, value_name = "ADDRESS", value_parser = database::address,
          conflicts_with_all = ["in_file", "without_locks", "without_undo", "dir"])]
    database: Option<String>,

    /// Where to create the files [default: /dev/shm, or the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,

    /// Keep the files, or the accounts of a database
    #[arg(long)]
    keep: bool,

    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,

    #[arg(long, hide = true, requires = "member")]
    folder: Option<PathBuf>,
    #[arg(long, hide = true, requires = "folder")]
    member: Option<u32>,
    #[arg(long, hide = true)]
    audits: bool,
}

impl Args {
    fn part(&self, member: u32, audits: bool) -> Part {
        let (locks, undoes) = (!self.without_locks, !self.without_undo);
        Part { member, seed: self.seed, audits, locks, undoes, in_file: self.in_file() }
    }

    /// The address of the database that has the accounts, if one has.
    fn database(&self) -> Option<&Path> {
        #[cfg(feature = "postgres")]
        return self.database.as_deref().map(Path::new);
        #[cfg(not(feature = "postgres"))]
        None
    }

    /// Whether the accounts are in a file: the controls need one.
    fn in_file(&self) -> bool {
        self.in_file || self.without_locks || self.without_undo
    }
}

/// Runs the bank.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let (Some(folder), Some(member)) = (&args.folder, args.member) {
        return teller::run(
            folder,
            args.part(member, args.audits),
            Place::of(&args, folder).work(),
        );
    }
    terminal::catch_signals();
    let scratch = match args.database() {
        None => Some(Scratch::new(args.dir.as_deref(), args.keep)?),
        Some(_) => None,
    };
    let folder = scratch.as_ref().map(|scratch| &*scratch.path).or(args.database());
    let folder = folder.unwrap_or(Path::new("")).to_owned();
    let place = Place::of(&args, &folder);
    place.fill(args.accounts, &folder).with_context(|| folder.display().to_string())?;
    if args.keep && scratch.is_some() {
        output::complain(&format!("the files are in {}", folder.display()));
    }
    let summary = work(&args, place, &folder)?;
    if !args.keep {
        place.clear(&folder)?;
    }
    if args.json {
        output::print(|out| {
            serde_json::to_writer(&mut *out, &summary)?;
            writeln!(out)
        })?;
    } else {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = !refused && std::io::stdout().is_terminal();
        output::print(|out| show::summary(&summary, colour, out))?;
    }
    Ok(if summary.right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where the accounts are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Store,
    File,
    #[cfg(feature = "postgres")]
    Database,
}

impl Place {
    /// Of a folder, or of the address of a database.
    fn of(args: &Args, folder: &Path) -> Self {
        #[cfg(feature = "postgres")]
        if database::is_server(folder) {
            return Self::Database;
        }
        let _ = folder;
        if args.in_file() { Self::File } else { Self::Store }
    }

    /// Creates the accounts.
    fn fill(self, accounts: u64, folder: &Path) -> anyhow::Result<()> {
        match self {
            Self::Store => vault::fill(folder, accounts)?,
            Self::File => {
                Ledger::create(&teller::accounts_file(folder), accounts)?;
                let options = latchwork_region::Options::default();
                drop(Region::<Shared>::create(teller::locks_file(folder), &options)?);
            }
            #[cfg(feature = "postgres")]
            Self::Database => database::fill(folder, accounts)?,
        }
        Ok(())
    }

    /// The work of a process.
    fn work(self) -> teller::Work {
        match self {
            Self::Store => vault::work,
            Self::File => teller::work,
            #[cfg(feature = "postgres")]
            Self::Database => database::work,
        }
    }

    /// Counts what remains after all processes have ended.
    fn settle(self, args: &Args, folder: &Path) -> anyhow::Result<Left> {
        match self {
            Self::Store => vault::settle(folder),
            Self::File => settle(args, folder),
            #[cfg(feature = "postgres")]
            Self::Database => database::settle(folder),
        }
    }

    /// Removes what is not in a folder of its own.
    fn clear(self, folder: &Path) -> anyhow::Result<()> {
        #[cfg(feature = "postgres")]
        if self == Self::Database {
            database::clear(folder)?;
        }
        let _ = folder;
        Ok(())
    }
}

/// The random time until the next kill, for so many per second.
fn pause(dice: &mut Dice, per_second: u32) -> Duration {
    Duration::from_nanos((1 + dice.below(2_000_000_000)) / u64::from(per_second.max(1)))
}

fn work(args: &Args, place: Place, folder: &Path) -> anyhow::Result<Summary> {
    let parts: Vec<Part> = (0..args.processes)
        .map(|member| args.part(member, member % 4 == 3 || member + 1 == args.processes.min(4)))
        .collect();
    let (began, mut dice) = (Instant::now(), Dice(args.seed));
    let until = began + Duration::from_secs(args.seconds);
    let mut crew = Crew::new(folder, &parts, args.seed)?;
    let mut live = show::Live::new(args.json);
    let mut next_kill = Instant::now() + pause(&mut dice, args.kills_per_second);
    let mut next_end = Instant::now() + ALL;
    loop {
        let now = Instant::now();
        let bad = crew.tally.wrong != 0 || crew.tally.fault.is_some();
        if now >= until || terminal::over() || bad {
            break;
        }
        // A kill may take longer than the time between two: the end is checked in between.
        let round = now + HEARD;
        while args.kills_per_second > 0 && next_kill <= Instant::now() && Instant::now() < round {
            crew.kill_one()?;
            next_kill += pause(&mut dice, args.kills_per_second);
        }
        if args.kills_per_second > 0 && place != Place::File && next_end <= Instant::now() {
            crew.kill_all()?;
            next_end += ALL;
        }
        crew.hear(until.min(next_kill).min(now + HEARD));
        crew.check()?;
        live.draw(&crew, args.accounts, began.elapsed(), args.seconds);
    }
    let seconds = began.elapsed().as_secs_f64();
    let (members, mut tally) = crew.end()?;
    drop(live);
    let left = place.settle(args, folder).unwrap_or_else(|error| {
        tally.fail(format!("at the end: {}", output::chain(&error)));
        Left::default()
    });
    if place == Place::File {
        // The rollbacks of the last audit were reported to no other process.
        tally.undone += left.undone;
        tally.half += left.half;
    } else {
        // A store counts for all processes.
        tally.undone = tally.undone.max(left.undone);
    }
    Ok(Summary::new(args, seconds, members.len(), &tally, &left, ledger::expected(args.accounts)))
}

/// The state after all processes have ended.
#[derive(Default)]
struct Left {
    sum: i64,
    transfers: u64,
    undone: u64,
    half: u64,
    held: u64,
    sound: bool,
}

/// Repairs what the last killed processes left, counts the money under locks, and looks for locks
/// without a living holder.
fn settle(args: &Args, folder: &Path) -> anyhow::Result<Left> {
    let ledger = &Arc::new(Ledger::open(&teller::accounts_file(folder))?);
    let (to, told) = std::sync::mpsc::channel();
    let to = std::sync::Mutex::new(to);
    let manager = teller::open(folder, ledger.clone(), !args.without_undo, move |what| {
        if let Ok(to) = to.lock() {
            let _ = to.send(what);
        }
    })?;
    let session = manager.session()?;
    session.sweep()?;
    let label = "last audit";
    let branch = Branch { ledger, session: &session, label, locks: !args.without_locks };
    let counted = branch.persist(&mut Tick::default(), |owner| branch.count(owner, true))?;
    let totals = session.totals()?;
    let mut left = Left {
        sum: counted.sum,
        transfers: counted.transfers,
        held: totals.requests + totals.weak + totals.owners + totals.orphans,
        sound: manager.region().audit()?.is_sound(),
        ..Left::default()
    };
    for what in told.try_iter() {
        match what {
            teller::What::Undid { half, .. } => {
                left.undone += 1;
                left.half += u64::from(half);
            }
            teller::What::Fault(why) => anyhow::bail!(why),
            _ => {}
        }
    }
    Ok(left)
}

/// A folder that is removed at the end.
struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    fn new(dir: Option<&Path>, keep: bool) -> anyhow::Result<Self> {
        let memory = Path::new("/dev/shm");
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None if memory.is_dir() => memory.to_owned(),
            None => std::env::temp_dir(),
        };
        let path = dir.join(format!("latchwork-bank-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path, keep })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
