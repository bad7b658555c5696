//! Runs the parts of one long test concurrently. Most of the time it waits for other processes.

use std::panic::resume_unwind;
use std::thread::scope;

/// The results of `run` for each part, in order. Each part runs on its own thread.
///
/// # Panics
///
/// If one of them panics, with its message.
pub fn side_by_side<P: Send, T: Send>(
    parts: impl IntoIterator<Item = P>,
    run: impl Fn(P) -> T + Sync,
) -> Vec<T> {
    let run = &run;
    scope(|scope| {
        // All are started before the first is joined.
        let begun: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || run(part))).collect();
        let ended =
            begun.into_iter().map(|part| part.join().unwrap_or_else(|why| resume_unwind(why)));
        ended.collect()
    })
}
