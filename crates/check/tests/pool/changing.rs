//! The values that the holder of a page may store in it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::pages::{Scratch, options, pool, region};

/// A run of words behaves like single words: all are stored or none, and never the pool's own two.
#[test]
fn words_are_stored_where_the_page_has_them_or_not_at_all() {
    let scratch = Scratch::new("changing");
    let region = region();
    let pool = pool(&region, &options(40));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&scratch.spec()).unwrap();
    let mut held = handle.new_page(file).unwrap();
    held.begin(0);
    let end = held.len();
    for index in 2..end {
        assert!(held.set(index, 7));
    }
    for (at, count) in [(2, 0), (2, 1), (3, 9), (end - 1, 1), (2, end - 2), (end, 0)] {
        let run: Vec<[u8; 8]> = (0..count as u64).map(|word| (100 + word).to_le_bytes()).collect();
        assert!(held.set_run(at, &run), "{count} at {at}");
        for index in 2..end {
            let stored = index.checked_sub(at).filter(|word| *word < count);
            let wanted = stored.map_or(7, |word| 100 + word as u64);
            assert_eq!(held.word(index), Some(wanted), "{index} of {count} at {at}");
        }
        for index in at..at + count {
            assert!(held.set(index, 7));
        }
    }
    for (at, count) in [(0, 1), (1, 1), (0, end), (end, 1), (end - 1, 2), (end + 1, 0)] {
        let before: Vec<_> = (0..end).map(|index| held.word(index)).collect();
        assert!(!held.set_run(at, &vec![[9; 8]; count]), "{count} at {at}");
        let after: Vec<_> = (0..end).map(|index| held.word(index)).collect();
        assert_eq!(before, after, "{count} at {at}");
    }
    assert!(!held.set_run(usize::MAX, &[[9; 8]]));
    held.commit_and_keep();
    // Readers would not see that the page changes.
    let unasked = catch_unwind(AssertUnwindSafe(|| held.set_run(2, &[[9; 8]])));
    assert!(unasked.is_err());
    assert_eq!(held.word(2), Some(7));
}
