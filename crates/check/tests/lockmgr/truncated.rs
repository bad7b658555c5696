//! A peer truncates the file of a region: a reader gets an error and continues.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use latchwork_lockmgr::{Error, Manager, View, granular};
use latchwork_machine::Shared;
use latchwork_region::Region;

fn options() -> latchwork_region::Options {
    latchwork_region::Options { limit: 1 << 30, ..Default::default() }
}

fn open(path: &Path) -> Manager<Shared> {
    let region = Region::<Shared>::open_or_create(path, &options()).unwrap();
    Manager::new(region, granular::modes(), latchwork_check::early::early()).unwrap()
}

fn fresh(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("lockmgr-cut-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn cut(path: &Path, to: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(to).unwrap();
}

/// Takes locks until the region has grown twice.
fn fill(manager: &Manager<Shared>) -> u64 {
    let session = Box::leak(Box::new(manager.session().unwrap()));
    let owner = session.owner().unwrap();
    let mut taken = 0u64;
    for _ in 0..2 {
        let before = manager.region().len();
        while manager.region().len() == before {
            owner.try_lock(&taken.to_le_bytes(), granular::X).unwrap();
            taken += 1;
        }
    }
    // The owner is forgotten, so the locks stay held.
    core::mem::forget(owner);
    taken
}

#[test]
fn a_view_reports_a_truncated_file_at_every_length() {
    let path = fresh("every");
    let manager = open(&path);
    let taken = fill(&manager);
    let length = manager.region().len();
    // As if the process had ended, so that no mapping of the file is used below.
    core::mem::forget(manager);
    let whole = std::fs::read(&path).unwrap();
    let modes = granular::modes();
    let mut told = 0;
    for part in 0..=16 {
        std::fs::write(&path, &whole).unwrap();
        let view = View::new(Region::<Shared>::view(&path, &options()).unwrap()).unwrap().unwrap();
        let rows = view.look().unwrap().rows;
        assert_eq!(rows.iter().filter(|row| row.held.is_some()).count() as u64, taken);
        let to = length * part / 16;
        cut(&path, to);
        let looks = [
            view.look().map(drop),
            view.partitions().map(drop),
            view.deadlocks().map(drop),
            view.latched().map(drop),
            view.verify(Some(&modes)).map(drop),
        ];
        for end in looks {
            match end {
                Ok(()) => {}
                Err(Error::Region(latchwork_region::Error::Truncated { needed, found })) => {
                    assert!(found <= to && needed > to, "cut at {to}: {needed}, {found}");
                    told += 1;
                }
                Err(error) => panic!("cut at {to}: {error}"),
            }
        }
        let again = Region::<Shared>::view(&path, &options()).map(drop);
        assert!(part == 16 || matches!(again, Err(latchwork_region::Error::Truncated { .. })));
    }
    assert!(told > 30, "only {told} errors");
    let _ = std::fs::remove_file(&path);
}

#[test]
fn a_view_survives_repeated_truncation() {
    let path = fresh("on");
    let manager = open(&path);
    fill(&manager);
    let length = manager.region().len();
    core::mem::forget(manager);
    let whole = std::fs::read(&path).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    let (mut looked, mut told) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..60u64 {
                cut(&path, length * (round % 16) / 16);
                std::fs::write(&path, &whole).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
            over.store(true, relaxed);
        });
        while !over.load(relaxed) || looked == 0 {
            let Ok(region) = Region::<Shared>::view(&path, &options()) else { continue };
            // A file that was cut and not yet written again is all zeros and has no manager.
            let Ok(Some(view)) = View::new(region) else { continue };
            match view.look() {
                Ok(_) => looked += 1,
                Err(_) => told += 1,
            }
        }
    });
    println!("{looked} snapshots, {told} errors");
    let _ = std::fs::remove_file(&path);
}

/// The child process: locks in a mapped region after the file was truncated.
#[test]
fn child() {
    let Ok(path) = std::env::var("LOCKMGR_REGION") else { return };
    let path = PathBuf::from(path);
    let manager = open(&path);
    let session = manager.session().unwrap();
    cut(&path, 4096);
    let _ = session.snapshot();
}

#[test]
fn a_process_with_a_truncated_mapping_is_killed() {
    let path = fresh("control");
    drop(open(&path));
    let mut command = latchwork_check::again(module_path!(), "child");
    command.env("LOCKMGR_REGION", &path);
    let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGBUS), "a process with a mapping must be killed");
    let _ = std::fs::remove_file(&path);
}
