//! A process of the bank: a teller, which transfers money, or an auditor, which checks the total.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use latchwork_lockmgr::granular::{self, IS, IX, S, X};
use latchwork_lockmgr::{Error, Manager, Options, Owner, OwnerOptions, Session};
use latchwork_machine::Shared;
use latchwork_region::Region;
use serde::{Deserialize, Serialize};

use super::ledger::{Account, Ledger, Undo};
use crate::output;

/// How often a process reports.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// How long a process may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// The role of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) member: u32,
    pub(super) seed: u64,
    pub(super) audits: bool,
    pub(super) locks: bool,
    pub(super) undoes: bool,
    /// Whether the accounts are in a file instead of a store.
    pub(super) in_file: bool,
}

/// A report of a process, one line each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct News {
    pub(super) member: u32,
    pub(super) pid: u32,
    pub(super) what: What,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum What {
    /// Its work since the last report.
    Tick(Tick),
    /// It undid a transfer of a dead process.
    Undid { dead: String, amount: i64, from: u64, to: u64, half: bool },
    /// The total was wrong.
    Wrong { sum: i64 },
    /// It cannot continue.
    Fault(String),
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tick {
    pub(super) transfers: u64,
    pub(super) deadlocks: u64,
    pub(super) audits: u64,
    /// The longest transfer or audit including waits, in nanoseconds.
    pub(super) longest: u64,
    /// In a store: how many transactions of dead processes were rolled back so far, by all
    /// processes.
    pub(super) undone: u64,
}

/// Sends reports; exits if the reader has ended.
pub(super) struct Voice {
    out: File,
    member: u32,
}

impl Voice {
    fn new(member: u32) -> io::Result<Self> {
        Ok(Self { out: File::from(io::stdout().as_fd().try_clone_to_owned()?), member })
    }

    /// One short write to a pipe: the lines of several processes do not mix.
    pub(super) fn say(&self, what: What) {
        let news = News { member: self.member, pid: std::process::id(), what };
        if let Ok(line) = serde_json::to_string(&news) {
            let _ = (&self.out).write_all(format!("{line}\n").as_bytes());
        }
    }
}

/// SplitMix64.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % n.max(1)
    }
}

pub(super) fn locks_file(folder: &Path) -> std::path::PathBuf {
    folder.join("locks.region")
}

pub(super) fn accounts_file(folder: &Path) -> std::path::PathBuf {
    folder.join("accounts")
}

/// Opens the lock manager. A process that finds a dead owner undoes its transfer before its locks
/// are released; if that fails the locks are kept, so that no process sees half a transfer.
pub(super) fn open(
    folder: &Path,
    ledger: Arc<Ledger>,
    undoes: bool,
    told: impl Fn(What) + Send + Sync + 'static,
) -> Result<Manager<Shared>, Error> {
    let region = Region::<Shared>::open(locks_file(folder), &latchwork_region::Options::default())?;
    let recovery = move |owner, label: &[u8]| {
        if !undoes {
            return true;
        }
        match ledger.undo(owner) {
            Ok(undone) => {
                if let Some((undo, half)) = undone {
                    let dead = String::from_utf8_lossy(label).trim_end_matches('\0').to_owned();
                    let (from, to) = (undo.from.0, undo.to.0);
                    told(What::Undid { dead, amount: undo.amount, from, to, half });
                }
                true
            }
            Err(error) => {
                told(What::Fault(format!("owner {owner} cannot be undone: {error}")));
                false
            }
        }
    };
    Manager::with_recovery(region, granular::modes(), Options::default(), Box::new(recovery))
}

/// The work of a process until it is told to end.
pub(super) type Work = fn(&Path, Part, &AtomicBool, &Arc<Voice>) -> anyhow::Result<()>;

