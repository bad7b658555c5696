//! The lock manager in children of a fork, which may do less than their parent, or die: a program
//! of its own, for no thread of it may hold a mutex of the tests when it forks.

mod fork;
mod limits;
mod many;
