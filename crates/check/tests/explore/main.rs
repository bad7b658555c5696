//! Schedules by the thousand on the simulated machine: latches, the lock manager, the pool.

mod flawed;
mod house;
mod latches;
mod locks;
mod pages;
mod pool;
mod stage;
