//! Shared memory that killed processes left, and changes to it or to the files before the next
//! open.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use latchwork_store::{
    Error, MemoryPlace as Memory, Mode, Options, Refusal, Store, Table, TxnOptions,
    discard_abandoned_memory, discard_shared_memory, list_shared_memory,
};

use crate::stage::{COUNT, EACH, Place, ROWS, copy, fill, open, options, sum, why};

/// A table that the killed process creates.
pub(crate) const LATE: Table<u64, u64> = Table::new("late");

/// The process that leaves its memory.
#[test]
fn writes_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    fill(&store, 100);
    store.put(&LATE, 1, 1).unwrap();
    let patience = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
    store.write_with(&patience, |tx| tx.put(&ROWS, 77_777, b"not on the disk")).unwrap();
    // An open transaction, to be undone: its changes are on the pages written above.
    let mut open = store.begin().unwrap();
    open.put(&LATE, 2, 2).unwrap();
    open.put(&ROWS, 3, b"not committed").unwrap();
    fs::write(place.at("ready"), "").unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

pub(crate) fn killed(place: &Place) {
    killed_in(place, "left::writes_until_it_is_killed");
}

/// Kills the process of this test when it has signalled that it is ready.
pub(crate) fn killed_in(place: &Place, test: &str) {
    let mut child = place.start(test);
    while !place.at("ready").exists() {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    fs::remove_file(place.at("ready")).unwrap();
}

/// Memory left by killed processes is joined, not rebuilt from the files, whatever the options of
/// the next open: it has commits that the files lack.
#[test]
fn memory_is_joined_with_any_options() {
    for threads in [16, 64, 2000] {
        let place = Place::new("options");
        killed(&place);
        let mut other = options();
        other.sizes.threads = threads;
        other.sizes.cache *= 2;
        other.sizes.log_buffer *= 2;
        other.sizes.log_segment *= 2;
        let store = Store::open_with(place.at("one"), &other).unwrap();
        let late = store.read(|tx| tx.get(&ROWS, 77_777)).unwrap();
        assert_eq!(late.as_deref(), Some(&b"not on the disk"[..]), "{threads}");
        // A second handle joins the living first one.
        let beside = Store::open_with(place.at("one"), &options()).unwrap();
        for store in [&store, &beside] {
            store.put(&ROWS, 1, b"again").unwrap();
            store.checkpoint().unwrap();
            assert_eq!(store.sweep().unwrap(), 0);
        }
    }
}

/// A process whose memory is in the store's folder.
#[test]
fn writes_beside_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    let options = Options { place: Memory::Folder, ..options() };
    let store = Store::open_with(place.at("one"), &options).unwrap();
    fill(&store, 100);
    let patience = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
    store.write_with(&patience, |tx| tx.put(&ROWS, 77_777, b"not on the disk")).unwrap();
    fs::write(place.at("ready"), "").unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Memory on a disk is joined if its file system stayed mounted, and not if it was unmounted and
/// mounted again: then some of its pages are older than others.
#[test]
fn memory_next_to_the_data_belongs_to_one_mount() {
    for again in [false, true] {
        let place = Place::new("mount");
        killed_in(&place, "left::writes_beside_until_it_is_killed");
        let region = place.at("one/memory/region");
        let on_a_disk = !Command::new("stat")
            .args(["-f", "-c", "%T"])
            .arg(&region)
            .output()
            .is_ok_and(|told| told.stdout.starts_with(b"tmpfs"));
        // Clears the hint, as after the inode is read from disk: fcntl(2), F_SET_RW_HINT.
        let clear = |path: &Path| {
            let (file, none) = (fs::File::open(path).unwrap(), 0u64);
            // SAFETY: the call reads the hint, which outlives the call.
            unsafe { libc::fcntl(file.as_raw_fd(), 1036, &none) == 0 }
        };
        let has_marks = clear(&place.at("one/identity"));
        if !has_marks {
            eprintln!("skipped in part: this system has no such hints");
        }
        assert!(!again || clear(&region) == has_marks);
        let late = open(place.at("one")).read(|tx| tx.get(&ROWS, 77_777)).unwrap();
        assert_eq!(late.is_some(), !on_a_disk || has_marks && !again);
        assert_eq!(sum(&open(place.at("one"))), COUNT as i64 * EACH);
    }
}

/// If no process can determine the boot id, living processes are still joined, and so is memory
/// that killed processes left.
#[test]
fn memory_is_found_without_the_number_of_the_start() {
    let place = Place::new("start");
    killed(&place);
    let said = fs::read_to_string(place.at("one/region")).unwrap();
    let (_, rest) = said.split_once('\n').unwrap();
    fs::write(place.at("one/region"), format!("\n{rest}")).unwrap();
    let store = open(place.at("one"));
    let late = store.read(|tx| tx.get(&ROWS, 77_777)).unwrap();
    assert_eq!(late.as_deref(), Some(&b"not on the disk"[..]));
}

/// A process with too little address space for the store.
#[test]
fn cannot_join_what_was_left() {
    let Some(place) = Place::told() else { return };
    let joined = Store::open_with(place.at("one"), &options()).map(drop);
    assert!(matches!(joined, Err(Error::Region(_))), "{joined:?}");
    fs::write(place.at("refused"), "").unwrap();
}

/// Memory is kept if it cannot be joined for an unrelated reason.
#[test]
fn memory_that_cannot_be_joined_now_is_kept() {
    let place = Place::new("limit");
    killed(&place);
    let bounded =
        place.start_by("ulimit -v 2000000; exec \"$0\" \"$@\"", "left::cannot_join_what_was_left");
    assert!(bounded.wait_with_output().unwrap().status.success());
    assert!(place.at("refused").exists());
    let late = open(place.at("one")).read(|tx| tx.get(&ROWS, 77_777)).unwrap();
    assert_eq!(late.as_deref(), Some(&b"not on the disk"[..]));
}

/// Memory whose recovery has failed is not joined through an older `region` file.
#[test]
fn memory_that_was_not_recovered_is_not_joined() {
    let place = Place::new("unrecovered");
    killed(&place);
    let said = fs::read_to_string(place.at("one/region")).unwrap();
    let memory = Path::new(said.lines().nth(1).unwrap()).to_owned();
    fs::remove_dir_all(&memory).unwrap();
    let control = fs::read(place.at("one/log/control")).unwrap();
    fs::write(place.at("one/log/control"), vec![0; control.len()]).unwrap();
    let damaged = Store::open_with(place.at("one"), &options()).map(drop).unwrap_err();
    assert!(matches!(damaged, Error::Log(latchwork_log::Error::Corrupt { .. })), "{damaged}");
    assert!(!place.at("one/region").exists());
    fs::write(place.at("one/log/control"), control).unwrap();
    assert_eq!(sum(&open(place.at("one"))), COUNT as i64 * EACH);
    let _ = fs::remove_dir_all(memory);
}

/// Memory of a removed store is found and removed; memory that a store needs is not.
#[test]
fn unneeded_memory_is_removed() {
    let place = Place::new("left");
    killed(&place);
    let of =
        |path: &Path| list_shared_memory().into_iter().find(|m| m.store.as_deref() == Some(path));
    let one = fs::canonicalize(place.at("one")).unwrap();
    let left = of(&one).unwrap();
    assert!(left.needed && left.processes.is_empty() && left.bytes > 1 << 20, "{left:?}");
    discard_abandoned_memory();
    assert!(of(&one).is_some(), "memory that its store needs was removed");
    // Memory of an open store is refused.
    let store = open(place.at("one"));
    assert_eq!(of(&one).unwrap().processes, [std::process::id()]);
    assert_eq!(why(discard_shared_memory(&one).unwrap_err()), Refusal::InUse);
    drop(store);
    assert_eq!(of(&one), None, "the closed store has left memory");
    // After discarding, commits that were only in memory are lost.
    killed(&place);
    assert!(discard_shared_memory(&one).unwrap() > 1 << 20);
    assert_eq!((of(&one), discard_shared_memory(&one)), (None, Ok(0)));
    let store = open(place.at("one"));
    assert_eq!(sum(&store), COUNT as i64 * EACH);
    drop(store);
    // A folder that was removed while its memory remained; and a copy without memory.
    killed(&place);
    copy(&one, &place.at("two"));
    fs::remove_dir_all(&one).unwrap();
    assert_eq!(discard_shared_memory(place.at("two")), Ok(0), "the memory belongs to `one`");
    assert_eq!(sum(&open(place.at("two"))), COUNT as i64 * EACH);
    assert_eq!(of(&one), None, "the open of another store should remove it");
}

/// A process died after it had created a folder for memory. The folder is removed once no living
/// process can be about to record its owner.
#[test]
fn an_old_folder_without_memory_is_removed() {
    let name = format!("latchwork-{:032x}-{:016x}", std::process::id(), 7);
    let at = Path::new("/dev/shm").join(name);
    for begun in [None, Some("/tmp/of-a-stor")] {
        let _ = fs::remove_dir_all(&at);
        fs::create_dir(&at).unwrap();
        begun.into_iter().for_each(|text| fs::write(at.join("store"), text).unwrap());
        let listed = || list_shared_memory().into_iter().find(|memory| memory.at == at);
        assert_eq!(listed().unwrap().store, None);
        discard_abandoned_memory();
        assert!(listed().is_some(), "its creator may still be about to record the owner");
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        fs::File::open(&at).unwrap().set_modified(hour_ago).unwrap();
        assert!(discard_abandoned_memory().iter().any(|memory| memory.at == at), "{begun:?}");
        assert!(!at.exists());
    }
}

/// The folder of a store's memory.
pub(crate) fn memory(store: &Path) -> PathBuf {
    fs::read_to_string(store.join("region")).unwrap().lines().nth(1).unwrap().into()
}

/// Memory that lacks a file is not joined: a new file would be an empty log next to a full table of
/// locks. The files have all durable commits.
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

/// Closing a store removes no other folder, whatever `region` names.
#[test]
fn a_folder_that_is_not_the_stores_memory_is_kept() {
    let place = Place::new("strange");
    let store = open(place.at("one"));
    let at = memory(&place.at("one"));
    fs::create_dir(place.at("aside")).unwrap();
    fs::write(place.at("aside/region"), "kept").unwrap();
    let said = fs::read_to_string(place.at("one/region")).unwrap();
    let strange = said.replace(at.to_str().unwrap(), place.at("aside").to_str().unwrap());
    fs::write(place.at("one/region"), strange).unwrap();
    drop(store);
    assert_eq!(fs::read(place.at("aside/region")).unwrap(), b"kept");
    fs::write(place.at("one/region"), said).unwrap();
    drop(open(place.at("one")));
    assert!(!at.exists());
}

/// The error for memory that is kept and cannot be joined names it and says what to do.
#[test]
fn memory_that_cannot_be_joined_is_named() {
    let place = Place::new("linked");
    killed(&place);
    let region = memory(&place.at("one")).join("region");
    let aside = place.at("aside");
    fs::copy(&region, &aside).unwrap();
    fs::remove_file(&region).unwrap();
    std::os::unix::fs::symlink(&aside, &region).unwrap();
    let refused = Store::open_with(place.at("one"), &options()).map(drop).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(why(refused), Refusal::Memory { .. }), "{text}");
    let at = region.parent().unwrap().to_str().unwrap();
    assert!(text.contains(at) && text.contains("forget-memory"), "{text}");
    fs::remove_file(&region).unwrap();
    discard_shared_memory(place.at("one")).unwrap();
    assert_eq!(sum(&open(place.at("one"))), COUNT as i64 * EACH);
}

