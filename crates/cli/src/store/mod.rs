//! `latchwork store`: commands for a store.
//!
//! Most commands open the store as any program does, so it may be in use by programs and by other
//! commands. `log` only reads files; `salvage`, `restore` and `forget-memory` need a store that no
//! process has open.
//!
//! | file | content |
//! |---|---|
//! | `rows` | `put`, `get`, `del`, `scan`: records of one table |
//! | `records` | a table, by its types |
//! | `types` | types, and their values as text |
//! | `keys` | keys of any type as text |
//! | `tables` | `tables`: the list of tables |
//! | `interrupt` | ending long commands by a signal |
//! | `clear` | `clear`: empties a table |
//! | `stat` | `stat`: sizes, and the processes that have it open |
//! | `dump` | `dump`, `load`: tables as text |
//! | `backup` | `backup`, `restore`: copies |
//! | `copy` | `copy`: a store to a database server, and back |
//! | `look` | `log`, `pages`: the content of the files |
//! | `salvage` | `salvage`, `compact`: a new store from an old one |
//! | `prepared` | `prepared`: prepared transactions |
//! | `locks`, `processes` | waits of transactions, work of processes |
//! | `seen` | transactions and processes as text |
//! | `top` | `top`: live view |
//! | `metrics` | `metrics`: counts and sizes for a monitoring system |
//! | `sync_test` | `sync-test`: how often a disk makes data durable |
//! | `upgrade` | `upgrade`: conversion of an older format |
//! | `memory` | `forget-memory`: memory of killed processes |

mod backup;
mod cbor;
mod clear;
#[cfg(feature = "postgres")]
mod copy;
mod dump;
mod interrupt;
mod keys;
mod locks;
mod look;
mod memory;
mod metrics;
mod prepared;
mod processes;
mod records;
mod rows;
mod salvage;
mod scalars;
mod seen;
mod stat;
mod sync_test;
mod tables;
mod top;
mod types;
mod upgrade;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clap::Subcommand;
use indicatif::ProgressBar;
use latchwork_store::{DumpError, Error, Options, Refusal, Space, Store};

use crate::{output, terminal};

/// Use a store
#[derive(Subcommand)]
pub(crate) enum What {
    Put(rows::PutArgs),
    Get(rows::GetArgs),
    Del(rows::DelArgs),
    Scan(rows::ScanArgs),
    Clear(clear::Args),
    Tables(tables::Args),
    Stat(stat::Args),
    Verify(VerifyArgs),
    Checkpoint(CheckpointArgs),
    Dump(dump::DumpArgs),
    Load(dump::LoadArgs),
    Backup(backup::BackupArgs),
    Restore(backup::RestoreArgs),
    #[cfg(feature = "postgres")]
    Copy(copy::Args),
    Log(look::LogArgs),
    Pages(look::PagesArgs),
    Salvage(salvage::SalvageArgs),
    Compact(salvage::CompactArgs),
    Prepared(prepared::Args),
    Locks(locks::Args),
    Processes(processes::Args),
    Top(top::Args),
    Metrics(metrics::Args),
    SyncTest(sync_test::Args),
    Upgrade(upgrade::Args),
    ForgetMemory(memory::Args),
}

/// Check every page of every table
///
/// Other processes may write at the same time: a page that one of them holds may be reported as
/// lost.
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork store verify /tmp/shop

Prints the first defect of each table, one per line. Exits with 0 if the store is valid, 1 if it
is damaged, also if it is too damaged to be opened, 2 if it could not be checked. If the command
is killed while it has the store open alone, the next command uses the memory that it leaves.")]
pub(crate) struct VerifyArgs {
    /// The store's folder
    path: PathBuf,
    /// Print a JSON line
    #[arg(long)]
    json: bool,
}

/// Write all changed pages to the data file, and discard the log before them
#[derive(clap::Args)]
#[command(after_help = "Example:
  latchwork store checkpoint /tmp/shop

