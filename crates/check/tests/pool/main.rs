//! The pool on real threads.

mod faults;
mod free;
mod keep;
mod pages;
mod resize;
mod seen;
