//! Measurements of a store for which `latchwork bench store` has no row.
//!
//! ```sh
//! cargo run --release -p latchwork-store --example measure -- hot-rows
//! cargo run --release -p latchwork-store --example measure -- damaged-page 100
//! cargo run --release -p latchwork-store --example measure -- left-open 100000
//! cargo run --release -p latchwork-store --example measure -- log-bytes 100000
//! cargo run --release -p latchwork-store --example measure -- seeing
//! cargo run --release -p latchwork-store --example measure -- steep
//! ```
//!
//! They are one program because each program would contain the whole store, and take as long to
//! build.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "it measures what a user of the store would"
)]

mod calls;
mod damaged_page;
mod hot_rows;
mod left_open;
mod log_bytes;
mod seeing;
mod steep;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

type Fault = Box<dyn std::error::Error>;

const USAGE: &str = "usage: measure WHAT

  hot-rows            threads that change the same one or two rows
  damaged-page [MIB]  a page is made anew from so much log (100)
  left-open [ROWS]    opening after a crash that found so many changed records (100000)
  log-bytes [CALLS]   bytes of log of a transfer and of a put (100000)
  seeing              looking at locks and processes of a store at full load
  steep               what one more costs beside 100, 1,000 and 10,000
  calls KIND [CALLS]  for callgrind: get, get-long, get-rw, put, range-10, scan-100, transfer
                      (1000)";

/// Runs a closure with a new folder, which is removed afterwards.
fn in_folder(work: impl FnOnce(&Path) -> Result<(), Fault>) -> Result<(), Fault> {
    let path = std::env::temp_dir().join(format!("latchwork-measure-{}", std::process::id()));
    let ended = work(&path);
    // The folder may not exist; `ended` then reports why.
    let _ = std::fs::remove_dir_all(&path);
    ended
}

/// Returns the argument, or the default.
fn number(said: &[String], usual: u64) -> Result<u64, Fault> {
    let Some(said) = said.first() else { return Ok(usual) };
    said.parse().map_err(|_| format!("no number: {said}").into())
}

fn run(what: &str, said: &[String]) -> Result<(), Fault> {
    match (what, said) {
        ("hot-rows", []) => in_folder(hot_rows::run),
        ("seeing", []) => in_folder(seeing::run),
        ("steep", []) => in_folder(steep::run),
        ("damaged-page", [] | [_]) => {
            let mib = number(said, 100)?;
            in_folder(|path| damaged_page::run(path, mib))
        }
        ("left-open", [] | [_]) => {
            let rows = number(said, 100_000)?;
            in_folder(|path| left_open::run(path, rows))
        }
        ("log-bytes", [] | [_]) => {
            let calls = number(said, 100_000)?;
            in_folder(|path| log_bytes::run(path, calls))
        }
        (left_open::CHILD, [path, rows]) => {
            left_open::leave_open(&PathBuf::from(path), rows.parse()?)
        }
        ("calls", [kind] | [kind, _]) => {
            let calls = number(&said[1..], 1000)?;
            in_folder(|path| calls::run(path, kind, calls))
        }
        _ => Err(USAGE.into()),
    }
}

fn main() -> ExitCode {
    let mut said = std::env::args().skip(1);
    let what = said.next().unwrap_or_default();
    match run(&what, &said.collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
