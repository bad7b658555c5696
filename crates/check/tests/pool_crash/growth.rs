//! A pool that grows, and a process that is killed between the updates of its two frame counts.

use std::path::Path;
use std::sync::Arc;

use latchwork_check::folder::Folder;
use latchwork_disk::System;
use latchwork_machine::Shared;
use latchwork_pool::{FileSpec, Options, Pool, set_point_hook};
use latchwork_region::{Options as RegionOptions, Region};

use super::place::{TOLD, at_step};

/// Initial and maximum number of frames.
const FIRST: u32 = 16;
const MOST: u32 = 64;

/// Opens a pool that may grow, creates this many pages, and returns the number of frames.
fn fill(folder: &Path, pages: u32) -> u32 {
    let sizes = RegionOptions { limit: 32 << 20, ..RegionOptions::default() };
    let region = Region::<Shared>::open_or_create(folder.join("region"), &sizes).unwrap();
    let options = Options {
        frames: FIRST,
        frames_max: MOST,
        frames_wanted: MOST,
        frame_bytes: 512,
        ..Options::default()
    };
    let pool = Pool::open(&region, Arc::new(System::new()), &options).unwrap();
    region.sweep().unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { page_bytes: 512, ..FileSpec::new(folder.join("data")) };
    let file = handle.file(&spec).unwrap();
    for _ in 0..pages {
        let mut page = handle.new_page(file).unwrap();
        page.begin(0);
        page.commit();
    }
    pool.active().unwrap()
}

/// The process that is killed.
#[test]
fn growing_child() {
    let Some(folder) = std::env::var_os("GROWTH_FOLDER") else { return };
    *TOLD.lock().unwrap() = Some(("resize.active".to_owned(), 1));
    set_point_hook(at_step);
    fill(Path::new(&folder), 4 * MOST);
}

#[test]
fn a_pool_still_grows_after_a_growing_process_died() {
    let folder = Folder::new("growth");
    assert_eq!(fill(&folder.0, 1), FIRST);
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "growth::growing_child", "--test-threads=1"])
        .env("GROWTH_FOLDER", &folder.0)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(ended.code(), None, "the child was not killed");
    assert_eq!(fill(&folder.0, 4 * MOST), MOST);
}
