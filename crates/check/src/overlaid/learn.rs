//! Explorations: the shared words are learned, then every schedule is run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::world::with;

/// Words of the stack of a model's thread.
const STACK: usize = 1 << 15;

/// A planted flaw of the machine, as a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// No flaw.
    None,
    /// The light barrier does nothing.
    Hasty,
    /// Fences do nothing; barriers work.
    Unfenced,
    /// All loads, stores and exchanges are relaxed.
    Lax,
    /// Wake-ups do nothing.
    Deaf,
    /// Compare-exchanges are a load followed by a store.
    Torn,
}

/// The cost of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// Executions without those in which words were learned.
    pub executions: u64,
    /// Number of restarts.
    pub anew: u32,
    /// Total time.
    pub took: Duration,
}

/// Ends an exploration that learned something.
struct Anew;

/// Runs `model` under every schedule with at most `preemptions` preemptions and prints the cost.
///
/// The model prepares memory, calls [`together`] once and inspects the result.
pub fn explore(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> Count {
    explore_flawed(name, preemptions, Flaw::None, model)
}

/// Whether `model` fails on a machine with a flaw: the control.
pub fn objects(preemptions: usize, flaw: Flaw, model: impl Fn() + Send + Sync + 'static) -> bool {
    catch_unwind(AssertUnwindSafe(|| explore_flawed("control", preemptions, flaw, model))).is_err()
}

fn explore_flawed(
    name: &str,
    preemptions: usize,
    flaw: Flaw,
    model: impl Fn() + Send + Sync + 'static,
) -> Count {
    let began = Instant::now();
    let model = Arc::new(model);
    let (mut anew, mut executions) = (0, 0);
    with(|world| world.renew(flaw));
    // Most words are learned where there is little to explore.
    for bound in 0..=preemptions {
        loop {
            let end = catch_unwind(AssertUnwindSafe(|| explore_once(bound, model.clone())));
            with(|world| world.leave());
            if with(|world| world.learned) {
                anew += 1;
                continue;
            }
            match end {
                Ok(count) => executions = count,
                Err(flaw) => resume_unwind(flaw),
            }
            break;
        }
    }
    assert!(executions > 1, "{name}: nothing was explored");
    let took = began.elapsed();
    println!("{name}: {executions} executions, {anew} times anew, {:.1} s", took.as_secs_f32());
    Count { executions, anew, took }
}

fn explore_once(bound: usize, model: Arc<impl Fn() + Send + Sync + 'static>) -> u64 {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.max_branches = 50_000;
    with(|world| world.recall());
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        with(|world| world.begin());
        model();
        if with(|world| world.learned) {
            // `panic!` would print a message.
            resume_unwind(Box::new(Anew));
        }
        with(|world| world.leave());
    });
    count.load(Relaxed)
}

/// The action of a thread of a model.
pub type Action<'a> = Box<dyn FnOnce() + 'a>;

/// Sent to loom's threads, which all run on this one.
struct Sent(Action<'static>);

// SAFETY: loom runs its threads in turn on the thread that created them.
unsafe impl Send for Sent {}

/// The concurrent part of a model: one thread per action. Returns when all have ended.
pub fn together(actions: Vec<Action<'_>>) {
    with(|world| world.open());
    let threads: Vec<_> = actions
        .into_iter()
        .enumerate()
        .map(|(number, action)| {
            // SAFETY: the action has ended when this returns. If this unwinds, loom's threads are
            // dropped unfinished, and their borrows are leaked by the caller.
            let action =
                Sent(unsafe { core::mem::transmute::<Action<'_>, Action<'static>>(action) });
            let body = move || {
                let Sent(action) = { action };
                with(|world| world.me = number as u8 + 1);
                action();
            };
            loom::thread::Builder::new().stack_size(STACK).spawn(body).expect("a loom thread")
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread that ended well");
    }
    with(|world| world.close());
}

/// Ends the next `naps` naps of a thread at once. The first thread is 1.
pub fn nap_short(thread: usize, naps: u32) {
    with(|world| world.naps[thread] = naps);
}

/// Defines a model's tests: the short form, the long form, and the flaws that it must find.
#[macro_export]
macro_rules! models {
    ($($name:ident, $long:ident, $control:ident: $model:expr, $short:expr, $deep:expr, $flaws:expr;)*) => {$(
        #[test]
        fn $name() {
            $crate::overlaid::explore(stringify!($name), $short, $model);
        }

        #[test]
        #[ignore = "long"]
        fn $long() {
            $crate::overlaid::explore(stringify!($name), $deep, $model);
        }

        #[test]
        fn $control() {
            for flaw in $flaws {
                assert!($crate::overlaid::objects($short, flaw, $model), "{flaw:?}");
            }
        }
    )*};
}