/// Two containers share a store's folder and have a `/dev/shm` each: the memory in one of
/// them may be older than commits of the other container.
#[test]
fn memory_of_an_earlier_time_is_not_joined() {
    let place = Place::new("earlier");
    let (one, aside) = (place.at("one"), place.at("aside"));
    killed(&place);
    let at = memory(&one);
    copy(&at, &aside);
    open(one.clone()).put(&LATE, 5, 5).unwrap();
    // The other container writes and is killed.
    killed(&place);
    let at = memory(&one);
    fs::remove_dir_all(&at).unwrap();
    copy(&aside, &at);
    for _ in 0..2 {
        let store = open(one.clone());
        store.verify().unwrap();
        let late = store.read(|tx| Ok((tx.get(&LATE, 1)?, tx.get(&LATE, 2)?, tx.get(&LATE, 5)?)));
        assert_eq!(late, Ok((Some(1), None, Some(5))));
    }
    // The other container is running.
    let store = open(one.clone());
    let at = memory(&one);
    fs::remove_dir_all(&at).unwrap();
    copy(&aside, &at);
    let refused = Store::open_with(&one, &options()).map(drop).unwrap_err();
    assert!(matches!(&refused, Error::Open { why: Refusal::OtherNamespace, .. }), "{refused}");
    store.put(&LATE, 6, 6).unwrap();
    drop(store);
    assert_eq!(open(one.clone()).get(&LATE, 6), Ok(Some(6)));
}

