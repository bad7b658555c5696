//! The lock manager whose users are killed, at each step and at random.

mod book;
mod counts;
mod death;
mod deaths;
mod kinds;
mod life;
mod orphans;
mod policy;
mod range;
mod records;
mod slots;
mod steps;
