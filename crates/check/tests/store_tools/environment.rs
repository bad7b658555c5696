//! Systems without `/proc`, or without the right to create folders in `/dev/shm`.

use std::fs;
use std::time::Duration;

use latchwork_store::{MemoryPlace as Memory, Options, Refusal, Store};

use crate::left::{killed_in, memory};
use crate::mounts::{in_namespace, mount_ext4, runs};
use crate::stage::{Place, ROWS, fill, open, options, why};

#[test]
fn opens_a_store_without_proc() {
    let Some(place) = Place::told() else { return };
    assert!(runs("umount", &["-l", "/proc"]));
    assert!(!fs::exists("/proc/self").unwrap());
    for where_to in [Memory::Memory, Memory::Folder] {
        let options = Options { place: where_to, ..options() };
        let store = Store::open_with(place.at("one"), &options).unwrap();
        let other = Store::open_with(place.at("one"), &options).unwrap();
        fill(&store, 50);
        assert!(other.get(&ROWS, 49).unwrap().is_some());
        other.close().unwrap();
        store.close().unwrap();
    }
    // Memory left by a process that had `/proc`.
    open(place.at("two")).verify().unwrap();
    fs::write(place.at("done"), "").unwrap();
}

#[test]
fn writes_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    fill(Box::leak(Box::new(open(place.at("two")))), 20);
    fs::write(place.at("ready"), "").unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn store_needs_no_proc() {
    let place = Place::new("proc");
    killed_in(&place, "environment::writes_until_it_is_killed");
    in_namespace(&place, "environment::opens_a_store_without_proc");
}

#[test]
fn opens_a_store_where_shm_denies_folders() {
    let Some(place) = Place::told() else { return };
    // The file system has room; only creating a folder fails.
    let shm = place.at("shm");
    assert!(mount_ext4(1 << 30, 4096, &shm));
    if !runs("chattr", &["+i", shm.to_str().unwrap()]) {
        println!("SKIPPED: no way to deny folders");
        return fs::write(place.at("done"), "").unwrap();
    }
    assert!(runs("mount", &["--bind", shm.to_str().unwrap(), "/dev/shm"]));
    assert!(fs::create_dir("/dev/shm/any").is_err());
    let store = open(place.at("one"));
    fill(&store, 50);
    assert_eq!(memory(&place.at("one")), place.at("one/memory"));
    let other = open(place.at("one"));
    assert!(other.get(&ROWS, 49).unwrap().is_some());
    other.close().unwrap();
    store.close().unwrap();
    // With memory required in `/dev/shm`, the open fails.
    let only = Options { place: Memory::Memory, ..options() };
    let refused = why(Store::open_with(place.at("one"), &only).map(drop).unwrap_err());
    assert_eq!(refused, Refusal::Permission);
    open(place.at("one")).verify().unwrap();
    fs::write(place.at("done"), "").unwrap();
}

#[test]
fn memory_is_next_to_the_data_where_shm_denies_folders() {
    let place = Place::new("denied");
    in_namespace(&place, "environment::opens_a_store_where_shm_denies_folders");
}
