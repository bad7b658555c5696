//! Regions whose users die: between two stores, as threads, as processes.

mod processes;
mod stores;
mod waiters;
