//! The pool on real threads.

mod bytes;
mod faults;
mod free;
mod keep;
mod meter;
mod pages;
mod points;
mod remove;
mod resize;
mod seen;
mod sparse;
mod unsupported;
mod verify;
