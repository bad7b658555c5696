//! A file system that cannot set space aside: pages are made all the same.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork_disk::{Calls, Disk, Error, File, Open, Simulated};
use latchwork_machine::Native;
use latchwork_pool::{FileSpec, Pool};

use crate::pages::{options, region};

/// A disk whose files say of `allocate` what one of them says that cannot.
#[derive(Debug)]
struct Cannot(Simulated);

#[derive(Debug)]
struct CannotFile(Box<dyn File>, Simulated, PathBuf);

impl Disk for Cannot {
    fn open(&self, path: &Path, how: Open) -> Result<Box<dyn File>, Error> {
        Ok(Box::new(CannotFile(self.0.open(path, how)?, self.0.clone(), path.into())))
    }
    fn make_folder(&self, path: &Path) -> Result<(), Error> {
        self.0.make_folder(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.0.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.0.link(from, to)
    }
    fn remove(&self, path: &Path) -> Result<(), Error> {
        self.0.remove(path)
    }
    fn list(&self, folder: &Path) -> Result<Vec<OsString>, Error> {
        self.0.list(folder)
    }
    fn sync_folder(&self, folder: &Path) -> Result<(), Error> {
        self.0.sync_folder(folder)
    }
    fn calls(&self) -> Calls {
        self.0.calls()
    }
}

impl File for CannotFile {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.0.read(at, into)
    }
    fn write(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        self.0.write(at, from)
    }
    fn sync(&self) -> Result<(), Error> {
        self.0.sync()
    }
    fn truncate(&self, length: u64) -> Result<(), Error> {
        self.0.truncate(length)
    }
    fn allocate(&self, _: u64, _: u64) -> Result<(), Error> {
        // From folder to folder: what the simulated disk says it cannot do.
        self.1.rename(&self.2, Path::new("/elsewhere/pages"))
    }
    fn length(&self) -> Result<u64, Error> {
        self.0.length()
    }
    fn lock(&self, byte: u64, exclusive: bool) -> Result<bool, Error> {
        self.0.lock(byte, exclusive)
    }
}

#[test]
fn pages_are_made_where_no_space_can_be_set_aside() {
    let region = region();
    let disk = Arc::new(Cannot(Simulated::new()));
    disk.make_folder(Path::new("/data")).unwrap();
    let pool: Pool<Native> = Pool::open(&region, disk, &options(16)).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { ahead: true, page_bytes: 1024, ..FileSpec::new("/data/pages") };
    let file = handle.file(&spec).unwrap();
    for number in 0..200 {
        let mut held = handle.new_page(file).unwrap();
        assert_eq!(held.page(), number);
        held.begin(0);
        held.commit();
    }
}