The last process that closes a store makes a checkpoint too, and writing processes make one when
enough log has been written.")]
pub(crate) struct CheckpointArgs {
    /// The store's folder
    path: PathBuf,
    /// Print a JSON line
    #[arg(long)]
    json: bool,
}

impl What {
    /// Whether a signal ends it in an orderly way. The other commands are short, or have no place
    /// to stop at.
    fn ends_by_signal(&self) -> bool {
        matches!(
            self,
            Self::Scan(_)
                | Self::Clear(_)
                | Self::Dump(_)
                | Self::Load(_)
                | Self::Backup(_)
                | Self::Restore(_)
                | Self::Compact(_)
        )
    }
}

/// Runs the command.
pub(crate) fn run(what: What, read_only: bool) -> anyhow::Result<ExitCode> {
    READ_ONLY.store(read_only, Relaxed);
    if what.ends_by_signal() {
        terminal::catch_first_signal();
    }
    let done = match what {
        What::Put(args) => rows::put(&args),
        What::Get(args) => rows::get(&args),
        What::Del(args) => rows::del(&args),
        What::Scan(args) => rows::scan(&args),
        What::Clear(args) => clear::run(&args),
        What::Tables(args) => tables::run(&args),
        What::Stat(args) => stat::run(&args),
        What::Verify(args) => verify(&args),
        What::Checkpoint(args) => checkpoint(&args),
        What::Dump(args) => dump::dump(&args),
        What::Load(args) => dump::load(&args),
        What::Backup(args) => backup::backup(&args),
        What::Restore(args) => backup::run_restore(&args),
        #[cfg(feature = "postgres")]
        What::Copy(args) => copy::run(&args),
        What::Log(args) => look::log(&args),
        What::Pages(args) => look::pages(&args),
        What::Salvage(args) => salvage::run_salvage(&args),
        What::Compact(args) => salvage::compact(&args),
        What::Prepared(args) => prepared::run(&args),
        What::Locks(args) => locks::run(&args),
        What::Processes(args) => processes::run(&args),
        What::Top(args) => top::run(&args),
        What::Metrics(args) => metrics::run(&args),
        What::SyncTest(args) => sync_test::run(&args),
        What::Upgrade(args) => upgrade::run(&args),
        What::ForgetMemory(args) => memory::run(&args),
    };
    done.or_else(|error| {
        let (said, is_of) = (output::chain(&error), OPENED.get().filter(|_| is_damage(&error)));
        output::complain(&is_of.map_or(said.clone(), |path| format!("{}: {said}", path.display())));
        Ok(ExitCode::from(
            terminal::signal()
                .map_or(output::code(&error, crate::not_done()), |signal| 128 + signal as u8),
        ))
    })
}

/// Whether the store must be opened for reading only.
static READ_ONLY: AtomicBool = AtomicBool::new(false);

/// The folder of the open store, which messages about damage do not name.
static OPENED: OnceLock<PathBuf> = OnceLock::new();

/// Returns whether the error is damage that was found when the store was opened or copied.
fn is_damage(why: &anyhow::Error) -> bool {
    let of_store = match why.downcast_ref() {
        Some(DumpError::Store(why)) => Some(why),
        _ => why.downcast_ref(),
    };
    of_store.is_some_and(|why| why.is_damage() && !matches!(why, Error::Open { .. }))
}

/// Opens a store with a small memory. If other processes have it open, theirs is used.
fn open(path: &Path, create: bool) -> anyhow::Result<Store> {
    open_with(path, create, None)
}

/// How long the command waits for another process before it prints a message.
const SILENT: Duration = Duration::from_secs(2);

/// [`open`] with a page size for a new store.
fn open_with(path: &Path, create: bool, page: Option<u32>) -> anyhow::Result<Store> {
    let mut options = small(create);
    options.sizes.page = page.unwrap_or(options.sizes.page);
    open_as(path, options).map_err(|why| match why.downcast_ref() {
        Some(Error::Open { why: Refusal::NoStore, .. }) => {
            let what = if path.exists() { "no store" } else { "there is no such store" };
            anyhow::anyhow!("{}: {what}; `latchwork store put` makes one", path.display())
        }
        _ => why,
    })
}

