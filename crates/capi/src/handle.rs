//! Objects that pointers of the caller refer to: each has a kind, an owner and a mark of use.
//!
//! ```text
//! kind          the type; CLOSED after `_close`, `_free`, `lw_commit`, `lw_roll_back`
//! busy          of an object for one thread at a time: 1 while a call uses it, else 0;
//!               of a store or a lock manager: the number of callbacks that use it, see `using.rs`
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
use core::ops::Deref;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

use latchwork_machine::{Machine, Native};

use crate::codes::lw_code::{LW_BUSY, LW_OK};
use crate::failure::{Answer, Failure, misuse};
use crate::fork;
use crate::using::{self, Word};

/// The kind of a handle that has ended.
const CLOSED: u32 = 0x6c77_0000;
/// The kind of a handle while a thread finds out whether it may end: for microseconds.
const CLOSING: u32 = 0x6c77_ffff;

/// How many handles of a type end before the memory of one is used again.
const LATER: usize = 64;

/// A type of handle: the name that it has in C.
pub(crate) trait Kind: Sized + 'static {
    /// The object that a handle of this kind refers to.
    type Value: Send;
    /// The first word of its handles.
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
    if handle.kind.load(Acquire) != K::KIND {
        let kind = handle.settled();
        if kind != K::KIND {
            return Err(wrong::<K>(kind));
        }
    }
    if !K::PLAIN {
        // SAFETY: it is written before the kind, by `new` alone.
        let token = unsafe { *handle.token.get() };
        if !fork::is_token(token) {
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

impl<K: Kind> Handle<K> {
    fn address(&self) -> usize {
        core::ptr::from_ref(self).expose_provenance()
    }

    /// Its kind, when a close that is under way has ended or failed.
    #[cold]
    fn settled(&self) -> u32 {
        loop {
            // Acquire: as in `checked`.
            match self.kind.load(Acquire) {
                CLOSING => std::thread::yield_now(),
                kind => return kind,
            }
        }
    }

    /// Ends it, and returns the object.
    ///
    /// # Safety
    ///
    /// The object exists, and no other thread uses or ends it.
    unsafe fn take(&self) -> K::Value {
        // SAFETY: the caller's promise; from here on the kind says that there is none.
        let value = unsafe { (*self.value.get()).assume_init_read() };
        // Release: with the Acquire of `checked`.
        self.kind.store(CLOSED, Release);
        // Relaxed: the caller orders it.
        self.generation.fetch_add(1, Relaxed);
        value
    }

    /// Gives its memory to a later handle.
    fn retire(&self) {
        let mut ended = K::pool().ended().handles.lock().unwrap_or_else(PoisonError::into_inner);
        ended.push_back(self.address());
    }
}

/// An object that all threads may use, a store or a lock manager. It does not end while this value
/// exists.
pub(crate) struct Used<'h, K: Kind> {
    handle: &'h Handle<K>,
    /// The thread's word; none if the handle counts this use.
    word: Option<&'static Word>,
}

/// Takes an object that all threads may use, for the duration of a call.
///
/// # Safety
///
/// The pointer is null or refers to a handle of this library.
#[inline(always)]
pub(crate) unsafe fn used<'h, K: Kind>(pointer: *const K) -> Result<Used<'h, K>, Failure> {
    // SAFETY: the caller's promise.
    let used = Used::begin(unsafe { checked(pointer)? });
    match used.is_alive() {
        true => Ok(used),
        // SAFETY: the caller's promise.
        false => unsafe { used_later(used, pointer) },
    }
}

/// As [`used`], after a close has begun.
#[cold]
unsafe fn used_later<'h, K: Kind>(
    mut used: Used<'h, K>,
    pointer: *const K,
) -> Result<Used<'h, K>, Failure> {
    while !used.is_alive() {
        // The close may see that no call uses it.
        drop(used);
        // SAFETY: the caller's promise.
        used = Used::begin(unsafe { checked(pointer)? });
    }
    Ok(used)
}

impl<'h, K: Kind> Used<'h, K> {
    /// Says that it is used; whether it is still there must be looked at behind that.
    #[inline(always)]
    fn begin(handle: &'h Handle<K>) -> Self {
        let word = using::begin(handle.address());
        if word.is_none() {
            // SeqCst: before the load below; with the load of `close`.
            handle.busy.fetch_add(1, SeqCst);
        }
        Native::light_barrier();
        Self { handle, word }
    }

