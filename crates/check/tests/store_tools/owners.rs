//! Files of other users, and files that no longer exist.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use latchwork_store::{
    MemoryPlace as Memory, Options, Refusal, SharedMemoryInfo, Store, discard_abandoned_memory,
    discard_shared_memory, list_shared_memory, salvage,
};

use crate::open::refused;
use crate::stage::{Place, all, fill, open, options, why};

/// A user without files here.
const ANOTHER: u32 = 54_321;

/// Returns whether this process may change owners of files; prints a line if not.
fn may_give(path: &Path) -> bool {
    let may = chown(path, Some(ANOTHER), None).is_ok();
    if may {
        chown(path, Some(0), None).unwrap();
    } else {
        println!("skipped: only root can give files to another user");
    }
    may
}

fn give(path: &Path, to: u32) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), to);
        }
    }
    chown(path, Some(to), None).unwrap();
}

fn memory(of: &Path) -> Option<SharedMemoryInfo> {
    let of_it = |left: &SharedMemoryInfo| left.store.as_deref() == Some(of);
    list_shared_memory().into_iter().filter(of_it).max_by_key(|left| left.processes.len())
}

/// Returns the folder in `/dev/shm` of a store's memory.
fn memory_of(path: &Path) -> PathBuf {
    let in_memory = Options { place: Memory::Memory, ..options() };
    let _store = Store::open_with(path, &in_memory).unwrap();
    memory(path).expect("the store is open").at
}

/// Root may write to another user's store, but the owner could not open the files it would create.
#[test]
fn a_store_of_another_user_is_refused_unchanged() {
    let place = Place::new("another");
    let path = place.at("one");
    let store = open(path.clone());
    fill(&store, 50);
    let records = all(&store);
    drop(store);
    if !may_give(&path) {
        return;
    }
    give(&path, ANOTHER);
    // As extracted from an archive.
    fs::remove_file(path.join("opening")).unwrap();
    let told = refused(&path);
    assert_eq!(told, Refusal::ForeignOwner { owner: ANOTHER });
    assert!(told.to_string().contains("user 54321"), "{told}");
    assert!(!path.join("opening").exists());
    // A tool that only reads has to lock the store.
    let told = why(salvage(&path, place.at("copy")).map(drop).unwrap_err());
    assert_eq!(told, Refusal::ForeignOwner { owner: ANOTHER });
    assert!(!path.join("opening").exists());
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().uid(), ANOTHER, "{}", entry.path().display());
    }
    give(&path, 0);
    assert_eq!(all(&open(path.clone())), records);
}

/// No user can occupy the name of a store's memory: each memory has a random name.
#[test]
fn each_memory_has_a_new_name() {
    let place = Place::new("squat");
    let path = place.at("one");
    let at = memory_of(&path);
    fs::create_dir(&at).unwrap();
    fs::write(at.join("theirs"), "").unwrap();
    fs::write(at.join("store"), format!("{}\n", path.display())).unwrap();
    if may_give(&at) {
        give(&at, ANOTHER);
        assert_ne!(memory_of(&path), at);
        assert_eq!(discard_shared_memory(&path), Ok(0));
        assert!(at.join("theirs").exists());
    }
    fs::remove_dir_all(&at).unwrap();
}

/// A process may be killed before its store records where the memory is.
#[test]
fn unreferenced_memory_is_removed_by_its_path() {
    let place = Place::new("unnamed");
    let path = place.at("one");
    drop(open(path.clone()));
    let at = memory_of(&path);
    fs::create_dir(&at).unwrap();
    fs::write(at.join("store"), format!("{}\n", path.display())).unwrap();
    assert!(discard_shared_memory(&path).unwrap() > 0);
    assert!(!at.exists());
    assert_eq!(discard_shared_memory(&path), Ok(0));
}

/// If a store's record of its memory is damaged, the memory may still be needed.
#[test]
fn memory_of_an_unreadable_store_is_kept() {
    let place = Place::new("untold");
    let path = place.at("one");
    let at = memory_of(&path);
    drop(open(path.clone()));
    fs::create_dir(&at).unwrap();
    fs::write(at.join("store"), format!("{}\n", path.display())).unwrap();
    fs::write(path.join("region"), "cut").unwrap();
    assert!(memory(&path).unwrap().needed);
    discard_abandoned_memory();
    assert!(at.exists());
    assert!(discard_shared_memory(&path).is_ok() && !at.exists(), "named by its path");
}

/// A folder may be removed before the last process has closed the store.
#[test]
fn the_memory_of_a_removed_folder_is_removed_by_its_last_process() {
    let place = Place::new("removed");
    let path = place.at("one");
    let in_memory = Options { place: Memory::Memory, ..options() };
    let [one, two] = [(); 2].map(|()| Store::open_with(&path, &in_memory).unwrap());
    fill(&one, 20);
    let at = memory(&path).expect("the store is open").at;
    fs::remove_dir_all(&path).unwrap();
    drop(one);
    assert!(at.exists(), "the other process has it open");
    drop(two);
    assert!(!at.exists());
    // A store whose files were moved to another folder still has it.
    let store = Store::open_with(&path, &in_memory).unwrap();
    let at = memory(&path).expect("the store is open").at;
    fs::create_dir(place.at("moved")).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        fs::rename(entry.path(), place.at("moved").join(entry.file_name())).unwrap();
    }
    fs::remove_dir(&path).unwrap();
    drop(store);
    assert!(at.exists());
}

/// A store without its identity file is reported as damaged, not as missing.
#[test]
fn a_lost_identity_is_an_error() {
    let place = Place::new("identity");
    let path = place.at("one");
    let store = open(path.clone());
    fill(&store, 20);
    drop(store);
    fs::remove_file(path.join("identity")).unwrap();
    for create in [true, false] {
        let told = why(Store::open_with(&path, &Options { create, ..options() }).unwrap_err());
        assert!(matches!(told, Refusal::Damaged { file: "identity", .. }), "{told}");
        assert!(told.to_string().contains("salvage"), "{told}");
    }
    let told = why(discard_shared_memory(&path).unwrap_err());
    assert!(matches!(told, Refusal::Damaged { file: "identity", .. }), "{told}");
}
