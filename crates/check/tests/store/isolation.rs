//! Which histories each level allows: the anomalies of Hermitage (Kleppmann, github ept/hermitage)
//! and Adya, the read-only anomaly of Fekete, O'Neil and O'Neil, the tests that Berkeley DB's fork
//! has for its serializable snapshots (ssi001 to ssi009), and the ideas of PostgreSQL's isolation
//! specs (src/test/isolation/specs), which the dialogues name.
//!
//! Of the fork's tests ssi009 is missing: several processes on a few hot rows, and verification of
//! the store afterwards, are covered by `histories`, which also checks what they have read.
//!
//! Specs about features that the store lacks have no dialogue: schemas and their changes,
//! partitions, triggers, `MERGE`, key-share locks, vacuum and statistics. `skip-locked` has a
//! dialogue about the corresponding feature of the store.

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use latchwork_check::memory_engine::{Bug, Memory};
use latchwork_lockmgr::{Manager, Session, Wait, granular};
use latchwork_store::internals::{Snapshot, Txn};
use latchwork_store::{Error, Level, Store, Table};

use crate::dialogue::{self, Dialogue, Script, Stage, perform, perform_wrong};
use crate::dialogue_stages::{InMemory, OnFiles, options};

const TREE: u32 = 1;

fn texts() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dialogues/store");
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "txt"));
    paths.sort();
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// All dialogues, with the names of their texts.
fn dialogues() -> Vec<(String, Dialogue)> {
    let scripts = texts().into_iter().flat_map(|(name, text)| {
        let script: Script = text.parse().unwrap_or_else(|why| panic!("{name}: {why}"));
        script.dialogues.into_iter().map(move |dialogue| (name.clone(), dialogue))
    });
    scripts.collect()
}

/// Runs each dialogue, which must have the written result, and runs it one level lower, where the
/// result must differ unless the text says otherwise. Returns the numbers of both.
fn matrix(stage: &dyn Stage) -> (usize, usize) {
    let (mut performed, mut lowered, mut failed) = (0, 0, Vec::new());
    for (name, dialogue) in dialogues() {
        if !stage.can(&dialogue) {
            continue;
        }
        performed += 1;
        if let Err(why) = perform(stage, &dialogue) {
            failed.push(format!("{name}: {why}"));
        }
        let lower = dialogue.lowered();
        if !stage.can(&lower) {
            continue;
        }
        lowered += 1;
        let said = match dialogue.as_below {
            true => perform(stage, &lower),
            false => perform_wrong(stage, &lower),
        };
        if said.is_ok() != dialogue.as_below {
            failed.push(format!("{name}, line {}, lower: {said:?}", dialogue.lines[0].number));
        }
    }
    println!("{performed} dialogues, {lowered} of them a level lower, {} failed", failed.len());
    assert!(failed.is_empty(), "{failed:#?}");
    (performed, lowered)
}

#[test]
fn each_level_in_memory_excludes_its_anomalies() {
    let (performed, lowered) = matrix(&InMemory::new(Bug::None));
    assert!(performed >= 100 && lowered == performed, "{performed}, {lowered}");
}

#[test]
fn each_level_on_files_excludes_its_anomalies() {
    let (performed, lowered) = matrix(&OnFiles::new("threads", false));
    assert!(performed >= 110 && lowered >= 75, "{performed}, {lowered}");
}

#[test]
fn each_level_between_processes_excludes_its_anomalies() {
    let (performed, lowered) = matrix(&OnFiles::new("processes", true));
    assert!(performed >= 110 && lowered >= 75, "{performed}, {lowered}");
}

/// The control: if writers ignore claims, phantoms appear at the highest level.
#[test]
fn writers_that_ignore_claims_are_detected() {
    let stage = InMemory::new(Bug::ClaimsIgnored);
    let named = |of: &str| {
        dialogues().into_iter().filter(move |(name, _)| name.starts_with(of)).collect::<Vec<_>>()
    };
    for (name, dialogue) in named("pmp").into_iter().chain(named("g2-anti")) {
        let serializable =
            dialogue.usual == dialogue::Level::Serializable && dialogue.levels.is_empty();
        assert_eq!(perform(&stage, &dialogue).is_err(), serializable, "{name}");
    }
}

