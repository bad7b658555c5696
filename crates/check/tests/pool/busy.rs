//! A page that another thread changes all the time is still written out.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use latchwork_check::between::{Before, Between};
use latchwork_disk::{Error as DiskError, File, System};
use latchwork_machine::Native;
use latchwork_pool::{Handle, Pool};
use latchwork_region::Region;

use super::pages::{Scratch, fill, make, options, region, value};

/// A disk on which no write ends before the page has changed again, as long as a thread can change
/// it.
#[derive(Debug, Default)]
struct Slow {
    changes: AtomicU64,
    writes: AtomicU64,
    done: AtomicBool,
}

impl Slow {
    /// More writes than a successful write-out takes.
    const MANY: u64 = 1000;
}

impl Between for Slow {
    fn write(&self, file: &dyn File, _: &Path, at: u64, from: &[u8]) -> Result<(), DiskError> {
        file.write(at, from)?;
        // The changing thread ends, so that an endless sync ends too.
        if self.writes.fetch_add(1, SeqCst) > Self::MANY {
            self.done.store(true, SeqCst);
        }
        let (before, begun) = (self.changes.load(SeqCst), Instant::now());
        while !self.done.load(SeqCst)
            && self.changes.load(SeqCst) < before + 2
            && begun.elapsed() < Duration::from_millis(100)
        {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Runs `work` while a thread changes page 20, which is dirty. Returns the number of writes.
fn writes_beside_changes(name: &str, work: impl Fn(&Handle<'_>)) -> u64 {
    let (scratch, slow) = (Scratch::new(name), Arc::new(Slow::default()));
    let region: Region<Native> = region();
    let disk = Arc::new(Before::new(slow.clone(), System::new()));
    let pool = Pool::open(&region, disk, &options(64)).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    slow.done.store(true, SeqCst);
    make(&handle, file, 40);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    slow.done.store(false, SeqCst);
    slow.writes.store(0, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let thread = region.thread().unwrap();
            let handle = pool.handle(&thread).unwrap();
            for at in 0.. {
                fill(&handle, file, 20, at);
                slow.changes.fetch_add(1, SeqCst);
                if slow.done.load(SeqCst) {
                    break;
                }
            }
        });
        while slow.changes.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        work(&handle);
        slow.done.store(true, SeqCst);
    });
    let last = slow.changes.load(SeqCst) - 1;
    assert_eq!(value(&handle, file, 20), Ok(last));
    slow.writes.load(SeqCst)
}

#[test]
fn a_sync_ends_while_a_thread_changes_a_page_continuously() {
    let writes = writes_beside_changes("busy-sync", |handle| {
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
    });
    assert!((1..Slow::MANY).contains(&writes), "{writes} writes of one page");
}

#[test]
fn a_pool_shrinks_while_a_thread_changes_a_page_continuously() {
    let writes = writes_beside_changes("busy-resize", |handle| handle.resize(16).unwrap());
    assert!((1..Slow::MANY).contains(&writes), "{writes} writes of one page");
}