/// A process that died during recovery has no memory and releases its locks one after the other. It
/// is waited for, and not mistaken for a process of another container.
#[test]
fn opening_waits_for_a_dying_process_without_memory() {
    let place = Place::new("dying");
    let one = place.at("one");
    drop(open(one.clone()));
    let lock = |name| fs::File::options().write(true).open(one.join(name)).unwrap();
    let (live, opening) = (lock("live"), lock("opening"));
    live.try_lock_shared().unwrap();
    std::thread::scope(|scope| {
        let opens = scope.spawn(|| Store::open_with(&one, &options()).map(drop));
        while opening.try_lock().is_ok() {
            opening.unlock().unwrap();
            std::thread::yield_now();
        }
        live.unlock().unwrap();
        assert_eq!(opens.join().unwrap(), Ok(()));
    });
    // A process that stays is.
    live.try_lock_shared().unwrap();
    let refused = Store::open_with(&one, &options()).map(drop).unwrap_err();
    assert_eq!(why(refused), Refusal::OtherNamespace);
}

/// Overwrites a store's files with those of another time and keeps the inodes, as restoring a file
/// system or copying its layers does.
fn overwrite(from: &Path, to: &Path) {
    for name in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().file_name()) {
        match from.join(&name).is_dir() {
            true => overwrite(&from.join(&name), &to.join(&name)),
            false => fs::write(to.join(&name), fs::read(from.join(&name)).unwrap()).unwrap(),
        }
    }
}

