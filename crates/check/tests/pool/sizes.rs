//! Options at their limits: the fewest and the most frames, all page sizes, the most files.

use std::sync::Arc;

use latchwork_disk::{Disk, Simulated, System};
use latchwork_machine::Native;
use latchwork_pool::{Error, FileSpec, Options, Pool};
use latchwork_region::{Error as RegionError, Options as RegionOptions, Region};

use super::pages::{Scratch, fill, make, options, pool, region, value};

#[test]
fn pages_of_the_largest_and_of_the_smallest_size_are_in_one_pool() {
    let (large, small) = (Scratch::new("large"), Scratch::new("tiny"));
    let spec = |scratch: &Scratch, page_bytes| FileSpec { page_bytes, ..FileSpec::new(&scratch.0) };
    let region = region();
    let options = Options { frame_bytes: 1 << 16, frames_max: 64, ..options(16) };
    let pool = pool(&region, &options);
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let large_file = handle.file(&spec(&large, 1 << 16)).unwrap();
    let small_file = handle.file(&spec(&small, 512)).unwrap();
    for page in 0..60 {
        for (file, words) in [(large_file, 8192), (small_file, 64)] {
            let mut held = handle.new_page(file).unwrap();
            assert_eq!((held.page(), held.len()), (page, words));
            held.begin(0);
            // Frames contained a page of the other size before, whose words do not appear in this
            // page.
            assert!((2..words).all(|index| held.word(index) == Some(0)));
            assert!((2..words).all(|index| held.set(index, page)));
            assert!(!held.set(words, 1) && held.word(words).is_none());
            held.commit();
        }
    }
    for page in (0..60).rev() {
        assert_eq!(value(&handle, small_file, page), Ok(page));
        assert_eq!(value(&handle, large_file, page), Ok(page));
        fill(&handle, if page % 2 == 0 { large_file } else { small_file }, page, 100 + page);
        let words = handle.read(small_file, page, |view| Some(view.len()));
        assert_eq!(words, Ok(64), "a reader sees beyond the page");
    }
    handle.prefetch(large_file, 0, 8).unwrap();
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    for page in 0..60 {
        let [even, odd] = if page % 2 == 0 { [100 + page, page] } else { [page, 100 + page] };
        assert_eq!(value(&handle, large_file, page), Ok(even));
        assert_eq!(value(&handle, small_file, page), Ok(odd));
    }
    let lengths = [&large, &small].map(|scratch| std::fs::metadata(&scratch.0).unwrap().len());
    assert_eq!(lengths, [60 << 16, 60 * 512], "a small page was written with all of its frame");
    for file in [large_file, small_file] {
        let mut unsound = Vec::new();
        pool.verify_file(file, &mut |page, _| unsound.push(page)).unwrap();
        assert_eq!(unsound, Vec::<u64>::new());
    }
    assert!(pool.verify().unwrap().flaws.is_empty());
}

#[test]
fn a_pool_with_all_files_refuses_another() {
    let region = region();
    let disk = Simulated::new();
    disk.make_folder(std::path::Path::new("/data")).unwrap();
    let pool: Pool = Pool::open(&region, Arc::new(disk.clone()), &options(64)).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec =
        |n: u64| FileSpec { page_bytes: 1024, ..FileSpec::new(format!("/data/file-{n:03}")) };
    let files: Vec<_> = (0..256).map(|n| handle.file(&spec(n)).unwrap()).collect();
    let numbers: Vec<_> = files.iter().map(|file| file.number()).collect();
    assert_eq!(numbers, (0..256).collect::<Vec<u16>>());
    for file in &files {
        make(&handle, *file, 3);
    }
    assert_eq!(handle.file(&spec(256)), Err(Error::Files(256)));
    assert_eq!(disk.peek(&spec(256).path), None, "the file was created");
    assert_eq!(pool.file_id(256), Err(Error::NoFile(256)));
    for (n, file) in (0..).zip(&files) {
        assert_eq!(handle.file(&spec(n)), Ok(*file), "an open file has another number");
        fill(&handle, *file, 1, 1000 + n);
    }
    for (n, file) in (0..).zip(&files) {
        let found = [0, 1, 2].map(|page| value(&handle, *file, page).unwrap());
        assert_eq!(found, [0, 1000 + n, 2], "file {n}");
        handle.free_page(*file, 2).unwrap();
    }
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert_eq!(pool.files().unwrap().len(), 256);
    assert!(pool.verify().unwrap().flaws.is_empty());
    assert_eq!(handle.file(&spec(300)), Err(Error::Files(256)));
}

