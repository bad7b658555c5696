//! The parser for the text of a dialogue.

use std::collections::BTreeSet;
use std::str::FromStr;

use latchwork_lockmgr::{Mode, Modes, berkeley, granular, postgres, shared};

/// An owner with its own thread, or a child in its parent's thread.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) parent: Option<String>,
}

/// How a request waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waits {
    Long,
    Never,
    Die,
    Wound,
}

/// An operation of an owner.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Lock(Vec<u8>, Mode, Waits),
    Expire,
    Cancel,
    Unlock(Vec<u8>),
    Release(Vec<u8>),
    ReleaseReads,
    ReleaseAll,
    Downgrade(Vec<u8>, Mode),
    Savepoint,
    RollBack,
    Inherit,
    Holds(Vec<u8>),
    Detect,
    Kill(String),
    /// Not in texts: polls whether a wait has ended.
    Poll,
}

/// An operation with a name.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) operation: Operation,
}

/// A step and its results: for its owner, and for the owners whose waits it ends.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) step: Step,
    pub(crate) outcome: String,
    pub(crate) others: Vec<String>,
}

/// A file.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) modes: Modes,
    pub(crate) roles: Vec<Role>,
    pub(crate) dialogues: Vec<Vec<Line>>,
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut script = Self { modes: shared::modes(), roles: vec![], dialogues: vec![] };
        let (mut steps, mut taken) = (Vec::<Step>::new(), BTreeSet::new());
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("");
            let words: Vec<&str> = line.split_whitespace().collect();
            let wrong = |why: &str| format!("line {}: {why}: {line}", at + 1);
            match words[..] {
                [] => {}
                ["modes", name] => {
                    script.modes = modes(name).ok_or_else(|| wrong("no such modes"))?;
                }
                ["owners", ref names @ ..] => script.roles.extend(
                    names.iter().map(|name| Role { name: (*name).to_owned(), parent: None }),
                ),
                ["child", name, "of", parent] => {
                    script.known(parent).ok_or_else(|| wrong("no such owner"))?;
                    let parent = Some(parent.to_owned());
                    script.roles.push(Role { name: name.to_owned(), parent });
                }
                ["step", name, role, ref operation @ ..] => {
                    let role = script.known(role).ok_or_else(|| wrong("no such owner"))?;
                    let operation =
                        script.operation(operation).ok_or_else(|| wrong("no such operation"))?;
                    steps.push(Step { name: name.to_owned(), role, operation });
                }
                ["dialogue"] => script.dialogues.push(Vec::new()),
                [name, ..] => {
                    let step = steps.iter().find(|step| step.name == name);
                    let step = step.ok_or_else(|| wrong("no such step"))?.clone();
                    let said = words[1..].join(" ");
                    let mut parts = said.split(';').map(|part| part.trim().to_owned());
                    let outcome = parts.next().unwrap_or_default();
                    if outcome.is_empty() {
                        return Err(wrong("no outcome"));
                    }
                    taken.insert(name.to_owned());
                    let line = Line { number: at + 1, step, outcome, others: parts.collect() };
                    let dialogue = script.dialogues.last_mut();
                    dialogue.ok_or_else(|| wrong("no dialogue"))?.push(line);
                }
            }
        }
        if let Some(step) = steps.iter().find(|step| !taken.contains(&step.name)) {
            return Err(format!("step {} is never taken", step.name));
        }
        if script.dialogues.iter().any(Vec::is_empty) || script.dialogues.is_empty() {
            return Err("a dialogue without a step".to_owned());
        }
        Ok(script)
    }
}

fn modes(name: &str) -> Option<Modes> {
    Some(match name {
        "shared" => shared::modes(),
        "granular" => granular::modes(),
        "postgres" => postgres::modes(),
        "berkeley" => berkeley::modes(),
        _ => return None,
    })
}

impl Script {
    fn known(&self, name: &str) -> Option<String> {
        self.roles.iter().any(|role| role.name == name).then(|| name.to_owned())
    }

    fn operation(&self, words: &[&str]) -> Option<Operation> {
        let name = |name: &str| name.as_bytes().to_vec();
        let mode = |mode: &str| self.modes.by_name(mode);
        Some(match words {
            ["lock", object, wanted] => Operation::Lock(name(object), mode(wanted)?, Waits::Long),
            ["lock", object, wanted, how] => {
                let how = match *how {
                    "never" => Waits::Never,
                    "die" => Waits::Die,
                    "wound" => Waits::Wound,
                    _ => return None,
                };
                Operation::Lock(name(object), mode(wanted)?, how)
            }
            ["expire"] => Operation::Expire,
            ["cancel"] => Operation::Cancel,
            ["unlock", object] => Operation::Unlock(name(object)),
            ["release", object] => Operation::Release(name(object)),
            ["release-reads"] => Operation::ReleaseReads,
            ["release-all"] => Operation::ReleaseAll,
            ["downgrade", object, wanted] => Operation::Downgrade(name(object), mode(wanted)?),
            ["savepoint"] => Operation::Savepoint,
            ["roll-back"] => Operation::RollBack,
            ["inherit"] => Operation::Inherit,
            ["holds", object] => Operation::Holds(name(object)),
            ["detect"] => Operation::Detect,
            ["kill", role] => Operation::Kill(self.known(role)?),
            _ => return None,
        })
    }
}
