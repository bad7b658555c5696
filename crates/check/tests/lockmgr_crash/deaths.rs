//! Processes that kill themselves at a given step, threads that stop at one, and the steps that a
//! workload reaches. A test starts its own program again as such processes, which share a region.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latchwork_check::again;
use latchwork_check::random::Random;
use latchwork_lockmgr::set_point_hook;
use latchwork_machine::Shared;
use latchwork_region::{Options, Region};

static TOLD: Mutex<Option<(String, u32)>> = Mutex::new(None);
static PASSED: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Where this thread's steps are counted. Other tests of this process reach steps as well.
    static COUNTS: RefCell<Option<Steps>> = const { RefCell::new(None) };
    static STOPS_AT: RefCell<Option<(&'static str, Stop)>> = const { RefCell::new(None) };
}

/// How often the threads of a test have reached each step.
#[derive(Clone, Default)]
pub(crate) struct Steps(Arc<Mutex<BTreeMap<&'static str, u32>>>);

impl Steps {
    /// Counts the steps of this thread from now on.
    pub(crate) fn count_mine(&self) {
        set_point_hook(at_step);
        COUNTS.set(Some(self.clone()));
    }

    /// Returns how often counting threads have reached each step.
    pub(crate) fn seen(&self) -> BTreeMap<&'static str, u32> {
        self.0.lock().unwrap().clone()
    }
}

/// A stop for one thread at a time. True while a thread is stopped.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops this thread the next time it reaches `step`, until [`Stop::go_on`].
    pub(crate) fn at(&self, step: &'static str) {
        STOPS_AT.set(Some((step, self.clone())));
        set_point_hook(at_step);
    }

    /// Waits until a thread has stopped.
    pub(crate) fn until_stopped(&self) {
        while !self.0.load(Acquire) {
            std::thread::yield_now();
        }
    }

    /// Lets the stopped thread continue.
    pub(crate) fn go_on(&self) {
        self.0.store(false, Release);
    }
}

/// The hook for all steps: counts, stops the thread, or kills the process.
fn at_step(step: &'static str) {
    COUNTS.with_borrow(|counts| {
        if let Some(Steps(steps)) = counts {
            *steps.lock().unwrap().entry(step).or_default() += 1;
        }
    });
    if let Some((_, Stop(stopped))) =
        STOPS_AT.with_borrow_mut(|stop| stop.take_if(|(at, _)| *at == step))
    {
        stopped.store(true, Release);
        while stopped.load(Acquire) {
            std::thread::yield_now();
        }
    }
    let told = TOLD.lock().unwrap();
    if let Some((name, nth)) = &*told
        && name == step
        && PASSED.fetch_add(1, Relaxed) + 1 == *nth
    {
        let me = std::process::id() as i32;
        // SAFETY: signals this very process.
        unsafe { libc::kill(me, libc::SIGKILL) };
    }
}

/// Kills this process the `nth` time it reaches `step`.
pub(crate) fn die_at(step: &str, nth: u32) {
    *TOLD.lock().unwrap() = Some((step.to_owned(), nth));
    set_point_hook(at_step);
}

/// More rounds than a process can finish.
pub(crate) const FOR_EVER: u64 = 1 << 40;

/// Size limit of the regions.
pub(crate) fn options() -> Options {
    Options { limit: 1 << 30, ..Options::default() }
}

pub(crate) fn region(path: &Path) -> Region<Shared> {
    Region::open_or_create(path, &options()).unwrap()
}

/// The parameters of a child process.
pub(crate) struct Told {
    pub(crate) path: PathBuf,
    pub(crate) step: String,
    pub(crate) nth: u32,
    pub(crate) seed: u64,
    pub(crate) rounds: u64,
}

/// Returns None if this process is not a child.
pub(crate) fn told() -> Option<Told> {
    let path = std::env::var_os("DEATHS_REGION")?.into();
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    Some(Told {
        path,
        step: std::env::var("DEATHS_STEP").unwrap(),
        nth: number("DEATHS_NTH") as u32,
        seed: number("DEATHS_SEED"),
        rounds: number("DEATHS_ROUNDS"),
    })
}

