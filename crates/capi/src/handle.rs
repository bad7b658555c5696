//! What a pointer of the caller's refers to: an object with a kind, an owner and a mark of use.
//!
//! ```text
//! kind          the type; CLOSED after `_close`, `_free`, `lw_commit`, `lw_roll_back`
//! busy          0, or 1 while a call uses an object that one thread uses at a time
//! generation    grows when the object ends: a cursor remembers that of its transaction
//! token         the process that made it, see `fork.rs`
//! value         the Rust object, while the kind is not CLOSED
//! ```
//!
//! The memory of a handle is never returned to the allocator: it is used again for a handle of the
//! same type, after 64 others have ended. So a pointer that was closed is recognised and not
//! followed into memory of another kind. A process has as many handles as it ever had at a time,
//! and 64 of each type.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

use crate::failure::{Failure, misuse};
use crate::fork;

/// The kind of a handle that has ended.
const CLOSED: u32 = 0x6c77_0000;

/// How many handles of a type end before the memory of one is used again.
const LATER: usize = 64;

/// A type of handle: the name that it has in C.
pub(crate) trait Kind: Sized + 'static {
    /// What a handle of this kind refers to.
    type Value: Send;
    /// What is in the first word of its handles.
    const KIND: u32;
    /// Its name in C.
    const NAME: &'static str;
    /// Whether the child of a fork may use it: it is plain memory.
    const PLAIN: bool = false;

    /// The memory of handles that have ended.
    fn pool() -> &'static Pool;
}

/// Declares the kinds.
macro_rules! kinds {
    ($($name:ident => $value:ty, $number:expr, $plain:expr;)*) => {$(
        impl $crate::handle::Kind for $name {
            type Value = $value;
            const KIND: u32 = 0x6c77_0000 + $number;
            const NAME: &'static str = stringify!($name);
            const PLAIN: bool = $plain;

            fn pool() -> &'static $crate::handle::Pool {
                static POOL: $crate::handle::Pool = $crate::handle::Pool::new();
                &POOL
            }
        }
    )*};
}
pub(crate) use kinds;

/// The memory that a pointer of the caller's refers to.
#[repr(C)]
struct Handle<K: Kind> {
    kind: AtomicU32,
    busy: AtomicU32,
    generation: AtomicU64,
    token: UnsafeCell<u64>,
    value: UnsafeCell<MaybeUninit<K::Value>>,
}

/// Handles that have ended, oldest first; those of one process. The child of a fork starts its own
/// list: a thread that does not exist there may hold the mutex.
pub(crate) struct Pool {
    now: AtomicPtr<Ended>,
}

struct Ended {
    token: u64,
    handles: Mutex<VecDeque<usize>>,
}

