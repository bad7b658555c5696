//! Processes that append to one log and are killed, at each named step and at random. What
//! remains: all goes on, every commit that was answered for is there, no record is torn or lost
//! in between, and the slots of the dead say what the log says.

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

/// Whether the process stops at its step, and is not killed there.
static STOPS: AtomicBool = AtomicBool::new(false);

fn at_step(step: &'static str) {
    let told = TOLD.lock().unwrap();
    if let Some((name, nth)) = &*told
        && name == step
        && PASSED.fetch_add(1, Relaxed) + 1 == *nth
    {
        let signal = if STOPS.load(Relaxed) { libc::SIGSTOP } else { libc::SIGKILL };
        // SAFETY: signals this very thread, which takes the signal before the call returns.
        unsafe { libc::raise(signal) };
    }
}

/// Where a log and its region are. Removed with the value, by the process that made it.
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

/// This test program again, as a process that works at `place` until it is killed or has done so
/// many rounds; with none it takes all room of the log's buffer first, and then does one.
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

/// What a started process does; nothing, as a test.
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
