//! `store dump`, `load`: tables as text.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use latchwork_store::{DumpError, DumpItem, DumpReader, DumpSummary, Error, Load, Store};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::interrupt::UntilSignal;
use super::rows::escape;
use super::{Progress, open, open_with, print_json};
use crate::output;

/// Write the tables as text, from one snapshot
///
/// Other processes may write at the same time. `load` reads the text; its last line has a checksum.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store dump /tmp/shop > shop.dump
  latchwork store dump /tmp/shop default --to fruit.dump
  latchwork store dump /tmp/shop | zstd > shop.dump.zst

A line for each record: key, a tab, value, as the store has their bytes; what is not printable, and
the backslash, is escaped as \\xNN and \\\\. Exits with 0 if all is written, or the reader of stdout
has seen enough, 1 if there is no such table, 2 if not all is written, 128+n if signal n ended it.")]
pub(crate) struct DumpArgs {
    /// The store's folder
    path: PathBuf,
    /// Only this table
    table: Option<String>,
    /// Write to this file instead of stdout: it exists when it is complete, or not at all
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Print a summary as a JSON line when the file is complete
    #[arg(long, requires = "to")]
    json: bool,
}

/// Write the records of a dump into a store
///
/// Creates the store if it does not exist.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork store load /tmp/copy shop.dump
  latchwork store dump /tmp/shop | latchwork store load /tmp/copy
  latchwork store load /tmp/copy shop.dump --merge    # also: go on after a kill

A dump in a file is read twice: nothing is loaded from a damaged one. A dump in a pipe is read
once: the records before the damage are loaded. When the command returns, all records are durable.
After Ctrl-C or a kill the first part of the dump is loaded. Exits with 0 if all is loaded, 2 if
not, 128+n if signal n ended it.")]
pub(crate) struct LoadArgs {
    /// The store's folder
    path: PathBuf,
    /// The dump; stdin by default
    file: Option<PathBuf>,
    /// Also load into tables that have records: records with the same keys are overwritten
    #[arg(long)]
    merge: bool,
    /// Print a summary as a JSON line
    #[arg(long)]
    json: bool,
}

fn row(summary: &DumpSummary) -> Value {
    json!({
        "at": summary.at, "page": summary.page, "tables": summary.tables,
        "records": summary.records, "bytes": summary.bytes,
        "crc32c": format!("{:08x}", summary.checksum),
    })
}

fn told<'p>(progress: &'p Progress, what: &'p str) -> impl FnMut(&DumpSummary) + use<'p> {
    move |summary| {
        let (records, megabytes) = (output::count(summary.records), summary.bytes / 1_000_000);
        progress.tell(format!("{records} records {what}, {megabytes} MB"));
    }
}