/// Every answer is checked: with any of them changed the dialogue fails.
#[test]
fn a_wrong_text_fails() {
    let stage = InMemory::new(Bug::None);
    let mut spoilt = 0;
    for (name, dialogue) in dialogues().into_iter().filter(|(_, one)| stage.can(one)) {
        for at in 0..dialogue.lines.len() {
            let mut wrong = dialogue.clone();
            let line = &mut wrong.lines[at];
            line.answer = if line.answer == "17" { "18" } else { "17" }.to_owned();
            let number = line.number;
            spoilt += 1;
            // A changed "waits" still waits until the timeout.
            if dialogue.lines[at].answer != "waits" {
                let said = perform(&stage, &wrong).unwrap_err();
                assert!(said.starts_with(&format!("line {number}:")), "{name}: {said}");
            }
        }
    }
    assert!(spoilt > 100, "{spoilt}");
    for (text, why) in [
        ("a  get 1  10", "in no dialogue"),
        ("dialogue serializable", "without a step"),
        ("dialogue strict\na  get 1  10", "no such level"),
        ("dialogue serializable\na  get 1", "no answer"),
        ("dialogue serializable\nab  get 1  10", "one letter"),
    ] {
        let said = text.parse::<Script>().map(|_| ()).unwrap_err();
        assert!(said.contains(why), "{said}");
    }
}

const CELLS: Table<u64, u64> = Table::new("cells");

/// ssi004: write skew from two threads, repeated. Each writes the other's row plus one: both
/// writing 1 is not serializable.
#[test]
fn ssi004_no_write_skew_in_many_runs() {
    let stage = OnFiles::new("skew", false);
    let store = stage.store();
    let (barrier, runs) = (Barrier::new(2), std::sync::Mutex::new(0));
    let part = |own: u64, other: u64| {
        for _ in 0..300 {
            if barrier.wait().is_leader() {
                store.write(|tx| tx.put(&CELLS, 1, 0).and_then(|()| tx.put(&CELLS, 2, 0))).unwrap();
            }
            barrier.wait();
            let mut met = false;
            let done = store.write_with(&Default::default(), |tx| {
                let seen = tx.get(&CELLS, other)?.unwrap_or(0);
                // Both have read before either writes.
                if !std::mem::replace(&mut met, true) {
                    barrier.wait();
                }
                tx.put(&CELLS, own, seen + 1)
            });
            *runs.lock().unwrap() += done.unwrap().runs;
            barrier.wait();
            let both = store.read(|tx| Ok((tx.get(&CELLS, 1)?, tx.get(&CELLS, 2)?))).unwrap();
            assert!([(Some(1), Some(2)), (Some(2), Some(1))].contains(&both), "{both:?}");
            barrier.wait();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| part(1, 2));
        part(2, 1);
    });
    assert_eq!(*runs.lock().unwrap(), 900, "one of each pair must be retried");
}

/// ssi005: committed readers leave no lock.
#[test]
fn ssi005_thousands_of_readers_leave_no_lock() {
    let stage = OnFiles::new("readers", false);
    let store = stage.store();
    let mut most = 0;
    for row in 0..3000 {
        store.write(|tx| tx.get(&CELLS, row)).unwrap();
        most = most.max(store.counts().unwrap().locks);
    }
    assert_eq!(most, 0);
}

/// ssi007: with a bound on locks, the transaction that meets it gets an error, snapshots continue,
/// and its end frees everything. Memory keeps the size of its cells, so ranges and sessions have as
/// much room as before.
#[test]
fn ssi007_the_store_works_without_room_for_locks() {
    let mut small = options();
    small.sizes.locks = 64 << 20;
    let stage = OnFiles::with("bound", false, &small);
    let write_skew = || {
        for (name, dialogue) in dialogues() {
            if name.starts_with("ssi001") || name.starts_with("g2") {
                perform(&stage, &dialogue).unwrap_or_else(|why| panic!("{name}: {why}"));
            }
        }
    };
    write_skew();
    let store = stage.store();
    store.put(&CELLS, 1, 7).unwrap();
    let mut greedy = store.begin().unwrap();
    let mut read = 0;
    let why = loop {
        match greedy.get(&CELLS, read) {
            Ok(_) => read += 1,
            Err(why) => break why,
        }
    };
    assert!(read > 100_000 && why.to_string().contains("its limit of"), "{read}, {why}");
    assert_eq!(store.read(|tx| tx.get(&CELLS, 1)), Ok(Some(7)));
    // It keeps its locks and may end in either way.
    assert_eq!(greedy.get(&CELLS, 1), Ok(Some(7)));
    assert_eq!(greedy.commit(), Ok(None));
    store_is_idle(store);
    store.put(&CELLS, 1, 8).unwrap();
    write_skew();
}

