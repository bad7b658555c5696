//! Our pool, as its users see it.

use std::path::Path;
use std::sync::Arc;

use latchwork_disk::System;
use latchwork_pool::{FileId, FileSpec, Handle, Options, Pool};
use latchwork_region::{Options as RegionOptions, Region};

use super::subject::{Done, Fault, Keeper, Subject, Uses, value};
use super::work::Operation;

pub(super) struct Ours {
    region: Region,
    pool: Pool,
    file: FileId,
}

fn refused(error: impl core::fmt::Display) -> Fault {
    Fault::Refused { subject: Subject::Pool, why: error.to_string() }
}

impl Keeper for Ours {
    fn open(path: &Path, frames: u32, pages: u32) -> Result<Self, String> {
        let make = || -> Result<Self, latchwork_pool::Error> {
            let sizes = RegionOptions { limit: 64 << 20, ..RegionOptions::default() };
            let region = Region::private(&sizes)?;
            let options = Options { frames, frames_max: frames, ..Options::default() };
            let pool = Pool::open(&region, Arc::new(System::new()), &options)?;
            let thread = region.thread()?;
            let handle = pool.handle(&thread)?;
            let file = handle.file(&FileSpec { create: true, ..FileSpec::new(path) })?;
            for page in 0..pages {
                let mut made = handle.create(file, u64::from(page))?;
                made.begin(0);
                let _ = made.set(2, value(page));
                made.commit();
            }
            handle.sync(u64::MAX, &mut |_| {})?;
            drop(handle);
            Ok(Self { region, pool, file })
        };
        make().map_err(|error| error.to_string())
    }

    fn with(
        &self,
        work: &mut dyn FnMut(&mut dyn Uses) -> Result<Done, Fault>,
    ) -> Result<Done, Fault> {
        let thread = self.region.thread().map_err(refused)?;
        let handle = self.pool.handle(&thread).map_err(refused)?;
        work(&mut User { handle, file: self.file })
    }
}

struct User<'t> {
    handle: Handle<'t>,
    file: FileId,
}

impl Uses for User<'_> {
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault> {
        for operation in operations {
            match *operation {
                Operation::Read(page) => {
                    let read = self.handle.read(self.file, u64::from(page), |page| page.word(2));
                    let found = read.map_err(refused)?;
                    if found >> 32 != u64::from(page) {
                        return Err(Fault::Wrong { subject: Subject::Pool, page, found });
                    }
                }
                Operation::Add(page) => {
                    let held = self.handle.write(self.file, u64::from(page));
                    let mut held = held.map_err(refused)?;
                    let next = held.word(2).unwrap_or(0) + 1;
                    held.begin(0);
                    let _ = held.set(2, next);
                    held.commit();
                }
            }
        }
        Ok(())
    }

    fn done(&mut self) -> Done {
        let counted = self.handle.counted();
        Done {
            operations: 0,
            optimistic: counted.reads,
            // A shared latch is taken and let go; a wait says so and is told.
            stores: counted.marked + 2 * counted.fallbacks + 4 * counted.slow,
            faults: counted.faults,
        }
    }
}