/// Memory is not joined to older files.
#[test]
fn memory_of_a_later_time_than_the_files_is_not_joined() {
    let place = Place::new("later");
    let (one, aside) = (place.at("one"), place.at("aside"));
    // With commits after the checkpoint, and with none.
    for checkpoint in [true, false] {
        let store = open(one.clone());
        if checkpoint {
            store.checkpoint().unwrap();
        }
        store.put(&LATE, 7, 7).unwrap();
        copy(&one, &aside);
        let now = |path: &Path| fs::read(path.join("region")).unwrap();
        let of_now = now(&one);
        drop(store);
        killed(&place);
        let newer = now(&one);
        let region = memory(&one);
        overwrite(&aside, &one);
        // The file that names the memory is as new as the memory.
        assert_ne!(of_now, newer);
        fs::write(one.join("region"), newer).unwrap();
        for _ in 0..2 {
            let refused = Store::open_with(&one, &options()).map(drop).unwrap_err();
            assert!(
                matches!(why(refused.clone()), Refusal::Damaged { file: "log", .. }),
                "{refused}"
            );
            assert!(region.exists());
        }
        discard_shared_memory(&one).unwrap();
        assert_eq!(open(one.clone()).get(&LATE, 7), Ok(Some(7)));
        fs::remove_dir_all(&aside).unwrap();
        fs::remove_dir_all(&one).unwrap();
    }
}

