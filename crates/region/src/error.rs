//! The errors of a region.

use core::fmt;

use latchwork_machine::AttachError;
use rustix::io::Errno;

use crate::Layer;

/// The reason why a region could not be created, opened or used. Nothing has changed when it is
/// returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The file does not exist.
    NotFound,
    /// The file already exists.
    Exists,
    /// The system does not allow this process to open or create the file.
    Permission,
    /// The filesystem is read-only.
    ReadOnly,
    /// The filesystem is full.
    NoSpace,
    /// The file would exceed this process's limit (`RLIMIT_FSIZE`) or the filesystem's.
    FileLimit,
    /// The filesystem does not support shared writable mappings.
    NoMmap,
    /// The filesystem cannot allocate space in advance (`fallocate`), so a full disk would kill the
    /// process.
    NoFallocate,
    /// The filesystem has no open-file-description locks, so dead processes could not be detected.
    NoLocks,
    /// The last part of the path is a symbolic link.
    Symlink,
    /// The path names something that is not a regular file.
    NotRegular,
    /// The file has this many names, not one.
    HardLinked(u64),
    /// The file's permission bits allow more than requested.
    TooOpen(u32),
    /// The file belongs to this other user.
    ForeignOwner(u32),
    /// The file is shorter than its recorded length.
    Truncated {
        /// Expected bytes.
        needed: u64,
        /// Found bytes.
        found: u64,
    },
    /// The file is not a region.
    Foreign,
    /// The region was created on a machine with the other byte order.
    Endian,
    /// The region has an unknown layout version.
    Version {
        /// The region's version.
        found: u32,
        /// The supported version.
        known: u32,
    },
    /// The region was created for another page size.
    PageSize {
        /// The region's page size.
        found: u32,
        /// This system's page size.
        here: u32,
    },
    /// The region contains an impossible value.
    Corrupt {
        /// The kind of value.
        what: &'static str,
        /// Its position in bytes from the region's start.
        at: u64,
    },
    /// An option out of range, by its name.
    Options(&'static str),
    /// This process cannot reserve so many bytes of addresses.
    TooLarge(u64),
    /// The region has reached its limit, in bytes.
    Full(u64),
    /// All process slots belong to living processes: this many.
    Processes(u32),
    /// All thread slots are in use, by living threads or by dead ones that were not swept: this
    /// many.
    Threads(u32),
    /// This process has too many regions open: this many.
    Regions(u32),
    /// The region was opened before a fork, by the parent of this process. Open it again.
    Forked,
    /// The offset is null or lies outside the region.
    OutOfRange(u32),
    /// The cell at the offset is free, or is no cell of this type's size.
    NotInUse(u32),
    /// The thread has as many cells in hand as its slot can record: this many.
    InHand(u32),
    /// The region is open as a view and has no slot.
    View,
    /// A word or a value beyond the end of an area: its number, in words.
    OutOfArea(u64),
    /// The file with the area's name is no area, or belongs to another region.
    ForeignArea,
    /// This layer lives in the region, and this process has registered no repair for it, so it may
    /// not free the slots of dead threads.
    NoRepair(Layer),
    /// This layer could not repair what a dead thread left.
    Repair(Layer),
    /// A living thread is handing a latch to this dead thread, or to one that is swept with it.
    /// Sweep again.
    Handed(u32),
    /// Returned by a layer's repair for a dead thread whose slot must be retained.
    Retained,
    /// The table of waiter slots is invalid.
    Waiters(AttachError),
    /// A system call failed with an error that has no variant here.
    System {
        /// The call.
        call: &'static str,
        /// The error's number.
        errno: i32,
    },
}

impl Error {
    /// Maps the failure of `call` to an error.
    pub(crate) fn of(call: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::NotFound,
            Errno::EXIST => Self::Exists,
            Errno::ACCESS | Errno::PERM => Self::Permission,
            Errno::ROFS => Self::ReadOnly,
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace,
            Errno::FBIG => Self::FileLimit,
            Errno::LOOP => Self::Symlink,
            Errno::ISDIR | Errno::NXIO => Self::NotRegular,
            _ => Self::System { call, errno: errno.raw_os_error() },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("no such file"),
            Self::Exists => f.write_str("the file exists already"),
            Self::Permission => f.write_str("no permission"),
            Self::ReadOnly => f.write_str("the filesystem is read-only"),
            Self::NoSpace => f.write_str("the filesystem is full"),
            Self::FileLimit => {
                f.write_str("the file may not become so large (RLIMIT_FSIZE, or the filesystem)")
            }
            Self::NoMmap => f.write_str("the filesystem cannot map files for sharing"),
            Self::NoFallocate => f.write_str("the filesystem cannot set space aside (fallocate)"),
            Self::NoLocks => f.write_str("the filesystem has no open-file-description locks"),
            Self::Symlink => f.write_str("the path is a symbolic link"),
            Self::NotRegular => f.write_str("not a regular file"),
            Self::HardLinked(n) => write!(f, "the file has {n} names, it must have one"),
            Self::TooOpen(mode) => write!(f, "mode {mode:04o} lets more users in than asked for"),
            Self::ForeignOwner(uid) => write!(f, "the file belongs to user {uid}"),
            Self::Truncated { needed, found } => {
                write!(f, "truncated: {needed} bytes needed, {found} found")
            }
            Self::Foreign => f.write_str("not a region: the magic number is another"),
            Self::Endian => f.write_str("made by a machine of the other byte order"),
            Self::Version { found, known } => {
                write!(f, "layout version {found}; this program knows {known}")
            }
            Self::PageSize { found, here } => {
                write!(f, "made for pages of {found} bytes; here they have {here}")
            }
            Self::Corrupt { what, at } => write!(f, "corrupt: {what}, at byte {at}"),
            Self::Options(what) => write!(f, "option out of range: {what}"),
            Self::TooLarge(bytes) => {
                write!(
                    f,
                    "cannot set {bytes} bytes of addresses aside; see `ulimit -v`, or ask for less"
                )
            }
            Self::Full(limit) => write!(f, "the region has reached its limit of {limit} bytes"),
            Self::Processes(n) => write!(f, "all {n} process slots are held"),
            Self::Threads(n) => write!(f, "all {n} thread slots are held; sweep, or use fewer"),
            Self::Regions(n) => write!(f, "this process has {n} regions open"),
            Self::Forked => {
                f.write_str("the region was opened before a fork; the child must open it again")
            }
            Self::OutOfRange(unit) => write!(f, "offset {unit} leads nowhere"),
            Self::NotInUse(unit) => write!(f, "the cell at offset {unit} is not in use"),
            Self::InHand(n) => write!(f, "{n} cells in hand: publish or drop one first"),
            Self::View => f.write_str("the region is open to be looked at, not to be used"),
            Self::OutOfArea(word) => write!(f, "word {word} lies beyond the end of the area"),
            Self::ForeignArea => f.write_str("the file is no area, or another region's"),
            Self::NoRepair(layer) => {
                write!(f, "the region has a {layer}, which this process does not know to repair")
            }
            Self::Repair(layer) => write!(f, "the {layer} could not repair what a death left"),
            Self::Handed(thread) => {
                write!(f, "a latch is just handed to dead thread {thread}, or one swept with it")
            }
            Self::Retained => f.write_str("the slot of the dead thread is to be retained"),
            Self::Waiters(error) => write!(f, "waiter slots: {error}"),
            Self::System { call, errno } => {
                write!(f, "{call} failed: {}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl core::error::Error for Error {}
