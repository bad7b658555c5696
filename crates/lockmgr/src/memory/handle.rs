//! The handle of an owner: references and cached values of its cell. The folders above define its
//! methods.

use core::cell::{Cell, OnceCell, RefCell};

use latchwork_machine::{ConstMachine, Native};

use crate::ids::OwnerId;
use crate::memory::Memory;
use crate::memory::cells::{BiasWord, ObjectAt, OwnerCell, Request, RequestAt, Small, WeakPage};
use crate::memory::journal::Journal;
use crate::memory::numbers::OwnerNumber;
#[cfg(feature = "tracing")]
use crate::meter::events;

/// An owner of locks. Dropping it releases all of its locks.
///
/// If its process dies, the thread that finds this releases the locks, after the recovery callback
/// returned true.
pub struct Owner<'s, M: ConstMachine = Native> {
    pub(crate) memory: &'s Memory<M>,
    pub(crate) cell: &'s OwnerCell<M>,
    /// The filter of its page of owners.
    pub(crate) filter: &'s M::AtomicU64,
    pub(crate) index: OwnerNumber,
    pub(crate) generation: u32,
    /// The request that waits, or null.
    pub(crate) pending: Cell<RequestAt<M>>,
    /// Whether that is a conversion.
    pub(crate) converting: Cell<bool>,
    /// By bit, the entries of the weak page that count something or must be settled, and the
    /// reserved entries.
    pub(crate) entries: Cell<u32>,
    pub(crate) reserved: Cell<u32>,
    /// By bits of their hashes, the names that it may hold in the table in a weak mode, and so
    /// possibly in both places: `fastpath/gather.rs`.
    pub(crate) in_table: Cell<u64>,
    /// The entry that was taken last, if any, and its bias.
    pub(crate) last_entry: Cell<Option<(usize, Known<BiasWord<M>>)>>,
    /// A held request, usually the last one granted; `None` if unknown.
    pub(crate) last: Cell<Option<LastKnown<M>>>,
    /// Its weak page, once found.
    pub(crate) page: Cell<Option<Known<WeakPage<M>>>>,
    pub(crate) watch: Watch,
    /// Whether dropping the handle leaves the locks held.
    pub(crate) kept: Cell<bool>,
    /// Exists from its first savepoint on.
    pub(crate) journal: OnceCell<Box<Journal>>,
}

/// The data of an owner's wait.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) want: Cell<u8>,
    /// The owners in the way when the deadline passed, and whether each holds the lock.
    pub(crate) blockers: RefCell<Vec<(OwnerId, bool)>>,
    #[cfg(feature = "tracing")]
    pub(crate) traced: events::Traced,
}

/// A cached address in the region, valid while the owner's session exists.
///
/// A reference in a `Cell` would make owners invariant in their session's lifetime. Then a function
/// could not take an owner together with another one of a shorter lifetime.
pub(crate) struct Known<T>(pub(crate) *const T);

impl<T> Clone for Known<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Known<T> {}

/// A held request of an owner, and its object, as references.
pub(crate) struct Last<'s, M: ConstMachine> {
    pub(crate) at: RequestAt<M>,
    pub(crate) object_at: ObjectAt<M>,
    pub(crate) request: &'s Request<M>,
    pub(crate) object: &'s Small<M>,
}

/// A held request of an owner, and its object, as cached in the owner.
pub(crate) struct LastKnown<M: ConstMachine> {
    pub(crate) at: RequestAt<M>,
    pub(crate) object_at: ObjectAt<M>,
    pub(crate) request: Known<Request<M>>,
    pub(crate) object: Known<Small<M>>,
}

impl<M: ConstMachine> Clone for LastKnown<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ConstMachine> Copy for LastKnown<M> {}