/// A copy of a file system layer at the same path in another container: no process has it open, and
/// the memory belongs to living processes of the first container.
#[test]
fn memory_in_use_is_not_joined_by_another_folder() {
    let place = Place::new("living");
    let one = place.at("one");
    let store = open(one.clone());
    store.put(&LATE, 1, 1).unwrap();
    let at = memory(&one);
    // In the copy, the lock files are other files.
    for name in ["live", "opening"] {
        fs::remove_file(one.join(name)).unwrap();
    }
    for told in [true, false] {
        if !told {
            fs::rename(one.join("region"), place.at("region")).unwrap();
        }
        let mut child = place.start("left::is_refused_beside_the_living");
        assert!(child.wait().unwrap().success());
        assert!(place.at("refused").exists() && at.join("region").exists());
        fs::remove_file(place.at("refused")).unwrap();
    }
    fs::rename(place.at("region"), one.join("region")).unwrap();
    store.put(&LATE, 2, 2).unwrap();
    drop(store);
    let late = open(one).read(|tx| Ok((tx.get(&LATE, 1)?, tx.get(&LATE, 2)?)));
    assert_eq!(late, Ok((Some(1), Some(2))));
}

#[test]
fn is_refused_beside_the_living() {
    let Some(place) = Place::told() else { return };
    let of = |error: Error| matches!(why(error), Refusal::OtherFolder);
    assert!(of(Store::open_with(place.at("one"), &options()).map(drop).unwrap_err()));
    if place.at("one/region").exists() {
        assert!(of(discard_shared_memory(place.at("one")).unwrap_err()));
    }
    fs::write(place.at("refused"), "").unwrap();
}

/// An open by another user, which is refused.
#[test]
fn may_not_look() {
    let Some(place) = Place::told() else { return };
    let refused = Store::open_with(place.at("one"), &options()).map(drop).unwrap_err();
    let Error::Open { path, why: Refusal::ForeignOwner { owner: 0 } } = &refused else {
        panic!("{refused}");
    };
    assert!(path.starts_with("/dev/shm"), "{refused}");
    fs::write(place.at("refused"), "").unwrap();
}

/// A user who may write in the folder and not read the memory cannot make an open discard it.
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
    // The store belongs to that user, its memory does not.
    std::os::unix::fs::chown(place.at("one/identity"), Some(65_534), None).unwrap();
    // The test program may be in a folder that the user cannot enter.
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
    std::os::unix::fs::chown(place.at("one/identity"), Some(0), None).unwrap();
    let late = open(place.at("one")).read(|tx| tx.get(&ROWS, 77_777)).unwrap();
    assert_eq!(late.as_deref(), Some(&b"not on the disk"[..]));
}

/// Long values, whose pieces are in leaves of their own.
const LONG: Table<u64, &[u8]> = Table::new("long");

/// A process that leaves empty leaves of pieces, which it could not unlink.
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

/// One transaction empties more leaves than its thread can note.
#[test]
fn a_value_of_very_many_pieces_returns_its_pages() {
    let place = Place::new("leaves");
    let mut options = latchwork_store::Options::default();
    options.sizes.mode = Mode::None;
    let store = Store::open_with(place.at("one"), &options).unwrap();
    store.put(&LONG, 0, &vec![7; 160 << 20]).unwrap();
    store.write(|tx| tx.remove(&LONG, 0)).unwrap();
    // Leaves that were not noted are found by a pass from the front, which is the second one.
    (0..2).for_each(|_| store.checkpoint().unwrap());
    let space = store.space().unwrap();
    assert!(space.pages > 1 << 14 && space.used < space.pages / 10, "{space:?}");
    assert_eq!(space.lost, 0);
}

/// Leaves that killed processes have emptied are found although each open of the store is short and
/// more leaves precede them than one pass visits.
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
