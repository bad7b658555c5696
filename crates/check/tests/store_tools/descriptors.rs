//! A program that has closed its standard descriptors.

use std::fs;

use crate::stage::{Place, ROWS, fill, open};

/// The files behind the standard descriptors.
fn standard() -> Vec<String> {
    (0..3)
        .filter_map(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).ok())
        .map(|path| path.display().to_string())
        .collect()
}

#[test]
fn writes_to_standard_error_beside_a_store() {
    let Some(place) = Place::told() else { return };
    // SAFETY: no code in this process uses them from here on.
    (0..3).for_each(|fd| assert_eq!(unsafe { libc::close(fd) }, 0));
    let speak = || {
        // A message as long as a page, from a program that does not know its output is closed.
        let message = [b'x'; 8192];
        for fd in 0..3 {
            // SAFETY: the bytes outlive the call.
            assert_eq!(unsafe { libc::write(fd, message.as_ptr().cast(), message.len()) }, -1);
        }
    };
    let store = open(place.at("one"));
    fs::write(place.at("open"), standard().join("\n")).unwrap();
    speak();
    // Enough to create segments and to reopen files.
    fill(&store, 2000);
    speak();
    store.backup(place.at("copy"), &mut |_| speak()).unwrap();
    store.checkpoint().unwrap();
    speak();
    store.verify().unwrap();
    fs::write(place.at("later"), standard().join("\n")).unwrap();
    store.close().unwrap();
    speak();
    for name in ["one", "copy"] {
        let store = open(place.at(name));
        store.verify().unwrap();
        assert!(store.get(&ROWS, 1999).unwrap().is_some());
    }
    fs::write(place.at("done"), "").unwrap();
}

/// No file of a store is ever opened as a standard descriptor.
#[test]
fn store_survives_messages_on_closed_standard_descriptors() {
    let place = Place::new("standard");
    let test = "descriptors::writes_to_standard_error_beside_a_store";
    let ended = place.start(test).wait().unwrap();
    for name in ["open", "later"] {
        assert_eq!(fs::read_to_string(place.at(name)).unwrap_or_default(), "");
    }
    assert!(place.at("done").exists(), "{ended}");
}