/// A module with a test `child`, which calls [`told`]. Child processes run that test.
pub(crate) struct Peers(pub(crate) &'static str);

impl Peers {
    /// Returns a path at which a region can be created.
    pub(crate) fn fresh(&self, name: &str) -> PathBuf {
        let of = self.0.replace("::", "-");
        let path = std::env::temp_dir().join(format!("{of}-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    /// Returns the command that starts a process running `child`.
    pub(crate) fn command(
        &self,
        path: &Path,
        step: &str,
        nth: u32,
        seed: u64,
        rounds: u64,
    ) -> Command {
        let mut command = again(self.0, "child");
        command
            .env("DEATHS_REGION", path)
            .env("DEATHS_STEP", step)
            .env("DEATHS_NTH", nth.to_string())
            .env("DEATHS_SEED", seed.to_string())
            .env("DEATHS_ROUNDS", rounds.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        command
    }

    pub(crate) fn start(&self, path: &Path, step: &str, nth: u32, seed: u64, rounds: u64) -> Child {
        self.command(path, step, nth, seed, rounds).spawn().unwrap()
    }

    /// Runs a child alone and returns whether it died at the step. Not every workload reaches every
    /// step.
    pub(crate) fn dies(&self, path: &Path, step: &str, nth: u32, seed: u64, rounds: u64) -> bool {
        let ended = self.start(path, step, nth, seed, rounds).wait().unwrap();
        assert!(ended.success() || ended.code().is_none(), "{step}: the child failed");
        ended.code().is_none()
    }

    /// A victim dies at a step while a peer runs this many rounds and this process does `work`.
    pub(crate) fn killed_beside(
        &self,
        path: &Path,
        (step, nth): (&str, u32),
        seed: u64,
        rounds: u64,
        mut work: impl FnMut(),
    ) {
        let mut victim = self.start(path, step, nth, seed, FOR_EVER);
        let mut peer = self.start(path, "", 0, seed + 5, rounds);
        let ended = loop {
            // The victim needs a lock holder to wait for, and later a thread that sweeps.
            work();
            if let Some(ended) = victim.try_wait().unwrap() {
                break ended;
            }
        };
        assert_eq!(ended.code(), None, "{step}: the victim was not killed, it failed");
        assert!(peer.wait().unwrap().success(), "{step}: the peer failed");
    }

    /// Two children die, then a third that sweeps runs to a step. Returns whether it died there.
    pub(crate) fn sweeper_dies(&self, path: &Path, death: &str, step: &str) -> bool {
        for nth in [9, 12] {
            assert!(self.dies(path, death, nth, 3, FOR_EVER), "{death}: not killed");
        }
        self.dies(path, step, 1, 3, 20)
    }

    /// Kills one of three peers this many times, each after a random time from `after` in
    /// microseconds, runs `work`, and replaces the peer.
    pub(crate) fn kill_at_random(
        &self,
        path: &Path,
        kills: u64,
        after: Range<u64>,
        mut work: impl FnMut(u64),
    ) {
        let mut random = Random(0x1234_5678);
        let since = Instant::now();
        let mut peers: Vec<Child> =
            (0..3).map(|s| self.start(path, "", 0, s + 1, FOR_EVER)).collect();
        let kill = |peer: &mut Child| {
            assert_eq!(peer.try_wait().unwrap(), None, "a peer ended by itself");
            peer.kill().unwrap();
            peer.wait().unwrap();
        };
        for round in 0..kills {
            let micros = after.start + random.below(after.end - after.start);
            std::thread::sleep(Duration::from_micros(micros));
            let peer = &mut peers[random.below(3) as usize];
            kill(peer);
            work(round);
            *peer = self.start(path, "", 0, round + 100, FOR_EVER);
            if (round + 1) % 5_000 == 0 {
                let rate = (round + 1) as f64 / since.elapsed().as_secs_f64();
                println!("{} kills, {rate:.0} a second", round + 1);
            }
        }
        peers.iter_mut().for_each(kill);
    }
}
