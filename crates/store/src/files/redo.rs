//! Redo: repeats each change that a page lacks.
//!
//! Pages are redone independently: a record changes one page, depending on the contents of that
//! page. So one thread reads the log once, in pieces of some megabytes. Each of several *lanes*,
//! which are threads that do the work, has its share of the pages, and redoes the records of these
//! in each piece. It does so in the order of pages, and for each page in the order of the log. So a
//! page is looked up and latched once for all of its records in a piece, its lines stay in the
//! processor's cache, and pages that are not in memory are read from the file in order. (One thread
//! in the log's order took 12 s for 1 GiB, most of it for single reads of log records and cache
//! misses.)
//!
//! The reading thread sees all records in order, to collect what concerns several pages. A fault of
//! a page is kept with the record's position, and judged when both are known.
//!
//! With one lane, the calling thread does everything, and the order of disk calls depends only on
//! the log.

use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use latchwork_log::{EntryView, Piece};
use latchwork_machine::ConstMachine;
use latchwork_pool::{Error as PoolError, FileId, Handle, PageMut};
use latchwork_tree::{Change, Role, redo};

use crate::Error;
use crate::files::analysis::{Analysis, Stale, wrong};
use crate::files::inner::StoreInner;
use crate::files::kinds::CHANGE;

/// Maximum number of lanes: with more, the reading thread would be the slowest.
const LANES: usize = 8;
/// Stack size of a lane in bytes.
const STACK: usize = 1 << 20;
/// Pieces that are queued for a lane.
const AHEAD: usize = 2;
/// Consecutive pages of the same lane, which are read from the file together.
const RUN: u64 = 16;

/// Returns how many threads redo in a process that can use all processors.
pub(crate) fn lanes() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(LANES)
}

/// A lane's records of a piece: pages, and positions in the piece.
type Share = Vec<(u64, u32)>;

/// A piece and a lane's share of it.
type Job = (Arc<Piece>, Share);

impl<M: ConstMachine> StoreInner<M> {
    /// Redoes the changes that the pages lack. Returns the pages that are not as the log left them
    /// and that no later record contains completely.
    pub(crate) fn redo(
        &self,
        lanes: usize,
        analysis: &mut Analysis,
    ) -> Result<BTreeMap<u64, Stale>, Error> {
        if lanes < 2 || self.log.recovered().redo >= self.log.end() {
            return self.redo_alone(analysis);
        }
        thread::scope(|scope| {
            let mut all = Vec::new();
            for _ in 0..lanes.min(LANES) {
                let (give, jobs) = sync_channel(AHEAD);
                let lane = thread::Builder::new().name("latchwork-redo".into());
                // Independent of the stack size of the program's own threads.
                let lane = lane.stack_size(STACK);
                // Uses as many threads as the system allows.
                let Ok(()) = self.has_room_for_thread(STACK) else { break };
                let Ok(lane) = lane.spawn_scoped(scope, move || self.lane(jobs)) else { break };
                all.push((give, lane));
            }
            if all.is_empty() {
                return self.redo_alone(analysis);
            }
            let read = self.share_out(all.len(), analysis, &mut |lane, job| {
                let give: &SyncSender<Job> = &all[lane].0;
                // A lane that has stopped reports why when it is joined.
                give.send(job).map_err(|_| Error::Engine("redo has stopped".to_owned()))
            });
            let (gives, lanes): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            drop(gives);
            let mut stale = BTreeMap::new();
            for lane in lanes {
                stale.extend(lane.join().unwrap_or_else(|panic| resume_unwind(panic))?);
            }
            read.map(|()| stale)
        })
    }

    /// Redoes all pages in this thread.
    fn redo_alone(&self, analysis: &mut Analysis) -> Result<BTreeMap<u64, Stale>, Error> {
        let thread = self.manager.region().sweeper()?;
        let mut lane = Lane::new(self, self.pool.handle(&thread)?);
        self.share_out(1, analysis, &mut |_, (piece, share)| lane.redo_all(&piece, share))?;
        Ok(lane.stale)
    }

