//! Tools that look at whole stores, or make one of another: what they read is never believed, and a
//! process that is killed in the middle leaves nothing that passes for whole.

mod abandoned;
mod backup;
mod beside;
mod clear;
mod dead;
mod descriptors;
mod dump;
mod environment;
mod full_disk;
mod inodes;
mod left;
mod left_open;
mod limits;
mod links;
mod live;
mod long;
mod looking;
mod mounts;
mod open;
mod owners;
mod pages;
mod prepared;
mod salvage;
mod sorted;
mod stage;
mod text;
mod unsynced;
