//! The program `latchwork`: one word per task. It is a library so that the Python package runs the
//! same commands.
//!
//! | word | task |
//! |---|---|
//! | `run` | run a program on our latches |
//! | `profile` | the same, and report which latches threads waited for, and where |
//! | `demo` | standard programs with and without our latches |
//! | `bank` | processes that transfer money and are killed |
//! | `bench` | compare our latches, locks and store with others |
//! | `sim` | the same on simulated machines |
//! | `locks` | inspect a lock manager that is in use or was left by its processes |
//! | `store` | put, get, scan, dump, load and inspect a store that is in use |
//! | `pool` | inspect a buffer pool that is in use or was left by its processes |
//! | `completions`, `man` | shell completions and manual pages |
//!
//! `--help` lists the exit codes.

mod bank;
#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "bench")]
mod bench_lock;
#[cfg(feature = "bench")]
mod bench_pool;
#[cfg(feature = "bench")]
mod bench_store;
#[cfg(feature = "bench")]
mod bench_store_plot;
#[cfg(feature = "programs")]
mod demo;
#[cfg(feature = "programs")]
mod elf;
#[cfg(feature = "bench")]
mod figures;
#[cfg(feature = "programs")]
mod folders;
#[cfg(feature = "programs")]
mod found;
#[cfg(feature = "programs")]
mod launch;
mod locks;
#[cfg_attr(not(feature = "programs"), allow(dead_code))]
mod output;
#[cfg(feature = "programs")]
mod places;
mod pool;
#[cfg(feature = "programs")]
mod profile;
#[cfg(feature = "programs")]
mod program;
#[cfg(feature = "programs")]
mod report;
#[cfg(feature = "programs")]
mod runtime;
#[cfg(feature = "programs")]
mod session;
#[cfg(feature = "programs")]
mod signals;
#[cfg(feature = "sim")]
mod sim;
mod store;
#[cfg(feature = "programs")]
mod symbols;
mod terminal;
#[cfg(feature = "programs")]
mod unwind;
#[cfg(feature = "programs")]
mod watch;
#[cfg(feature = "programs")]
mod wrappers;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// The exit codes of all words.
const CODES: &str =
    "Exit codes: 0 done; 1 done, and the answer is no, or something wrong was found;
2 not done, or misused; 128+n ended by signal n. `run` and `profile` pass the program's
own on, and have those of env(1) and timeout(1) for themselves: 125 they failed, 126 the
program cannot be executed, 127 it was not found, 128+n it was killed by signal n.";

/// An embedded store that many processes write, and its latches, locks and pool
#[derive(Parser)]
#[command(name = "latchwork", version, disable_help_subcommand = true, after_help = CODES)]
struct Cli {
    #[command(subcommand)]
    word: Word,
}

#[derive(Subcommand)]
enum Word {
    #[cfg(feature = "programs")]
    Run(launch::RunArgs),
    #[cfg(feature = "programs")]
    Profile(profile::Args),
    #[cfg(feature = "programs")]
    Demo(demo::Args),
    Bank(bank::Args),
    #[cfg(feature = "bench")]
    /// Measure
    Bench {
        #[command(subcommand)]
        what: BenchWhat,
    },
    #[cfg(feature = "sim")]
    /// Simulate large machines
    Sim {
        #[command(subcommand)]
        what: sim::What,
    },
    /// Inspect a lock manager that is in use or was left by its processes
    Locks {
        #[command(subcommand)]
        what: locks::What,
    },
    /// Read, write and inspect a store, also while others use it
    Store {
        /// Open the store for reading only: commands that would write fail
        #[arg(long, global = true)]
        read_only: bool,
        #[command(subcommand)]
        what: store::What,
    },
    /// Inspect a buffer pool that is in use or was left by its processes
    Pool {
        #[command(subcommand)]
        what: pool::What,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a manual page, or write all of them into a folder
    Man {
        /// The command, as `bench latch` for `latchwork bench latch`; none for the program itself
        #[arg(value_name = "COMMAND", conflicts_with = "folder")]
        command: Vec<String>,
        /// Write a file for each page here, as `latchwork-bench-latch.1`
        #[arg(long, value_name = "FOLDER")]
        folder: Option<std::path::PathBuf>,
    },
}

#[cfg(feature = "bench")]
#[derive(Subcommand)]
enum BenchWhat {
    Latch(bench::Args),
    Lock(bench_lock::Args),
    Pool(bench_pool::Args),
    Store(bench_store::Args),
}

/// Runs the program with these arguments, of which the first is its name. Returns its exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let done = run_word(args);
    (0..=u8::MAX).find(|code| ExitCode::from(*code) == done).unwrap_or(2)
}

