//! Tools that read whole stores, or create one from another. They verify all that they read, and a
//! process that is killed in the middle leaves nothing that looks complete.

mod abandoned;
mod backup;
mod beside;
mod clear;
mod containers;
mod dead;
mod descriptors;
mod dump;
mod environment;
mod full_disk;
mod group;
mod inodes;
mod left;
mod left_open;
mod limits;
mod links;
mod live;
mod lock_errors;
mod long;
mod looking;
mod metrics;
mod migrate;
mod mounts;
mod open;
mod owners;
mod pages;
mod prepared;
mod read_only;
mod reclaim;
mod salvage;
mod small;
mod sorted;
mod stage;
mod text;
mod unsynced;