/// ssi008: a process that dies in a transaction leaves no lock, and later transactions show no
/// skew.
#[test]
fn ssi008_no_lock_is_stale_after_a_death() {
    let stage = OnFiles::new("death", true);
    stage.set();
    let mut victim = stage.enter('v', dialogue::Level::Serializable);
    for step in ["get 1", "put 2 99", "all"] {
        (victim.tell)(step);
        victim.heard.recv().unwrap();
    }
    victim.kill.take().unwrap()();
    (victim.gone)();
    store_is_idle(stage.store());
    for (name, dialogue) in dialogues() {
        if name.starts_with("ssi001") || name.starts_with("g2") {
            perform(&stage, &dialogue).unwrap_or_else(|why| panic!("{name}: {why}"));
        }
    }
}

/// Checks that no lock is held after a sweep.
fn store_is_idle(store: &Store) {
    store.sweep().unwrap();
    let counts = store.counts().unwrap();
    assert_eq!((counts.locks, counts.transactions), (0, 0), "{counts:?}");
}

/// Two rows, 1 = 10 and 2 = 20, and sessions for each.
struct Scene {
    memory: Memory,
    manager: Manager,
}

impl Scene {
    fn new() -> Self {
        let scene = Self {
            memory: Memory::new(Bug::None),
            manager: Manager::private(granular::modes()).unwrap(),
        };
        let session = scene.session();
        let mut txn = scene.begin(&session, 9, Level::Serializable);
        put(&mut txn, 1, 10).unwrap();
        put(&mut txn, 2, 20).unwrap();
        txn.commit().unwrap();
        scene
    }

    fn session(&self) -> Session {
        self.manager.session().unwrap()
    }

    fn begin<'t>(&'t self, session: &'t Session, slot: u16, level: Level) -> Txn<'t, Memory> {
        let mut txn = Txn::new(&self.memory, session.owner().unwrap(), slot, level);
        txn.set_wait(Wait::Never);
        txn
    }
}

fn put(txn: &mut Txn<'_, Memory>, row: u8, value: u8) -> Result<(), Error> {
    txn.write_raw(TREE, &[row], Some(&[value]))
}

fn get(txn: &mut Txn<'_, Memory>, row: u8) -> Result<Option<u8>, Error> {
    Ok(txn.get_raw(TREE, &[row])?.map(|value| value[0]))
}

#[test]
fn a_savepoint_undoes_later_changes() {
    let scene = Scene::new();
    let session = scene.session();
    let mut txn = scene.begin(&session, 1, Level::Serializable);
    put(&mut txn, 1, 11).unwrap();
    let first = txn.savepoint().unwrap();
    put(&mut txn, 1, 12).unwrap();
    put(&mut txn, 3, 30).unwrap();
    let second = txn.savepoint().unwrap();
    put(&mut txn, 2, 21).unwrap();
    txn.roll_back_to(second).unwrap();
    assert_eq!(get(&mut txn, 2), Ok(Some(20)));
    txn.roll_back_to(first).unwrap();
    assert_eq!((get(&mut txn, 1), get(&mut txn, 3)), (Ok(Some(11)), Ok(None)));
    txn.commit().unwrap();
    let snapshot = Snapshot::new(&scene.memory, 3).unwrap();
    assert_eq!(snapshot.get_raw(TREE, &[1]), Ok(Some(vec![11])));
    let other = scene.session();
    let mut stranger = scene.begin(&other, 2, Level::Serializable);
    assert_eq!(stranger.roll_back_to(first), Err(Error::Savepoint));
}
