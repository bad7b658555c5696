//! `locks deadlocks`, the drawing of `locks graph`, and the counts of `locks stat`.

mod said;

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use latchwork_lockmgr::granular::{IX, S, X, modes};
use latchwork_lockmgr::{Manager, Options, Owner, OwnerOptions, Session, Step, Wait};
use latchwork_machine::Shared;
use latchwork_region::Region;
use said::{done, locks, rows, text};

/// Files of a test, removed at its end.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("latchwork-see-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A manager in which deadlocks are detected only on request.
fn manager(file: &str) -> Manager<Shared> {
    let options = latchwork_region::Options { limit: 1 << 30, ..Default::default() };
    let region = Region::<Shared>::create(Path::new(file), &options).unwrap();
    let calm = Options { detect_after: Duration::from_secs(3600), ..Options::default() };
    Manager::new(region, modes(), calm).unwrap()
}

fn owner<'s>(session: &'s Session<Shared>, label: &str) -> Owner<'s, Shared> {
    session.owner_with(&OwnerOptions { label, ..OwnerOptions::default() }).unwrap()
}

/// Owners that wait for each other, and another owner that waits for one of them.
fn cycle<'s>(session: &'s Session<Shared>, n: usize) -> Vec<Owner<'s, Shared>> {
    let labels = ["<one> & \"two\"", "\u{1b}[31mred", "three", "four", "five"];
    let name = |at: usize| format!("page\n{}", at % n).into_bytes();
    let owners: Vec<_> = (0..n).map(|at| owner(session, labels[at])).collect();
    for (at, owner) in owners.iter().enumerate() {
        owner.lock(&name(at), S).unwrap();
    }
    for (at, owner) in owners.iter().enumerate() {
        assert_eq!(owner.request(&name(at + 1), X, Wait::Detect), Ok(Step::Waiting));
    }
    owners
}

#[test]
fn a_deadlock_is_shown_while_the_region_lives_and_after() {
    let files = Files::new("deadlocks");
    let (file, svg) = (files.at("locks.region"), files.at("cycle.svg"));
    let manager = manager(&file);
    assert_eq!(done(&["deadlocks", &file]), "no deadlocks\n");
    assert_eq!(locks(&["deadlocks", &file, "--svg", &svg]).status.code(), Some(2));
    let session = manager.session().unwrap();
    for n in [2, 3] {
        let owners = cycle(&session, n);
        assert_eq!(session.detect(), Ok(1));
        drop(owners);
    }
    let check = || {
        let found = rows(&["deadlocks", &file]);
        assert_eq!(found.len(), 2);
        let last = &found[1];
        assert_eq!((&last["number"], &last["owners"]), (&2.into(), &3.into()));
        let cycle = last["cycle"].as_array().unwrap();
        assert_eq!((cycle.len(), &cycle[0]["owner"]), (3, &last["victim"]));
        for (at, waiter) in cycle.iter().enumerate() {
            assert_eq!((&waiter["wanted"], &waiter["hard"]), (&"X".into(), &true.into()));
            assert_eq!(waiter["pid"], std::process::id());
            // Each owner waits for the page that the next one holds, which has that owner's number.
            let pages = ["page\\x0a0", "page\\x0a1", "page\\x0a2"];
            let of = |label: &str| match label {
                "three" => 2,
                label => usize::from(label.contains("red")),
            };
            let next = of(cycle[(at + 1) % 3]["label"].as_str().unwrap());
            assert_eq!(waiter["object"], pages[next]);
        }
        let said = done(&["deadlocks", &file]);
        assert!(said.contains("VICTIM") && said.contains("deadlock 2: 20"), "{said}");
        assert!(
            !said.contains('\u{1b}') && said.ends_with("2 since the region was made, 2 shown\n")
        );
        for line in said.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        assert!(!done(&["deadlocks", &file, "--last", "1"]).contains("deadlock 1:"));
        done(&["deadlocks", &file, "--svg", &svg]);
        let drawn = fs::read_to_string(&svg).unwrap();
        assert_eq!(drawn.matches("VICTIM").count(), 1);
        assert!(drawn.contains("&lt;one&gt; &amp; &quot;two&quot;") && !drawn.contains('\u{1b}'));
        assert_eq!(rows(&["verify", &file])[0]["sound"], true);
    };
    check();
    drop(session);
    drop(manager);
    let before = fs::read(&file).unwrap();
    check();
    assert!(before == fs::read(&file).unwrap(), "looking has changed the file");
}

#[test]
fn invalid_bytes_are_left_out() {
    let files = Files::new("bytes");
    let file = files.at("locks.region");
    let manager = manager(&file);
    let session = manager.session().unwrap();
    drop(cycle(&session, 3).iter().map(|_| session.detect().unwrap()).collect::<Vec<_>>());
    drop(session);
    drop(manager);
    assert_eq!(rows(&["deadlocks", &file]).len(), 1);
    // The label of the record's third link occurs once; the words before it have its length.
    let mut bytes = fs::read(&file).unwrap();
    let record = bytes.windows(8).rposition(|window| window == b"three\0\0\0").unwrap();
    for at in [record - 16, record - 24] {
        bytes[at..at + 8].fill(0xff);
    }
    fs::write(&file, bytes).unwrap();
    assert_eq!(rows(&["deadlocks", &file]).len(), 0);
}

