//! What a store that is open has of what this process asked for.

use core::fmt;

use latchwork_machine::ConstMachine;

use crate::files::home::Home;
use crate::{Error, Sizes, Store};

/// What this process found when it opened a store: see [`Store::opened`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opened {
    /// The sizes that are not as this process asked. A store that exists keeps the sizes of its
    /// files, and a store that other processes have open keeps those of its shared memory.
    pub differs: Vec<Difference>,
}

/// A size that is not as this process asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The field of [`Sizes`].
    pub name: &'static str,
    /// What this process asked for.
    pub asked: u64,
    /// What the store has.
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
        // Of several processes the one that asks for most counts.
        if now.cache < asked.cache / u64::from(now.page) * u64::from(now.page) {
            differs.push(("cache", asked.cache, now.cache));
        }
        let difference = |(name, asked, in_force)| Difference { name, asked, in_force };
        Self { differs: differs.into_iter().map(difference).collect() }
    }
}

impl<M: ConstMachine> Home<M> {
    /// The sizes in force.
    pub(crate) fn sizes_now(&self) -> Result<Sizes, Error> {
        let page = self.file.page_bytes();
        let cache = u64::from(self.pool.wanted()?) * u64::from(self.pool.frame_bytes());
        let (log_buffer, log_segment) = self.log.sizes();
        let locks = self.manager.region().limit();
        Ok(Sizes { cache, page, log_buffer, log_segment, locks, ..self.sizes })
    }
}

impl<M: ConstMachine> Store<M> {
    /// The sizes in force: those of the files and of the memory that all processes share, and this
    /// process's own `mode`, `log_budget` and `history`. The cache is what it may grow to now.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Options, Store};
    ///
    /// # let path = std::env::temp_dir().join(format!("store-sizes-{}", std::process::id()));
    /// let small = Store::open_with(&path, &Options::small())?;
    /// // Another open of the same store, here or in another process, asks for a larger cache.
    /// let large = Store::open(&path)?;
    /// assert_eq!(large.sizes()?.cache, 64 << 20);
    /// assert_eq!(small.sizes()?.cache, 64 << 20);
    /// // The log's buffer cannot change while the store is open.
    /// assert_eq!(large.opened().differs[0].name, "log_buffer");
    /// # drop((small, large));
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn sizes(&self) -> Result<Sizes, Error> {
        self.home().sizes_now()
    }
}
