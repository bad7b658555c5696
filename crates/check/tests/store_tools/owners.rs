//! What belongs to other users, or is not there any more.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use latchwork_store::{
    MemoryPlace as Memory, Options, Refusal, SharedMemoryInfo, Store, discard_abandoned_memory,
    discard_shared_memory, list_shared_memory, salvage,
};

use crate::open::refused;
use crate::stage::{Place, all, fill, open, options, why};

/// A user that has nothing here.
const ANOTHER: u32 = 54_321;

/// Whether this process may give files away; says so if it may not.
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

/// Where the memory of a store lies in `/dev/shm` while it is open.
fn memory_of(path: &Path) -> PathBuf {
    let in_memory = Options { place: Memory::Memory, ..options() };
    let _store = Store::open_with(path, &in_memory).unwrap();
    memory(path).expect("it is open").at
}

/// Root may write the store of another user; but what it made there that one could not open.
#[test]
fn a_store_of_another_user_is_left_alone() {
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
    // As an archive has it.
    fs::remove_file(path.join("opening")).unwrap();
    let told = refused(&path);
    assert_eq!(told, Refusal::ForeignOwner { owner: ANOTHER });
    assert!(told.to_string().contains("user 54321"), "{told}");
    assert!(!path.join("opening").exists());
    // What only reads has to lock it.
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

/// No user can take the name of a store's memory before it is made: each has a name of its own.
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

/// A process may be killed before its store says where the memory is.
#[test]
fn memory_that_no_store_names_is_forgotten_by_its_path() {
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

/// What a store says of its memory may be damaged: then it is not known that nobody needs that.
#[test]
fn memory_is_kept_that_its_store_cannot_tell_of() {
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
    assert!(discard_shared_memory(&path).is_ok() && !at.exists(), "its path was said");
}

/// A folder may be removed before the last process has closed the store.
#[test]
fn the_memory_of_a_removed_folder_goes_with_its_last_process() {
    let place = Place::new("removed");
    let path = place.at("one");
    let in_memory = Options { place: Memory::Memory, ..options() };
    let [one, two] = [(); 2].map(|()| Store::open_with(&path, &in_memory).unwrap());
    fill(&one, 20);
    let at = memory(&path).expect("it is open").at;
    fs::remove_dir_all(&path).unwrap();
    drop(one);
    assert!(at.exists(), "the other one has it open");
    drop(two);
    assert!(!at.exists());
    // One whose files were moved to another folder has it still.
    let store = Store::open_with(&path, &in_memory).unwrap();
    let at = memory(&path).expect("it is open").at;
    fs::create_dir(place.at("moved")).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        fs::rename(entry.path(), place.at("moved").join(entry.file_name())).unwrap();
    }
    fs::remove_dir(&path).unwrap();
    drop(store);
    assert!(at.exists());
}

/// A store that has lost the file by which it is known is not told to be none.
#[test]
fn a_lost_identity_is_told() {
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
