//! File systems that change inode numbers, and folders that were replaced by copies.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use latchwork_store::{MemoryPlace as Memory, Mode, Options, Store, Table, list_shared_memory};

use crate::left::{killed, killed_in, memory};
use crate::mounts::{in_namespace, runs};
use crate::stage::{COUNT, EACH, Place, ROWS, copy, open, options, sum};

const COUNTED: Table<u64, u64> = Table::new("counted");

fn lazy() -> Options {
    let mut lazy = Options { place: Memory::Memory, ..options() };
    lazy.sizes.mode = Mode::None;
    lazy
}

/// The process that is killed on the mounted file system.
#[test]
fn commits_without_a_sync_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    let store = Store::open_with(place.at("all/one"), &lazy()).unwrap();
    (1..1001).try_for_each(|row| store.put(&COUNTED, row, row)).unwrap();
    fs::write(place.at("ready"), "").unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn opens_a_store_on_overlayfs() {
    let Some(place) = Place::told() else { return };
    ["low", "rw", "all"].iter().for_each(|name| fs::create_dir(place.at(name)).unwrap());
    open(place.at("low/one")).put(&COUNTED, 1, 0).unwrap();
    let text = |name: &str| place.at(name).display().to_string();
    assert!(runs("mount", &["-t", "tmpfs", "none", &text("rw")]));
    ["rw/up", "rw/work"].iter().for_each(|name| fs::create_dir(place.at(name)).unwrap());
    let layers =
        format!("lowerdir={},upperdir={},workdir={}", text("low"), text("rw/up"), text("rw/work"));
    if !runs("mount", &["-t", "overlay", "none", "-o", &layers, &text("all")]) {
        ["skipped", "done"].iter().for_each(|name| fs::write(place.at(name), "").unwrap());
        return;
    }
    let number = || fs::metadata(place.at("all/one/data")).unwrap().ino();
    killed_in(&place, "inodes::commits_without_a_sync_until_it_is_killed");
    let before = number();
    // The system drops its cached inode numbers.
    let _ = fs::write("/proc/sys/vm/drop_caches", "2");
    if number() == before {
        // It kept them, so the numbers that the store has recorded are changed instead.
        let told = fs::read_to_string(place.at("all/one/region")).unwrap();
        let (head, last) = told.trim_end().rsplit_once('\n').unwrap();
        let numbers = last.split(' ').skip(2).collect::<Vec<_>>().join(" ");
        fs::write(place.at("all/one/region"), format!("{head}\n1 2 {numbers}\n")).unwrap();
    }
    let store = Store::open_with(place.at("all/one"), &lazy()).unwrap();
    assert_eq!(store.read(|tx| tx.count(&COUNTED, ..)), Ok(1000), "commits were lost");
    store.verify().unwrap();
    store.close().unwrap();
    let of_it = |left: &latchwork_store::SharedMemoryInfo| {
        left.store.as_deref().is_some_and(|store| store == place.at("all/one"))
    };
    assert!(!list_shared_memory().iter().any(of_it), "memory stayed");
    fs::write(place.at("done"), "").unwrap();
}

/// No commit is lost and no memory is left when inode numbers of files change.
#[test]
fn memory_is_found_where_inode_numbers_change() {
    let place = Place::new("overlay");
    in_namespace(&place, "inodes::opens_a_store_on_overlayfs");
    if place.at("skipped").exists() {
        println!("SKIPPED: no overlayfs here");
    }
}

/// A copy that replaces the folder gets the memory of the killed processes, and is a separate store
/// afterwards.
#[test]
fn copy_in_place_of_the_folder_has_its_commits() {
    let place = Place::new("replaced");
    killed(&place);
    let at = memory(&place.at("one"));
    copy(&place.at("one"), &place.at("aside"));
    fs::rename(place.at("one"), place.at("first")).unwrap();
    fs::rename(place.at("aside"), place.at("one")).unwrap();
    let store = open(place.at("one"));
    let late = store.read(|tx| tx.get(&ROWS, 77_777)).unwrap();
    assert_eq!(late.as_deref(), Some(&b"not on the disk"[..]));
    assert_eq!(sum(&store), COUNT as i64 * EACH);
    store.verify().unwrap();
    assert!(!at.exists(), "the old memory was not removed");
    drop(store);
    // In another mount namespace it may be the copy of a folder that still exists.
    killed(&place);
    let told = fs::read_to_string(place.at("one/region")).unwrap();
    let (head, last) = told.trim_end().rsplit_once('\n').unwrap();
    let [_, data, region, mounts] = *last.split(' ').collect::<Vec<_>>() else { panic!("{told}") };
    let other = mounts.parse::<u64>().unwrap() + 1;
    fs::write(place.at("one/region"), format!("{head}\n1 {data} {region} {other}\n")).unwrap();
    let refused = crate::open::refused(place.at("one"));
    assert!(refused.to_string().contains("forget-memory"), "{refused}");
    // The returned size is that of the removed files.
    let program = memory(&place.at("one"));
    let bytes: u64 =
        fs::read_dir(&program).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(latchwork_store::discard_shared_memory(place.at("one")), Ok(bytes));
    assert!(!program.exists());
}
