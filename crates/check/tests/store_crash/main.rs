//! Processes that write one store at the same time and are killed, or stopped: at each named step
//! of its log and its pool, at random, and all at once. What remains: no transaction in part, none
//! lost that was answered for, nobody stuck, and every lock gone.

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

/// A step, the number of the time that this process comes there, and the signal that it gets then.
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
        // SAFETY: signals this very thread: so it has stopped before this returns.
        unsafe { libc::raise(signal) };
    }
}

/// A process from this number on does nothing but push and pop.
pub(crate) const QUEUES: u64 = 100;
/// One from this number on makes checkpoints, fills segments of the log and reads what is in no
/// cache.
pub(crate) const KEEPERS: u64 = 10_000;

/// Where a store is. Removed with the value, by the process that made it.
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

    /// Takes the shared memory away that killed processes leave, as a crash of the machine does.
    /// Its place is in the second line.
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

/// This test program again, as process `id`, which works at `place` until it is killed.
fn start(place: &Place, id: u64, step: &str, nth: u32) -> Started {
    start_with(place, id, step, nth, libc::SIGKILL)
}

/// The same, with the signal that it gets at the step.
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

/// A process that is killed, whatever becomes of its test.
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
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a started process does; nothing, as a test.
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
