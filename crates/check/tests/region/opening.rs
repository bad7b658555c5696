//! Regions that are opened while they grow.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use latchwork_machine::Shared;
use latchwork_region::{Options, Region};

#[test]
fn a_region_that_grows_is_not_truncated() {
    let path = std::env::temp_dir().join(format!("region-opening-{}", std::process::id()));
    let options = Options { limit: 1 << 30, ..Options::default() };
    let done = AtomicBool::new(false);
    for _ in 0..20 {
        let _ = std::fs::remove_file(&path);
        let region = Region::<Shared>::create(&path, &options).unwrap();
        done.store(false, Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = region.thread().unwrap();
                for _ in 0..400 {
                    thread
                        .alloc_dirty::<[core::sync::atomic::AtomicU64; 8000]>()
                        .unwrap()
                        .publish();
                }
                done.store(true, Relaxed);
            });
            let mut looks = 0;
            while !done.load(Relaxed) || looks == 0 {
                Region::<Shared>::view(&path, &options).unwrap();
                looks += 1;
            }
        });
    }
    let _ = std::fs::remove_file(&path);
}
