//! The cache is in huge pages where the system provides them for shared memory.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use latchwork_check::folder::Folder;
use latchwork_check::forked::in_child;
use latchwork_store::{MemoryPlace, Mode, Options, ReadTxn, Store, Table, WriteTxn};

const ROWS: Table<u64, Vec<u8>> = Table::new("rows");
/// Number of rows of 1,000 bytes, 16 MB in all.
const ROWS_OF_IT: u64 = 16_000;
/// Bytes of a huge page.
const HUGE: usize = 1 << 21;

/// Bytes of shared memory that this process has mapped with huge pages.
fn huge_bytes() -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = maps.lines().find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap_or("0");
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Returns whether the system provides huge pages for a file on request, tested independently.
fn has_huge_pages() -> bool {
    let path = format!("/dev/shm/latchwork-check-huge-{}", std::process::id());
    let Ok(file) = File::options().read(true).write(true).create_new(true).open(&path) else {
        return false;
    };
    fs::remove_file(&path).unwrap();
    file.write_all_at(&[0; HUGE], 0).unwrap();
    let (rights, length) = (libc::PROT_READ | libc::PROT_WRITE, 2 * HUGE);
    let (none, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the system chooses.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), length, none, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let aligned = at.wrapping_byte_add(at.addr().next_multiple_of(HUGE) - at.addr());
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: a huge page of the range that was mapped above and is not used.
    let one = unsafe { libc::mmap(aligned, HUGE, rights, flags, file.as_raw_fd(), 0) };
    assert_ne!(one, libc::MAP_FAILED);
    // SAFETY: it was mapped above.
    let done = unsafe { libc::madvise(one, HUGE, libc::MADV_COLLAPSE) } == 0;
    // SAFETY: both were mapped above and are not used.
    unsafe { libc::munmap(at, length) };
    done
}

#[test]
fn the_cache_is_in_huge_pages() {
    if !fs::exists("/dev/shm").unwrap_or(false) || !has_huge_pages() {
        println!("SKIPPED: this system gives no huge pages of shared memory on request");
        return;
    }
    let folder = Folder::new("store-huge");
    let mut options = Options { place: MemoryPlace::Memory, ..Options::default() };
    (options.sizes.mode, options.sizes.cache) = (Mode::None, 32 << 20);
    let row = |number: u64| vec![number as u8; 1000];
    // In a process of its own, because other tests have stores in this one. Three huge pages show
    // that they were requested for more than the first frames and descriptors; the system may have
    // few left.
    let status = in_child(|| {
        let store = Store::open_with(folder.at("it"), &options).unwrap();
        let put = |tx: &mut WriteTxn<'_, '_>| {
            (0..ROWS_OF_IT).try_for_each(|number| tx.put(&ROWS, number, &row(number)))
        };
        store.write(put).unwrap();
        assert!(huge_bytes() >= 3 * HUGE as u64, "{} bytes", huge_bytes());
        let status = in_child(|| {
            let store = Store::open_with(folder.at("it"), &options).unwrap();
            let all = |tx: &ReadTxn<'_>| {
                (0..ROWS_OF_IT)
                    .try_fold(true, |all, n| Ok(all & (tx.get(&ROWS, n)? == Some(row(n)))))
            };
            assert!(store.read(all).unwrap());
            assert!(huge_bytes() >= 3 * HUGE as u64, "{} bytes", huge_bytes());
        });
        assert_eq!(status, 0, "the child process failed");
    });
    assert_eq!(status, 0);
}
