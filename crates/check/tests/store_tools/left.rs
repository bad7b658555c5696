//! Memory that killed processes left, and what may have happened to it until it is found.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use latchwork_store::{Error, Refusal, Store, Table};

use crate::open::{LATE, killed, killed_in};
use crate::stage::{Place, ROWS, open, options};

/// Where a store's memory is.
fn memory(store: &Path) -> PathBuf {
    fs::read_to_string(store.join("region")).unwrap().lines().nth(1).unwrap().into()
}

/// Memory that lacks a file is not what was left: what was made anew beside the rest would be an
/// empty log to a full table of locks. The files have what was durable.
#[test]
fn memory_that_lacks_a_part_is_not_joined() {
    let place = Place::new("part");
    killed(&place);
    let files = fs::read_dir(memory(&place.at("one"))).unwrap();
    let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    let parts = names.iter().filter_map(|name| Path::new(name).extension());
    let parts: Vec<_> = parts.map(|part| part.to_str().unwrap().to_owned()).collect();
    assert!(["log", "store", "pool-desc"].iter().all(|part| parts.iter().any(|p| p == part)));
    for part in parts {
        let place = Place::new("part");
        killed(&place);
        let at = memory(&place.at("one"));
        let file = fs::read_dir(at).unwrap().map(|file| file.unwrap().path());
        let file = file.into_iter().find(|file| file.extension().is_some_and(|e| *e == *part));
        fs::remove_file(file.unwrap()).unwrap();
        for _ in 0..2 {
            let store = open(place.at("one"));
            store.verify().unwrap();
            let late = store.read(|tx| Ok((tx.get(&LATE, 1)?, tx.get(&LATE, 2)?))).unwrap();
            assert_eq!(late, (Some(1), None), "{part}");
            let row = store.read(|tx| tx.get(&ROWS, 3)).unwrap();
            assert_ne!(row.as_deref(), Some(&b"not committed"[..]), "{part}");
            store.put(&ROWS, 3, b"again").unwrap();
        }
    }
}

/// What another user's open does: it is refused.
#[test]
fn may_not_look() {
    let Some(place) = Place::told() else { return };
    let refused = Store::open_with(place.at("one"), &options()).map(drop).unwrap_err();
    assert!(matches!(&refused, Error::Open { why: Refusal::Permission, .. }), "{refused}");
    fs::write(place.at("refused"), "").unwrap();
}

/// A user who may write in the folder and not look at the memory does not have it thrown away.
#[test]
fn memory_of_another_user_is_kept() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("SKIPPED: only root can be another user");
        return;
    }
    let place = Place::new("user");
    killed(&place);
    let open_to_all = |path: &Path| {
        let mode = if path.is_dir() { 0o777 } else { 0o666 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    open_to_all(&place.path);
    for path in ["one", "one/log", "one/data", "one/region", "one/identity"] {
        open_to_all(&place.at(path));
    }
    ["one/opening", "one/live"].iter().for_each(|path| open_to_all(&place.at(path)));
    // The program may lie where that user may not go.
    let program = place.at("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let ended = Command::new(program)
        .args(["--exact", "left::may_not_look", "--test-threads=1"])
        .env("LATCHWORK_TOOLS_PLACE", &place.path)
        .uid(65_534)
        .gid(65_534)
        .status()
        .unwrap();
    assert!(ended.success() && place.at("refused").exists(), "{ended}");
    let late = open(place.at("one")).read(|tx| tx.get(&ROWS, 77_777)).unwrap();
    assert_eq!(late.as_deref(), Some(&b"not on the disk"[..]));
}

/// Long values, whose pieces lie in leaves of their own.
const LONG: Table<u64, &[u8]> = Table::new("long");

/// What a process does that leaves leaves of pieces which it had emptied, and could not unlink.
#[test]
fn writes_long_values_beside_a_snapshot() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    let _snapshot = store.snapshot().unwrap();
    store.write(|tx| (1..11).try_for_each(|key| tx.put(&LONG, key, &[7; 60_000]))).unwrap();
    fs::write(place.at("ready"), "").unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The leaves that the dead had emptied are found though each life of the store is short, and there
/// are more leaves before them than are looked at in one.
#[test]
fn the_file_does_not_grow_with_the_deaths() {
    let place = Place::new("growth");
    open(place.at("one")).put(&LONG, 0, &vec![7; 4 << 20]).unwrap();
    let pages = [20, 20].map(|deaths| {
        for _ in 0..deaths {
            killed_in(&place, "left::writes_long_values_beside_a_snapshot");
            open(place.at("one")).checkpoint().unwrap();
        }
        let space = open(place.at("one")).space().unwrap();
        println!("{space:?}");
        space.pages
    });
    assert!(pages[1] <= pages[0] + pages[0] / 5, "{pages:?}");
}
