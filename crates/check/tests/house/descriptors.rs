//! Files are opened in one place, which gives none of them a standard descriptor.

use std::collections::BTreeSet;

use crate::sources::{files, read, root, short};

/// The place.
const OPENER: &str = "crates/machine/src/descriptor.rs";

/// The crates that are linked into programs of users.
const CRATES: [&str; 12] = [
    "machine",
    "latch",
    "region",
    "disk",
    "pool",
    "log",
    "lockmgr",
    "tree",
    "store",
    "profile",
    "interpose",
    "latchwork",
];

/// Calls that give a process a descriptor. Read-only listings and small reads that close the file
/// at once (`read_dir`, `fs::read_to_string`) keep none.
const RAW: [&str; 16] = [
    "File::open(",
    "File::create(",
    "File::create_new(",
    "File::options(",
    "OpenOptions",
    "fs::open(",
    "openat(",
    "libc::open",
    "memfd_create",
    "eventfd(",
    "timerfd_create",
    "epoll::",
    "pidfd_open",
    "pipe(",
    "try_clone",
    "::socket(",
];

/// The product's part of a source: tests of its own come behind it.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

#[test]
fn files_are_opened_in_one_place() {
    let mut found = BTreeSet::new();
    for name in CRATES {
        for path in files(&root().join("crates").join(name).join("src"), ".rs") {
            let text = read(&path);
            for line in product(&text).lines().filter(|line| !line.trim_start().starts_with("//")) {
                let raw = RAW.iter().find(|raw| line.contains(**raw));
                if let Some(raw) = raw.filter(|_| short(&path) != OPENER) {
                    found.insert(format!("{}: {raw}", short(&path)));
                }
            }
        }
    }
    assert!(found.is_empty(), "open these by `latchwork_machine::open`: {found:#?}");
}
