//! `pool list`, `pool page`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use latchwork_pool::FrameInfo;
use serde_json::{Value, json};

use super::{Scene, colour, print_json};
use crate::output::{self, Absent};

/// List the pages in the pool
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork pool list store.region --dirty
  latchwork pool list store.region --held --json")]
pub(crate) struct ListArgs {
    /// The region, or the folder of a store
    file: PathBuf,
    /// Only dirty pages
    #[arg(long)]
    dirty: bool,
    /// Only pages whose latch is held
    #[arg(long)]
    held: bool,
    /// Only pages that were left half changed
    #[arg(long)]
    poisoned: bool,
    /// Print JSON lines, one object per page
    #[arg(long)]
    json: bool,
}

/// Show a cached page and its words
#[derive(clap::Args)]
#[command(after_help = "Examples:
  latchwork pool page store.region 17
  latchwork pool page store.region 17 --of 2 --json")]
pub(crate) struct PageArgs {
    /// The region, or the folder of a store
    file: PathBuf,
    /// The page
    page: u64,
    /// The number of its file, as `stat` shows it
    #[arg(long, value_name = "FILE", default_value = "0")]
    of: u16,
    /// Print a JSON line
    #[arg(long)]
    json: bool,
}

fn line(frame: &FrameInfo) -> Value {
    json!({
        "frame": frame.frame, "file": frame.page.0, "page": frame.page.1, "state": frame.state,
        "dirty": frame.dirty, "lsn": frame.lsn, "rec_lsn": frame.rec_lsn, "used": frame.marked,
        "holder": frame.holder,
    })
}

pub(super) fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let wanted = |frame: &FrameInfo| {
        (!args.dirty || frame.dirty)
            && (!args.held || frame.holder.is_some())
            && (!args.poisoned || frame.state == "poisoned")
    };
    let mut frames: Vec<FrameInfo> = scene.pool.list()?.filter(wanted).collect();
    frames.sort_by_key(|frame| frame.page);
    if args.json {
        print_json(frames.iter().map(line))?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["file", "page", "frame", "lsn", "state", "", "held by"];
    let mut table = output::table(&header, 0..4, colour());
    for frame in &frames {
        table.add_row([
            frame.page.0.to_string(),
            frame.page.1.to_string(),
            frame.frame.to_string(),
            frame.lsn.to_string(),
            frame.state.to_owned(),
            if frame.dirty { "dirty" } else { "" }.to_owned(),
            frame.holder.map_or(String::new(), |slot| scene.place(slot)),
        ]);
    }
    output::print(|out| {
        if frames.is_empty() { writeln!(out, "no such page") } else { writeln!(out, "{table}") }
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn page(args: &PageArgs) -> anyhow::Result<ExitCode> {
    let scene = Scene::open(&args.file)?;
    let file = match scene.pool.file_id(args.of) {
        Err(latchwork_pool::Error::NoFile(of)) => {
            return Err(
                Absent(format!("the pool has no file {of}; `pool stat` lists its files")).into()
            );
        }
        file => file?,
    };
    let wanted = (args.of, args.page);
    let pages = scene.pool.pages(file)?;
    if args.page >= pages {
        let (page, path) = (args.page, scene.path(args.of));
        return Err(
            Absent(format!("there is no page {page} of {path}, which has {pages} pages")).into()
        );
    }
    let Some(frame) = scene.pool.list()?.find(|frame| frame.page == wanted) else {
        let (page, path) = (args.page, scene.path(args.of));
        return Err(Absent(format!("page {page} of {path} is not in the pool")).into());
    };
    let read = scene.pool.looker().read(file, args.page, |view| {
        let mut words = vec![0; view.len()];
        view.copy(0, &mut words).map(|()| words)
    });
    let words = read.with_context(|| format!("page {}, which is {}", args.page, frame.state))?;
    if args.json {
        let mut row = line(&frame);
        row["words"] = json!(words);
        print_json([row])?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(|out| {
        let dirty = if frame.dirty { ", dirty" } else { "" };
        writeln!(out, "page {} of {}", args.page, scene.path(args.of))?;
        writeln!(out, "{}{dirty}, in frame {}, LSN {}\n", frame.state, frame.frame, frame.lsn)?;
        let (mut zeros, mut rows) = (false, (0..).zip(words.chunks(4)));
        rows.try_for_each(|(row, four)| {
            if four.iter().all(|word| *word == 0) {
                let first = !std::mem::replace(&mut zeros, true);
                return if first { writeln!(out, "     *") } else { Ok(()) };
            }
            zeros = false;
            write!(out, "{:>6}", row * 4)?;
            four.iter().try_for_each(|word| write!(out, "  {word:016x}"))?;
            writeln!(out)
        })
    })?;
    Ok(ExitCode::SUCCESS)
}
