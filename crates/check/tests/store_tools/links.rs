//! Copies of a store's folder made of hard links.

use std::fs;
use std::path::Path;

use latchwork_store::{Mode, Refusal, Store};

use crate::open::refused;
use crate::stage::{Place, ROWS, all, copy, fill, open, options};

/// Copies a folder as `cp -al` does.
fn link(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => link(&entry.path(), &to),
            false => fs::hard_link(entry.path(), to).unwrap(),
        }
    }
}

/// The bytes of all files below a folder.
fn bytes(at: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(at).unwrap().map(Result::unwrap) {
        match entry.path().is_dir() {
            true => found.extend(bytes(&entry.path())),
            false => found.push((entry.path(), fs::read(entry.path()).unwrap())),
        }
    }
    found.sort();
    found
}

#[test]
fn folder_of_hard_links_is_refused() {
    let place = Place::new("links");
    let (one, linked) = (place.at("one"), place.at("linked"));
    let store = open(one.clone());
    fill(&store, 300);
    let records = all(&store);
    drop(store);
    link(&one, &linked);
    let before = bytes(&linked);
    for folder in [&one, &linked] {
        let why = refused(folder);
        assert!(matches!(&why, Refusal::HardLinked { names: 2, .. }), "{why}");
        let text = why.to_string();
        assert!(text.contains("cp -r --reflink=auto") && text.contains("`identity`"), "{text}");
    }
    assert_eq!(bytes(&linked), before, "the refusal wrote");
    // The advice in the error works, and both stores are complete.
    copy(&linked, &place.at("copy"));
    assert_eq!(all(&open(place.at("copy"))), records);
    fs::remove_dir_all(&linked).unwrap();
    assert_eq!(all(&open(one.clone())), records);
    // Every file of a store counts, and no other file.
    for name in ["data", "log/control", "log/0000000000000000", "opening", "live"] {
        fs::hard_link(one.join(name), place.at("name")).unwrap();
        let why = refused(&one);
        assert!(
            matches!(&why, Refusal::HardLinked { file, .. } if *file == Path::new(name)),
            "{why}"
        );
        fs::remove_file(place.at("name")).unwrap();
    }
    fs::write(place.at("notes"), "").unwrap();
    fs::hard_link(place.at("notes"), one.join("notes")).unwrap();
    assert_eq!(all(&open(one)), records);
}

/// A segment of the log with a second link is not reused as the next segment.
#[test]
fn spare_segment_with_another_name_is_not_reused() {
    let place = Place::new("spare");
    let one = place.at("one");
    let mut options = options();
    options.sizes.log_budget = 1 << 20;
    options.sizes.history = 1 << 20;
    options.sizes.mode = Mode::None;
    let store = Store::open_with(&one, &options).unwrap();
    let spares = || {
        let log = fs::read_dir(one.join("log")).unwrap().map(|entry| entry.unwrap().path());
        let spare = |path: &std::path::PathBuf| path.display().to_string().contains("spare-");
        log.filter(spare).collect::<Vec<_>>()
    };
    let segment = |round: u64| {
        let put = |row: u64| store.put(&ROWS, row % 50, &[round as u8; 2000]);
        (0..).take_while(|_| store.log_end() < (round + 1) << 20).try_for_each(put).unwrap();
        store.checkpoint().unwrap();
    };
    let mut round = 1;
    while spares().is_empty() {
        segment(round);
        round += 1;
        assert!(round < 20, "no spare segment");
    }
    link(&one.join("log"), &place.at("log"));
    let before = bytes(&place.at("log"));
    let spare =
        |(path, _): &&(std::path::PathBuf, Vec<u8>)| path.display().to_string().contains("spare-");
    (0..4).for_each(|more| segment(round + more));
    let after = bytes(&place.at("log"));
    assert!(before.iter().any(|file| spare(&file)));
    assert!(before.iter().filter(spare).eq(after.iter().filter(spare)), "a copy's segment changed");
    store.verify().unwrap();
}
