//! What can go wrong, each by its name.

use core::fmt;
use core::ops::Deref;

use crate::ids::OwnerId;
use crate::mode::{Mode, ModesError};

/// One step of a cycle: an owner that waits, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The owner that waits.
    pub owner: OwnerId,
    /// The name of what it waits for, or its beginning.
    pub object: Vec<u8>,
    /// The length of the whole name, in bytes.
    pub length: usize,
    /// What it holds there already, if it waits for a conversion.
    pub held: Option<Mode>,
    /// What it waits for.
    pub wanted: Mode,
    /// Whether the next owner of the cycle holds the object, or merely waits before this one.
    pub hard: bool,
}

/// A deadlock, as its victim is told: the victim first, then the owner that it waited for, and so
/// on.
///
/// It derefs to its links. A cycle of up to 4,091 owners is told with all its links, and with whole
/// names if they fit 64 KiB together. Otherwise, and where the region has no room to tell it, it
/// says how much is missing: [`missing`](Self::missing), [`Link::length`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cycle {
    /// The links that are told, in the order of the cycle, the victim's first.
    pub links: Vec<Link>,
    /// How many owners the cycle had.
    pub owners: u32,
}

impl Cycle {
    /// How many links are not told.
    pub fn missing(&self) -> usize {
        (self.owners as usize).saturating_sub(self.links.len())
    }

    /// Whether all links are told, with whole names.
    pub fn is_whole(&self) -> bool {
        self.missing() == 0 && self.links.iter().all(|link| link.object.len() == link.length)
    }
}

impl Deref for Cycle {
    type Target = [Link];

    fn deref(&self) -> &[Link] {
        &self.links
    }
}

impl<'a> IntoIterator for &'a Cycle {
    type Item = &'a Link;
    type IntoIter = core::slice::Iter<'a, Link>;

    fn into_iter(self) -> Self::IntoIter {
        self.links.iter()
    }
}

/// Why an owner's request fails though nothing is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Chosen as the victim of a deadlock.
    Deadlock,
    /// An older owner wanted what it holds, under wound-wait.
    Wounded,
    /// Somebody asked for it.
    Killed,
}

/// Why a call failed. The owner keeps all locks that it had.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The mode is not in the manager's set.
    Mode(Mode),
    /// The name is empty or longer than 4,000 bytes: this long.
    Name(usize),
    /// The name of a keyspace is empty or longer than 200 bytes: this long.
    Keyspace(usize),
    /// A key is longer than 2,000 bytes: this long.
    Key(usize),
    /// No key lies in the range.
    EmptyRange,
    /// The owner does not hold the object, or not in a mode that allows what was asked.
    NotHeld,
    /// It cannot be granted at once, and the caller did not want to wait.
    NotGranted,
    /// It was not granted in time.
    TimedOut,
    /// A cycle of owners waited for each other, and this one is the victim.
    Deadlock(Cycle),
    /// Under wait-die: an older owner is in the way.
    Died(OwnerId),
    /// Somebody decided that this owner is to fail. It must release its locks.
    Aborted(Reason),
    /// The owner waits already; it can do nothing else until that ends.
    Waiting,
    /// No such owner: it has ended, or never was.
    NoOwner(OwnerId),
    /// The owner has children, or another relation that forbids it.
    Family,
    /// A limit that was set: which, and how much.
    Cap(&'static str, u32),
    /// A lock was taken 65,535 times.
    Count,
    /// The thread that calls wakers cannot be started.
    NoThread,
    /// The set of modes is wrong.
    Modes(ModesError),
    /// The region belongs to a manager with other modes, or to something else.
    Foreign,
    /// This process may not call `membarrier(2)`, on which the others who use the region rely: a
    /// filter of system calls forbids it, most likely.
    Barrier,
    /// The memory is full, damaged or not to be used.
    Region(latchwork_region::Error),
}

impl Error {
    /// Whether the same work may succeed if another owner does it again: this one was chosen to
    /// fail in favour of others, or was not served in time. It must release its locks first.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Deadlock(_) | Self::Died(_) | Self::Aborted(_) | Self::TimedOut)
    }
}

