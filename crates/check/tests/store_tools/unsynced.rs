//! A device that fails to make pages durable: commits of the process that met the error are not
//! lost, and the next process continues.

use std::os::fd::RawFd;
use std::os::unix::process::ExitStatusExt;

use latchwork_store::{Mode, Options, Store, Table, TxnOptions};

use crate::stage::{COUNT, EACH, Place, fill, open, options, sum};

const NOT_ON_DISK: Table<u64, u64> = Table::new("not on the disk");

/// This process's descriptors of a file.
fn descriptors(path: &std::path::Path) -> Vec<RawFd> {
    let here = std::fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap);
    let of = here.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path));
    of.map(|fd| fd.file_name().to_string_lossy().parse().unwrap()).collect()
}

/// The device's error.
const FAILS: u32 = libc::SECCOMP_RET_ERRNO | libc::EIO as u32;

/// Makes each later `fdatasync` and `fsync` of these descriptors end this way. Returns false if the
/// system has no system call filters.
fn syncs_end(descriptors: &[RawFd], so: u32) -> bool {
    let op = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let load = |at| op((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, at, 0, 0);
    let equal = |k, jt, jf| op((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, k, jt, jf);
    let give = |k| op((libc::BPF_RET | libc::BPF_K) as u16, k, 0, 0);
    let count = descriptors.len() as u8;
    let mut filter = vec![
        load(0),
        equal(libc::SYS_fdatasync as u32, 1, 0),
        equal(libc::SYS_fsync as u32, 0, count + 1),
        // The low half of the first argument.
        load(16),
    ];
    for (at, descriptor) in (0..).zip(descriptors) {
        filter.push(equal(*descriptor as u32, count - at, 0));
    }
    filter.push(give(libc::SECCOMP_RET_ALLOW));
    filter.push(give(so));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the call takes only numbers.
    let may = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    let (mode, all) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: the program lives until the end of the call, which copies it.
    may && unsafe { libc::syscall(libc::SYS_seccomp, mode, all, &raw const program) } == 0
}

/// A process whose pages cannot be made durable.
#[test]
fn meets_it() {
    let Some(place) = Place::told() else { return };
    let place = place.at("one");
    let calm = Options {
        sizes: latchwork_store::Sizes { log_budget: 1 << 30, history: 1 << 30, ..options().sizes },
        ..options()
    };
    let store = Store::open_with(&place, &calm).unwrap();
    fill(&store, 200);
    store.checkpoint().unwrap();
    let step = std::env::var("STEP").unwrap();
    let data = place.canonicalize().unwrap().join("data");
    std::fs::copy(&data, place.join("data before")).unwrap();
    let so = if step == "3" { libc::SECCOMP_RET_KILL_PROCESS } else { FAILS };
    if !syncs_end(&descriptors(&data), so) {
        std::process::exit(3);
    }
    let patience = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
    for row in 0..500 {
        store.write_with(&patience, |tx| tx.put(&NOT_ON_DISK, row, row)).unwrap();
    }
    let why = store.checkpoint().unwrap_err();
    assert!(why.to_string().contains("data"), "{why}");
    // The error persists, and rows can still be written.
    assert!(store.checkpoint().is_err());
    store.write_with(&patience, |tx| tx.put(&NOT_ON_DISK, 500, 500)).unwrap();
    // The process closes the store as the last one, or is killed.
    match step.as_str() {
        "1" => drop(store),
        // SAFETY: signals this process.
        _ => _ = unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) },
    }
    std::process::exit(0);
}

/// The process closes the store, is killed later, or is killed during the sync.
#[test]
fn pages_that_failed_to_sync_are_written_by_the_next() {
    for step in [1, 2, 3] {
        let place = Place::new("unsynced");
        let line = format!("STEP={step} exec \"$0\" \"$@\"");
        let ended = place.start_by(&line, "unsynced::meets_it").wait().unwrap();
        if ended.code() == Some(3) {
            println!("skipped: this system filters no calls");
            return;
        }
        let signals = [None, Some(libc::SIGKILL), Some(libc::SIGSYS)];
        assert_eq!(ended.signal(), signals[step - 1], "{ended}");
        let (before, data) = (place.at("one/data before"), place.at("one/data"));
        if step == 3 {
            // The system has dropped what it could not write.
            std::fs::copy(&before, data).unwrap();
        }
        std::fs::remove_file(before).unwrap();
        let count = if step == 3 { 500 } else { 501 };
        let store = open(place.at("one"));
        assert_eq!(store.read(|tx| tx.count(&NOT_ON_DISK, ..)), Ok(count), "{step}");
        store.checkpoint().unwrap();
        assert_eq!(sum(&store), COUNT as i64 * EACH);
        store.verify().unwrap();
        drop(store);
        let counts = open(place.at("one")).read(|tx| tx.count(&NOT_ON_DISK, ..));
        assert_eq!(counts, Ok(count), "{step}");
    }
}