impl Pool {
    pub(crate) const fn new() -> Self {
        Self { now: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn ended(&self) -> &'static Ended {
        let token = fork::token();
        loop {
            // Acquire: with the AcqRel below, so that what it points to is whole.
            let now = self.now.load(Acquire);
            // SAFETY: it is null or was leaked below.
            match unsafe { now.as_ref() } {
                Some(ended) if ended.token == token => return ended,
                _ => {}
            }
            let fresh = Box::into_raw(Box::new(Ended { token, handles: Mutex::default() }));
            // AcqRel: publishes `fresh` to the Acquire above; Acquire of the other one's.
            if self.now.compare_exchange(now, fresh, AcqRel, Acquire).is_err() {
                // SAFETY: it came from a box above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

/// Makes a handle.
pub(crate) fn new<K: Kind>(value: K::Value) -> *mut K {
    let mut ended = K::pool().ended().handles.lock().unwrap_or_else(PoisonError::into_inner);
    let again = if ended.len() > LATER { ended.pop_front() } else { None };
    drop(ended);
    let handle = match again {
        Some(address) => core::ptr::with_exposed_provenance_mut::<Handle<K>>(address),
        None => Box::into_raw(Box::new(Handle {
            kind: AtomicU32::new(CLOSED),
            busy: AtomicU32::new(0),
            generation: AtomicU64::new(0),
            token: UnsafeCell::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        })),
    };
    // SAFETY: it is a handle of this kind whose memory lasts for ever.
    let made = unsafe { &*handle };
    // SAFETY: it has ended, so that no thread reads its value or its token.
    unsafe { (*made.value.get()).write(value) };
    // SAFETY: as above.
    unsafe { *made.token.get() = fork::token() };
    // Release: with the Acquire of `checked`.
    made.kind.store(K::KIND, Release);
    handle.cast()
}

/// A handle whose kind is right; or what is wrong with the pointer.
#[inline]
unsafe fn checked<'h, K: Kind>(pointer: *const K) -> Result<&'h Handle<K>, Failure> {
    if pointer.is_null() || !pointer.cast::<Handle<K>>().is_aligned() {
        return Err(wrong::<K>(0));
    }
    // SAFETY: the caller of the C function says that it is a handle, of whatever kind.
    let handle = unsafe { &*pointer.cast::<Handle<K>>() };
    // Acquire: with the Release of `new`, so that the value is whole.
    let kind = handle.kind.load(Acquire);
    if kind != K::KIND {
        return Err(wrong::<K>(kind));
    }
    if !K::PLAIN {
        // SAFETY: it is written before the kind, by `new` alone.
        let token = unsafe { *handle.token.get() };
        if token != fork::token() {
            return Err(Failure::Forked);
        }
    }
    Ok(handle)
}

#[cold]
fn wrong<K: Kind>(kind: u32) -> Failure {
    let name = K::NAME;
    match kind {
        0 => misuse(format!("the pointer to the {name} is NULL or misaligned")),
        CLOSED => misuse(format!("the {name} was closed or freed, or its transaction has ended")),
        _ => misuse(format!("the pointer does not refer to a {name}")),
    }
}

/// The object of a handle that all threads may use.
///
/// # Safety
///
/// The pointer is null or refers to a handle of this library, and no other thread ends it during
/// the call.
#[inline]
pub(crate) unsafe fn shared<'h, K: Kind>(pointer: *const K) -> Result<&'h K::Value, Failure> {
    // SAFETY: the caller's promise.
    let handle = unsafe { checked(pointer)? };
    // SAFETY: its kind says that the value was written, and `shared` objects are never lent as
    // `&mut`.
    Ok(unsafe { (*handle.value.get()).assume_init_ref() })
}

/// The object of a handle that one thread uses at a time, while this exists.
pub(crate) struct Alone<'h, K: Kind>(&'h Handle<K>);

/// Takes an object for a call.
///
/// # Safety
///
/// The pointer is null or refers to a handle of this library.
#[inline]
pub(crate) unsafe fn alone<'h, K: Kind>(pointer: *mut K) -> Result<Alone<'h, K>, Failure> {
    // SAFETY: the caller's promise.
    let handle = unsafe { checked::<K>(pointer)? };
    let Some(alone) = Alone::new(handle) else { return Err(in_use::<K>()) };
    // Relaxed: `busy` has ordered it. A call that ended the object before had `busy`.
    match handle.kind.load(Relaxed) {
        kind if kind == K::KIND => Ok(alone),
        kind => Err(wrong::<K>(kind)),
    }
}

#[cold]
fn in_use<K: Kind>() -> Failure {
    let name = K::NAME;
    misuse(format!(
        "another call uses the {name}: one thread may use it at a time, and a callback may not use \
         the {name} of the call that it is in"
    ))
}

impl<'h, K: Kind> Alone<'h, K> {
    /// None if a call uses it.
    #[inline]
    fn new(handle: &'h Handle<K>) -> Option<Self> {
        // Acquire: with the Release of `drop`, so that this thread sees what the last call did.
        (handle.busy.swap(1, Acquire) == 0).then(|| Self(handle))
    }

    #[inline]
    pub(crate) fn get(&mut self) -> &mut K::Value {
        // SAFETY: its kind says that the value was written, and `busy` that no other thread has it.
        unsafe { (*self.0.value.get()).assume_init_mut() }
    }

    pub(crate) fn generation(&self) -> u64 {
        // Relaxed: it changes under `busy`, which this has.
        self.0.generation.load(Relaxed)
    }

    /// Ends the handle, and returns the object.
    pub(crate) fn end(self) -> K::Value {
        // SAFETY: its kind says that the value was written; from here on the kind says otherwise.
        let value = unsafe { (*self.0.value.get()).assume_init_read() };
        // Release: with the Acquire of `checked`.
        self.0.kind.store(CLOSED, Release);
        // Relaxed: `busy` orders it.
        self.0.generation.fetch_add(1, Relaxed);
        let address = core::ptr::from_ref(self.0).expose_provenance();
        drop(self);
        let mut ended = K::pool().ended().handles.lock().unwrap_or_else(PoisonError::into_inner);
        ended.push_back(address);
        value
    }
}

impl<K: Kind> Drop for Alone<'_, K> {
    #[inline]
    fn drop(&mut self) {
        // Release: with the Acquire of `alone`.
        self.0.busy.store(0, Release);
    }
}

/// Ends a handle, and returns its object.
///
/// # Safety
///
/// The pointer is null or refers to a handle of this library.
pub(crate) unsafe fn end<K: Kind>(pointer: *mut K) -> Result<K::Value, Failure> {
    // SAFETY: the caller's promise.
    Ok(unsafe { alone(pointer)? }.end())
}

/// Ends a handle, as all functions `_free` do: null is nothing, and in the child of a fork the
/// object is the parent's, so its memory is given up and nothing else is done. A handle that a call
/// uses at this moment is not changed.
///
/// # Safety
///
/// The pointer is null or refers to a handle of this library.
pub(crate) unsafe fn free<K: Kind>(pointer: *mut K) {
    // SAFETY: the caller's promise.
    match unsafe { alone(pointer) } {
        Ok(alone) => drop(alone.end()),
        // SAFETY: `Forked` says that it is a handle of this kind.
        Err(Failure::Forked) => unsafe { forget(pointer) },
        Err(_) => {}
    }
}

/// Ends a handle that belongs to another object, which ends. A call that uses it on another thread,
/// against the rules, is waited for.
///
/// # Safety
///
/// The pointer is null or refers to a handle of this library.
pub(crate) unsafe fn finish<K: Kind>(pointer: *mut K) {
    // SAFETY: the caller's promise.
    while let Ok(handle) = unsafe { checked::<K>(pointer) } {
        match Alone::new(handle) {
            Some(alone) => return drop(alone.end()),
            None => std::thread::yield_now(),
        }
    }
}

/// Gives up the memory of a handle of the parent, in the child of a fork: its object is not
/// dropped.
///
/// # Safety
///
/// The pointer refers to a handle of this kind.
unsafe fn forget<K: Kind>(pointer: *mut K) {
    // SAFETY: the caller's promise.
    let handle = unsafe { &*pointer.cast::<Handle<K>>() };
    // Relaxed: the child has one thread that knows of it.
    handle.kind.store(CLOSED, Relaxed);
}

/// The object of a handle that all threads may use, also in the child of a fork: to read what is
/// plain memory.
///
/// # Safety
///
/// As [`shared`].
pub(crate) unsafe fn inherited<'h, K: Kind>(pointer: *const K) -> Result<&'h K::Value, Failure> {
    // SAFETY: the caller's promise.
    match unsafe { checked(pointer) } {
        // SAFETY: its kind says that the value was written.
        Ok(handle) => Ok(unsafe { (*handle.value.get()).assume_init_ref() }),
        Err(Failure::Forked) => {
            // SAFETY: `Forked` says that it is a handle of this kind.
            let handle = unsafe { &*pointer.cast::<Handle<K>>() };
            // SAFETY: its kind says that the value was written.
            Ok(unsafe { (*handle.value.get()).assume_init_ref() })
        }
        Err(why) => Err(why),
    }
}