#[test]
fn the_smallest_pool_stays_as_small_as_it_is() {
    let scratch = Scratch::new("sixteen");
    let region = region();
    let pool = pool(&region, &Options { frames_max: 16, ..options(16) });
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    make(&handle, file, 100);
    for frames in [15, 17, u32::MAX] {
        assert_eq!(handle.resize(frames), Err(Error::Options("frames")));
    }
    assert_eq!(handle.resize(16), Ok(()));
    for page in (0..100).rev() {
        assert_eq!(value(&handle, file, page), Ok(page));
    }
    // All frames but one hold pages: the last frame serves all others.
    let held: Vec<_> = (0..15).map(|page| handle.write(file, page).unwrap()).collect();
    assert!((15..100).all(|page| value(&handle, file, page) == Ok(page)));
    drop(held);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert_eq!((pool.active(), pool.list().unwrap().count()), (Ok(16), 16));
}

/// The largest number of frames. With enough address space the pool works at both ends of it.
/// Otherwise it is refused and leaves nothing behind.
#[test]
fn a_pool_of_two_thousand_million_frames_works_or_is_refused() {
    let scratch = Scratch::new("most");
    for frame_bytes in [512, 8192, 1 << 16] {
        let _ = std::fs::remove_file(&scratch.0);
        let region = region();
        let most = Options { frames: 16, frames_max: 1 << 31, frame_bytes, ..Options::default() };
        let system = Arc::new(System::new());
        let pool: Pool = match Pool::open(&region, system.clone(), &most) {
            Ok(pool) => pool,
            Err(Error::Options(_) | Error::Region(RegionError::TooLarge(_))) => {
                println!("2^31 frames of {frame_bytes} bytes are refused here");
                // A pool of normal size can still be created.
                let few = Options { frames_max: 64, ..most };
                Pool::open(&region, system, &few).unwrap()
            }
            Err(other) => panic!("{frame_bytes}: {other:?}"),
        };
        let thread = region.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let spec = FileSpec { page_bytes: 512, ..FileSpec::new(&scratch.0) };
        let file = handle.file(&spec).unwrap();
        make(&handle, file, 200);
        handle.resize(64).unwrap();
        assert!((0..200).all(|page| value(&handle, file, page) == Ok(page)));
        handle.resize(16).unwrap();
        assert!((0..200).all(|page| value(&handle, file, page) == Ok(page)));
        assert!(pool.verify().unwrap().flaws.is_empty());
        assert_eq!(handle.repair(&[]), Ok(0));
    }
    let more = Options { frames: 16, frames_max: (1 << 31) + 1, ..Options::default() };
    let refused = Pool::open(&region(), Arc::new(System::new()), &more);
    assert_eq!(refused.map(drop), Err(Error::Options("frames")));
}

/// A latch names its holder by 14 bits, and each thread of a region may have to hold one.
#[test]
fn a_region_of_more_threads_than_latches_can_name_is_refused() {
    let open = |threads| {
        let sizes = RegionOptions { threads, limit: 64 << 20, ..RegionOptions::default() };
        let region = Region::<Native>::heap(&sizes).unwrap();
        Pool::open(&region, Arc::new(Simulated::new()), &options(16)).map(drop)
    };
    assert_eq!(open((1 << 14) - 1 - 16), Ok(()));
    assert_eq!(open((1 << 14) - 16), Err(Error::Holder((1 << 14) - 1)));
}
