//! Spans and events of the store for a `tracing` subscriber.

use std::cell::RefCell;
use std::fmt::{Debug, Write};
use std::path::Path;
use std::sync::{Arc, Once, mpsc};
use std::thread;
use std::time::Duration;

use latchwork_check::between::{Before, Between};
use latchwork_disk::{Disk, Error as DiskError, Fault, File, Operation, Simulated};
use latchwork_store::{Mode, Store};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use crate::stage::{TABLE, begin, sizes};

thread_local! {
    /// Lines of this thread's events and spans, or None if they are not collected.
    static HEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

struct Ear;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => _ = write!(self.0, " [{value:?}]"),
            "ns" | "at" | "bytes" | "punched" => _ = write!(self.0, " {}", field.name()),
            name => _ = write!(self.0, " {name}={value:?}"),
        }
    }
}

fn note(line: String) {
    HEARD.with_borrow_mut(|heard| heard.iter_mut().for_each(|heard| heard.push(line.clone())));
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "latchwork_store"
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        note(format!("span {}", span.metadata().name()));
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        note(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Collects this thread's events while `work` runs.
fn heard<R>(work: impl FnOnce() -> R) -> (R, Vec<String>) {
    static EAR: Once = Once::new();
    EAR.call_once(|| tracing::subscriber::set_global_default(Ear).unwrap());
    HEARD.set(Some(Vec::new()));
    let done = work();
    (done, HEARD.take().unwrap_or_default())
}

#[test]
fn recoveries_and_checkpoints_are_spans_with_an_event() {
    let disk = Simulated::new();
    let (store, lines) = heard(|| begin(&disk, Mode::Full).unwrap());
    assert_eq!(lines[0], "span recovery", "{lines:?}");
    assert!(lines.contains(&"INFO [recovered] bytes ns".to_owned()), "{lines:?}");
    store.put(&TABLE, b"key", b"value").unwrap();
    let (_, lines) = heard(|| store.checkpoint().unwrap());
    assert!(lines.contains(&"span checkpoint".to_owned()), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "INFO [checkpoint made] bytes ns punched", "{lines:?}");
    // A quick commit produces no event.
    let (_, lines) = heard(|| store.put(&TABLE, b"key", b"other").unwrap());
    assert_eq!(lines, Vec::<String>::new());
}

#[test]
fn a_slow_lock_names_table_and_key() {
    let store = begin(&Simulated::new(), Mode::Full).unwrap();
    store.put(&TABLE, b"key", b"value").unwrap();
    let (held, wait) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let hold = store.write(|tx| {
                tx.put(&TABLE, b"key", b"held")?;
                held.send(()).unwrap();
                thread::sleep(Duration::from_millis(200));
                Ok(())
            });
            hold.unwrap();
        });
        wait.recv().unwrap();
        let (_, lines) = heard(|| store.put(&TABLE, b"key", b"waited").unwrap());
        let slow = lines.iter().find(|line| line.starts_with("WARN [slow lock]"));
        let slow = slow.unwrap_or_else(|| panic!("{lines:?}"));
        assert!(slow.contains("table=\"table\"") && slow.contains("granted=true"), "{slow}");
        assert!(slow.contains("key=") && slow.contains("key"), "{slow}");
    });
}

/// A disk with slow syncs.
#[derive(Debug)]
struct SlowSync;

impl Between for SlowSync {
    fn sync(&self, file: &dyn File, _: &Path) -> Result<(), DiskError> {
        thread::sleep(Duration::from_millis(110));
        file.sync()
    }
}

#[test]
fn a_slow_commit_and_a_failed_sync_are_events() {
    let simulated = Simulated::new();
    let store = begin(&simulated, Mode::Full).unwrap();
    store.put(&TABLE, b"key", b"value").unwrap();
    // The next sync fails, whichever disk call it is.
    let calls = simulated.calls().total();
    (calls..calls + 40).for_each(|call| simulated.plan(call, Fault::Dropped));
    let (failed, lines) = heard(|| store.put(&TABLE, b"key", b"lost"));
    assert!(failed.is_err() && simulated.calls()[Operation::Sync] > 0);
    assert!(lines.iter().any(|line| line.starts_with("ERROR [sync failed] error=")), "{lines:?}");

    let disk: Arc<dyn Disk> = Arc::new(Before::new(Arc::new(SlowSync), Simulated::new()));
    disk.make_folder(Path::new("/home")).unwrap();
    let options = latchwork_region::Options {
        threads: 48,
        processes: 4,
        waiters: 64,
        limit: 64 << 20,
        ..latchwork_region::Options::default()
    };
    let region = latchwork_region::Region::private(&options).unwrap();
    let folder = Path::new("/home/store");
    let store = Store::in_region_with(&region, &disk, folder, &sizes(Mode::Full), 1).unwrap();
    let (_, lines) = heard(|| store.put(&TABLE, b"key", b"value").unwrap());
    assert!(lines.contains(&"WARN [slow commit] at ns".to_owned()), "{lines:?}");
}
