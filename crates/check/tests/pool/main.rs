//! The pool on real threads.

mod faults;
mod pages;
mod seen;
