//! Dialogues between transactions: the answer of each step, and which steps wait. The texts and a
//! description of their language are in `dialogues/store`.
//!
//! A role is a thread or a process with its own session. Whether a step waits is read from the lock
//! manager, which shows the role's name as the owner's label. So dialogues do not depend on time,
//! and the same text is run against the engine in memory and a store on files.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// Timeout for an answer, so that a wrong dialogue ends.
const GIVE_UP: Duration = Duration::from_secs(20);
/// How long a role may wait for a lock where a dialogue is expected to fail. A deadlock is found in
/// a thousandth of it.
const WAITS: Duration = Duration::from_millis(300);
/// Interval at which such a role is checked for waiting.
const LOOK: Duration = Duration::from_millis(10);

/// The isolation level of a role's transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// No lock blocks: for controls, in memory only.
    Unlocked,
    ReadCommitted,
    /// Read-only, at one position of the log.
    Snapshot,
    Serializable,
}

impl Level {
    /// The next lower level.
    pub(crate) fn lower(self) -> Self {
        match self {
            Self::Serializable | Self::Snapshot => Self::ReadCommitted,
            Self::ReadCommitted | Self::Unlocked => Self::Unlocked,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Serializable => "serializable",
            Self::Snapshot => "snapshot",
            Self::ReadCommitted => "read-committed",
            Self::Unlocked => "unlocked",
        }
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Serializable, Self::Snapshot, Self::ReadCommitted, Self::Unlocked]
            .into_iter()
            .find(|level| level.name() == text)
            .ok_or_else(|| format!("{text}: no such level"))
    }
}

/// A step of a role, its answer, and the answers of roles that waited.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) role: char,
    pub(crate) step: String,
    pub(crate) answer: String,
    pub(crate) others: Vec<(char, String)>,
}

/// A dialogue: the usual level, the levels of other roles, and its lines.
#[derive(Clone, Debug)]
pub(crate) struct Dialogue {
    pub(crate) usual: Level,
    pub(crate) levels: BTreeMap<char, Level>,
    /// Whether one level lower gives the same result.
    pub(crate) as_below: bool,
    pub(crate) lines: Vec<Line>,
}

impl Dialogue {
    fn level(&self, role: char) -> Level {
        self.levels.get(&role).copied().unwrap_or(self.usual)
    }

    /// The lowest level of a role.
    pub(crate) fn lowest(&self) -> Level {
        self.roles().map(|role| self.level(role)).min().unwrap_or(self.usual)
    }

    /// The same with every role one level lower.
    pub(crate) fn lowered(&self) -> Self {
        let mut lowered = self.clone();
        lowered.usual = self.usual.lower();
        lowered.levels.values_mut().for_each(|level| *level = level.lower());
        lowered
    }

    pub(crate) fn roles(&self) -> impl Iterator<Item = char> {
        let roles: std::collections::BTreeSet<_> =
            self.lines.iter().map(|line| line.role).collect();
        roles.into_iter()
    }
}

/// A text: dialogues that must have the written results.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) dialogues: Vec<Dialogue>,
}

/// `a get 1   10; b done`: role and step, then, after at least two spaces, the answers.
fn line(number: usize, text: &str) -> Result<Line, String> {
    let wrong = |what: &str| format!("line {number}: {what}");
    let (role, rest) = text.trim().split_once(' ').ok_or_else(|| wrong("no step"))?;
    let (step, answers) = rest.trim().split_once("  ").ok_or_else(|| wrong("no answer"))?;
    let letter = |role: &str| match role.as_bytes() {
        [one @ b'a'..=b'z'] => Ok(char::from(*one)),
        _ => Err(wrong("a role is one letter")),
    };
    let mut answers = answers.split(';').map(str::trim);
    let answer = answers.next().unwrap_or_default().to_owned();
    let others = answers.map(|other| {
        let (role, answer) = other.split_once(' ').ok_or_else(|| wrong("whose answer?"))?;
        Ok((letter(role)?, answer.to_owned()))
    });
    let (role, step) = (letter(role)?, step.to_owned());
    Ok(Line { number, role, step, answer, others: others.collect::<Result<_, String>>()? })
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut dialogues: Vec<Dialogue> = Vec::new();
        for (number, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim_end();
            if text.is_empty() {
                continue;
            }
            if let Some(levels) = text.strip_prefix("dialogue ") {
                let (levels, as_below) = match levels.strip_suffix(", as below") {
                    Some(levels) => (levels, true),
                    None => (levels, false),
                };
                let mut words = levels.split_whitespace();
                let usual = words.next().ok_or(format!("line {number}: no level"))?.parse()?;
                let mut of = BTreeMap::new();
                for word in words {
                    let (role, level) =
                        word.split_once('=').ok_or(format!("line {number}: {word}"))?;
                    of.insert(role.chars().next().unwrap_or_default(), level.parse()?);
                }
                dialogues.push(Dialogue { usual, levels: of, as_below, lines: Vec::new() });
                continue;
            }
            let last = dialogues.last_mut().ok_or(format!("line {number}: in no dialogue"))?;
            last.lines.push(line(number, text)?);
        }
        match dialogues.iter().all(|dialogue| !dialogue.lines.is_empty()) {
            true if !dialogues.is_empty() => Ok(Self { dialogues }),
            _ => Err("no dialogue, or one without a step".to_owned()),
        }
    }
}

