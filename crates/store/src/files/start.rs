//! Opens the parts of a store, and recovers the store if its region is new.

use core::time::Duration;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

use latchwork_disk::Disk;
use latchwork_lockmgr::{Manager, granular};
use latchwork_log::Log;
use latchwork_machine::ConstMachine;
use latchwork_pool::{Error as PoolError, FileSpec, Pool};
use latchwork_region::{Region, Repair};
use latchwork_tree::Limits;

use crate::Error;
use crate::files::inner::{Sizes, StoreInner};
use crate::files::page_repair::{Ahead, PageRepairs};
use crate::files::shared::Shared;
use crate::files::undo::UndoDead;
use crate::tables::{CATALOG, CATALOG_NAME};

/// Initial size of a cache in bytes.
const FIRST_CACHE: u64 = 2 << 20;
/// Thread slots of the log in addition to those of the region's threads: sweepers also roll back.
const SWEEPERS: u32 = 16;

impl<M: ConstMachine> StoreInner<M> {
    /// Opens the parts of the store in `folder`, and recovers it if its region is new, with this
    /// number of redo threads. Only one process at a time may be in this call.
    pub(crate) fn open(
        region: &Region<M>,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        sizes: &Sizes,
        lanes: usize,
    ) -> Result<Arc<Self>, Error> {
        sizes.check()?;
        let thread = region.sweeper()?;
        disk.make_folder(folder)?;
        let options = latchwork_log::Options {
            buffer: sizes.log_buffer,
            segment: sizes.log_segment,
            // A rollback takes some pages at a time, and at most a quarter of the buffer.
            buffer_first: sizes.log_buffer.min(u64::from(sizes.page) * 64).max(512 << 10),
            threads: sizes.threads + SWEEPERS,
            nap: Duration::from_millis(1),
            ..latchwork_log::Options::default()
        };
        let log = Log::open(region, disk.clone(), &folder.join("log"), &options, &thread)?;
        let shared = Shared::open(region, &log)?;
        let pool = open_pool(region, disk, sizes, &log, &shared)?;
        let known: Arc<OnceLock<Weak<Self>>> = Arc::default();
        let undo: Arc<dyn Repair<M>> = Arc::new(UndoDead { home: known.clone() });
        region.register(&undo)?;
        // Throughput of eight threads that transfer on one branch, on two processors: 31 k per
        // second with none, 51 k with 0.2 ms, 93 k with 1 ms, 100 k with 5 ms; 155 k with a single
        // thread. Longer than a time slice of the scheduler, for which a holder may not run: if all
        // that wait for it were then granted the lock in turn, each would sleep. 99 % of the calls
        // of eight processes that add to one number, on two processors: within 2.1 ms with 2 ms,
        // within 13 us with 10 ms.
        let barge_for = Duration::from_millis(10);
        let locks = latchwork_lockmgr::Options { barge_for, ..Default::default() };
        let manager = Manager::new(region.clone(), granular::modes(), locks)?;
        let spec = FileSpec { page_bytes: sizes.page, ahead: true, ..FileSpec::new(data(folder)?) };
        let file = pool.handle(&thread)?.file(&spec)?;
        drop(thread);
        // An open store keeps its size.
        let sizes = Sizes { threads: log.threads().saturating_sub(SWEEPERS), ..*sizes };
        let stuck = Mutex::default();
        let (disk, folder) = (disk.clone(), folder.to_owned());
        let home = Arc::new(Self {
            manager,
            log,
            pool,
            shared,
            file,
            record_max: Limits::of(file.page_bytes() as usize / 8).record,
            sizes,
            disk,
            folder,
            stuck,
            empty: Mutex::default(),
            prepared: Mutex::default(),
            published: Mutex::default(),
            names: RwLock::new(HashMap::from([(CATALOG, CATALOG_NAME.to_owned())])),
            users: Mutex::default(),
            _undo: undo,
        });
        let _ = known.set(Arc::downgrade(&home));
        if !home.shared.is_recovered()? {
            home.recover(lanes)?;
        }
        Ok(home)
    }
}

/// Opens the pool. It writes no page before its log records, and rebuilds pages that a death left
/// half changed or that the disk has lost.
fn open_pool<M: ConstMachine>(
    region: &Region<M>,
    disk: &Arc<dyn Disk>,
    sizes: &Sizes,
    log: &Log<M>,
    shared: &Shared<M>,
) -> Result<Pool<M>, Error> {
    // Private memory is allocated as it is used, however large it is.
    let (first, most) = match region.has_file() {
        true => (sizes.cache.min(FIRST_CACHE), sizes.cache.max(sizes.cache_max)),
        false => (sizes.cache, sizes.cache),
    };
    let options = latchwork_pool::Options {
        frames: sizes.frames_for(first),
        frames_max: sizes.frames_for(most),
        frames_wanted: sizes.frames_for(sizes.cache),
        frame_bytes: sizes.page,
        huge: true,
        write_ahead: Some(Arc::new(Ahead::new(log, region))),
        rebuild: Some(Arc::new(PageRepairs::new(log, shared))),
    };
    Ok(match Pool::open(region, disk.clone(), &options) {
        // An existing pool keeps its size.
        Err(PoolError::Different { frame_bytes, frames }) if frame_bytes == sizes.page => {
            let first = frames.min(options.frames);
            let options = latchwork_pool::Options { frames: first, frames_max: frames, ..options };
            Pool::open(region, disk.clone(), &options)?
        }
        other => other?,
    })
}

/// Returns the path of the file of pages, which is valid in every process.
fn data(folder: &Path) -> Result<PathBuf, Error> {
    let folder = std::path::absolute(folder)
        .map_err(|why| Error::Open { path: folder.to_owned(), why: why.into() })?;
    Ok(folder.join("data"))
}
