//! Creation and copies on a real file system with little room.

use std::ffi::CString;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::Path;

use latchwork_check::dump_bytes::Tables;
use latchwork_store::{DumpError, DumpReader, Error, Load, MemoryPlace as Where, Options, Store};
use latchwork_store::{restore, salvage};

use crate::mounts::{in_namespace, mount_ext4};
use crate::stage::{Place, ROWS, all, fill, options};

/// The free room grows by this many bytes from trial to trial.
const STEP: u64 = 4096;

/// Small stores with their memory on another file system.
fn small() -> Options {
    Options { place: Where::Memory, ..options() }
}

fn put(at: &Path) -> Result<(), Error> {
    let store = Store::open_with(at, &small())?;
    store.put(&ROWS, 7, b"pear")?;
    store.close().map(drop)
}

fn free(at: &Path) -> u64 {
    let path = CString::new(at.to_str().unwrap()).unwrap();
    let mut about = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: a path that ends with a zero byte, and a place for the answer.
    assert_eq!(unsafe { libc::statvfs(path.as_ptr(), about.as_mut_ptr()) }, 0);
    // SAFETY: the call above has filled it in; all zero is a value as well.
    let about = unsafe { about.assume_init() };
    about.f_bavail * about.f_frsize
}

/// Fills the file system until `room` bytes are free, or shortens the filler.
fn leave(at: &Path, room: u64) {
    let filler = at.join("filler");
    let file = File::options().write(true).create(true).truncate(false).open(&filler).unwrap();
    let mut length = file.metadata().unwrap().len();
    // The block map of the filler takes room as well.
    while free(at) > room {
        let more = (free(at) - room).max(1024);
        // SAFETY: an open file.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, length as i64, more as i64) } != 0 {
            break;
        }
        length += more;
    }
    while free(at) < room && length >= 1024 {
        length -= 1024;
        file.set_len(length).unwrap();
    }
}

#[test]
fn creates_stores_with_little_room() {
    let Some(place) = Place::told() else { return };
    for block in [1024, 4096] {
        let at = place.at(&format!("ext4-{block}"));
        if !mount_ext4(16 << 20, block, &at) {
            println!("SKIPPED: no ext4 of {block} bytes a block");
            continue;
        }
        let store = at.join("store");
        put(&store).unwrap();
        let full: u64 = files(&store).into_iter().map(|(_, bytes)| bytes).sum();
        fs::remove_dir_all(&store).unwrap();
        let (mut failed, mut in_a_row, mut room) = (0, 0, 0);
        while in_a_row < 16 {
            leave(&at, room);
            let first = put(&store);
            let left = files(&store);
            fs::remove_file(at.join("filler")).unwrap();
            if let Err(why) = &first {
                (failed, in_a_row) = (failed + 1, 0);
                assert!(why.is_no_space(), "{room} bytes free: {why}");
            }
            in_a_row += u32::from(first.is_ok());
            let again = put(&store);
            assert!(again.is_ok(), "{room} bytes free: {first:?}, which left {left:?}: {again:?}");
            // Before that, one file grows by large writes.
            room += if room + (256 << 10) < full { 16 * STEP } else { STEP };
            fs::remove_dir_all(&store).unwrap();
        }
        assert!(failed > 20, "creation failed {failed} times with blocks of {block} bytes");
    }
    fs::write(place.at("done"), "").unwrap();
}

/// All files below a folder, and their lengths.
fn files(at: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        let about = entry.metadata().unwrap();
        match about.is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push((entry.path().display().to_string(), about.len())),
        }
    }
    found
}

/// After creation has failed for lack of room, the same call succeeds once there is room.
#[test]
fn creation_on_a_full_disk_is_finished_with_room() {
    let place = Place::new("full");
    in_namespace(&place, "full_disk::creates_stores_with_little_room");
}

/// A process found no room for the name in the mark of a copy, or the machine crashed before the
/// mark was durable: the next copy of this name replaces the folder.
#[test]
fn copy_with_a_truncated_mark_is_made_again() {
    let place = Place::new("mark");
    put(&place.at("one")).unwrap();
    for mark in ["", "co", "copy"] {
        fs::create_dir(place.at("copy.new")).unwrap();
        fs::write(place.at("copy.new/being-made"), mark).unwrap();
        let store = Store::open_with(place.at("one"), &small()).unwrap();
        let made = store.backup(place.at("copy"), &mut |_| {});
        made.unwrap_or_else(|why| panic!("{mark:?}: {why}"));
        fs::remove_dir_all(place.at("copy")).unwrap();
    }
}

