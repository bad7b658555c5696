//! Processes that write one store concurrently and are killed or stopped: at each named step of its
//! log and pool, at random, and all at once. Afterwards no transaction is incomplete, no
//! acknowledged commit is lost, no process is blocked, and no lock is left.

mod kills;
mod pages;
mod recovery;
mod stops;
mod upkeep;
mod work;

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::work::Worker;

/// A step, how often this process must reach it, and the signal that it then gets.
static TOLD: Mutex<Option<(String, u32, i32)>> = Mutex::new(None);
static PASSED: AtomicU32 = AtomicU32::new(0);

fn at_step(step: &'static str) {
    let mut told = TOLD.lock().unwrap();
    if let Some((name, nth, signal)) = &*told
        && name == step
        && PASSED.fetch_add(1, Relaxed) + 1 == *nth
    {
        let signal = *signal;
        *told = None;
        drop(told);
        // SAFETY: signals this thread, so it has stopped before the call returns.
        unsafe { libc::raise(signal) };
    }
}

/// Processes from this number on only push and pop.
pub(crate) const QUEUES: u64 = 100;
/// Processes from this number on make checkpoints, fill segments of the log and read pages that are
/// not cached.
pub(crate) const KEEPERS: u64 = 10_000;

/// The folder of a store, removed by the process that created it when the value is dropped.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    mine: bool,
}

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("latchwork-store-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self { path, mine: true }
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    /// Removes the shared memory that killed processes leave, as a crash of the machine does. Its
    /// path is in the second line of `region`.
    fn discard_shared_memory(&self) {
        let region = std::fs::read_to_string(self.store().join("region"));
        if let Some(memory) = region.unwrap_or_default().lines().nth(1) {
            let _ = std::fs::remove_dir_all(memory);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.mine {
            self.discard_shared_memory();
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Starts this test program again as process `id`, which works at `place` until it is killed.
fn start(place: &Place, id: u64, step: &str, nth: u32) -> Started {
    start_with(place, id, step, nth, libc::SIGKILL)
}

/// The same, with the signal for the step.
fn start_with(place: &Place, id: u64, step: &str, nth: u32, signal: i32) -> Started {
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--test-threads=1", "--nocapture"])
        .env("LATCHWORK_STORE_PLACE", &place.path)
        .env("LATCHWORK_STORE_ID", id.to_string())
        .env("LATCHWORK_STORE_STEP", step)
        .env("LATCHWORK_STORE_NTH", nth.to_string())
        .env("LATCHWORK_STORE_SIGNAL", signal.to_string())
        .stdout(Stdio::null())
        .spawn();
    Started(process.unwrap())
}

/// A process that is killed when the value is dropped.
pub(crate) struct Started(Child);

impl Deref for Started {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Started {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // The process may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A started process. Does nothing when run as a test.
#[test]
fn child() {
    let Some(path) = std::env::var_os("LATCHWORK_STORE_PLACE") else { return };
    let told = |name| std::env::var(name).unwrap();
    let nth = told("LATCHWORK_STORE_NTH").parse().unwrap();
    let signal = told("LATCHWORK_STORE_SIGNAL").parse().unwrap();
    *TOLD.lock().unwrap() = Some((told("LATCHWORK_STORE_STEP"), nth, signal));
    latchwork_log::set_point_hook(at_step);
    latchwork_pool::set_point_hook(at_step);
    let place = Place { path: path.into(), mine: false };
    let id: u64 = told("LATCHWORK_STORE_ID").parse().unwrap();
    if id >= KEEPERS {
        upkeep::keep(&mut Worker::new(&place, id % KEEPERS));
    }
    if id >= pages::ATTACKERS {
        pages::attack(&place, id);
    }
    let mut worker = Worker::new(&place, id % QUEUES);
    if id >= QUEUES {
        worker.push_and_pop();
    }
    loop {
        worker.round();
    }
}
