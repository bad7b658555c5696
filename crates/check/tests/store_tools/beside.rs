//! Shared memory in the store's folder.

use std::fs;
use std::time::Duration;

use latchwork_store::{Error, Options, Refusal, Store, discard_shared_memory};

use crate::left::killed_in;
use crate::stage::{COUNT, EACH, Place, copy, fill, options, sum, why};

fn beside() -> Options {
    let mut beside = options();
    beside.place = latchwork_store::MemoryPlace::Folder;
    beside
}

fn opened(place: &Place) -> Result<Store, Error> {
    Store::open_with(place.at("one"), &beside())
}

/// A process that leaves its memory.
#[test]
fn writes_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    let store = opened(&place).unwrap();
    fill(&store, 100);
    fs::write(place.at("ready"), "").unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn killed(place: &Place) {
    killed_in(place, "beside::writes_until_it_is_killed");
    assert!(place.at("one/memory/region").exists());
}

/// A copy of memory that was made while it changed is never joined, wherever it is.
#[test]
fn a_copy_in_the_place_of_memory_is_not_joined() {
    let place = Place::new("copied");
    for part in ["one", "one/memory"] {
        killed(&place);
        assert_eq!(sum(&opened(&place).unwrap()), COUNT as i64 * EACH, "the original is joined");
        killed(&place);
        copy(&place.at(part), &place.at("aside"));
        fs::remove_dir_all(place.at(part)).unwrap();
        fs::rename(place.at("aside"), place.at(part)).unwrap();
        for _ in 0..2 {
            let refused = why(opened(&place).map(drop).unwrap_err());
            assert!(matches!(refused, Refusal::Damaged { file: "region", .. }), "{refused}");
            assert!(refused.to_string().contains("forget-memory"), "{refused}");
        }
        discard_shared_memory(place.at("one")).unwrap();
        assert_eq!(sum(&opened(&place).unwrap()), COUNT as i64 * EACH);
    }
}

/// A user's file in the folder of the memory is kept, by the close of the store and by discarding
/// the memory.
#[test]
fn files_of_a_user_in_the_folder_are_kept() {
    let place = Place::new("notes");
    let notes = place.at("one/memory/region.notes");
    let theirs = Refusal::NotMemory { name: "region.notes".into() };
    for dies in [false, true] {
        let store = match dies {
            true => {
                killed(&place);
                None
            }
            false => Some(opened(&place).unwrap()),
        };
        fs::write(&notes, "kept").unwrap();
        match store {
            Some(store) => drop(store),
            None => {
                let refused = why(discard_shared_memory(place.at("one")).unwrap_err());
                assert_eq!(refused, theirs);
            }
        }
        let refused = opened(&place).map(drop).unwrap_err();
        assert_eq!(why(refused.clone()), theirs);
        assert!(refused.to_string().contains("one/memory: "), "{refused}");
        assert_eq!(fs::read(&notes).unwrap(), b"kept");
        fs::remove_file(&notes).unwrap();
        opened(&place).unwrap();
    }
}
