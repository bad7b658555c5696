//! A store shared by the members of a group: processes of several users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use latchwork_store::{Error, Refusal, Store};

use crate::stage::{ACCOUNTS, Place, options, why};

const GROUP: u32 = 13_000;

/// Waits until a file of this name exists.
fn wait_for(place: &Place, name: &str) {
    while !place.at(name).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn open(place: &Place) -> Result<Store, Error> {
    Store::open_with(place.at("one"), &options())
}

/// The first member's process.
#[test]
fn first_member() {
    let Some(place) = Place::told() else { return };
    let store = open(&place).unwrap();
    store.put(&ACCOUNTS, 1, 1).unwrap();
    fs::write(place.at("first-is-ready"), "").unwrap();
    wait_for(&place, "second-is-dead");
    // Locks and an open transaction of a killed process of another user must be removed first.
    assert_eq!(store.get(&ACCOUNTS, 2), Ok(Some(2)));
    store.put(&ACCOUNTS, 3, 30).unwrap();
    assert_eq!(store.get(&ACCOUNTS, 3), Ok(Some(30)));
    assert!(store.close().unwrap());
}

/// The second member's process, until it is killed.
#[test]
fn second_member() {
    let Some(place) = Place::told() else { return };
    let store = open(&place).unwrap();
    assert_eq!(store.get(&ACCOUNTS, 1), Ok(Some(1)));
    store.put(&ACCOUNTS, 2, 2).unwrap();
    let mut open = store.begin().unwrap();
    open.put(&ACCOUNTS, 3, 3).unwrap();
    fs::write(place.at("second-is-ready"), "").unwrap();
    wait_for(&place, "never");
}

/// A member's process that opens the store after it was closed.
#[test]
fn last_member() {
    let Some(place) = Place::told() else { return };
    let store = open(&place).unwrap();
    assert_eq!([1, 2, 3].map(|key| store.get(&ACCOUNTS, key)), [1, 2, 30].map(|n| Ok(Some(n))));
    for round in 0..3000 {
        store.put(&ACCOUNTS, round, 7).unwrap();
    }
    store.close().unwrap();
}

/// A user outside the group.
#[test]
fn stranger() {
    let Some(place) = Place::told() else { return };
    let refused = why(open(&place).map(drop).unwrap_err());
    assert!(matches!(refused, Refusal::Permission | Refusal::ForeignOwner { .. }), "{refused}");
}

/// Starts this program as another user, with the group as the only supplementary group or with
/// none.
fn start(place: &Place, user: u32, groups: &str, test: &str) -> Child {
    let line =
        format!("umask 077; exec setpriv --reuid={user} --regid={user} {groups} \"$0\" \"$@\"");
    place.start_by(&line, test)
}

fn mode(path: &Path) -> (u32, u32) {
    let about = fs::metadata(path).unwrap();
    (about.mode() & 0o7777, about.gid())
}

#[test]
fn members_of_a_group_share_a_store() {
    let setpriv = Command::new("setpriv").arg("--version").output().is_ok();
    // SAFETY: the call only reads the user id.
    if !setpriv || unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED: processes of other users need root and setpriv");
        return;
    }
    let place = Place::new("group");
    fs::set_permissions(&place.path, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::create_dir(place.at("one")).unwrap();
    chown(place.at("one"), Some(0), Some(GROUP)).unwrap();
    fs::set_permissions(place.at("one"), fs::Permissions::from_mode(0o2770)).unwrap();
    let group = format!("--groups={GROUP}");
    let mut first = start(&place, 12_001, &group, "group::first_member");
    wait_for(&place, "first-is-ready");
    let mut second = start(&place, 12_002, &group, "group::second_member");
    wait_for(&place, "second-is-ready");
    for name in ["data", "live", "opening", "log/control", "memory/region"] {
        assert_eq!(mode(&place.at("one").join(name)), (0o660, GROUP), "{name}");
    }
    assert_eq!(mode(&place.at("one/memory")), (0o2770, GROUP));
    let mut stranger = start(&place, 12_003, "--clear-groups", "group::stranger");
    assert!(stranger.wait().unwrap().success());
    second.kill().unwrap();
    second.wait().unwrap();
    fs::write(place.at("second-is-dead"), "").unwrap();
    assert!(first.wait().unwrap().success());
    assert!(!place.at("one/memory").exists(), "the last process must remove the memory");
    let mut last = start(&place, 12_002, &group, "group::last_member");
    assert!(last.wait().unwrap().success());
}
