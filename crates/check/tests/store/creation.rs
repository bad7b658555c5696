//! A crash of the machine while a store is created: whatever it leaves of any file is completed or
//! replaced by the next open.

use std::path::Path;

use latchwork_disk::Fault::{Crash, NoSpace};
use latchwork_disk::{Operation, Simulated};
use latchwork_store::{Error, Mode, Sizes};

use crate::stage::{TABLE, begin_with, sizes};

/// Pages larger than the sectors into which a write is torn.
fn large_pages() -> Sizes {
    Sizes { page: 16 << 10, cache: 2 << 20, ..sizes(Mode::Full) }
}

/// Creates a store, stores a record, and has all pages written.
fn create(disk: &Simulated) -> Result<(), Error> {
    let store = begin_with(disk, large_pages())?;
    store.put(&TABLE, b"pear", b"3")?;
    store.checkpoint()?;
    assert_eq!(store.get(&TABLE, b"pear")?.as_deref(), Some(&b"3"[..]));
    Ok(())
}

/// The calls that creating a store makes.
fn history() -> Vec<Operation> {
    let disk = Simulated::new();
    create(&disk).unwrap();
    disk.history()
}

fn changes(at: Operation) -> bool {
    use Operation::{Allocate, Rename, Sync, SyncFolder, Truncate, Write};
    matches!(at, Write | Sync | Allocate | Truncate | Rename | SyncFolder)
}

/// A write of a page is torn into sectors of 512 bytes, and the preallocated room is kept or lost:
/// the file of pages may end within a page.
#[test]
fn power_loss_at_each_call_of_creation_leaves_a_store_that_opens() {
    let (mut odd, mut trials) = (0, 0);
    for (call, _) in (0..).zip(history()).filter(|(_, at)| changes(*at)) {
        for seed in 0..8 {
            let disk = Simulated::with_seed(seed);
            disk.plan(call, Crash);
            let made = create(&disk);
            disk.crash();
            disk.restart(seed);
            let bytes = disk.peek(Path::new("/home/store/data")).map_or(0, |data| data.len());
            (odd, trials) = (odd + u32::from(!bytes.is_multiple_of(16 << 10)), trials + 1);
            let case = format!("call {call}, seed {seed}, {bytes} bytes of data, {made:?}");
            create(&disk).unwrap_or_else(|why| panic!("{case}: {why}"));
        }
    }
    println!("{trials} trials, {odd} files of pages ended within a page");
    assert!(odd > 5, "{odd} of {trials}");
}

/// If any call of creation finds the disk full, it fails, and succeeds once there is room.
#[test]
fn creation_succeeds_with_room_after_any_call_found_none() {
    for call in 0..history().len() as u64 {
        let disk = Simulated::with_seed(call);
        disk.plan(call, NoSpace);
        let made = create(&disk);
        let fired = disk.fired();
        disk.heal();
        create(&disk).unwrap_or_else(|why| panic!("call {call} ({fired}, {made:?}): {why}"));
        disk.crash();
        disk.restart(call);
        create(&disk).unwrap_or_else(|why| panic!("call {call}, after a crash: {why}"));
    }
}
