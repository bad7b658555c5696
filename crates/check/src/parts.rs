//! One long test in parts that run side by side: most of its time it waits for other processes.

use std::panic::resume_unwind;
use std::thread::scope;

/// What `run` says of each part, in their order. Each runs on a thread of its own.
///
/// # Panics
///
/// If one of them does, as that did.
pub fn side_by_side<P: Send, T: Send>(
    parts: impl IntoIterator<Item = P>,
    run: impl Fn(P) -> T + Sync,
) -> Vec<T> {
    let run = &run;
    scope(|scope| {
        // All are begun before the first is waited for.
        let begun: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || run(part))).collect();
        let ended =
            begun.into_iter().map(|part| part.join().unwrap_or_else(|why| resume_unwind(why)));
        ended.collect()
    })
}
