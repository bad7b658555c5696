//! The lock manager in children of a fork, which have fewer permissions than their parent or die. A
//! separate program, because no other thread may hold a mutex when a test forks.

mod fork;
mod limits;
mod many;