fn run_word(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return misused(&error),
    };
    let result = match cli.word {
        #[cfg(feature = "programs")]
        Word::Run(args) => Ok(launch::run(args)),
        #[cfg(feature = "programs")]
        Word::Profile(args) => profile::run(args),
        #[cfg(feature = "programs")]
        Word::Demo(args) => demo::run(args),
        Word::Bank(args) => bank::run(args),
        #[cfg(feature = "bench")]
        Word::Bench { what: BenchWhat::Latch(args) } => bench::run(args),
        #[cfg(feature = "bench")]
        Word::Bench { what: BenchWhat::Lock(args) } => bench_lock::run(args),
        #[cfg(feature = "bench")]
        Word::Bench { what: BenchWhat::Pool(args) } => bench_pool::run(args),
        #[cfg(feature = "bench")]
        Word::Bench { what: BenchWhat::Store(args) } => bench_store::run(args),
        #[cfg(feature = "sim")]
        Word::Sim { what } => sim::run(what),
        Word::Locks { what } => locks::run(what),
        Word::Store { read_only, what } => store::run(what, read_only),
        Word::Pool { what } => pool::run(what),
        Word::Completions { shell } => completions(shell),
        Word::Man { command, folder } => man(&command, folder.as_deref()),
    };
    result.unwrap_or_else(|error| {
        output::complain(&output::chain(&error));
        ExitCode::from(output::code(&error, not_done()))
    })
}

/// Returns the exit code of commands that were not done: 2, but 125 where 2 could be the program's.
fn not_done() -> u8 {
    #[cfg(feature = "programs")]
    if std::env::args_os().nth(1).is_some_and(|word| word == "run" || word == "profile") {
        return launch::FAILED;
    }
    2
}

/// Prints the message of clap.
fn misused(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    ExitCode::from(not_done())
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "latchwork", &mut script);
    output::print(|out| out.write_all(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the page of a command, or writes all pages into a folder.
fn man(words: &[String], folder: Option<&std::path::Path>) -> anyhow::Result<ExitCode> {
    let mut root = Cli::command();
    root.build();
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
        pages("latchwork", &root, folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (mut command, mut name) = (&root, "latchwork".to_owned());
    for word in words {
        let Some(inner) = command.find_subcommand(word) else {
            return Err(output::Absent(format!("{name} has no command {word}")).into());
        };
        command = inner;
        name = format!("{name}-{word}");
    }
    let page = page(&name, command)?;
    output::print(|out| out.write_all(&page))?;
    Ok(ExitCode::SUCCESS)
}

fn page(name: &str, command: &clap::Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    let command = command.clone().name(name.to_owned().leak() as &'static str);
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}

/// Writes the page of a command, and those of its subcommands.
fn pages(name: &str, command: &clap::Command, to: &std::path::Path) -> anyhow::Result<()> {
    std::fs::write(to.join(format!("{name}.1")), page(name, command)?)?;
    for word in command.get_subcommands().filter(|word| word.get_name() != "help") {
        pages(&format!("{name}-{}", word.get_name()), word, to)?;
    }
    Ok(())
}