/// A way to write a store into a folder from another store.
type Copies<'c> = &'c dyn Fn(&Path) -> Result<(), Error>;

/// Tries a copy with increasing room until it has succeeded several times. Without room it fails
/// with that error and leaves nothing that disturbs the next copy of this name.
fn sweep(what: &str, at: &Path, records: &Tables, copies: Copies<'_>) {
    let to = at.join("copy");
    copies(&to).unwrap();
    let full: u64 = files(&to).into_iter().map(|(_, bytes)| bytes).sum();
    fs::remove_dir_all(&to).unwrap();
    let (mut failed, mut in_a_row, mut room) = (0, 0, 0);
    while in_a_row < 8 {
        leave(at, room);
        let first = copies(&to);
        let left = files(at);
        fs::remove_file(at.join("filler")).unwrap();
        match &first {
            Ok(()) => in_a_row += 1,
            Err(why) => {
                (failed, in_a_row) = (failed + 1, 0);
                assert!(why.is_no_space(), "{what}, {room} bytes free: {why}");
                assert!(!to.exists(), "{what}, {room} bytes free: {left:?}");
                let again = copies(&to);
                assert!(again.is_ok(), "{what}, {room} bytes free, then {left:?}: {again:?}");
            }
        }
        let copy = Store::open_with(&to, &small()).unwrap();
        assert!(all(&copy) == *records, "{what}, {room} bytes free: other records");
        copy.close().unwrap();
        fs::remove_dir_all(&to).unwrap();
        assert_eq!(fs::read_dir(at).unwrap().count(), 1, "{what}: {:?}", files(at));
        room += if room + (64 << 10) < full { 8 * STEP } else { STEP };
    }
    assert!(failed > 20, "{what} failed {failed} times");
}

#[test]
fn copies_stores_with_little_room() {
    let Some(place) = Place::told() else { return };
    let at = place.at("ext4");
    if !mount_ext4(16 << 20, 4096, &at) {
        println!("SKIPPED: no ext4");
        fs::write(place.at("done"), "").unwrap();
        return;
    }
    let open = || Store::open_with(place.at("one"), &small()).unwrap();
    let store = open();
    fill(&store, 900);
    let records = all(&store);
    let (text, _) = store.dump(Vec::new(), None, &mut |_| {}).unwrap();
    store.backup(place.at("saved"), &mut |_| {}).unwrap();
    sweep("backup", &at, &records, &|to| open().backup(to, &mut |_| {}).map(drop));
    sweep("compact", &at, &records, &|to| open().compact_into(to, &mut |_| {}).map(drop));
    store.close().unwrap();
    let saved = place.at("saved");
    sweep("restore", &at, &records, &|to| restore(&saved, to, &mut |_| {}).map(drop));
    sweep("salvage", &at, &records, &|to| salvage(place.at("one"), to).map(drop));
    // A load writes into an existing store: the first part of the dump stays, and the same load
    // continues with `merge`.
    let mut merge = Load::default();
    merge.merge = true;
    sweep("load", &at, &records, &|to| {
        let into = to.with_file_name("loaded");
        let load = || {
            let store = Store::open_with(&into, &small())?;
            let dump = DumpReader::new(&text[..]).unwrap();
            let loaded = store.load(dump, &merge, &mut |_| {}).map_err(|why| match why {
                DumpError::Store(why) => why,
                other => panic!("{other}"),
            });
            let closed = store.close();
            loaded.and(closed.map(drop))
        };
        load()?;
        fs::rename(&into, to).unwrap();
        Ok(())
    });
    fs::write(place.at("done"), "").unwrap();
}

/// After a copy has failed for lack of room, the same call succeeds once there is room.
#[test]
fn copies_on_a_full_disk_are_finished_with_room() {
    let place = Place::new("copies");
    in_namespace(&place, "full_disk::copies_stores_with_little_room");
}
