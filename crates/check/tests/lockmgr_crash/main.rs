//! The lock manager whose users are killed, at each step and at random.

mod counts;
mod death;
mod deaths;
mod orphans;
mod policy;
mod range;
mod records;
mod slots;
mod steps;
