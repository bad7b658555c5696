//! Tools that look at whole stores, or make one of another: what they read is never believed, and a
//! process that is killed in the middle leaves nothing that passes for whole.

mod backup;
mod beside;
mod clear;
mod dead;
mod dump;
mod left;
mod left_open;
mod live;
mod lock_errors;
mod long;
mod looking;
mod open;
mod owners;
mod pages;
mod prepared;
mod salvage;
mod sorted;
mod stage;
mod text;
mod unsynced;