#[test]
fn a_cycle_is_drawn_with_heavy_strokes() {
    let files = Files::new("cycle");
    let (file, svg) = (files.at("locks.region"), files.at("waits.svg"));
    let manager = manager(&file);
    let session = manager.session().unwrap();
    let owners = cycle(&session, 3);
    let outside = owner(&session, "outside");
    assert_eq!(outside.request(b"page\n0", IX, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(done(&["graph", &file, "--svg", &svg]), "");
    let drawn = fs::read_to_string(&svg).unwrap();
    let count = |what: &str| drawn.matches(what).count();
    assert_eq!(count(">CYCLE</text>"), 3);
    let line = "fill=\"none\" stroke=\"black\" stroke-width=";
    // The owner outside the cycle waits for the holder of the page, and for an earlier request.
    assert_eq!((count(&format!("{line}\"3\"")), count(&format!("{line}\"1\""))), (3, 2));
    assert_eq!(count("rx=\"4\""), 4);
    assert!(drawn.contains("wants page\\x0a0 in IX"), "{drawn}");
    // Black on white, and nothing else.
    for part in drawn.split("fill=\"").chain(drawn.split("stroke=\"")).skip(1) {
        let colour = part.split('"').next().unwrap();
        assert!(matches!(colour, "black" | "white" | "none") || part.starts_with('<'), "{colour}");
    }
    assert!(rows(&["graph", &file]).iter().filter(|edge| edge["cycle"] == true).count() == 3);
    drop((owners, outside));
    done(&["graph", &file, "--svg", &svg]);
    assert!(fs::read_to_string(&svg).unwrap().contains("nobody waits"));
    let nowhere = files.at("no/such/folder.svg");
    let output = locks(&["graph", &file, "--svg", &nowhere]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("folder.svg"));
}

#[test]
fn many_waiters_are_drawn_in_part() {
    let files = Files::new("many");
    let (file, svg) = (files.at("locks.region"), files.at("waits.svg"));
    let manager = manager(&file);
    let session = manager.session().unwrap();
    let holder = owner(&session, "holder");
    holder.lock(b"hot", X).unwrap();
    let waiters: Vec<_> = (0..300).map(|_| owner(&session, "waiter")).collect();
    for waiter in &waiters {
        assert_eq!(waiter.request(b"hot", S, Wait::Detect), Ok(Step::Waiting));
    }
    done(&["graph", &file, "--svg", &svg]);
    let drawn = fs::read_to_string(&svg).unwrap();
    assert_eq!(drawn.matches("rx=\"4\"").count(), 120);
    assert!(drawn.contains("300 waiting; 181 owners not drawn") && drawn.contains("holder"));
}

#[test]
fn a_queue_is_drawn_as_a_chain() {
    let files = Files::new("queue");
    let (file, svg) = (files.at("locks.region"), files.at("waits.svg"));
    let manager = manager(&file);
    let session = manager.session().unwrap();
    let holder = owner(&session, "holder");
    holder.lock(b"hot", X).unwrap();
    let waiters: Vec<_> = (0..100).map(|_| owner(&session, "waiter")).collect();
    for waiter in &waiters {
        assert_eq!(waiter.request(b"hot", X, Wait::Detect), Ok(Step::Waiting));
    }
    assert_eq!(rows(&["graph", &file]).len(), 100 + 99 * 100 / 2);
    done(&["graph", &file, "--svg", &svg]);
    let drawn = fs::read_to_string(&svg).unwrap();
    // Each waits for the holder, and all but the first for the one before.
    assert_eq!(drawn.matches("fill=\"none\" stroke=\"black\"").count(), 100 + 99);
}

#[test]
fn the_counts_of_a_region_are_shown() {
    let files = Files::new("stat");
    let file = files.at("locks.region");
    let manager = manager(&file);
    let session = manager.session().unwrap();
    let owners = cycle(&session, 3);
    let outside = owner(&session, "outside");
    assert_eq!(outside.request(b"page\n0", IX, Wait::Detect), Ok(Step::Waiting));
    let stat = &rows(&["stat", &file, "--partitions", "2"])[0];
    assert_eq!((&stat["owners_ever"], &stat["waits_ever"]), (&4.into(), &4.into()));
    assert_eq!(stat["deadlocks_ever"], 0);
    let waits = stat["waits"].as_array().unwrap();
    let of = |mode: &str| waits.iter().find(|line| line["mode"] == mode).unwrap();
    assert_eq!((&of("X")["waiting"], &of("IX")["waiting"]), (&3.into(), &1.into()));
    let classes = of("X")["classes"].as_array().unwrap();
    assert_eq!(classes.iter().map(|c| c["count"].as_u64().unwrap()).sum::<u64>(), 3);
    let partitions = stat["partitions"].as_array().unwrap();
    assert_eq!((partitions.len(), &partitions[0]["waiting"]), (2, &2.into()));
    let said = done(&["stat", &file, "--partitions", "9"]);
    assert!(said.contains("4 owners, 4 waits, 0 deadlocks") && said.contains("partition"));
    assert_eq!(session.detect(), Ok(1));
    assert_eq!(rows(&["stat", &file])[0]["deadlocks_ever"], 1);
    drop((owners, outside));
}

#[test]
fn misuse_is_an_error() {
    for args in [
        &["deadlocks"][..],
        &["deadlocks", "x", "--last", "0"],
        &["deadlocks", "x", "--last", "17"],
        &["deadlocks", "x", "--svg", "y", "--json"],
        &["graph", "x", "--svg", "y", "--dot"],
        &["graph", "x", "--svg", "y", "--json"],
        &["stat", "x", "--partitions", "0"],
    ] {
        assert_eq!(locks(args).status.code(), Some(2), "{args:?}");
    }
    for word in ["deadlocks", "graph", "stat"] {
        assert!(done(&[word, "--help"]).contains("Example"), "{word}");
    }
    let files = Files::new("misuse");
    let missing = locks(&["deadlocks", &files.at("missing")]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("no such file"));
}