/// A running role: steps are sent to it and its answers received.
pub(crate) struct Role {
    pub(crate) tell: Box<dyn FnMut(&str)>,
    pub(crate) heard: Receiver<String>,
    /// Waits until it has ended, after it was sent `end`.
    pub(crate) gone: Box<dyn FnOnce()>,
    /// Kills it, if it is a process.
    pub(crate) kill: Option<Box<dyn FnOnce()>>,
}

/// A store with two rows, 1 = 10 and 2 = 20, and a way to start roles in it.
pub(crate) trait Stage {
    /// Resets the rows to their initial state.
    fn set(&self);

    /// Returns whether this stage has all levels and steps of the dialogue.
    fn can(&self, dialogue: &Dialogue) -> bool;

    /// Starts a role with its own session.
    fn enter(&self, role: char, level: Level) -> Role;

    /// Returns whether the role waits for a lock.
    fn waits(&self, role: char) -> bool;

    /// Rolls back transactions that the roles have left prepared.
    fn clear(&self) {}
}

/// Runs a dialogue; returns the first difference.
pub(crate) fn perform(stage: &dyn Stage, dialogue: &Dialogue) -> Result<(), String> {
    perform_within(stage, dialogue, GIVE_UP)
}

/// The same for a dialogue that is expected to fail, with a shorter timeout.
pub(crate) fn perform_wrong(stage: &dyn Stage, dialogue: &Dialogue) -> Result<(), String> {
    perform_within(stage, dialogue, WAITS)
}

fn perform_within(stage: &dyn Stage, dialogue: &Dialogue, time: Duration) -> Result<(), String> {
    stage.set();
    let enter = |role| (role, stage.enter(role, dialogue.level(role)));
    let mut roles: BTreeMap<char, Role> = dialogue.roles().map(enter).collect();
    let end = converse(stage, dialogue, &mut roles, time);
    for role in roles.values_mut() {
        (role.tell)("end");
    }
    // A role may wait for a prepared transaction.
    stage.clear();
    roles.into_values().for_each(|role| (role.gone)());
    end
}

fn converse(
    stage: &dyn Stage,
    dialogue: &Dialogue,
    roles: &mut BTreeMap<char, Role>,
    time: Duration,
) -> Result<(), String> {
    let mut waiting: Vec<char> = Vec::new();
    for line in &dialogue.lines {
        let wrong = |what: String| format!("line {}: {what}", line.number);
        if waiting.contains(&line.role) {
            return Err(wrong(format!("{} waits and cannot run a step", line.role)));
        }
        let role = roles.get_mut(&line.role).ok_or("no such role")?;
        (role.tell)(&line.step);
        let answer = match line.answer.as_str() {
            "waits" => answer_or_wait(stage, line.role, role),
            _ => answer(stage, line.role, role, time),
        };
        let answer = answer.map_err(wrong)?;
        if answer != line.answer {
            return Err(wrong(format!(
                "{} {}: {answer}, not {}",
                line.role, line.step, line.answer
            )));
        }
        if answer == "waits" {
            waiting.push(line.role);
        }
        for (other, expected) in &line.others {
            waiting.retain(|role| role != other);
            let answer = self::answer(stage, *other, &roles[other], time).map_err(wrong)?;
            if answer != *expected {
                return Err(wrong(format!("{other} ended with: {answer}, not {expected}")));
            }
        }
        for other in &waiting {
            let answer = answer_or_wait(stage, *other, &roles[other]).map_err(wrong)?;
            if answer != "waits" {
                return Err(wrong(format!("{other} no longer waits: {answer}")));
            }
        }
    }
    Ok(())
}

/// Returns the answer of a role that must answer. If it waits for a lock, it may be about to become
/// a deadlock victim or to be granted, so it gets some time.
fn answer(stage: &dyn Stage, name: char, role: &Role, time: Duration) -> Result<String, String> {
    let (begun, mut since) = (Instant::now(), None);
    loop {
        match role.heard.recv_timeout(LOOK) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(format!("{name} has ended")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match stage.waits(name) {
            true => since = since.or_else(|| Some(Instant::now())),
            false => since = None,
        }
        let waits = since.is_some_and(|since| since.elapsed() > time);
        if waits || begun.elapsed() > GIVE_UP {
            return Err(format!("{name} waits and must not"));
        }
    }
}

/// Returns a role's answer, or that it waits.
fn answer_or_wait(stage: &dyn Stage, name: char, role: &Role) -> Result<String, String> {
    loop {
        match role.heard.try_recv() {
            Ok(answer) => return Ok(answer),
            Err(TryRecvError::Disconnected) => return Err(format!("{name} has ended")),
            Err(TryRecvError::Empty) if stage.waits(name) => return Ok("waits".to_owned()),
            Err(TryRecvError::Empty) => std::thread::yield_now(),
        }
    }
}
