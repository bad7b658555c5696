//! Reasons why a folder cannot be opened or created as a store, with advice.

use core::fmt;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Why a path was refused. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No store exists, and the options do not allow creating one.
    NoStore,
    /// The path, or a parent of it, is a file.
    NotAFolder,
    /// The path is a symbolic link to a path that does not exist.
    DeadLink,
    /// The path has more than 250 bytes, is not UTF-8, or contains a line end.
    Path,
    /// The folder contains other files and no store.
    NotEmpty {
        /// One of them.
        name: OsString,
    },
    /// A file or folder exists at the path of a new store.
    Taken,
    /// The target of a copy lies in the folder of a store.
    WithinStore,
    /// Another process is creating a store there.
    BeingMade,
    /// Another process was still opening or closing the store after the given wait.
    BeingOpened {
        /// Its process id, if known.
        process: Option<u32>,
    },
    /// A newer program created the store, with a format that this program does not know.
    Newer {
        /// Its format.
        format: u64,
        /// The version of the program that created it, if recorded.
        program: Option<String>,
    },
    /// An older program created the store, with a format that this program no longer reads.
    Older {
        /// Its format.
        format: u64,
    },
    /// A file of the folder is damaged or does not belong to it.
    Damaged {
        /// The file.
        file: &'static str,
        /// The error.
        what: &'static str,
    },
    /// A file of the store has other hard links, in this folder or another. Two stores that share a
    /// file would overwrite each other.
    HardLinked {
        /// The file.
        file: PathBuf,
        /// The number of its names.
        names: u64,
    },
    /// The file system is read-only.
    ReadOnly,
    /// The system denied permission.
    Permission,
    /// The store belongs to another user. Root is refused as well: the owner could not open files
    /// that root creates.
    ForeignOwner {
        /// The user id of the owner.
        owner: u32,
    },
    /// The file system or the user's quota is full, or the file would exceed `RLIMIT_FSIZE`.
    NoSpace,
    /// The folder is on a network file system.
    Network {
        /// The name of the file system.
        kind: &'static str,
    },
    /// Other processes have the store open, and their shared memory is not visible from here.
    OtherNamespace,
    /// No process has this folder open, but living processes use its shared memory: they have
    /// another folder with the same path open.
    OtherFolder,
    /// The shared memory belongs to a store at another path: the folder was moved or copied while
    /// the store was open, or after its processes were killed.
    Elsewhere {
        /// The path of that store.
        path: PathBuf,
    },
    /// Its shared memory cannot be joined.
    Memory {
        /// The error.
        why: String,
    },
    /// The folder of the shared memory contains another file.
    NotMemory {
        /// Its name.
        name: OsString,
    },
    /// All process slots of the shared memory are in use.
    Processes {
        /// The number of slots.
        limit: u32,
    },
    /// Processes have the store open.
    InUse,
    /// Processes read the files in place ([`Options::read_only`](crate::Options::read_only)), so
    /// the files must not change.
    ReadElsewhere,
    /// The processes of the store were killed, and their memory contains changes that the files do
    /// not.
    LeftOpen,
    /// Open or prepared transactions, or commits next to prepared ones, occupy thread slots beyond
    /// the requested number.
    Threads {
        /// The minimum number of threads.
        needed: u32,
    },
    /// The locks of its prepared transactions do not fit into the memory for locks.
    Locks {
        /// The size of that memory in bytes: `sizes.locks`.
        limit: u64,
    },
    /// Any other error of the system.
    System {
        /// The kind.
        kind: io::ErrorKind,
        /// The message of the system.
        why: String,
    },
}

impl From<io::Error> for Refusal {
    fn from(why: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match why.kind() {
            Kind::NotADirectory => Self::NotAFolder,
            Kind::ReadOnlyFilesystem => Self::ReadOnly,
            Kind::PermissionDenied => Self::Permission,
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Self::NoSpace,
            kind => Self::System { kind, why: why.to_string() },
        }
    }
}

