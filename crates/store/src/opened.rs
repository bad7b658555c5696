//! The sizes that a process asked for, compared with those in force.

use core::fmt;

use latchwork_machine::ConstMachine;

use crate::files::inner::StoreInner;
use crate::{Error, Sizes};

/// The sizes in force when this process opened the store; see
/// [`Store::opened`](crate::Store::opened).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opened {
    /// The sizes that differ from the request. An existing store keeps the sizes of its files, and
    /// a store that other processes have open keeps those of its shared memory.
    pub differs: Vec<Difference>,
}

/// A size that differs from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The field of [`Sizes`].
    pub name: &'static str,
    /// The size that this process asked for.
    pub asked: u64,
    /// The size in force.
    pub in_force: u64,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, asked, in_force } = self;
        write!(f, "{name} is {in_force}, and this process asked for {asked}: ")?;
        match *name {
            "page" | "log_segment" => write!(f, "a store keeps what it was created with"),
            "cache" => {
                write!(f, "`cache_max` of the process that opened the store first limits it")
            }
            _ => write!(f, "it can change when no process has the store open"),
        }
    }
}

impl Opened {
    pub(crate) fn new(asked: &Sizes, now: &Sizes) -> Self {
        let all = [
            ("page", u64::from(asked.page), u64::from(now.page)),
            ("log_buffer", asked.log_buffer, now.log_buffer),
            ("log_segment", asked.log_segment, now.log_segment),
            ("locks", asked.locks, now.locks),
            ("threads", u64::from(asked.threads), u64::from(now.threads)),
        ];
        let mut differs: Vec<_> = all.into_iter().filter(|(_, asked, now)| asked != now).collect();
        // The largest request of all processes counts.
        if now.cache < asked.cache / u64::from(now.page) * u64::from(now.page) {
            differs.push(("cache", asked.cache, now.cache));
        }
        let difference = |(name, asked, in_force)| Difference { name, asked, in_force };
        Self { differs: differs.into_iter().map(difference).collect() }
    }
}

impl<M: ConstMachine> StoreInner<M> {
    /// Returns the sizes in force.
    pub(crate) fn sizes_now(&self) -> Result<Sizes, Error> {
        let page = self.file.page_bytes();
        let cache = u64::from(self.pool.wanted()?) * u64::from(self.pool.frame_bytes());
        let (log_buffer, log_segment) = self.log.sizes();
        let locks = self.manager.region().limit();
        Ok(Sizes { cache, page, log_buffer, log_segment, locks, ..self.sizes })
    }
}
