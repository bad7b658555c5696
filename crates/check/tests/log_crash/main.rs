//! Processes that append to one log and are killed, at each named step and at random. The others
//! continue, every acknowledged commit is present, no record is damaged or missing, and the slots
//! of dead processes agree with the log.

mod kills;
mod pauses;
mod work;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use latchwork_log::set_point_hook;

use crate::work::Worker;

static TOLD: Mutex<Option<(String, u32)>> = Mutex::new(None);
static PASSED: AtomicU32 = AtomicU32::new(0);

/// Whether the process stops at its step instead of being killed.
static STOPS: AtomicBool = AtomicBool::new(false);

fn at_step(step: &'static str) {
    let told = TOLD.lock().unwrap();
    if let Some((name, nth)) = &*told
        && name == step
        && PASSED.fetch_add(1, Relaxed) + 1 == *nth
    {
        let signal = if STOPS.load(Relaxed) { libc::SIGSTOP } else { libc::SIGKILL };
        // SAFETY: signals this thread, which takes the signal before the call returns.
        unsafe { libc::raise(signal) };
    }
}

/// The folder of a log and its region, removed by the process that created it when it is dropped.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    mine: bool,
}

impl Place {
    fn new(name: &str) -> Self {
        let memory = PathBuf::from("/dev/shm");
        let root = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let path = root.join(format!("latchwork-log-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self { path, mine: true }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.mine {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Starts this test program again as a process that works at `place` for `rounds` rounds or until
/// it is killed. With 0 it takes all room of the log's buffer first, and then runs one round.
fn start(place: &Place, step: &str, nth: u32, rounds: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--test-threads=1", "--nocapture"])
        .env("LATCHWORK_LOG_PLACE", &place.path)
        .env("LATCHWORK_LOG_STEP", step)
        .env("LATCHWORK_LOG_NTH", nth.to_string())
        .env("LATCHWORK_LOG_ROUNDS", rounds.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A started process. Does nothing when run as a test.
#[test]
fn child() {
    let Some(path) = std::env::var_os("LATCHWORK_LOG_PLACE") else { return };
    let told = |name| std::env::var(name).unwrap();
    let nth = told("LATCHWORK_LOG_NTH").parse().unwrap();
    let step = told("LATCHWORK_LOG_STEP");
    STOPS.store(step.starts_with("stop at "), Relaxed);
    *TOLD.lock().unwrap() = Some((step.trim_start_matches("stop at ").to_owned(), nth));
    set_point_hook(at_step);
    let place = Place { path: path.into(), mine: false };
    let mut worker = Worker::new(&place);
    if told("LATCHWORK_LOG_ROUNDS") == "0" {
        worker.hoard();
        std::fs::write(place.path.join("hoarded"), "").unwrap();
        // Until the others nap.
        std::thread::sleep(std::time::Duration::from_millis(30));
        worker.round();
    }
    for _ in 0..told("LATCHWORK_LOG_ROUNDS").parse::<u64>().unwrap() {
        worker.round();
    }
}
