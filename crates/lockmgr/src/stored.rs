//! An owner that holds a reference count of its manager: for a field of a struct, a handle of
//! another language, or a task that moves between threads.
//!
//! [`Owner`] borrows its session, which costs nothing and ties it to one thread and one scope. A
//! [`StoredOwner`] has a session of its own, on the heap, and keeps the manager and the region open
//! while it exists. It can be sent to another thread with all its locks; one thread at a time uses
//! it. Its operations cost the same as an [`Owner`]'s. Creating one costs a session: a thread slot
//! of the region and 20 KiB. So a server creates one for each connection, and
//! [renews](StoredOwner::renew) it for each transaction.
//!
//! ```
//! use latchwork_lockmgr::{Manager, OwnerOptions, StoredOwner, granular::{self, IX, X}};
//!
//! struct Transaction {
//!     owner: StoredOwner,
//! }
//!
//! let manager = Manager::private(granular::modes())?;
//! let mut transaction = Transaction { owner: manager.stored_owner(&OwnerOptions::default())? };
//! drop(manager);
//! transaction.owner.get().lock(b"accounts", IX)?;
//! let mut transaction = std::thread::spawn(move || transaction).join().unwrap();
//! transaction.owner.get().lock(b"accounts/7", X)?;
//! transaction.owner.renew(&OwnerOptions::default())?;
//! assert_eq!(transaction.owner.get().held()?, 0);
//! # Ok::<(), latchwork_lockmgr::Error>(())
//! ```

use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll};

use latchwork_machine::{ConstMachine, Native};

use crate::memory::handle::Owner;
use crate::mode::Mode;
use crate::options::{OwnerOptions, Wait};
use crate::range::kinds::{KeyRange, RangeKind};
use crate::session::Session;
use crate::wakeup::futures::LockFuture;
use crate::wakeup::range_futures::RangeFuture;
use crate::{Error, Manager};

/// An owner with a session of its own. Dropping it releases all its locks and frees the thread
/// slot. If its process dies, its locks are released like those of any owner.
pub struct StoredOwner<M: ConstMachine = Native> {
    /// Borrows `*session`, and is dropped before it.
    owner: ManuallyDrop<Owner<'static, M>>,
    /// From a `Box`.
    session: NonNull<Session<M>>,
}

// SAFETY: the session belongs to this handle alone, because no other reference to it exists, and it
// may be sent (see `is_sent`). The owner refers to that session and to its region, which the
// session keeps mapped; its other fields are cells of numbers and pointers into these. The handle
// is not `Sync`.
unsafe impl<M: ConstMachine> Send for StoredOwner<M> {}

/// Fails to compile if a session cannot be sent.
#[allow(dead_code, reason = "it is checked, not called")]
fn is_sent<M: ConstMachine>(session: Session<M>) -> impl Send {
    session
}

impl<M: ConstMachine> Manager<M> {
    /// Creates an owner with a session of its own, which holds a reference count of this manager.
    ///
    /// # Errors
    ///
    /// The errors of [`session`](Self::session) and [`Session::owner_with`].
    pub fn stored_owner(&self, options: &OwnerOptions<'_>) -> Result<StoredOwner<M>, Error> {
        let session = NonNull::from(Box::leak(Box::new(self.session()?)));
        // SAFETY: it was leaked above, so it lives until `StoredOwner` or the line below frees it;
        // it does not move, because it is on the heap.
        let borrowed: &'static Session<M> = unsafe { session.as_ref() };
        match borrowed.owner_with(options) {
            Ok(owner) => Ok(StoredOwner { owner: ManuallyDrop::new(owner), session }),
            Err(error) => {
                // SAFETY: it came from a box above, and no owner borrows it.
                drop(unsafe { Box::from_raw(session.as_ptr()) });
                Err(error)
            }
        }
    }
}

impl<M: ConstMachine> StoredOwner<M> {
    /// Returns the owner, with all its operations.
    pub fn get(&self) -> &Owner<'_, M> {
        &self.owner
    }

    /// Returns its session.
    pub fn session(&self) -> &Session<M> {
        // SAFETY: it was leaked in `stored_owner`, and is freed when this handle is dropped.
        unsafe { self.session.as_ref() }
    }

    /// Releases all its locks, and makes it a new owner with another id and these options.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::owner_with`]. At an error it stays the same owner, with its locks.
    pub fn renew(&mut self, options: &OwnerOptions<'_>) -> Result<(), Error> {
        let next = self.owner.memory.owner_with(options)?;
        drop(core::mem::replace(&mut *self.owner, next));
        Ok(())
    }

    /// Takes a lock as [`Owner::lock_async_with`] does. The future may be sent to another thread,
    /// because it borrows the owner exclusively.
    ///
    /// # Errors
    ///
    /// The errors of [`Owner::lock_async_with`].
    pub fn lock_async<'h>(
        &'h mut self,
        name: &'h [u8],
        mode: Mode,
        wait: Wait,
    ) -> StoredFuture<'h, LockFuture<'h, 'h, 'h, M>> {
        let owner: &'h Owner<'h, M> = &self.owner;
        StoredFuture { future: owner.lock_async_with(name, mode, wait), alone: PhantomData }
    }

    /// Takes a lock as [`Owner::lock_range_async`] does. The future may be sent to another thread.
    ///
    /// # Errors
    ///
    /// The errors of [`Owner::lock_range_async`].
    pub fn lock_range_async<'h>(
        &'h mut self,
        keyspace: &'h [u8],
        range: KeyRange<'h>,
        kind: RangeKind,
        wait: Wait,
    ) -> StoredFuture<'h, RangeFuture<'h, 'h, 'h, M>> {
        let owner: &'h Owner<'h, M> = &self.owner;
        let future = owner.lock_range_async(keyspace, range, kind, wait);
        StoredFuture { future, alone: PhantomData }
    }
}

impl<M: ConstMachine> Drop for StoredOwner<M> {
    fn drop(&mut self) {
        // SAFETY: this is the only place that drops it, and it is not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.owner) };
        // SAFETY: it came from a box, in `stored_owner`; its only borrower was dropped above.
        drop(unsafe { Box::from_raw(self.session.as_ptr()) });
    }
}

impl<M: ConstMachine> fmt::Debug for StoredOwner<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredOwner({})", self.owner.id())
    }
}

/// The future of a lock of a [`StoredOwner`]: a [`LockFuture`] or [`RangeFuture`] that may be sent.
#[must_use = "a future does nothing until it is polled"]
pub struct StoredFuture<'h, F> {
    future: F,
    /// Borrows the owner exclusively.
    alone: PhantomData<&'h mut ()>,
}

// SAFETY: the future refers to the owner and session of one `StoredOwner`, which is borrowed
// exclusively until the future ends and may be sent itself; the names that it reads are shared
// slices.
unsafe impl<M: ConstMachine> Send for StoredFuture<'_, LockFuture<'_, '_, '_, M>> {}
// SAFETY: as above.
unsafe impl<M: ConstMachine> Send for StoredFuture<'_, RangeFuture<'_, '_, '_, M>> {}

impl<F: Future + Unpin> Future for StoredFuture<'_, F> {
    type Output = F::Output;

    /// # Panics
    ///
    /// Panics if it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.future).poll(cx)
    }
}

impl<F> fmt::Debug for StoredFuture<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoredFuture")
    }
}
