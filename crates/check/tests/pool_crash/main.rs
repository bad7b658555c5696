//! Pools whose users die: at every named step and at random, while other processes continue.

mod ahead;
mod growth;
mod kills;
mod meet;
mod place;
mod stopped;
