//! Memory of stores whose folders are gone, which the next open of any store removes.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use latchwork_store::{MemoryPlace as Memory, Options, Store, discard_abandoned_memory};

use crate::left::{killed_in, memory};
use crate::mounts::{in_namespace, runs};
use crate::stage::{Place, fill, open, options};

fn in_memory() -> Options {
    Options { place: Memory::Memory, ..options() }
}

#[test]
fn writes_in_a_deep_folder_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    fs::create_dir_all(place.at("a/b")).unwrap();
    let store = Store::open_with(place.at("a/b/one"), &in_memory()).unwrap();
    fill(&store, 20);
    fs::write(place.at("ready"), "").unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Kills a process that has a store in the folder; returns the folder of its memory.
fn left(place: &Place) -> PathBuf {
    killed_in(place, "abandoned::writes_in_a_deep_folder_until_it_is_killed");
    let at = memory(&place.at("a/b/one"));
    assert!(at.starts_with("/dev/shm") && at.exists());
    at
}

fn open_another(place: &Place) {
    open(place.at("other")).close().unwrap();
}

#[test]
fn memory_of_a_removed_folder_is_removed_by_the_next_open() {
    let place = Place::new("abandoned");
    for gone in ["a/b/one", "a/b", "a"] {
        let at = left(&place);
        open_another(&place);
        assert!(at.exists(), "memory of an existing folder was removed");
        fs::remove_dir_all(place.at(gone)).unwrap();
        open_another(&place);
        assert!(!at.exists(), "{gone} was removed");
    }
}

/// Exchanges the names of two folders atomically.
fn exchange(place: &Place) {
    let [one, other] = ["a", "unmounted"]
        .map(|name| std::ffi::CString::new(place.at(name).to_str().unwrap()).unwrap());
    let (here, both) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
    // SAFETY: paths that end with a zero byte.
    let done = unsafe { libc::renameat2(here, one.as_ptr(), here, other.as_ptr(), both) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// A folder whose parent is another folder than before may not be mounted.
#[test]
fn memory_of_a_possibly_moved_folder_is_kept() {
    let place = Place::new("elsewhere");
    let at = left(&place);
    fs::create_dir(place.at("unmounted")).unwrap();
    exchange(&place);
    open_another(&place);
    discard_abandoned_memory();
    assert!(at.exists(), "the parent is another folder");
    // An empty folder may be the mount point of the store's disk.
    fs::create_dir_all(place.at("a/b/one")).unwrap();
    discard_abandoned_memory();
    assert!(at.exists(), "the folder exists and is empty");
    // Another store may have the path here.
    fs::remove_dir(place.at("a/b/one")).unwrap();
    open(place.at("a/b/one")).close().unwrap();
    discard_abandoned_memory();
    assert!(at.exists(), "the path belongs to another store");
    exchange(&place);
    in_namespace(&place, "abandoned::opens_a_store_where_the_other_is_hidden");
    assert!(at.exists(), "the folder is in another mount namespace");
    open(place.at("a/b/one")).verify().unwrap();
    assert!(!at.exists());
}

#[test]
fn opens_a_store_where_the_other_is_hidden() {
    let Some(place) = Place::told() else { return };
    let hidden = place.at("a");
    assert!(runs("mount", &["-t", "tmpfs", "none", hidden.to_str().unwrap()]));
    assert!(!place.at("a/b").exists());
    open_another(&place);
    discard_abandoned_memory();
    fs::write(place.at("done"), "").unwrap();
}

#[test]
fn memory_of_a_removed_folder_is_kept_while_a_process_uses_it() {
    let place = Place::new("alive");
    let store = Store::open_with(place.at("one"), &in_memory()).unwrap();
    let at = memory(&place.at("one"));
    fs::remove_dir_all(place.at("one")).unwrap();
    open_another(&place);
    assert!(at.exists());
    drop(store);
    assert!(!at.exists());
}

#[test]
fn returns_with_a_store_in_a_static() {
    static STORE: OnceLock<Store> = OnceLock::new();
    let Some(place) = Place::told() else { return };
    fill(STORE.get_or_init(|| Store::open_with(place.at("one"), &in_memory()).unwrap()), 20);
}

#[test]
fn memory_of_a_store_in_a_static_is_removed_with_its_folder() {
    let place = Place::new("static");
    let test = "abandoned::returns_with_a_store_in_a_static";
    assert!(place.start(test).wait().unwrap().success());
    let at = memory(&place.at("one"));
    fs::remove_dir_all(place.at("one")).unwrap();
    open_another(&place);
    assert!(!at.exists());
}
