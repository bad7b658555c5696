//! The pool on real threads.

mod faults;
mod free;
mod pages;
mod seen;
