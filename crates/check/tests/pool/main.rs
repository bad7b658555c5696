//! The pool on real threads.

mod busy;
mod bytes;
mod changing;
mod cold;
mod damaged;
mod faults;
mod free;
mod keep;
mod meter;
mod pages;
mod points;
mod remove;
mod resize;
mod seen;
mod sizes;
mod sparse;
mod system;
mod trouble;
mod unsupported;
mod verify;
