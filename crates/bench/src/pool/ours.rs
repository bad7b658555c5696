//! Our pool, used through its public interface.

use std::sync::Arc;

use latchwork_disk::System;
use latchwork_machine::{ConstMachine, Native, Shared};
use latchwork_pool::{FileId, FileSpec, Handle, Options, Pool};
use latchwork_region::{Options as RegionOptions, Region};

use super::fault::Fault;
use super::keeper::{Keeper, Operation, Scene, Uses, Work};
use super::outcome::{Counted, Outcome};
use super::pages::{KEYS, KEYS_AT, find, key, value};
use super::plan::Subject;

pub(super) struct Ours<M: ConstMachine> {
    region: Region<M>,
    pool: Pool<M>,
    file: FileId,
    pages: u32,
}

fn refused(error: impl core::fmt::Display) -> Fault {
    Fault::Refused { subject: Subject::Pool, why: error.to_string() }
}

impl Keeper for Ours<Native> {
    fn open(scene: &Scene<'_>) -> Result<Self, String> {
        let region = Region::private(&sizes()).map_err(|error| error.to_string())?;
        Self::over(region, scene).map_err(|error| error.to_string())
    }

    fn with(&self, scan: u32, told: bool, work: Work<'_>) -> Result<Outcome, Fault> {
        self.run(scan, told, work)
    }
}

impl Keeper for Ours<Shared> {
    fn open(scene: &Scene<'_>) -> Result<Self, String> {
        let dir = scene.shared.ok_or("no directory for shared memory")?;
        let region = Region::open_or_create(dir.join("region"), &sizes());
        let region = region.map_err(|error| error.to_string())?;
        Self::over(region, scene).map_err(|error| error.to_string())
    }

    fn with(&self, scan: u32, told: bool, work: Work<'_>) -> Result<Outcome, Fault> {
        self.run(scan, told, work)
    }
}

fn sizes() -> RegionOptions {
    RegionOptions { limit: 64 << 20, ..RegionOptions::default() }
}

impl<M: ConstMachine> Ours<M> {
    fn over(region: Region<M>, scene: &Scene<'_>) -> Result<Self, latchwork_pool::Error> {
        let (frames, pages) = (scene.frames, scene.pages);
        let options = Options { frames, frames_max: frames, ..Options::default() };
        let pool = Pool::open(&region, Arc::new(System::new()), &options)?;
        let thread = region.thread()?;
        let handle = pool.handle(&thread)?;
        let spec = FileSpec { direct: scene.direct, ..FileSpec::new(scene.file) };
        let file = handle.file(&spec)?;
        for page in 0..if scene.make { pages } else { 0 } {
            let mut made = handle.create(file, u64::from(page))?;
            made.begin(0);
            let _ = made.set(2, value(page));
            for number in 0..KEYS {
                let [high, low] = key(page, number);
                let _ = made.set(KEYS_AT + 2 * number as usize, high);
                let _ = made.set(KEYS_AT + 2 * number as usize + 1, low);
            }
            made.commit();
        }
        if scene.make {
            handle.sync(u64::MAX, &mut |_| {})?;
        }
        drop(handle);
        drop(thread);
        Ok(Self { region, pool, file, pages })
    }

    fn run(&self, scan: u32, told: bool, work: Work<'_>) -> Result<Outcome, Fault> {
        let thread = self.region.thread().map_err(refused)?;
        let handle = self.pool.handle(&thread).map_err(refused)?;
        let (file, pages) = (self.file, self.pages);
        let scanned = Counted::default();
        work(&mut User { handle, file, pages, next: scan, told, scanned })
    }
}

struct User<'t, M: ConstMachine> {
    handle: Handle<'t, M>,
    file: FileId,
    pages: u32,
    /// The next page of the scan; whether its reads are marked as a scan.
    next: u32,
    told: bool,
    /// The counters of the scan.
    scanned: Counted,
}

impl<M: ConstMachine> User<'_, M> {
    #[inline(always)]
    fn read(&self, page: u32) -> Result<(), Fault> {
        let read = self.handle.read(self.file, u64::from(page), |page| page.word(2));
        right(page, read.map_err(refused)?)
    }

    /// Not inlined, like the search of the slice, so that both have all registers.
    #[inline(never)]
    fn search(&self, page: u32, number: u32) -> Result<(), Fault> {
        let wanted = key(page, number);
        let read = self.handle.read(self.file, u64::from(page), move |view| {
            let at = find(wanted, |index| view.word(index))?;
            Some((at, view.word(2)?))
        });
        let (at, found) = read.map_err(refused)?;
        right(page, if at == number { found } else { u64::MAX })
    }

    fn scan(&mut self) -> Result<(), Fault> {
        let page = self.next;
        self.next = (page + 1) % self.pages;
        let before = self.handle.counted().faults;
        if self.told {
            self.handle.scanning(true);
        }
        let read = self.read(page);
        if self.told {
            self.handle.scanning(false);
        }
        self.scanned.scanned += 1;
        self.scanned.scan_faults += self.handle.counted().faults - before;
        read
    }
}

fn right(page: u32, found: u64) -> Result<(), Fault> {
    if found >> 32 == u64::from(page) {
        Ok(())
    } else {
        Err(Fault::Wrong { subject: Subject::Pool, page, found })
    }
}

impl<M: ConstMachine> Uses for User<'_, M> {
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault> {
        for operation in operations {
            match *operation {
                Operation::Read(page) => self.read(page)?,
                Operation::Add(page) => {
                    let held = self.handle.write(self.file, u64::from(page));
                    let mut held = held.map_err(refused)?;
                    let next = held.word(2).unwrap_or(0) + 1;
                    held.begin(0);
                    let _ = held.set(2, next);
                    held.commit();
                }
                Operation::Search(page, number) => self.search(page, number)?,
                Operation::Scan => self.scan()?,
            }
        }
        Ok(())
    }

    fn counted(&mut self) -> Counted {
        let counted = self.handle.counted();
        Counted {
            optimistic: counted.reads,
            // A shared latch is acquired and released; a wait is announced and ended.
            stores: counted.marked + 2 * counted.fallbacks + 4 * counted.slow,
            faults: counted.faults,
            evicted_dirty: counted.evicted_dirty,
            ..self.scanned
        }
    }
}