    /// Reads the log, and gives each lane its share of each piece.
    fn share_out(
        &self,
        lanes: usize,
        analysis: &mut Analysis,
        give: &mut dyn FnMut(usize, Job) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut pieces = self.log.pieces(self.log.recovered().redo)?;
        let mut given: VecDeque<Arc<Piece>> = VecDeque::new();
        loop {
            // Reuse the memory of a piece that all lanes have finished.
            let done = given.front_mut().is_some_and(|oldest| Arc::get_mut(oldest).is_some());
            let old = if done { given.pop_front().and_then(Arc::into_inner) } else { None };
            let Some(piece) = pieces.next_piece(old.unwrap_or_default())? else { return Ok(()) };
            let piece = Arc::new(piece);
            let mut shares = vec![Share::new(); lanes];
            for (place, entry) in piece.entries() {
                analysis.note(&entry);
                match entry.head.kind {
                    CHANGE => {
                        let lane = entry.head.page / RUN % lanes as u64;
                        shares[lane as usize].push((entry.head.page, place));
                    }
                    // No lane uses it.
                    _ => _ = piece.entry(place)?,
                }
            }
            for (lane, share) in shares.into_iter().enumerate() {
                give(lane, (piece.clone(), share))?;
            }
            given.push_back(piece);
        }
    }

    /// Runs a lane, in a thread of its own.
    fn lane(&self, jobs: Receiver<Job>) -> Result<BTreeMap<u64, Stale>, Error> {
        let thread = self.manager.region().sweeper()?;
        let mut lane = Lane::new(self, self.pool.handle(&thread)?);
        for (piece, share) in jobs {
            lane.redo_all(&piece, share)?;
        }
        Ok(lane.stale)
    }
}

/// A thread that redoes some of the pages.
struct Lane<'h, 't, M: ConstMachine> {
    home: &'h StoreInner<M>,
    handle: Handle<'t, M>,
    stale: BTreeMap<u64, Stale>,
}

impl<'h, 't, M: ConstMachine> Lane<'h, 't, M> {
    fn new(home: &'h StoreInner<M>, handle: Handle<'t, M>) -> Self {
        Self { home, handle, stale: BTreeMap::new() }
    }

    /// Redoes a share of a piece.
    fn redo_all(&mut self, piece: &Piece, mut share: Share) -> Result<(), Error> {
        // The positions are in the log's order.
        share.sort_unstable();
        for run in share.chunk_by(|one, other| one.0 / RUN == other.0 / RUN) {
            let pages = run.chunk_by(|one, other| one.0 == other.0);
            if pages.clone().count() as u64 > RUN / 2 {
                // A page that cannot be read is reported below.
                let first = run[0].0;
                let _ = self.handle.prefetch(self.home.file, first, RUN - first % RUN);
            }
            for records in pages {
                self.redo_page(piece, records)?;
            }
        }
        Ok(())
    }

    /// Redoes the records of one page.
    fn redo_page(&mut self, piece: &Piece, records: &[(u64, u32)]) -> Result<(), Error> {
        let (mut held, mut again) = (None, false);
        for (number, place) in records {
            let EntryView { lsn, slot, head, payload, .. } = piece.entry(*place)?;
            let change = Change::decode(payload)
                .ok_or_else(|| wrong(head.aux, "a record of an unknown kind"))?;
            let whole = change.before(Role::Own, head.page_prev.0).is_none();
            let page = match &mut held {
                Some(page) => page,
                none => match take(&self.handle, self.home.file, *number, whole)? {
                    Some(page) => none.insert(page),
                    None => {
                        self.stale.insert(*number, Stale { at: lsn, of: None });
                        continue;
                    }
                },
            };
            if page.lsn() >= lsn.0 {
                // It is written once more even so: that it can be read does not mean that it is on
                // the disk, if a sync failed and the machine has run on.
                if !core::mem::replace(&mut again, true) {
                    page.begin(page.lsn());
                    page.commit_and_keep();
                }
                continue;
            }
            if !whole && page.lsn() != head.page_prev.0 {
                self.stale.insert(*number, Stale { at: lsn, of: Some(head.aux) });
                continue;
            }
            redo(&change, page, slot, lsn.0)?;
            self.stale.remove(number);
        }
        Ok(())
    }
}

/// Returns a page that a record changes; creates it if the record contains it completely. `None` if
/// it cannot be read and the record does not contain it.
fn take<'h, 't, M: ConstMachine>(
    handle: &'h Handle<'t, M>,
    file: FileId,
    number: u64,
    whole: bool,
) -> Result<Option<PageMut<'h, 't, M>>, Error> {
    match handle.write(file, number) {
        Ok(page) => Ok(Some(page)),
        Err(_) if whole => {
            handle.discard(file, number)?;
            Ok(Some(handle.create(file, number)?))
        }
        Err(why) if why.is_unwritten() || matches!(why, PoolError::OutOfRange { .. }) => Ok(None),
        Err(other) => Err(other.into()),
    }
}
