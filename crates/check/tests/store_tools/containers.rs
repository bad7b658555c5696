//! Two containers that share a volume: processes with separate process numbers that share one
//! `/dev/shm` or have one each.

use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

use latchwork_store::{MemoryPlace as Memory, Options, Refusal, Store};

use crate::stage::{ACCOUNTS, Place, options, why};

/// A process in a container: opens the store, writes its row, and waits for the order to continue.
#[test]
fn contained() {
    let Some(place) = Place::told() else { return };
    let Ok(role) = std::env::var("LATCHWORK_CONTAINER") else { return };
    let memory = if role.contains("beside") { Memory::Folder } else { Memory::Auto };
    let opened = Store::open_with(place.at("one"), &Options { place: memory, ..options() });
    let me = u64::from(role.starts_with("second"));
    let store = match opened {
        Ok(store) => store,
        Err(refused) => {
            assert_eq!(why(refused), Refusal::OtherNamespace);
            return fs::write(place.at(&format!("refused-{me}")), "").unwrap();
        }
    };
    store.put(&ACCOUNTS, me, 10).unwrap();
    let mut open = store.begin().unwrap();
    open.put(&ACCOUNTS, 7, me as i64).unwrap();
    fs::write(place.at(&format!("ready-{me}")), "").unwrap();
    if me == 1 {
        wait_for(&place, "never");
    }
    open.roll_back().unwrap();
    wait_for(&place, "go");
    // The row that the killed process of the other container had locked.
    store.put(&ACCOUNTS, 7, 70).unwrap();
    assert_eq!(store.get(&ACCOUNTS, 1), Ok(Some(10)));
    store.close().unwrap();
    fs::write(place.at("done"), "").unwrap();
}

fn wait_for(place: &Place, name: &str) {
    while !place.at(name).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a process in its own namespaces, with its own `/dev/shm` unless it is shared.
fn start(place: &Place, role: &str, shared: bool) -> Child {
    let mount = if shared { "true" } else { "mount -t tmpfs none /dev/shm" };
    // The process that `unshare` starts dies with it.
    let line = format!(
        "export LATCHWORK_CONTAINER={role}; exec unshare -m -p -f --kill-child --mount-proc sh -c \
         '{mount} && exec \"$0\" \"$@\"' \"$0\" \"$@\""
    );
    place.start_by(&line, "containers::contained")
}

fn can_unshare() -> bool {
    let tried = Command::new("unshare").args(["-m", "-p", "-f", "true"]).status();
    tried.is_ok_and(|status| status.success())
}

fn two(shared: bool, how: &str) -> Option<Place> {
    if !can_unshare() {
        println!("SKIPPED: namespaces cannot be made here");
        return None;
    }
    let place = Place::new("containers");
    let mut first = start(&place, &format!("first-{how}"), shared);
    wait_for(&place, "ready-0");
    let mut second = start(&place, &format!("second-{how}"), shared);
    while !place.at("ready-1").exists() && !place.at("refused-1").exists() {
        assert!(second.try_wait().unwrap().is_none_or(|end| end.success()));
        std::thread::sleep(Duration::from_millis(1));
    }
    let was_refused = place.at("refused-1").exists();
    second.kill().unwrap();
    second.wait().unwrap();
    if !was_refused {
        fs::write(place.at("go"), "").unwrap();
        wait_for(&place, "done");
    }
    first.kill().unwrap();
    first.wait().unwrap();
    Some(place)
}

#[test]
fn containers_with_one_shm_share_a_store() {
    let Some(place) = two(true, "auto") else { return };
    assert!(place.at("done").exists());
}

#[test]
fn containers_with_memory_in_the_volume_share_a_store() {
    let Some(place) = two(false, "beside") else { return };
    assert!(place.at("done").exists());
}

#[test]
fn a_container_that_does_not_see_the_memory_is_refused() {
    let Some(place) = two(false, "auto") else { return };
    assert!(place.at("refused-1").exists());
}
