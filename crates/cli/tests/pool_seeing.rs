//! `latchwork pool`, while processes use the pool and after their end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use latchwork_disk::System;
use latchwork_machine::Shared;
use latchwork_pool::{FileSpec, Options, Pool};
use latchwork_region::Region;
use serde_json::Value;

/// Files of a test, removed at its end.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("latchwork-pool-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs `latchwork pool`; returns its exit code, stdout and stderr.
fn say(word: &str, region: &Path, more: &[&str]) -> (i32, String, String) {
    let program = env!("CARGO_BIN_EXE_latchwork");
    let mut command = Command::new(program);
    let out = command.args(["pool", word]).arg(region).args(more).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

fn rows(word: &str, region: &Path, more: &[&str]) -> Vec<Value> {
    let (code, out, error) = say(word, region, &[more, &["--json"]].concat());
    assert_eq!(code, 0, "{out}{error}");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A pool of 64 frames at work: 100 pages, 7 free, 42 pinned, 50 dirty, 51 latched. `look` has the
/// region's path, the file's, the thread's slot and the pinned frame.
fn at_work(name: &str, look: impl FnOnce(&Path, &Path, u32, u32)) {
    let files = Files::new(name);
    let path = files.0.join("region");
    let region = Region::<Shared>::open_or_create(&path, &Default::default()).unwrap();
    assert_eq!(say("stat", &path, &[]).0, 2, "there is no pool yet");
    let options = Options { frames: 64, frames_max: 256, frame_bytes: 1024, ..Options::default() };
    let pool = Pool::open(&region, Arc::new(System::new()), &options).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let data = files.0.join("data");
    let spec = FileSpec { page_bytes: 1024, ..FileSpec::new(&data) };
    let file = handle.file(&spec).unwrap();
    for number in 0..100 {
        let mut page = handle.new_page(file).unwrap();
        page.begin(0);
        assert!(page.set(2, 0xbeef_0000 + number));
        page.commit();
    }
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    handle.free_page(file, 7).unwrap();
    let pin = handle.pin(file, 42).unwrap();
    let mut held = handle.write(file, 50).unwrap();
    held.begin(0);
    held.commit();
    let held = handle.write(file, 51).unwrap();
    handle.store_counts();
    look(&path, &data, thread.number(), pin.frame());
    drop(held);
}

#[test]
fn a_pool_is_counted_and_listed() {
    at_work("list", |path, _, slot, _| counted_and_listed(path, slot));
}

fn counted_and_listed(path: &Path, slot: u32) {
    let stat = &rows("stat", path, &[])[0];
    assert_eq!(
        (&stat["frames"], &stat["dirty"], &stat["held"]),
        (&64.into(), &1.into(), &1.into())
    );
    assert_eq!((&stat["pinned"], &stat["counts"]["freed"]), (&1.into(), &1.into()));
    let of = &stat["files"][0];
    assert_eq!(
        (&of["pages"], &of["free"], &of["page_bytes"]),
        (&100.into(), &1.into(), &1024.into())
    );
    // Of 100 pages 64 at most stayed; all were written, and what is in the pool was read there.
    let number = |of: &Value, key: &str| of[key].as_u64().unwrap();
    assert!(number(of, "evicted") >= 36 && number(of, "written") >= 100, "{of}");
    let writes = stat["times"].as_array().unwrap().iter().find(|of| of["of"] == "write").unwrap();
    assert_eq!(number(writes, "count"), number(of, "written"));
    let classes = writes["classes"].as_array().unwrap().iter();
    assert_eq!(classes.map(|class| number(class, "count")).sum::<u64>(), number(of, "written"));
    let (code, text, _) = say("stat", path, &["--histograms"]);
    assert!(code == 0 && text.contains("64 of 1024 bytes") && text.contains("data"), "{text}");
    assert!(text.contains("hits %") && text.contains("\nwrite\n") && text.contains('#'), "{text}");

    assert_eq!(rows("list", path, &["--dirty"])[0]["page"], 50);
    let holder = &rows("list", path, &["--held"])[0];
    assert_eq!((&holder["page"], &holder["holder"]), (&51.into(), &slot.into()));
    assert!(rows("list", path, &["--poisoned"]).is_empty());
    let (_, text, _) = say("list", path, &["--held"]);
    assert!(text.contains(&format!("{}/{}", std::process::id(), slot)), "{text}");

    let counts = rows("top", path, &["--interval", "0.02"]);
    assert!(counts.iter().any(|row| row["count"] == "evicted" && row["sum"].as_u64() >= Some(36)));
    let (code, text, _) = say("top", path, &["--interval", "0.02", "--once"]);
    assert!(code == 0 && text.contains("frames 64") && text.contains("held by"), "{text}");
}

#[test]
fn a_page_is_shown_and_a_damaged_one_named() {
    at_work("page", |path, data, _, pinned| shown_and_named(path, data, pinned));
}

fn shown_and_named(path: &Path, data: &Path, pinned: u32) {
    let page = &rows("page", path, &["42"])[0];
    assert_eq!(
        (&page["words"][2], page["frame"].as_u64()),
        (&(0xbeef_002a_u64.into()), Some(pinned.into()))
    );
    let (_, text, _) = say("page", path, &["42"]);
    assert!(text.contains("00000000beef002a") && text.contains("page 42 of"), "{text}");
    let (code, _, error) = say("page", path, &["100"]);
    assert!(code == 1 && error.contains("which has 100 pages"), "{error}");

    let found = &rows("verify", path, &["--files"])[0];
    assert_eq!((&found["sound"], &found["latched"]), (&true.into(), &1.into()), "{found}");
    assert_eq!(found["read_from_disk"], 98, "all but the free page and the dirty one");
    // A page that is damaged on disk is named.
    let mut bytes = fs::read(data).unwrap();
    bytes[20 * 1024 + 500] ^= 1;
    fs::write(data, bytes).unwrap();
    let (code, text, _) = say("verify", path, &["--files"]);
    assert!(code == 1 && text.contains("page 20 of file 0"), "{text}");
    assert_eq!(say("verify", path, &[]).0, 0, "in memory it is sound");
}
