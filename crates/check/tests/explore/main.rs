//! Schedules by the thousand on the simulated machine: latches, and the lock manager.

mod flawed;
mod house;
mod latches;
mod locks;