/// The options of a command: a small cache, which grows if another process asks for more. A
/// checkpoint of the command takes no history from the programs that have the store open, whatever
/// their limit.
fn small(create: bool) -> Options {
    let read_only = READ_ONLY.load(Relaxed);
    let mut options = Options { create: create && !read_only, read_only, ..Options::default() };
    options.sizes.history = u64::MAX;
    options.sizes.cache = 8 << 20;
    options
}

/// Opens it, and prints a message while it waits for another process.
fn open_as(path: &Path, mut options: Options) -> anyhow::Result<Store> {
    OPENED.get_or_init(|| path.to_owned());
    options.wait = Some(SILENT);
    match Store::open_with(path, &options) {
        Err(why @ Error::Open { why: Refusal::BeingOpened { .. }, .. }) => {
            output::complain(&format!("{why}; waiting"));
            loop {
                match Store::open_with(path, &options) {
                    Err(Error::Open { why: Refusal::BeingOpened { .. }, .. }) => interrupt::look()?,
                    opened => return Ok(opened?),
                }
            }
        }
        opened => Ok(opened?),
    }
}

/// Returns the region file that a path means: itself, or that of the store in this folder.
pub(crate) fn region_of(path: &Path) -> anyhow::Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let closed = || anyhow::anyhow!("{}: no process has the store open", path.display());
    latchwork_store::region_file(path)?.ok_or_else(closed)
}

/// The progress of a long command on a terminal.
struct Progress(ProgressBar);

impl Progress {
    fn new() -> Self {
        Self(ProgressBar::new_spinner())
    }

    fn tell(&self, what: String) {
        self.0.set_message(what);
        self.0.tick();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn print_json(row: &serde_json::Value) -> std::io::Result<()> {
    output::print(|out| writeln!(out, "{row}"))
}

/// A fault, and its table.
type Fault = (Option<String>, String);

/// Returns the sizes, or all faults.
fn look_at_all(path: &Path) -> anyhow::Result<Result<Space, Vec<Fault>>> {
    let is_damage = |why: &anyhow::Error| why.downcast_ref().is_some_and(Error::is_damage);
    let store = match open(path, false) {
        Err(why) if is_damage(&why) => return Ok(Err(vec![(None, why.to_string())])),
        opened => opened?,
    };
    let why = match store.space() {
        Err(why) if why.is_damage() => why,
        counted => return Ok(Ok(counted?)),
    };
    let faults = store.faults()?.into_iter();
    let mut faults: Vec<_> = faults.map(|fault| (fault.table.clone(), fault.to_string())).collect();
    if faults.is_empty() {
        faults.push((None, why.to_string()));
    }
    Ok(Err(faults))
}

fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let looked = look_at_all(&args.path)?;
    let (space, faults) = (looked.as_ref().ok(), looked.as_ref().err());
    let row = |(table, why): &Fault| serde_json::json!({"table": table, "why": why});
    if args.json {
        print_json(&serde_json::json!({
            "sound": faults.is_none(), "pages": space.map(|space| space.used),
            "free": space.map(|space| space.free), "lost": space.map(|space| space.lost),
            "faults": faults.into_iter().flatten().map(row).collect::<Vec<_>>(),
        }))?;
    } else {
        output::print(|out| match &looked {
            Err(faults) => faults.iter().try_for_each(|(_, why)| {
                writeln!(out, "NOT SOUND: {}", rows::escape(why.as_bytes()))
            }),
            Ok(Space { used, free, lost, .. }) => {
                write!(out, "sound, {used} pages, and {free} that are free")?;
                if *lost != 0 { writeln!(out, "; {lost} are lost") } else { writeln!(out) }
            }
        })?;
    }
    Ok(if faults.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn checkpoint(args: &CheckpointArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.path, false)?;
    store.checkpoint()?;
    let end = store.log_end();
    if args.json {
        print_json(&serde_json::json!({"log_end": end}))?;
    } else {
        output::print(|out| writeln!(out, "checkpoint made, the log ends at {end}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
