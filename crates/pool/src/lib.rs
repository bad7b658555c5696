//! Pages in memory that many processes share, and whose readers write nothing.
//!
//! A [`Pool`] keeps pages of files in frames next to a region. A reader finds a page by loads,
//! reads it, and checks the frame's version again. It stores nothing that another thread loads, so
//! reads of one page scale with the cores. A thread that changes a page holds its latch; the latch
//! names the thread, so another thread can repair what a dead one left. `docs/pool.md` describes
//! the design.
//!
//! ```
//! # use std::sync::Arc;
//! use latchwork_disk::System;
//! use latchwork_pool::{FileSpec, Options, Pool};
//! use latchwork_region::Region;
//!
//! # let path = std::env::temp_dir().join(format!("pool-doc-{}", std::process::id()));
//! let region = Region::private(&Default::default())?;
//! let options = Options { frames: 64, frames_max: 64, ..Options::default() };
//! let pool = Pool::open(&region, Arc::new(System::new()), &options)?;
//! let thread = region.thread()?;
//! let handle = pool.handle(&thread)?;
//! let file = handle.file(&FileSpec::new(&path))?;
//!
//! let mut page = handle.new_page(file)?;
//! page.begin(0);
//! assert!(page.set(2, 7));
//! let number = page.page();
//! page.commit();
//! assert_eq!(handle.read(file, number, |page| page.word(2))?, 7);
//! handle.sync(u64::MAX, &mut |_| {})?;
//! # let _ = std::fs::remove_file(&path);
//! # Ok::<(), latchwork_pool::Error>(())
//! ```
//!
//! | file | content |
//! |---|---|
//! | `layout` | the content of the pool's areas, word by word |
//! | `options`, `error` | options of a pool; errors |
//! | `pool` | [`Pool`]: opening it, and access to frames |
//! | `opened`, `file`, `io` | a file's name; the table of files; open files of this process |
//! | `translate`, `hints` | from a page's number to its frame, shared and cached |
//! | `counts`, `handle` | [`Handle`]: a thread that uses a pool, and its counts |
//! | `meter` | counts for each file, and durations of slow operations |
//! | `view`, `page` | a page as a reader sees it, and as a writer holds it |
//! | `read` | reading, and latching pages to change them |
//! | `life` | bringing pages in, writing, evicting, repairing |
//! | `stats`, `verify` | statistics, frame contents, consistency checks |

#![warn(clippy::all)]

mod counts;
mod error;
mod file;
mod handle;
mod hints;
mod io;
mod layout;
mod life;
mod meter;
mod opened;
mod options;
mod page;
mod point;
mod pool;
mod read;
mod stats;
mod translate;
mod verify;
mod view;

pub use crate::counts::{Stats, TIME_CLASSES};
pub use crate::error::{Cause, Error};
pub use crate::handle::Handle;
pub use crate::layout::LAYOUT;
pub use crate::life::fault::sound;
pub use crate::life::pin::Pin;
pub use crate::life::write::{DirtyPage, Progress};
pub use crate::meter::{FileStats, Timed, Times};
pub use crate::opened::FileId;
pub use crate::options::{FileSpec, Lost, Options, Rebuild, WriteAhead};
pub use crate::page::PageMut;
#[cfg(feature = "points")]
pub use crate::point::set_point_hook;
pub use crate::pool::Pool;
pub use crate::read::ATTEMPTS;
pub use crate::stats::FrameInfo;
pub use crate::verify::Found;
pub use crate::view::{PageView, Snapshot};