impl From<latchwork_region::Error> for Error {
    fn from(error: latchwork_region::Error) -> Self {
        Self::Region(error)
    }
}

impl From<ModesError> for Error {
    fn from(error: ModesError) -> Self {
        Self::Modes(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => match mode.preset() {
                Some((preset, name)) => {
                    write!(f, "mode {name}, of the preset {preset}, is not in the manager's set")
                }
                None => write!(f, "mode {mode} is not in the manager's set"),
            },
            Self::Name(length) => write!(f, "a name of {length} bytes: must have 1 to 4,000"),
            Self::Keyspace(length) => {
                write!(f, "the name of a keyspace has {length} bytes: must have 1 to 200")
            }
            Self::Key(length) => write!(f, "a key of {length} bytes: may have 2,000"),
            Self::EmptyRange => f.write_str("no key lies in the range"),
            Self::NotHeld => f.write_str("not held"),
            Self::NotGranted => f.write_str("not granted"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Deadlock(cycle) => {
                write!(f, "deadlock:")?;
                for link in cycle {
                    let name = link.object.escape_ascii();
                    let cut = if link.object.len() < link.length { ".." } else { "" };
                    let what = if link.hard { "held by" } else { "behind" };
                    let (owner, mode) = (link.owner, link.wanted);
                    write!(f, " {owner} wants {name}{cut} in mode {mode} {what}")?;
                }
                match (cycle.first(), cycle.missing()) {
                    (Some(first), 0) => write!(f, " {}", first.owner),
                    (_, missing) => write!(f, " {missing} more of {} owners", cycle.owners),
                }
            }
            Self::Died(owner) => write!(f, "the older owner {owner} is in the way"),
            Self::Aborted(Reason::Deadlock) => f.write_str("chosen to break a deadlock"),
            Self::Aborted(Reason::Wounded) => f.write_str("an older owner wants its locks"),
            Self::Aborted(Reason::Killed) => {
                f.write_str("ended by an operator, as `latchwork locks kill` does")
            }
            Self::Waiting => f.write_str("the owner waits already"),
            Self::NoOwner(owner) => write!(f, "no owner {owner}"),
            Self::Family => f.write_str("the owner's relations forbid it"),
            Self::Cap(what, limit) => write!(f, "at most {limit} {what} are allowed"),
            Self::Count => f.write_str("taken 65,535 times already"),
            Self::NoThread => f.write_str("the thread that calls wakers cannot be started"),
            Self::Modes(error) => write!(f, "modes: {error}"),
            Self::Foreign => f.write_str("the region belongs to a manager with other modes"),
            Self::Barrier => {
                f.write_str("membarrier(2) is forbidden here, and others of the region rely on it")
            }
            Self::Region(error) => write!(f, "region: {error}"),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Region(error) => Some(error),
            Self::Modes(error) => Some(error),
            _ => None,
        }
    }
}

/// Why an owner is told to fail, as a number and back.
pub(crate) fn reason(why: u32) -> Error {
    match why {
        1 => Error::Aborted(Reason::Deadlock),
        2 => Error::Aborted(Reason::Wounded),
        _ => Error::Aborted(Reason::Killed),
    }
}

pub(crate) fn reason_number(reason: Reason) -> u32 {
    match reason {
        Reason::Deadlock => 1,
        Reason::Wounded => 2,
        Reason::Killed => 3,
    }
}

/// A list that leads nowhere, round and round, or to what it cannot: the region is damaged.
pub(crate) fn corrupt_list<T>() -> Result<T, Error> {
    Err(Error::Region(latchwork_region::Error::Corrupt { what: "list of a lock table", at: 0 }))
}

/// Whether there was no room.
pub(crate) fn is_short(error: &Error) -> bool {
    use latchwork_region::Error::{FileLimit, Full, NoSpace};
    matches!(error, Error::Region(Full(_) | NoSpace | FileLimit))
}
