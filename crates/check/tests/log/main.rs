//! The log, on one machine that may crash, with threads in the place of processes.

mod aside;
mod basics;
mod bytes;
mod crash;
mod growing;
mod models;
mod stage;
mod stops;
