//! Errors of the lock manager.

use core::fmt;
use core::ops::Deref;

use crate::ids::OwnerId;
use crate::mode::{Mode, ModesError};

/// One edge of a cycle: an owner that waits, and the lock that it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The owner that waits.
    pub owner: OwnerId,
    /// The name of the lock, or its beginning.
    pub object: Vec<u8>,
    /// The length of the whole name, in bytes.
    pub length: usize,
    /// The mode that it holds already, if it waits for a conversion.
    pub held: Option<Mode>,
    /// The mode that it waits for.
    pub wanted: Mode,
    /// Whether the next owner of the cycle holds the lock, rather than merely waiting before this
    /// one.
    pub hard: bool,
}

/// A deadlock, as reported to its victim: the victim first, then the owner that it waited for, and
/// so on.
///
/// Dereferences to its links. A cycle of up to 4,091 owners has all its links, with whole names if
/// they fit 64 KiB together. Otherwise, or if the region has no room for the report,
/// [`missing`](Self::missing) and [`Link::length`] give the size of the missing part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cycle {
    /// The reported links, in the order of the cycle, the victim's first.
    pub links: Vec<Link>,
    /// The number of owners in the cycle.
    pub owners: u32,
}

impl Cycle {
    /// Returns how many links are missing.
    pub fn missing(&self) -> usize {
        (self.owners as usize).saturating_sub(self.links.len())
    }

    /// Returns whether the report has all links, with whole names.
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

/// Why an owner is aborted, although its request is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The owner was chosen as the victim of a deadlock.
    Deadlock,
    /// An older owner requested a lock that it holds, under wound-wait.
    Wounded,
    /// An operator or another program aborted it.
    Killed,
}

/// Why an operation failed. The owner keeps all locks that it held.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The mode is not in the manager's set.
    Mode(Mode),
    /// The name is empty or longer than 4,000 bytes. Holds its length.
    Name(usize),
    /// The name of a keyspace is empty or longer than 200 bytes. Holds its length.
    Keyspace(usize),
    /// A key is longer than 2,000 bytes. Holds its length.
    Key(usize),
    /// The range contains no key.
    EmptyRange,
    /// The owner does not hold the lock, or not in a mode that allows the operation.
    NotHeld,
    /// The lock cannot be granted immediately, and the caller did not want to wait.
    NotGranted,
    /// The lock was not granted before the deadline.
    TimedOut,
    /// The owner is the victim of a deadlock. Holds the cycle.
    Deadlock(Cycle),
    /// Under wait-die: an older owner blocks the request.
    Died(OwnerId),
    /// The owner was aborted. It must release its locks.
    Aborted(Reason),
    /// The owner is already waiting. It must finish or cancel the wait before any other operation.
    Waiting,
    /// The owner does not exist: it has ended, or was never created.
    NoOwner(OwnerId),
    /// The owner has children or a parent, which this operation does not allow.
    Family,
    /// A limit is reached: which, and its value.
    Cap(&'static str, u32),
    /// The lock is already held 65,535 times.
    Count,
    /// The thread that calls wakers could not be started.
    NoThread,
    /// The set of modes is wrong.
    Modes(ModesError),
    /// The region belongs to a manager with other modes, or to another kind of object.
    Foreign,
    /// This process may not call `membarrier(2)`, on which the other processes of the region rely.
    /// Usually a filter of system calls forbids it.
    Barrier,
    /// The memory is full, damaged or unusable.
    Region(latchwork_region::Error),
}

impl Error {
    /// Returns whether a retry with another owner may succeed: this owner was aborted in favor of
    /// others, or timed out. It must release its locks first.
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
            Self::Key(length) => write!(f, "a key of {length} bytes: must have at most 2,000"),
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
                f.write_str("membarrier(2) is forbidden here, and other processes rely on it")
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

/// Converts the number of a reason to the error.
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

/// Reports a corrupt list: it contains a cycle, or leads to an impossible place. The region is
/// damaged.
pub(crate) fn corrupt_list<T>() -> Result<T, Error> {
    Err(Error::Region(latchwork_region::Error::Corrupt { what: "list of a lock table", at: 0 }))
}

/// Returns whether an operation failed because there was no room.
pub(crate) fn is_short(error: &Error) -> bool {
    use latchwork_region::Error::{FileLimit, Full, NoSpace};
    matches!(error, Error::Region(Full(_) | NoSpace | FileLimit))
}