    #[inline(always)]
    fn is_alive(&self) -> bool {
        // SeqCst: behind what says that it is used. A load as any other on x86-64.
        self.handle.kind.load(SeqCst) == K::KIND
    }
}

impl<K: Kind> Deref for Used<'_, K> {
    type Target = K::Value;

    #[inline]
    fn deref(&self) -> &K::Value {
        // SAFETY: its kind says that the value was written, and it is not ended while it is used.
        unsafe { (*self.handle.value.get()).assume_init_ref() }
    }
}

impl<K: Kind> Drop for Used<'_, K> {
    #[inline]
    fn drop(&mut self) {
        match self.word {
            Some(word) => word.end(),
            // Release: with the load of `close`.
            None => _ = self.handle.busy.fetch_sub(1, Release),
        }
    }
}

/// Ends an object that all threads may use, and returns it; not while a call uses it.
///
/// # Safety
///
/// The pointer is null or refers to a handle of this library.
pub(crate) unsafe fn close<K: Kind>(pointer: *mut K) -> Result<K::Value, Failure> {
    let handle = loop {
        // SAFETY: the caller's promise.
        let handle = unsafe { checked::<K>(pointer)? };
        // SeqCst: before the looks below. One of several closing threads continues.
        if handle.kind.compare_exchange(K::KIND, CLOSING, SeqCst, Relaxed).is_ok() {
            break handle;
        }
    };
    if !Native::heavy_barrier() {
        // Without membarrier(2): no processor keeps a store to itself for so long.
        std::thread::sleep(Duration::from_millis(1));
    }
    // SeqCst, and Acquire in `is_used`: the effects of those calls come before the end.
    if handle.busy.load(SeqCst) > 0 || using::is_used(handle.address()) {
        // Release: as `new`.
        handle.kind.store(K::KIND, Release);
        return Err(in_use::<K>());
    }
    // SAFETY: calls that begin see that it ends, and none is under way.
    let value = unsafe { handle.take() };
    handle.retire();
    Ok(value)
}

/// The object of a handle of plain memory, which all threads may use.
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
    let text = format!(
        "another call uses the {name}, on another thread or around this callback: nothing was done"
    );
    Failure::Other(LW_BUSY, text)
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
        let handle = self.0;
        // SAFETY: its kind says that the value was written, and `busy` that no other thread has it.
        let value = unsafe { handle.take() };
        drop(self);
        handle.retire();
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

/// Ends a handle as all functions `_free` and `_close` do. Null is allowed. In the child of a fork
/// the object belongs to the parent, so only its memory is given up. None if no object was ended.
///
/// # Safety
///
/// The pointer is null or refers to a handle of this library, and `ended` is what [`end`] or
/// [`close`] says of it.
pub(crate) unsafe fn or_given_up<K: Kind>(
    pointer: *mut K,
    end: impl FnOnce(*mut K) -> Result<K::Value, Failure>,
) -> Result<Option<K::Value>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    match end(pointer) {
        Err(Failure::Forked) => {
            // SAFETY: `Forked` says that it is a handle of this kind.
            unsafe { forget(pointer) };
            Ok(None)
        }
        ended => ended.map(Some),
    }
}

/// Ends the handle of an object that one thread uses at a time, or of plain memory.
///
/// # Safety
///
/// The pointer is null or refers to a handle of this library.
pub(crate) unsafe fn free<K: Kind>(pointer: *mut K) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { or_given_up(pointer, |pointer| end(pointer)) }?;
    Ok(LW_OK)
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

/// The object of the parent's, in the child of a fork: to read what is plain memory.
///
/// # Safety
///
/// [`used`] has said of the pointer that it is `Forked`.
pub(crate) unsafe fn inherited<'h, K: Kind>(pointer: *const K) -> &'h K::Value {
    // SAFETY: `Forked` says that it is a handle of this kind.
    let handle = unsafe { &*pointer.cast::<Handle<K>>() };
    // SAFETY: its kind says that the value was written.
    unsafe { (*handle.value.get()).assume_init_ref() }
}
