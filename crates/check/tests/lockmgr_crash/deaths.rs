//! Processes that kill themselves at a step that they were told, threads that stop at one, and
//! which steps a workload has. A test starts itself again as such processes, which share a region.

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
    /// Where this thread's steps count: other tests of this process come to steps, too.
    static COUNTS: RefCell<Option<Steps>> = const { RefCell::new(None) };
    static STOPS_AT: RefCell<Option<(&'static str, Stop)>> = const { RefCell::new(None) };
}

/// How often the threads of a test came to each step.
#[derive(Clone, Default)]
pub(crate) struct Steps(Arc<Mutex<BTreeMap<&'static str, u32>>>);

impl Steps {
    /// Has the steps of this thread counted from now on.
    pub(crate) fn count_mine(&self) {
        set_point_hook(at_step);
        COUNTS.set(Some(self.clone()));
    }

    /// How often each step was come to by threads that count.
    pub(crate) fn seen(&self) -> BTreeMap<&'static str, u32> {
        self.0.lock().unwrap().clone()
    }
}

/// A stop for one thread at a time; whether a thread stands there.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Has this thread stop, the next time that it comes to a step, until [`Stop::go_on`].
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

    /// Lets the thread that has stopped go on.
    pub(crate) fn go_on(&self) {
        self.0.store(false, Release);
    }
}

/// What is to be done at each step, by those who were told.
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

/// Has this process killed, the `nth` time that it comes to a step.
pub(crate) fn die_at(step: &str, nth: u32) {
    *TOLD.lock().unwrap() = Some((step.to_owned(), nth));
    set_point_hook(at_step);
}

/// Rounds that nobody comes to the end of.
pub(crate) const FOR_EVER: u64 = 1 << 40;

/// How large the regions may become.
pub(crate) fn options() -> Options {
    Options { limit: 1 << 30, ..Options::default() }
}

pub(crate) fn region(path: &Path) -> Region<Shared> {
    Region::open_or_create(path, &options()).unwrap()
}

/// What a child was told by who started it.
pub(crate) struct Told {
    pub(crate) path: PathBuf,
    pub(crate) step: String,
    pub(crate) nth: u32,
    pub(crate) seed: u64,
    pub(crate) rounds: u64,
}

/// Nothing, if this process is no child.
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

/// The module whose test `child`, which asks what it was [`told`], processes run.
pub(crate) struct Peers(pub(crate) &'static str);

impl Peers {
    /// Where a region of these can be made anew.
    pub(crate) fn fresh(&self, name: &str) -> PathBuf {
        let of = self.0.replace("::", "-");
        let path = std::env::temp_dir().join(format!("{of}-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    /// The process that runs `child`, told what to do.
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

    /// Has a child work alone, and says whether it died at the step: not every workload comes to
    /// every step.
    pub(crate) fn dies(&self, path: &Path, step: &str, nth: u32, seed: u64, rounds: u64) -> bool {
        let ended = self.start(path, step, nth, seed, rounds).wait().unwrap();
        assert!(ended.success() || ended.code().is_none(), "{step}: it failed");
        ended.code().is_none()
    }

    /// Has one die at a step, while a peer has so many rounds and this process works.
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
            // So that somebody is there to be waited for, and to meet the corpse.
            work();
            if let Some(ended) = victim.try_wait().unwrap() {
                break ended;
            }
        };
        assert_eq!(ended.code(), None, "{step}: the victim was not killed, it failed");
        assert!(peer.wait().unwrap().success(), "{step}: the peer failed");
    }

    /// Two die, then one who sweeps dies at a step; says whether that came to it.
    pub(crate) fn sweeper_dies(&self, path: &Path, death: &str, step: &str) -> bool {
        for nth in [9, 12] {
            assert!(self.dies(path, death, nth, 3, FOR_EVER), "{death}: not killed");
        }
        self.dies(path, step, 1, 3, 20)
    }

    /// Kills one of three peers so often, each after so many microseconds, and replaces it; `work`
    /// is done beside the corpse.
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
            assert_eq!(peer.try_wait().unwrap(), None, "a survivor ended by itself");
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
