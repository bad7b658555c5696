//! The C interface of Latchwork: what `include/latchwork.h` declares.
//!
//! Every call runs under `call::call`, which catches panics and hands errors out. A
//! pointer of the caller's refers to a handle (`handle`) whose first word says its type.
//! `docs/c.md` is the guide; the header is made of this crate by `scripts/capi header`.

#![warn(clippy::all)]
// A C function passes on what its caller promises, for all that it does.
#![allow(clippy::multiple_unsafe_ops_per_block)]

mod call;
mod failure;
mod fork;
mod handle;
mod queue;
mod using;

// The header has the functions in this order.
pub mod codes;

pub mod error;

pub mod buf;

pub mod store;

pub mod table;

pub mod record;

pub mod range;

pub mod scan;

pub mod snapshot;

pub mod txn;

pub mod attempts;

pub mod cursor;

pub mod done;

pub mod keys;

pub mod prepared;

pub mod tools;

pub mod locks;

pub mod owner;

/// A call that panics, used to test that.
///
/// # Safety
///
/// `error` is null, or a place for a pointer.
#[cfg(feature = "own-tests")]
#[doc(hidden)]
pub unsafe fn panics(error: *mut *mut error::lw_error) -> core::ffi::c_int {
    // SAFETY: the caller's promise.
    unsafe { call::panics(error) }
}

/// Returns the store of an object, so that both sides of a benchmark use one session.
///
/// # Safety
///
/// It is a store of this process.
///
/// # Panics
///
/// If it is none.
#[cfg(feature = "own-tests")]
#[doc(hidden)]
pub unsafe fn store_of(store: *const store::lw_store) -> latchwork_store::Store {
    // SAFETY: the caller's promise.
    let opened = unsafe { handle::used(store) };
    opened.ok().expect("a store").store.clone()
}
