//! Where redo begins: behind no transaction whose end is not durable.

use std::cell::RefCell;

use latchwork_disk::Simulated;
use latchwork_store::Mode;

use crate::stage::{TABLE, begin};
use crate::stuck::{key, value};

thread_local! {
    /// What happens when this thread has next flushed the log.
    static THEN: RefCell<Option<Box<dyn FnOnce()>>> = RefCell::default();
}

fn flushed(step: &'static str) {
    if step == "flush: unclaimed"
        && let Some(then) = THEN.take()
    {
        then();
    }
}

/// A transaction has written before a checkpoint's mark. It writes once more and commits while the
/// checkpoint writes pages, and the machine crashes when that has come to its end: all of the
/// transaction is there, or nothing.
#[test]
fn a_commit_while_a_checkpoint_is_made_is_whole_after_a_crash() {
    latchwork_log::set_point_hook(flushed);
    const LAST: u64 = 300;
    for seed in 0..8 {
        let disk = Simulated::new();
        let store = begin(&disk, Mode::None).unwrap();
        store.write(|tx| (0..=LAST).try_for_each(|n| tx.put(&TABLE, &key(n), &value(n)))).unwrap();
        store.checkpoint().unwrap();
        let mut open = store.begin().unwrap();
        open.put(&TABLE, &key(0), &value(1000)).unwrap();
        THEN.set(Some(Box::new(move || {
            // On a page that the checkpoint does not write.
            open.put(&TABLE, &key(LAST), &value(1001)).unwrap();
            open.commit().unwrap();
        })));
        store.checkpoint().unwrap();
        assert!(THEN.take().is_none(), "it flushed the log");
        disk.crash();
        drop(store);
        disk.restart(seed);
        let store = begin(&disk, Mode::None).unwrap();
        let both = store.read(|tx| Ok((tx.get(&TABLE, &key(0))?, tx.get(&TABLE, &key(LAST))?)));
        let (first, last) = both.unwrap();
        let (new, old) = ((value(1000), value(1001)), (value(0), value(LAST)));
        let found = (first.unwrap(), last.unwrap());
        assert!(found == new || found == old, "seed {seed}: a part of a transaction");
        store.verify().unwrap();
    }
}
