//! Arbitrary bytes as a file of pages for the fuzz target and the tests.

use std::path::Path;
use std::sync::Arc;

use latchwork_disk::{Disk, Open, Simulated};
use latchwork_pool::{Error, FileSpec, Handle, Options, Pool};
use latchwork_region::{Options as RegionOptions, Region};

/// Bytes of a page.
pub const PAGE: usize = 512;
const PATH: &str = "/data/fuzzed";

/// Runs `work` on a pool whose file has these bytes, and returns the bytes afterwards.
fn with_file(bytes: &[u8], work: impl FnOnce(&Handle<'_>, latchwork_pool::FileId)) -> Vec<u8> {
    let disk = Arc::new(Simulated::new());
    disk.make_folder(Path::new("/data")).unwrap();
    let file = disk.open(Path::new(PATH), Open::CREATE).unwrap();
    file.write(0, bytes).unwrap();
    let sizes = RegionOptions { limit: 16 << 20, ..RegionOptions::default() };
    let region = Region::private(&sizes).unwrap();
    let options =
        Options { frames: 16, frames_max: 32, frame_bytes: PAGE as u32, ..Options::default() };
    let pool = Pool::open(&region, disk, &options).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { page_bytes: PAGE as u32, ..FileSpec::new(PATH) };
    let id = handle.file(&spec).unwrap();
    work(&handle, id);
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read(0, &mut bytes).unwrap();
    bytes
}

/// A valid file of `pages` pages.
pub fn sound(pages: u64) -> Vec<u8> {
    with_file(&[], |handle, file| {
        for number in 0..pages {
            let mut page = handle.new_page(file).unwrap();
            page.begin(0);
            assert!((2..page.len()).all(|word| page.set(word, number)));
            page.commit();
        }
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
    })
}

/// Reads, pins, prefetches and changes every page of a file of these bytes. Each page is valid or
/// gives an error. Returns the number of valid ones.
pub fn exercise(bytes: &[u8]) -> u64 {
    let mut good = 0;
    with_file(bytes, |handle, file| {
        let pages = handle.pool().pages(file).unwrap();
        assert_eq!(pages, (bytes.len() / PAGE) as u64);
        handle.prefetch(file, 0, pages / 2).unwrap();
        let mut bad = Vec::new();
        handle.pool().verify_file(file, &mut |page, _| bad.push(page)).unwrap();
        for page in 0..pages + 2 {
            let read = handle.read(file, page, |view| view.word(2));
            match read {
                Ok(_) => {
                    assert!(!bad.contains(&page), "a page that is not sound was believed");
                    good += 1;
                    drop(handle.pin(file, page).unwrap());
                    let mut held = handle.write(file, page).unwrap();
                    held.begin(0);
                    assert!(held.set(2, 7));
                    held.commit();
                }
                Err(Error::OutOfRange { .. }) => assert!(page >= pages),
                Err(Error::Checksum { .. } | Error::Misdirected { .. }) => {
                    assert!(bad.contains(&page), "a sound page was refused");
                    assert!(handle.write(file, page).is_err());
                }
                Err(other) => panic!("{other}"),
            }
        }
        // Invalid pages are replaced.
        for page in bad {
            handle.create(file, page).unwrap().begin(0);
            let _ = handle.discard(file, page);
        }
        assert!(handle.pool().verify().unwrap().flaws.is_empty());
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
    });
    good
}
