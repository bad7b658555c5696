//! A single-threaded executor. It polls a task only after its waker was called, so a missing
//! wake-up is a test that does not end.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// A task.
pub type Task<'t> = Pin<Box<dyn Future<Output = ()> + 't>>;

/// The tasks that were woken.
#[derive(Default)]
struct Notifier {
    woken: Mutex<BTreeSet<usize>>,
    notified: Condvar,
}

struct Of(Arc<Notifier>, usize);

impl Wake for Of {
    fn wake(self: Arc<Self>) {
        self.0.woken.lock().unwrap().insert(self.1);
        self.0.notified.notify_one();
    }
}

/// Runs all tasks to their end on this thread.
pub fn join(mut tasks: Vec<Option<Task<'_>>>) {
    let notifier = Arc::new(Notifier::default());
    notifier.woken.lock().unwrap().extend(0..tasks.len());
    while tasks.iter().any(Option::is_some) {
        let mut woken = notifier.woken.lock().unwrap();
        while woken.is_empty() {
            woken = notifier.notified.wait(woken).unwrap();
        }
        let now = core::mem::take(&mut *woken);
        drop(woken);
        for at in now {
            let waker = Waker::from(Arc::new(Of(notifier.clone(), at)));
            let Some(task) = &mut tasks[at] else { continue };
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                tasks[at] = None;
            }
        }
    }
}

/// Runs one future to its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut end = None;
    join(vec![Some(Box::pin(async { end = Some(future.await) }))]);
    end.unwrap()
}

/// Polls once.
pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets the other tasks run.
pub async fn pause() {
    let mut first = true;
    std::future::poll_fn(|cx| {
        if core::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}
