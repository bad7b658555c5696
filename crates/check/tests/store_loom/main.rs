//! The store under loom: snapshots against recycling, commits against their readers, claims on
//! ranges against writers of a leaf.
//!
//! Each model has a control: a machine with a flaw under which it must fail. The long form is
//! `cargo test --release -p latchwork-check --test store_loom -- --ignored`.

mod claims;
mod frontiers;
mod turns;