pub(super) fn dump(args: &DumpArgs) -> anyhow::Result<ExitCode> {
    // A file that exceeds its limit is an error and must not end the process. SAFETY: no handler
    // runs for an ignored signal, and no other code of this command depends on its handling.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let store = open(&args.path, false)?;
    if let Some(table) = &args.table
        && !store.has_table(table)?
    {
        return Err(
            output::Absent(format!("there is no table {}", escape(table.as_bytes()))).into()
        );
    }
    let progress = Progress::new();
    let (only, mut told) = (args.table.as_deref(), told(&progress, "written"));
    let Some(to) = &args.to else {
        let out = UntilSignal(io::stdout().lock());
        match store.dump(BufWriter::new(out), only, &mut told) {
            Err(why @ DumpError::NoTable { .. }) => return Ok(no_table(&why)),
            // A closed pipe is no error.
            Err(DumpError::Io { kind: io::ErrorKind::BrokenPipe, .. }) => {}
            other => drop(other?),
        }
        return Ok(ExitCode::SUCCESS);
    };
    let summary = match into_file(&store, to, only, &mut told) {
        Err(why @ DumpError::NoTable { .. }) => return Ok(no_table(&why)),
        done => done.with_context(|| to.display().to_string())?,
    };
    if args.json {
        print_json(&row(&summary))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The message if the named table does not exist.
fn no_table(why: &DumpError) -> ExitCode {
    output::complain(&why.to_string());
    ExitCode::FAILURE
}

/// Writes a dump to a temporary file and renames it when it is durable; writes directly to anything
/// but a regular file.
fn into_file(
    store: &Store,
    to: &Path,
    only: Option<&str>,
    told: &mut latchwork_store::LoadProgress<'_>,
) -> Result<DumpSummary, DumpError> {
    if fs::metadata(to).is_ok_and(|about| !about.is_file()) {
        let file = File::options().write(true).open(to)?;
        return Ok(store.dump(BufWriter::new(UntilSignal(file)), only, told)?.1);
    }
    if fs::symlink_metadata(to).is_ok_and(|about| about.is_symlink()) && !to.exists() {
        let what = "it is a link to what is not there: make that, or remove the link";
        return Err(io::Error::new(io::ErrorKind::NotFound, what).into());
    }
    // The target of a link.
    let to = fs::canonicalize(to).or_else(|_| std::path::absolute(to))?;
    let around = to.parent().unwrap_or(Path::new("/"));
    let is_store = |folder: &Path| folder.join("identity").is_file();
    if fs::canonicalize(around)?.ancestors().any(is_store) {
        let what = "it lies in the folder of a store: choose a place beside that";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
    }
    // Processes of two containers may have the same number.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let fresh = format!(".latchwork-dump-{}-{:x}", std::process::id(), now.as_nanos());
    let fresh = around.join(fresh);
    let (file, named) = match without_name(around)? {
        Some(file) => (file, false),
        None => (File::create_new(&fresh)?, true),
    };
    let write = || {
        // The new file keeps the permissions of the old one.
        if let Ok(old) = fs::metadata(&to) {
            file.set_permissions(old.permissions())?;
        }
        let (to_file, summary) = store.dump(BufWriter::new(UntilSignal(file)), only, told)?;
        let UntilSignal(file) = to_file.get_ref();
        file.sync_all()?;
        if !named {
            give_name(file, &fresh)?;
        }
        fs::rename(&fresh, &to)?;
        File::open(around)?.sync_all()?;
        Ok(summary)
    };
    write().inspect_err(|_| drop(fs::remove_file(&fresh)))
}

/// The names of a process's open files.
const OPEN_FILES: &str = "/proc/self/fd";

/// Creates a file without a name in this folder, so that a killed process leaves none; none if the
/// file system does not support it.
fn without_name(folder: &Path) -> io::Result<Option<File>> {
    if !Path::new(OPEN_FILES).exists() {
        return Ok(None);
    }
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => Ok(Some(File::from(file))),
        // Systems before Linux 3.11 open the folder itself.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

/// Names a file that [has no name](without_name).
fn give_name(file: &File, name: &Path) -> io::Result<()> {
    let link = format!("{OPEN_FILES}/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, link, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
}

pub(super) fn load(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    let summary = match &args.file {
        Some(path) => {
            let name = |why: DumpError| anyhow::anyhow!("{}: {why}", path.display());
            let mut file = File::open(path).map_err(|why| name(why.into()))?;
            let progress = Progress::new();
            progress.tell("reading".to_owned());
            if file.rewind().is_err() {
                anyhow::bail!("{}: it cannot be read twice; give it on stdin", path.display());
            }
            let tables = tables_of(BufReader::new(UntilSignal(&file))).map_err(name)?;
            drop(progress);
            file.rewind().map_err(|why| name(why.into()))?;
            read_into(args, BufReader::new(UntilSignal(file)), &tables)?
        }
        None if io::stdin().is_terminal() => {
            anyhow::bail!("a dump is read from stdin, which is a terminal; name a file")
        }
        None => {
            let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
            read_into(args, BufReader::new(UntilSignal(file)), &[])?
        }
    };
    if args.json {
        print_json(&row(&summary))?;
    } else {
        output::print(|out| {
            writeln!(out, "{} records in {} tables loaded", summary.records, summary.tables)
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the tables of a dump, after checking all of it.
fn tables_of<R: BufRead>(dump: R) -> Result<Vec<String>, DumpError> {
    let (mut dump, mut tables) = (DumpReader::new(dump)?, Vec::new());
    while let Some(item) = dump.next_item()? {
        if let DumpItem::Table(table) = item {
            tables.push(table.name);
        }
    }
    Ok(tables)
}

/// Loads a dump, if the store has no record in any of these tables.
fn read_into<R: BufRead>(
    args: &LoadArgs,
    from: R,
    tables: &[String],
) -> anyhow::Result<DumpSummary> {
    let dump = DumpReader::new(from)?;
    let page = dump.summary().page;
    let store =
        open_with(&args.path, true, Some(page)).map_err(|why| match why.downcast_ref() {
            Some(Error::Options(what)) => {
                let may = what.strip_prefix("page: ").unwrap_or(what);
                anyhow::anyhow!("the dump says pages of {page} bytes: a store's have {may}")
            }
            _ => why,
        })?;
    let there = store.tables()?;
    if let Some(table) = tables.iter().find(|table| !args.merge && there.contains(table)) {
        return Err(DumpError::NotEmpty { table: table.clone() }.into());
    }
    let mut options = Load::default();
    options.merge = args.merge;
    let progress = Progress::new();
    let mut told = told(&progress, "loaded");
    let mut so_far = 0;
    let loaded = store.load(dump, &options, &mut |summary| {
        so_far = summary.records;
        told(summary);
    });
    loaded.map_err(|why| match so_far {
        0 => anyhow::anyhow!("{why}"),
        _ => anyhow::anyhow!("{why}; the {so_far} records before that are loaded"),
    })
}
