//! The log under loom: appends, reads and flushes of two threads in every schedule. The long form
//! is `cargo test --release -p latchwork-check --test log -- --ignored`.

use std::sync::Arc;

use latchwork_check::overlaid::{Flaw, together};
use latchwork_check::{Overlaid, models};
use latchwork_disk::Simulated;
use latchwork_log::{Entry, Flags, Head, Log, Lsn, Session};
use latchwork_region::{Region, Thread};

use crate::stage::{folder, options, prepare};

/// A log on a disk, and two threads in it.
struct Stage {
    disk: Simulated,
    sessions: Vec<Session<Overlaid>>,
    log: Log<Overlaid>,
}

fn stage() -> Stage {
    let sizes = latchwork_region::Options {
        processes: 1,
        threads: 2,
        waiters: 2,
        limit: 512 << 10,
        ..latchwork_region::Options::default()
    };
    let region = Region::<Overlaid>::heap(&sizes).unwrap();
    let threads: Vec<_> = (0..2).map(|_| region.thread().unwrap()).collect();
    let disk = Simulated::new();
    prepare(&disk).unwrap();
    let options = latchwork_log::Options { threads: 2, ..options() };
    let log = Log::open(&region, Arc::new(disk.clone()), folder(), &options, &threads[0]).unwrap();
    let sessions: Vec<_> = threads.iter().map(|thread| log.session(thread).unwrap()).collect();
    sessions.iter().for_each(|session| session.reserve(1000).unwrap());
    // The slots stay taken: loom's threads use these sessions, whichever threads they are.
    threads.into_iter().for_each(|thread: Thread<_>| std::mem::forget(thread));
    Stage { disk, sessions, log }
}

impl Stage {
    fn append(&self, thread: usize) -> Lsn {
        let head = Head { flags: Flags::LAST, ..Head::default() };
        let mut record = self.sessions[thread].build(&head, &[&[thread as u8; 8]]).unwrap();
        self.sessions[thread].append(&mut record).unwrap()
    }

    /// Reads all records and checks that they are complete.
    fn read(&self) -> Vec<Entry> {
        let entries = self.log.scan(Lsn::FIRST).collect::<Result<Vec<_>, _>>().unwrap();
        assert!(entries.iter().all(|entry| entry.payload == [entry.slot as u8; 8]));
        entries
    }

    /// Returns whether the file has the complete record.
    fn is_in_file(&self, lsn: Lsn, thread: usize) -> bool {
        let file = self.disk.peek(&folder().join(format!("{:016x}", 0))).unwrap();
        let at = 4096 + lsn.0 as usize;
        let own = (lsn.0 / 16).to_le_bytes();
        file[at + 8..at + 14] == own[..6] && file[at + 27..at + 35] == [thread as u8; 8]
    }

    /// Clears the file of records of an earlier execution.
    fn wipe(&self) {
        assert!(self.disk.damage(&folder().join(format!("{:016x}", 0)), 4096, &[0; 1024]));
    }
}

/// Two threads append, and each reads all records.
fn appends() -> impl Fn() + Send + Sync + 'static {
    let stage = stage();
    move || {
        let part = |thread: usize| -> Box<dyn FnOnce() + '_> {
            let stage = &stage;
            Box::new(move || {
                let lsn = stage.append(thread);
                let seen = stage.read();
                assert!(seen.iter().any(|entry| entry.lsn == lsn));
            })
        };
        together(vec![part(0), part(1)]);
        assert_eq!(stage.read().len(), 2);
        for session in &stage.sessions {
            let view = stage.log.slot(session.slot()).unwrap();
            assert_eq!((view.commits, view.last), (1, Lsn::NEVER));
        }
    }
}

/// Two threads append and flush: one leads, the other follows or leads after it.
fn flushes() -> impl Fn() + Send + Sync + 'static {
    let stage = stage();
    move || {
        stage.wipe();
        let part = |thread: usize| -> Box<dyn FnOnce() + '_> {
            let stage = &stage;
            Box::new(move || {
                let lsn = stage.append(thread);
                stage.sessions[thread].flush(lsn).unwrap();
                assert!(stage.log.flushed() > lsn && stage.is_in_file(lsn, thread));
            })
        };
        together(vec![part(0), part(1)]);
        assert_eq!(stage.log.flushed(), stage.log.end());
    }
}

models! {
    loom_appends, loom_appends_long, loom_appends_control: appends(), 3, 5, [Flaw::Lax, Flaw::Torn];
    loom_flushes, loom_flushes_long, loom_flushes_control:
        flushes(), 3, 4, [Flaw::Lax, Flaw::Unfenced, Flaw::Deaf];
}