/// Runs a process, which works until its stdin ends.
pub(super) fn run(folder: &Path, part: Part, work: Work) -> anyhow::Result<ExitCode> {
    let over = Arc::new(AtomicBool::new(false));
    let end = over.clone();
    thread::spawn(move || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        end.store(true, Relaxed);
        thread::sleep(PATIENCE);
        // It waits for a lock that is never released; the exit code reports that.
        std::process::exit(super::STUCK);
    });
    let voice = Arc::new(Voice::new(part.member)?);
    if let Err(error) = work(folder, part, &over, &voice) {
        voice.say(What::Fault(output::chain(&error)));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Works on accounts in a file.
pub(super) fn work(
    folder: &Path,
    part: Part,
    over: &AtomicBool,
    voice: &Arc<Voice>,
) -> anyhow::Result<()> {
    let ledger = Arc::new(Ledger::open(&accounts_file(folder))?);
    let told = voice.clone();
    let manager = open(folder, ledger.clone(), part.undoes, move |what| told.say(what))?;
    let session = manager.session()?;
    let role = if part.audits { "auditor" } else { "teller" };
    let label = format!("{role} {} ({})", part.member, std::process::id());
    let branch = Branch { ledger: &ledger, session: &session, label: &label, locks: part.locks };
    let mut dice = Dice(part.seed);
    let (mut tick, mut said) = (Tick::default(), Instant::now());
    voice.say(What::Tick(tick));
    while !over.load(Relaxed) {
        let began = Instant::now();
        if part.audits {
            let whole = dice.below(2) == 0;
            let counted = branch.persist(&mut tick, |owner| branch.count(owner, whole))?;
            tick.audits += 1;
            if counted.sum != ledger.expected() {
                voice.say(What::Wrong { sum: counted.sum });
            }
            thread::sleep(Duration::from_millis(1));
        } else {
            let from = dice.below(ledger.accounts);
            let to = (from + 1 + dice.below(ledger.accounts - 1)) % ledger.accounts;
            let amount = 1 + dice.below(100) as i64;
            branch.persist(&mut tick, |owner| branch.transfer(owner, from, to, amount))?;
            tick.transfers += 1;
        }
        tick.longest = tick.longest.max(began.elapsed().as_nanos() as u64);
        if said.elapsed() >= TICK {
            voice.say(What::Tick(std::mem::take(&mut tick)));
            said = Instant::now();
        }
    }
    voice.say(What::Tick(tick));
    Ok(())
}

/// The total of all accounts, and the number of transfers that led to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) sum: i64,
    pub(super) transfers: u64,
}

/// The state with which a process works.
pub(super) struct Branch<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) session: &'a Session<Shared>,
    pub(super) label: &'a str,
    pub(super) locks: bool,
}

fn name(account: u64) -> Vec<u8> {
    format!("bank/{account}").into_bytes()
}

impl Branch<'_> {
    /// Runs something with an owner of its own. The victim of a deadlock tries again with another
    /// owner of the same age, so that it is not chosen for ever.
    pub(super) fn persist<T>(
        &self,
        tick: &mut Tick,
        action: impl Fn(&Owner<'_, Shared>) -> Result<T, Stop>,
    ) -> anyhow::Result<T> {
        let mut age = None;
        loop {
            let options = OwnerOptions { label: self.label, age, ..OwnerOptions::default() };
            let owner = self.session.owner_with(&options)?;
            match action(&owner) {
                Ok(value) => {
                    owner.release_all()?;
                    return Ok(value);
                }
                // The second is caused by `latchwork locks kill`.
                Err(Stop::Locks(Error::Deadlock(_) | Error::Aborted(_))) => {
                    tick.deadlocks += 1;
                    age = Some(owner.age()?);
                }
                Err(Stop::Locks(error)) => return Err(error.into()),
                Err(Stop::File(error)) => return Err(error.into()),
            }
        }
    }

    fn lock(
        &self,
        owner: &Owner<'_, Shared>,
        name: &[u8],
        mode: latchwork_lockmgr::Mode,
    ) -> Result<(), Stop> {
        if self.locks { owner.lock(name, mode).map_err(Stop::Locks) } else { Ok(()) }
    }

    fn transfer(
        &self,
        owner: &Owner<'_, Shared>,
        from: u64,
        to: u64,
        amount: i64,
    ) -> Result<(), Stop> {
        self.lock(owner, b"bank", IX)?;
        self.lock(owner, &name(from), X)?;
        self.lock(owner, &name(to), X)?;
        let ledger = self.ledger;
        let was = (ledger.account(from)?, ledger.account(to)?);
        let undo = Undo { amount, from: (from, was.0), to: (to, was.1) };
        ledger.note(owner.id(), &undo)?;
        let [taken, given] = undo.after();
        ledger.set(taken.0, taken.1)?;
        // The transfer is half done. Other processes run here, and most kills happen here.
        thread::yield_now();
        ledger.set(given.0, given.1)?;
        ledger.forget(owner.id())?;
        Ok(())
    }

    /// Counts the money, with one lock on the whole bank or with one on each account.
    pub(super) fn count(&self, owner: &Owner<'_, Shared>, whole: bool) -> Result<Counted, Stop> {
        self.lock(owner, b"bank", if whole { S } else { IS })?;
        let (mut sum, mut changes) = (0i64, 0u64);
        // All locks are kept to the end; otherwise money could move behind the auditor.
        for number in 0..self.ledger.accounts {
            if !whole {
                self.lock(owner, &name(number), S)?;
            }
            let Account { balance, changes: n } = self.ledger.account(number)?;
            (sum, changes) = (sum.wrapping_add(balance), changes.wrapping_add(n));
        }
        Ok(Counted { sum, transfers: changes / 2 })
    }
}

/// The reason why an operation was not done.
pub(super) enum Stop {
    Locks(Error),
    File(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}
