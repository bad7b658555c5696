//! An owner in hand: what it remembers of its cell. What it does is in the folders above.

use core::cell::{Cell, OnceCell, RefCell};

use latchwork_machine::{ConstMachine, Native};

use crate::ids::OwnerId;
use crate::memory::Memory;
use crate::memory::cells::{BiasWord, ObjectAt, OwnerCell, Request, RequestAt, Small, WeakPage};
use crate::memory::journal::Journal;
use crate::memory::numbers::OwnerNumber;
#[cfg(feature = "tracing")]
use crate::meter::events;

/// An owner of locks. Dropping it releases them all.
///
/// If its process dies, the thread that meets what it holds releases it, after the recovery
/// callback was asked.
pub struct Owner<'s, M: ConstMachine = Native> {
    pub(crate) memory: &'s Memory<M>,
    pub(crate) cell: &'s OwnerCell<M>,
    /// The filter of its page of owners.
    pub(crate) filter: &'s M::AtomicU64,
    pub(crate) index: OwnerNumber,
    pub(crate) generation: u32,
    /// The request that waits; null if none does.
    pub(crate) pending: Cell<RequestAt<M>>,
    /// Whether that is a conversion.
    pub(crate) converting: Cell<bool>,
    /// By bit, the entries of the weak page that count something or are to be settled, and those
    /// that are reserved.
    pub(crate) entries: Cell<u32>,
    pub(crate) reserved: Cell<u32>,
    /// By bits of their hashes, the names that it may have in the table in a weak mode, and so in
    /// both places: `fastpath/gather.rs`.
    pub(crate) in_table: Cell<u64>,
    /// The entry that was taken last, if any was, and its bias.
    pub(crate) last_entry: Cell<Option<(usize, Known<BiasWord<M>>)>>,
    /// A request that holds, most often the last one that was granted, if it is known.
    pub(crate) last: Cell<Option<LastKnown<M>>>,
    /// Its weak page, once it was found.
    pub(crate) page: Cell<Option<Known<WeakPage<M>>>>,
    pub(crate) watch: Watch,
    /// Dropping it releases nothing.
    pub(crate) kept: Cell<bool>,
    /// From its first savepoint on.
    pub(crate) journal: OnceCell<Box<Journal>>,
}

/// What an owner remembers of its wait.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) want: Cell<u8>,
    /// The owners in the way when it came to its deadline, and whether each holds.
    pub(crate) blockers: RefCell<Vec<(OwnerId, bool)>>,
    #[cfg(feature = "tracing")]
    pub(crate) traced: events::Traced,
}

/// A place of the region in which its owner's session works.
///
/// A reference in a `Cell` would say the same, but make owners invariant in their session's
/// lifetime: then none could be handed to a function beside another that lives shorter.
pub(crate) struct Known<T>(pub(crate) *const T);

impl<T> Clone for Known<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Known<T> {}

/// A request of an owner, and its object, as found.
pub(crate) struct Last<'s, M: ConstMachine> {
    pub(crate) at: RequestAt<M>,
    pub(crate) object_at: ObjectAt<M>,
    pub(crate) request: &'s Request<M>,
    pub(crate) object: &'s Small<M>,
}

/// The same, as an owner keeps it.
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
