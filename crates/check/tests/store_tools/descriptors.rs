//! A program whose standard descriptors are closed.

use std::fs;

use crate::stage::{Place, ROWS, fill, open};

/// The standard descriptors that lead to a file.
fn standard() -> Vec<String> {
    (0..3)
        .filter_map(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).ok())
        .map(|path| path.display().to_string())
        .collect()
}

#[test]
fn writes_to_standard_error_beside_a_store() {
    let Some(place) = Place::told() else { return };
    // SAFETY: nothing in this process needs them from here on.
    (0..3).for_each(|fd| assert_eq!(unsafe { libc::close(fd) }, 0));
    let speak = || {
        // A message as long as a page, of a program that does not know that it is not heard.
        let message = [b'x'; 8192];
        for fd in 0..3 {
            // SAFETY: the bytes outlive the call.
            assert_eq!(unsafe { libc::write(fd, message.as_ptr().cast(), message.len()) }, -1);
        }
    };
    let store = open(place.at("one"));
    fs::write(place.at("open"), standard().join("\n")).unwrap();
    speak();
    // Enough for segments that are made, and files that are opened again.
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

/// No file of a store is ever behind a standard descriptor.
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
