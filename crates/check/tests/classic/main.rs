//! The published locks: on real threads, under loom, on simulated machines.

mod models;
mod native;
mod simulated;
