//! Pools whose users die: at every named step, at random, beside others that go on.

mod kills;
mod meet;
