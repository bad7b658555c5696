//! A file system without preallocation: pages can still be created.

use std::path::Path;
use std::sync::Arc;

use latchwork_check::between::{Before, Between};
use latchwork_disk::{Disk, Error, File, Simulated};
use latchwork_machine::Native;
use latchwork_pool::{FileSpec, Pool};

use crate::pages::{options, region};

/// A disk on which `allocate` returns the error of an unsupported operation: from directory to
/// directory.
#[derive(Debug)]
struct Cannot(Simulated);

impl Between for Cannot {
    fn allocate(&self, _: &dyn File, path: &Path, _: u64, _: u64) -> Result<(), Error> {
        self.0.rename(path, Path::new("/elsewhere/pages"))
    }
}

#[test]
fn pages_are_created_without_preallocation() {
    let region = region();
    let disk = Simulated::new();
    disk.make_folder(Path::new("/data")).unwrap();
    let disk = Arc::new(Before::new(Arc::new(Cannot(disk.clone())), disk));
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
