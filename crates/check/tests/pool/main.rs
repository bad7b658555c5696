//! The pool on real threads.

mod bytes;
mod faults;
mod free;
mod keep;
mod pages;
mod resize;
mod seen;
mod unsupported;
mod verify;
