//! The synchronisation core of a storage engine.
//!
//! This crate re-exports what a user wants and holds nothing else. [`latch`] has the latches and a
//! table of which to take; [`lockmgr`] has locks by name, for owners that wait for each other, and
//! [`region`] the memory in which many processes share them; [`pool`] has pages of files in that
//! memory, read and written through a [`disk`]; [`store`] is the store that processes write at
//! once; [`machine`] has what all run on.
//!
//! ```
//! use latchwork::latch::Mutex;
//!
//! let sum = Mutex::new(0);
//! std::thread::scope(|scope| {
//!     for _ in 0..4 {
//!         scope.spawn(|| *sum.lock() += 1);
//!     }
//! });
//! assert_eq!(*sum.lock(), 4);
//! ```
//!
//! Locks that processes share, which no death can stop:
//!
//! ```
//! use latchwork::lockmgr::{Error, Manager, Options, granular::{self, IX, S, X}};
//! use latchwork::{machine::Shared, region::{self, Region}};
//!
//! # let file = std::env::temp_dir().join(format!("latchwork-doc-{}", std::process::id()));
//! # let end = (|| {
//! let region = Region::<Shared>::open_or_create(&file, &region::Options::default())?;
//! let manager = Manager::new(region, granular::modes(), Options::default())?;
//! let session = manager.session()?;
//! let (writer, reader) = (session.owner()?, session.owner()?);
//! writer.lock(b"accounts", IX)?;
//! writer.lock(b"accounts/7", X)?;
//! assert_eq!(reader.try_lock(b"accounts", S), Err(Error::NotGranted));
//! writer.release_all()?;
//! reader.lock(b"accounts", S)?;
//! # Ok::<(), Error>(())
//! # })();
//! # std::fs::remove_file(&file).ok();
//! # end?;
//! # Ok::<(), Error>(())
//! ```

pub use latchwork_disk as disk;
pub use latchwork_latch as latch;
pub use latchwork_lockmgr as lockmgr;
pub use latchwork_machine as machine;
pub use latchwork_pool as pool;
pub use latchwork_region as region;

/// The store, and the derived keys and values of it.
pub mod store {
    #[cfg(feature = "derive")]
    pub use latchwork_derive::{Key, Value};
    pub use latchwork_store::*;
}

/// The programs of the README are compiled, and run but for the one that makes a folder.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
