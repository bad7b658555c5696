//! Dialogues between transactions: what each step answers, and which must wait. The texts are in
//! `dialogues/store`, with a page that says how they are read.
//!
//! A role is a thread or a process with a session of its own. A step that has to wait does wait:
//! the lock manager says so of the role's owner, which bears the role's name. So a dialogue knows
//! of no time, and what is said of an engine in memory is said of a store on files in the same
//! words.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// How long an answer that must come is waited for, so that a wrong dialogue ends.
const GIVE_UP: Duration = Duration::from_secs(20);
/// For how long a role may wait for a lock that should answer, where the dialogue is to fail. A
/// deadlock is found in a thousandth of it.
const WAITS: Duration = Duration::from_millis(300);
/// How often it is looked whether such a role waits.
const LOOK: Duration = Duration::from_millis(10);

/// What a role's transaction allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// No lock stops anybody: for controls, and on the engine in memory alone.
    Unlocked,
    ReadCommitted,
    /// Read-only, at one position of the log.
    Snapshot,
    Serializable,
}

impl Level {
    /// The next lower one.
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

/// A dialogue: the level of each role that has not the usual one, and its lines.
#[derive(Clone, Debug)]
pub(crate) struct Dialogue {
    pub(crate) usual: Level,
    pub(crate) levels: BTreeMap<char, Level>,
    /// Whether it comes out the same one level lower.
    pub(crate) as_below: bool,
    pub(crate) lines: Vec<Line>,
}

impl Dialogue {
    fn level(&self, role: char) -> Level {
        self.levels.get(&role).copied().unwrap_or(self.usual)
    }

    /// The lowest level that a role has.
    pub(crate) fn lowest(&self) -> Level {
        self.roles().map(|role| self.level(role)).min().unwrap_or(self.usual)
    }

    /// The same, with every role one level lower.
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

/// A text: the dialogues that come out as written.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) dialogues: Vec<Dialogue>,
}

/// `a get 1   10; b done`: role and step, and behind two spaces at least the answers.
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

/// A role at work: it is told steps, and is heard to answer.
pub(crate) struct Role {
    pub(crate) tell: Box<dyn FnMut(&str)>,
    pub(crate) heard: Receiver<String>,
    /// Waits until it has left, once it was told `end`.
    pub(crate) gone: Box<dyn FnOnce()>,
    /// Kills it, if it is a process.
    pub(crate) kill: Option<Box<dyn FnOnce()>>,
}

/// A store with two rows, 1 = 10 and 2 = 20, and what brings roles to it.
pub(crate) trait Stage {
    /// The rows are as in the beginning, and there are no others.
    fn set(&self);

    /// Whether all levels and steps of the dialogue are there.
    fn can(&self, dialogue: &Dialogue) -> bool;

    /// A role with a session of its own.
    fn enter(&self, role: char, level: Level) -> Role;

    /// Whether the role waits for a lock.
    fn waits(&self, role: char) -> bool;

    /// Undoes what the roles have left prepared.
    fn clear(&self) {}
}

/// Has the roles say their lines; the first that comes out differently.
pub(crate) fn perform(stage: &dyn Stage, dialogue: &Dialogue) -> Result<(), String> {
    perform_within(stage, dialogue, GIVE_UP)
}

/// The same for a dialogue that is to come out differently, and so sooner.
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
    // A role may wait for what is prepared.
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
            return Err(wrong(format!("{} waits and can do nothing", line.role)));
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
                return Err(wrong(format!("{other} at last: {answer}, not {expected}")));
            }
        }
        for other in &waiting {
            let answer = answer_or_wait(stage, *other, &roles[other]).map_err(wrong)?;
            if answer != "waits" {
                return Err(wrong(format!("{other} waits no more: {answer}")));
            }
        }
    }
    Ok(())
}

/// What a role answers that must. One that waits for a lock may be about to be the victim of a
/// deadlock, or to be let go before others: it is given some time.
fn answer(stage: &dyn Stage, name: char, role: &Role, time: Duration) -> Result<String, String> {
    let (begun, mut since) = (Instant::now(), None);
    loop {
        match role.heard.recv_timeout(LOOK) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(format!("{name} is gone")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match stage.waits(name) {
            true => since = since.or_else(|| Some(Instant::now())),
            false => since = None,
        }
        let waits = since.is_some_and(|since| since.elapsed() > time);
        if waits || begun.elapsed() > GIVE_UP {
            return Err(format!("{name} waits and should not"));
        }
    }
}

/// What a role answers, or that it waits.
fn answer_or_wait(stage: &dyn Stage, name: char, role: &Role) -> Result<String, String> {
    loop {
        match role.heard.try_recv() {
            Ok(answer) => return Ok(answer),
            Err(TryRecvError::Disconnected) => return Err(format!("{name} is gone")),
            Err(TryRecvError::Empty) if stage.waits(name) => return Ok("waits".to_owned()),
            Err(TryRecvError::Empty) => std::thread::yield_now(),
        }
    }
}
