//! Pools whose users die: at every named step, at random, beside others that go on.

mod ahead;
mod growth;
mod kills;
mod meet;
mod place;
mod stopped;
