//! The processes of the bank: starting, killing, replacing and reading them.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, PipeWriter};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::teller::{Dice, News, Part, Tick, What};

/// A process that has sent nothing for this long is stuck.
const SILENCE: Duration = Duration::from_secs(10);
/// How many of the last events are kept.
const EVENTS: usize = 5;

/// A position for a process, which its replacement takes over.
pub(super) struct Member {
    child: Child,
    pub(super) part: Part,
    pub(super) since: Instant,
    heard: Instant,
    pub(super) kills: u32,
    pub(super) undid: u32,
    pub(super) done: Tick,
}

impl Member {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn name(&self) -> String {
        name(self.part)
    }
}

fn name(part: Part) -> String {
    format!("{} {}", if part.audits { "auditor" } else { "teller" }, part.member)
}

/// The totals so far.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) done: Tick,
    pub(super) kills: u64,
    /// Transfers that were rolled back, and those of them that were half written.
    pub(super) undone: u64,
    pub(super) half: u64,
    /// The number of wrong sums, and the first.
    pub(super) wrong: u64,
    pub(super) wrong_sum: Option<i64>,
    pub(super) fault: Option<String>,
    pub(super) events: VecDeque<String>,
}

impl Tally {
    pub(super) fn event(&mut self, text: String) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(text);
    }

    pub(super) fn fail(&mut self, why: String) {
        self.event(why.clone());
        self.fault.get_or_insert(why);
    }
}

/// All processes.
pub(super) struct Crew {
    program: PathBuf,
    folder: PathBuf,
    pub(super) members: Vec<Member>,
    pub(super) tally: Tally,
    voice: PipeWriter,
    news: Receiver<News>,
    dice: Dice,
}

impl Crew {
    /// Starts the processes.
    pub(super) fn new(folder: &Path, parts: &[Part], seed: u64) -> anyhow::Result<Self> {
        let (ears, voice) = std::io::pipe()?;
        let (to, news) = channel();
        thread::spawn(move || {
            for line in BufReader::new(ears).lines().map_while(Result::ok) {
                // A process that is killed while it writes leaves a whole line or none; an invalid
                // line is ignored.
                let Ok(said) = serde_json::from_str(&line) else { continue };
                if to.send(said).is_err() {
                    break;
                }
            }
        });
        let mut crew = Self {
            program: std::env::current_exe()?,
            folder: folder.to_owned(),
            members: Vec::new(),
            tally: Tally::default(),
            voice,
            news,
            dice: Dice(seed),
        };
        for part in parts {
            let child = crew.start(*part)?;
            let (since, heard) = (Instant::now(), Instant::now());
            let done = Tick::default();
            crew.members.push(Member {
                child,
                part: *part,
                since,
                heard,
                kills: 0,
                undid: 0,
                done,
            });
        }
        Ok(crew)
    }