impl Refusal {
    /// Returns the text of a variant without fields.
    fn text(&self) -> Option<&'static str> {
        Some(match self {
            Self::NoStore => "there is no store",
            Self::NotAFolder => "it is not a folder",
            Self::DeadLink => {
                "it is a symbolic link to a path that does not exist: create that, or remove the \
                 link"
            }
            Self::Path => "a store's path is UTF-8, of 250 bytes at most, without line ends",
            Self::Taken => "a file or folder of that name exists; choose another",
            Self::WithinStore => "it lies in the folder of a store: choose a path outside it",
            Self::BeingMade => "another process is creating it",
            Self::ReadOnly => {
                "the file system is read-only: open the store with `read_only` (`--read-only`)"
            }
            Self::Permission => "permission denied: open it as its owner",
            Self::NoSpace => {
                "the file system is full, or the file is too long for it or for RLIMIT_FSIZE: \
                 make room, nothing is lost"
            }
            Self::OtherNamespace => {
                "other processes have it open, and their shared memory is not visible from here \
                 or to this user: share /dev/shm between the containers, or use one of them"
            }
            Self::OtherFolder => {
                "living processes use the shared memory of this path with another folder, and \
                 this is a copy of it: mount it at another path, or give each its own /dev/shm"
            }
            Self::InUse => "processes have it open: close it, or use `backup`",
            Self::ReadElsewhere => {
                "processes read its files in place (`read_only`): end them, or open it so as well"
            }
            Self::LeftOpen => {
                "its processes were killed, and their memory has changes that its files lack: \
                 open it once and close it, as `stat` does; or run `forget-memory` to use the \
                 files alone"
            }
            _ => return None,
        })
    }
}

fn being_opened(process: Option<u32>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("another process ")?;
    process.map_or(Ok(()), |process| write!(f, "({process}) "))?;
    f.write_str(
        "opens or closes it, which can take long after a crash of the machine: wait longer, or \
         inspect that process",
    )
}

fn newer(format: u64, program: Option<&str>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let known = crate::format::FORMAT;
    write!(f, "created with format {format}; this version reads format {known}. ")?;
    match program {
        Some(program) => write!(f, "Use latchwork {program} or later"),
        None => f.write_str("Use a later version of latchwork"),
    }
}

fn older(format: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let known = crate::format::FORMAT;
    write!(f, "created with format {format}")?;
    if let Some(version) = crate::format::version_of(format) {
        return write!(
            f,
            " (latchwork {version}); this version reads format {known}. `latchwork store upgrade` \
             converts it in place; copy the folder before"
        );
    }
    write!(
        f,
        "; this version reads format {known}. Run `latchwork store dump` of the version that \
         created it, and `latchwork store load` of this one"
    )
}

fn hard_linked(file: &Path, names: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "its file `{}` has {names} names (hard links), so that another folder changes with this \
         one: copy the folder with `cp -r --reflink=auto` and open the copy, or remove the other \
         names; `store backup` makes a copy of an open store",
        file.display()
    )
}

fn no_slot(limit: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "{limit} processes have it open, and its shared memory has no slot for another one: close \
         one of them; `latchwork store top`, `processes` and `locks` need no slot"
    )
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEmpty { name } => {
                write!(f, "no store, and the folder contains `{}`", name.display())
            }
            Self::BeingOpened { process } => being_opened(*process, f),
            Self::ForeignOwner { owner } => write!(
                f,
                "it belongs to user {owner}; a store and its shared memory have one owner. Open it \
                 as that user (`sudo -u '#{owner}'`), or change the owner of all files with \
                 `chown -R` while no process has it open"
            ),
            Self::Newer { format, program } => newer(*format, program.as_deref(), f),
            Self::Older { format } => older(*format, f),
            Self::Damaged { file, what } => {
                write!(f, "its file `{file}` is damaged or does not belong to it: {what}")
            }
            Self::HardLinked { file, names } => hard_linked(file, *names, f),
            Self::NotMemory { name } => write!(
                f,
                "`{}` is not shared memory of a store: move away all files that are not the \
                 store's",
                name.display()
            ),
            Self::Memory { why } => write!(
                f,
                "this shared memory of a store cannot be joined: {why}. End the processes that \
                 have the store open; if that does not help, run `forget-memory` to use the \
                 files alone, without what was not synced"
            ),
            Self::Network { kind } => write!(
                f,
                "it is on {kind}, a network file system, over which processes cannot share locks \
                 and memory: put it on a local disk"
            ),
            Self::Elsewhere { path } => write!(
                f,
                "its shared memory belongs to the store at {}: it was moved or copied while that \
                 was open, or is mounted at another path here. Move it back, or copy a store with \
                 `backup`; or run `forget-memory` to use the files alone, without what was not synced",
                path.display()
            ),
            Self::Processes { limit } => no_slot(*limit, f),
            Self::Threads { needed } => write!(
                f,
                "prepared transactions, or transactions that a crash left open, are in higher \
                 thread slots: open it for at least {needed} threads until they are decided or \
                 rolled back"
            ),
            Self::Locks { limit } => write!(
                f,
                "the locks of its prepared transactions need more than {limit} bytes: open it with \
                 more (`sizes.locks`) until they are decided"
            ),
            Self::System { why, .. } => f.write_str(why),
            other => f.write_str(other.text().unwrap_or("refused")),
        }
    }
}

impl core::error::Error for Refusal {}
