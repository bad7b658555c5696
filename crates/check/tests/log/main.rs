//! The log, on a machine that may crash, with threads in place of processes.

mod aside;
mod basics;
mod bytes;
mod crash;
mod growing;
mod models;
mod stage;
mod stops;