    fn start(&mut self, part: Part) -> anyhow::Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg("bank").arg("--folder").arg(&self.folder);
        command.args(["--member", &part.member.to_string()]);
        command.args(["--seed", &self.dice.below(u64::MAX).to_string()]);
        let flags = [
            (part.audits, "--audits"),
            (!part.locks, "--without-locks"),
            (!part.undoes, "--without-undo"),
            (part.in_file, "--in-file"),
        ];
        command.args(flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag));
        command.stdin(Stdio::piped()).stdout(self.voice.try_clone()?);
        // Ctrl-C is for this process; the others end when their stdin does.
        command.process_group(0);
        command.spawn().with_context(|| self.program.display().to_string())
    }

    /// Kills a random process in the middle of its work, and starts a replacement.
    pub(super) fn kill_one(&mut self) -> anyhow::Result<()> {
        let at = self.dice.below(self.members.len() as u64) as usize;
        let pid = self.kill(at)?;
        self.replace(at, pid)
    }

    /// Kills all processes, so that for a moment none exists, and starts replacements.
    pub(super) fn kill_all(&mut self) -> anyhow::Result<()> {
        let pids: Vec<_> =
            (0..self.members.len()).map(|at| self.kill(at)).collect::<Result<_, _>>()?;
        self.tally.event(format!("all {} killed at once", pids.len()));
        pids.into_iter().enumerate().try_for_each(|(at, pid)| self.replace(at, pid))
    }

    fn kill(&mut self, at: usize) -> anyhow::Result<u32> {
        let member = &mut self.members[at];
        let pid = member.pid();
        member.child.kill()?;
        let status = member.child.wait()?;
        if status.signal() != Some(libc::SIGKILL) {
            let why = ended(member, status);
            self.tally.fail(why);
        }
        Ok(pid)
    }

    fn replace(&mut self, at: usize, pid: u32) -> anyhow::Result<()> {
        let part = self.members[at].part;
        let child = self.start(part)?;
        let member = &mut self.members[at];
        member.child = child;
        (member.since, member.heard) = (Instant::now(), Instant::now());
        member.kills += 1;
        self.tally.kills += 1;
        self.tally.event(format!(
            "{} ({pid}) killed; {} takes its place",
            name(part),
            member.pid()
        ));
        Ok(())
    }

    /// Reads their reports until an instant.
    pub(super) fn hear(&mut self, until: Instant) {
        while let Ok(news) = self.news.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.take(news);
        }
    }

    fn take(&mut self, News { member, pid, what }: News) {
        let tally = &mut self.tally;
        let Some(member) = self.members.get_mut(member as usize) else { return };
        if pid == member.pid() {
            member.heard = Instant::now();
        }
        match what {
            What::Tick(tick) => {
                for total in [&mut member.done, &mut tally.done] {
                    total.transfers += tick.transfers;
                    total.deadlocks += tick.deadlocks;
                    total.audits += tick.audits;
                    total.longest = total.longest.max(tick.longest);
                }
                tally.undone = tally.undone.max(tick.undone);
            }
            What::Undid { dead, amount, from, to, half } => {
                member.undid += 1;
                tally.undone += 1;
                tally.half += u64::from(half);
                let how = if half { "half a transfer" } else { "a transfer" };
                let by = member.name();
                tally.event(format!("{by} undid {how} of {amount}, {from} to {to}, of {dead}"));
            }
            What::Wrong { sum } => {
                tally.wrong += 1;
                tally.wrong_sum.get_or_insert(sum);
                tally.event(format!("{} found {sum} in the bank", member.name()));
            }
            What::Fault(why) => tally.fail(format!("{} ({pid}): {why}", member.name())),
        }
    }

    /// Checks that all processes are alive and work. A process that was killed from outside, or for
    /// lack of memory, is replaced as if it had been killed from here.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            let why = match member.child.try_wait()? {
                Some(status) if was_killed(status) => {
                    let pid = member.pid();
                    self.replace(at, pid)?;
                    continue;
                }
                Some(status) => ended(member, status),
                None if member.heard.elapsed() > SILENCE => {
                    format!("{} ({}) is stuck", member.name(), member.pid())
                }
                None => continue,
            };
            self.tally.fail(why);
        }
        Ok(())
    }

    /// Ends all processes, waits for them, and reads their last reports.
    pub(super) fn end(mut self) -> anyhow::Result<(Vec<Member>, Tally)> {
        for member in &mut self.members {
            drop(member.child.stdin.take());
        }
        let until = Instant::now() + SILENCE;
        for at in 0..self.members.len() {
            let (status, late) = loop {
                if let Some(status) = self.members[at].child.try_wait()? {
                    break (status, false);
                }
                if Instant::now() > until {
                    self.members[at].child.kill()?;
                    break (self.members[at].child.wait()?, true);
                }
                self.hear(Instant::now() + Duration::from_millis(5));
            };
            if was_killed(status) && !late {
                self.tally.kills += 1;
            } else if !status.success() && self.tally.fault.is_none() {
                let why = ended(&self.members[at], status);
                self.tally.fail(why);
            }
        }
        self.hear(Instant::now() + Duration::from_millis(20));
        let Self { members, tally, .. } = self;
        Ok((members, tally))
    }
}

/// Whether a process was ended by a signal that a person sends, or by the system for lack of
/// memory, and not by a fault of its own.
fn was_killed(status: ExitStatus) -> bool {
    let sent = [libc::SIGKILL, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
    status.signal().is_some_and(|signal| sent.contains(&signal))
}

fn ended(member: &Member, status: ExitStatus) -> String {
    let (name, pid) = (member.name(), member.pid());
    if status.code() == Some(super::STUCK) {
        return format!("{name} ({pid}) was stuck");
    }
    format!("{name} ({pid}) ended by itself: {status}")
}
