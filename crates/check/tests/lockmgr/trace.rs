//! Events for a `tracing` subscriber, and their absence without the feature.

use std::cell::Cell;
use std::fmt::{Debug, Write};
use std::process::Command;
use std::sync::{LazyLock, Mutex, Once};
use std::time::Duration;

use latchwork_lockmgr::{Error, Manager, Options, Step, Wait, granular, granular::*};
use latchwork_machine::Native;
use latchwork_region::Region;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// Lines written by the subscriber: level, message and fields.
static HEARD: LazyLock<Mutex<Vec<String>>> = LazyLock::new(Mutex::default);

struct Ear;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.push_str(&format!(" [{value:?}]"));
        } else if field.name() == "ns" {
            self.0.push_str(" ns=.");
        } else {
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "latchwork_lockmgr"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        if !LISTENS.get() {
            return;
        }
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        HEARD.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

thread_local! {
    static LISTENS: Cell<bool> = const { Cell::new(false) };
}

/// Collects this thread's events from here on; other tests produce events as well.
///
/// The subscriber is global: `tracing` caches, for each call site, whether the subscriber of the
/// first thread wants its events, so with subscribers of single threads the answer "no" was
/// sometimes cached for other threads.
fn listen() {
    static EAR: Once = Once::new();
    EAR.call_once(|| tracing::subscriber::set_global_default(Ear).unwrap());
    LISTENS.set(true);
}

/// Returns the collected lines that contain this word.
fn heard(word: &str) -> Vec<String> {
    HEARD.lock().unwrap().iter().filter(|line| line.contains(word)).cloned().collect()
}

fn manager() -> Manager {
    let options =
        Options { detect_after: Duration::from_secs(3600), ..latchwork_check::early::early() };
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    Manager::new(region, granular::modes(), options).unwrap()
}

#[test]
fn a_wait_has_a_beginning_and_an_end() {
    listen();
    let manager = manager();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    // Requests that are granted at once: weak, strong, repeated, converted; and a refused one.
    a.lock(b"waits/at once", IS).unwrap();
    a.lock(b"waits/at once", X).unwrap();
    a.lock(b"waits/at once", X).unwrap();
    assert_eq!(b.try_lock(b"waits/at once", S), Err(Error::NotGranted));
    assert_eq!(heard("waits/at once"), Vec::<String>::new());

    let id = b.id();
    a.lock(b"waits/granted", X).unwrap();
    assert_eq!(b.request(b"waits/granted", S, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(b.poll(), Ok(None));
    assert_eq!(b.poll(), Ok(None));
    assert_eq!(
        heard("waits/granted"),
        [format!("DEBUG [wait begun] owner={id} name=waits/granted mode=\"S\"")]
    );
    a.unlock(b"waits/granted").unwrap();
    assert_eq!(b.poll(), Ok(Some(Ok(()))));
    let end = "name=waits/granted mode=\"S\" ns=. outcome=\"granted\"";
    assert_eq!(heard("waits/granted")[1..], [format!("DEBUG [wait ended] owner={id} {end}")]);

    a.lock(b"waits/\xfftimeout", X).unwrap();
    let end = b.lock_timeout(b"waits/\xfftimeout", S, Duration::from_millis(1));
    assert_eq!(end, Err(Error::TimedOut));
    let lines = heard("waits/\\xfftimeout");
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[1].ends_with("outcome=\"timed out\""));
    let fields = "name=waits/\\xfftimeout mode=\"S\" ns=.";
    assert_eq!(lines[2], format!("WARN [timed out] owner={id} {fields}"));

    assert_eq!(b.request(b"waits/\xfftimeout", S, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(b.cancel(), Ok(true));
    assert!(heard("\\xfftimeout").last().unwrap().ends_with("outcome=\"withdrawn\""));
    a.lock(b"waits/killed", X).unwrap();
    assert_eq!(b.request(b"waits/killed", S, Wait::Detect), Ok(Step::Waiting));
    session.kill(b.id()).unwrap();
    assert!(b.poll().unwrap().unwrap().is_err());
    assert!(heard("waits/killed").last().unwrap().ends_with("outcome=\"killed\""));
}

#[test]
fn a_deadlock_event_has_the_whole_cycle() {
    listen();
    let manager = manager();
    let session = manager.session().unwrap();
    let owners: Vec<_> = (0..3).map(|_| session.owner().unwrap()).collect();
    let name = |at: usize| format!("cycle/{}", at % 3).into_bytes();
    for (at, owner) in owners.iter().enumerate() {
        owner.lock(&name(at), S).unwrap();
    }
    for (at, owner) in owners.iter().enumerate() {
        assert_eq!(owner.request(&name(at + 1), X, Wait::Detect), Ok(Step::Waiting));
    }
    assert_eq!(session.detect(), Ok(1));
    let victim = owners.iter().position(|o| o.poll().unwrap().is_some()).unwrap();
    let told = heard("[deadlock broken]");
    let told: Vec<_> = told.iter().filter(|line| line.contains("cycle/")).collect();
    let step = |at: usize| {
        let at = (victim + at) % 3;
        format!("{} wants cycle/{} in X, held by ", owners[at].id(), (at + 1) % 3)
    };
    let id = owners[victim].id();
    let cycle = format!("{}{}{}{id}", step(0), step(1), step(2));
    assert_eq!(told, [&format!("WARN [deadlock broken] victim={id} owners=3 cycle={cycle}")]);
    let ends = heard("outcome=\"deadlock\"");
    assert_eq!(ends.iter().filter(|line| line.contains("cycle/")).count(), 1);
}

#[test]
fn sweeps_and_orphans_are_events() {
    listen();
    let options = latchwork_region::Options { limit: 8 << 20, ..Default::default() };
    let region = Region::<Native>::heap(&options).unwrap();
    let aborted = region.another().unwrap();
    let keep = Box::new(|_, label: &[u8]| !label.starts_with(b"kept"));
    let manager =
        Manager::with_recovery(region, granular::modes(), latchwork_check::early::early(), keep)
            .unwrap();
    {
        let dying =
            Manager::new(aborted, granular::modes(), latchwork_check::early::early()).unwrap();
        let session = dying.session().unwrap();
        let of = |label: &'static str| {
            let options = latchwork_lockmgr::OwnerOptions { label, ..Default::default() };
            let owner = session.owner_with(&options).unwrap();
            owner.lock(label.as_bytes(), X).unwrap();
            owner
        };
        std::mem::forget((of("kept one"), of("gone")));
        dying.region().die();
        std::mem::forget(session);
    }
    let session = manager.session().unwrap();
    assert_eq!(session.sweep(), Ok(1));
    assert_eq!((session.stats().swept, session.stats().orphans), (1, 1));
    let orphan = session.orphans().unwrap()[0];
    let told = heard("[owner orphaned]");
    assert_eq!(told, [format!("WARN [owner orphaned] owner={orphan} label=kept one")]);
    let swept = heard("[dead thread swept]");
    assert_eq!(swept.len(), 1);
    assert!(swept[0].ends_with("released=1 orphaned=1"), "{swept:?}");
    session.release_orphan(orphan).unwrap();
    assert_eq!(heard("[orphan released]"), [format!("INFO [orphan released] owner={orphan}")]);
}

/// Returns whether the lock manager depends on `tracing` with these features.
fn has_tracing(features: &str) -> bool {
    let said = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "-p", "latchwork-lockmgr"])
        .args(["-e", "normal", "--prefix", "none", "--features", features])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../lockmgr"))
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("latchwork-region"));
    said.lines().any(|line| line.starts_with("tracing"))
}

#[test]
fn tracing_is_built_only_with_its_feature() {
    assert!(!has_tracing(""));
    assert!(!has_tracing("points"));
    assert!(has_tracing("tracing"), "the check cannot fail");
}
