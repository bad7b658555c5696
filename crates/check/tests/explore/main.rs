//! Thousands of schedules on the simulated machine: latches, lock manager, pool and store.

mod accounts;
mod flawed;
mod house;
mod latches;
mod ledger;
mod locks;
mod memory;
mod pages;
mod pool;
mod records;
mod stage;
mod store;
