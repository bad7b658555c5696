//! Regions under loom: cells, batches, blocks and slots that move from thread to thread.
//!
//! After each execution every cell is in exactly one place. The long form is `cargo test --release
//! -p latchwork-check --test region models:: -- --ignored`.

use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::cell::{self, value};
use latchwork_check::overlaid::{Action, Flaw, together};
use latchwork_check::{Overlaid, models};
use latchwork_machine::{Machine, Word};
use latchwork_region::{Error, Offset, Options, Plain, Region, Thread};

/// Half a page: two are a batch.
#[repr(C)]
struct Large {
    words: [<Overlaid as Machine>::AtomicU64; 300],
}

// SAFETY: it consists of words only.
unsafe impl Plain for Large {}

impl Large {
    /// The mark of the last user. Relaxed: its visibility is what is tested.
    fn mark(&self) -> u64 {
        self.words[9].load(Relaxed)
    }

    fn set_mark(&self, mark: u64) {
        self.words[9].store(mark, Relaxed);
    }
}

type Handle = Region<Overlaid>;

fn region(processes: u32, threads: u32) -> Handle {
    let (waiters, limit) = (1, 512 << 10);
    Region::heap(&Options { processes, threads, waiters, limit, ..Options::default() }).unwrap()
}

fn cell(thread: &Thread<Overlaid>, mark: u64) -> Offset<Large> {
    let cell = thread.alloc_dirty::<Large>().unwrap();
    cell.set_mark(mark);
    cell.publish()
}

/// Checks that every cell is in one place and `used` of them are allocated.
fn look(region: &Handle, used: u64) {
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.used() == used, "{audit:?}");
}

/// The work of a thread of a model with the region, through its own handle or a shared one.
type Life = fn(&Handle, Option<Thread<Overlaid>>, &[Offset<Large>]);

/// A model: allocated cells, threads with slots or without, and the least and greatest number of
/// cells allocated at the end.
struct Play {
    cells: usize,
    slots: u32,
    own: bool,
    lives: Vec<Life>,
    left: RangeInclusive<u64>,
}

impl Play {
    fn model(self) -> impl Fn() + Send + Sync + 'static {
        let region = region(1, self.slots);
        let thread = region.thread().unwrap();
        let cells: Vec<_> = (0..self.cells).map(|_| cell(&thread, 1)).collect();
        drop(thread);
        move || {
            let handles: Vec<_> =
                self.lives.iter().map(|_| (!self.own).then(|| region.thread().unwrap())).collect();
            let actions = self.lives.iter().zip(handles).map(|(life, thread)| -> Action<'_> {
                let (region, cells) = (&region, &cells[..]);
                Box::new(move || life(region, thread, cells))
            });
            together(actions.collect());
            let audit = region.audit().unwrap();
            assert!(audit.is_sound() && self.left.contains(&audit.used()), "{audit:?}");
        }
    }
}

models! {
    loom_depot, loom_depot_long, loom_depot_control: depot(), 3, 5, [Flaw::Lax, Flaw::Torn];
    loom_slot, loom_slot_long, loom_slot_control: slot(), 4, 6, [Flaw::Lax, Flaw::Torn];
    loom_blocks, loom_blocks_long, loom_blocks_control: blocks(), 4, 6, [Flaw::Torn];
    loom_generation, loom_generation_long, loom_generation_control:
        generation(), 4, 6, [Flaw::Lax];
    loom_death, loom_death_long, loom_death_control: death(1), 4, 6, [Flaw::Lax];
    loom_third, loom_third_long, loom_third_control: third(), 2, 3, [Flaw::Lax, Flaw::Torn];
    loom_newcomer, loom_newcomer_long, loom_newcomer_control: newcomer(), 4, 6, [Flaw::Lax];
    loom_swept, loom_swept_long, loom_swept_control: swept(), 4, 6, [Flaw::Lax];
    loom_again, loom_again_long, loom_again_control: again(), 4, 6, [Flaw::Lax];
    loom_lowest, loom_lowest_long, loom_lowest_control: lowest(), 4, 6, [Flaw::Lax];
    loom_two_sweepers, loom_two_sweepers_long, loom_two_sweepers_control:
        death(2), 3, 4, [Flaw::Lax, Flaw::Torn];
}

/// One thread frees batches, the other takes cells, from a depot if possible.
fn depot() -> impl Fn() + Send + Sync + 'static {
    let lives: Vec<Life> = vec![
        |_, thread, cells| {
            let thread = thread.unwrap();
            cells.iter().for_each(|cell| cell::free(&thread, *cell).unwrap());
        },
        |_, thread, _| {
            let thread = thread.unwrap();
            (0..3).for_each(|_| _ = cell(&thread, 2));
        },
    ];
    Play { cells: 6, slots: 2, own: false, lives, left: 3..=3 }.model()
}

/// Two threads take batches that a third gives: one of them from where the other left the depot.
fn third() -> impl Fn() + Send + Sync + 'static {
    let takes: Life = |_, thread, _| _ = cell(&thread.unwrap(), 2);
    let gives: Life = |_, thread, cells| {
        let thread = thread.unwrap();
        cells.iter().for_each(|cell| cell::free(&thread, *cell).unwrap());
    };
    Play { cells: 6, slots: 3, own: false, lives: vec![gives, takes, takes], left: 2..=2 }.model()
}

/// One thread releases its slot while another claims one. The two slots claimed at the end are the
/// lowest, so no free one was passed by.
fn lowest() -> impl Fn() + Send + Sync + 'static {
    let region = region(1, 4);
    move || {
        // By number, so that the hint is 0 before and after the slot is free. Only the counter
        // shows that a slot was freed.
        let at = |number| region.thread_at(number).unwrap().unwrap();
        let (first, _second) = (at(0), at(1));
        let got = std::cell::OnceCell::new();
        let gives: Action<'_> = Box::new(|| drop(first));
        let claims: Action<'_> = Box::new(|| _ = got.set(region.thread().unwrap()));
        together(vec![gives, claims]);
        let threads = [got.into_inner().unwrap(), region.thread().unwrap()];
        let mut numbers = threads.each_ref().map(Thread::number);
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 2], "a free slot was passed by");
    }
}

/// A process takes a slot that another had and claims a thread. A concurrent sweep leaves it alive.
fn newcomer() -> impl Fn() + Send + Sync + 'static {
    let first = region(2, 2);
    cell(&first.another().unwrap().thread().unwrap(), 1);
    move || {
        let here = std::cell::OnceCell::new();
        let comes: Action<'_> = Box::new(|| {
            let second = ManuallyDrop::new(first.another().unwrap());
            let thread = ManuallyDrop::new(second.thread().unwrap());
            cell(&thread, 2);
            let _ = here.set((second, thread));
        });
        let sweeps: Action<'_> = Box::new(|| assert_eq!(first.sweep(), Ok(0)));
        together(vec![comes, sweeps]);
        if let Some((second, thread)) = here.into_inner() {
            drop(ManuallyDrop::into_inner(thread));
            drop(ManuallyDrop::into_inner(second));
        }
        look(&first, 2);
    }
}

/// One releases its slot, the other claims it if possible.
fn slot() -> impl Fn() + Send + Sync + 'static {
    let life: Life = |region, _, _| match region.thread() {
        Ok(thread) => _ = cell(&thread, 2),
        Err(error) => assert!(matches!(error, Error::Threads(1)), "{error}"),
    };
    Play { cells: 1, slots: 1, own: true, lives: vec![life; 2], left: 2..=3 }.model()
}

/// Two threads without cells take a block each.
fn blocks() -> impl Fn() + Send + Sync + 'static {
    let life: Life = |_, thread, _| _ = cell(&thread.unwrap(), 2);
    Play { cells: 0, slots: 2, own: false, lives: vec![life; 2], left: 2..=2 }.model()
}

/// One frees a cell and allocates it again. A reader of the new generation reads no older data.
fn generation() -> impl Fn() + Send + Sync + 'static {
    let lives: Vec<Life> = vec![
        |region, thread, cells| {
            let thread = thread.unwrap();
            value(region, cells[0]).unwrap().set_mark(5);
            cell::free(&thread, cells[0]).unwrap();
            assert_eq!(thread.alloc_dirty::<Large>().unwrap().publish(), cells[0]);
        },
        |region, _, cells| {
            let it = value(region, cells[0]).unwrap();
            let (lent, mark) = (region.lent(cells[0]).unwrap(), it.mark());
            assert!(mark == 5 || lent == Some(1), "{lent:?}, mark {mark}");
            let (generation, mark) = (cell::generation(region, cells[0]).unwrap(), it.mark());
            assert!(mark == 5 || generation == 1, "generation {generation}, mark {mark}");
        },
    ];
    Play { cells: 1, slots: 2, own: false, lives, left: 1..=1 }.model()
}

/// A process dies with a cell in hand and one on its list. Concurrent sweeps see all its stores.
fn death(sweepers: usize) -> impl Fn() + Send + Sync + 'static {
    let first = region(1 + sweepers as u32, 2);
    let offset = cell(&first.thread().unwrap(), 1);
    drop(first.thread().unwrap());
    move || {
        // Dead threads are not dropped, and nothing is if the execution fails.
        let dying = ManuallyDrop::new(first.another().unwrap());
        let living: Vec<_> = (0..sweepers).map(|_| first.clone()).collect();
        let dead: Action<'_> = Box::new(|| {
            let thread = ManuallyDrop::new(dying.thread().unwrap());
            let in_hand = ManuallyDrop::new(thread.alloc_dirty::<Large>().unwrap());
            in_hand.set_mark(3);
            cell::free(&thread, offset).unwrap();
            dying.die();
        });
        let sweep = living.iter().map(|region| -> Action<'_> {
            Box::new(move || {
                region.sweep().unwrap();
            })
        });
        together([dead].into_iter().chain(sweep).collect());
        first.sweep().unwrap();
        look(&first, 0);
    }
}

/// A dead thread's only slot is swept and claimed. Its next owner finds repaired lists.
fn swept() -> impl Fn() + Send + Sync + 'static {
    let first = region(2, 1);
    let offset = cell(&first.thread().unwrap(), 1);
    let dying = first.another().unwrap();
    let thread = ManuallyDrop::new(dying.thread().unwrap());
    let _ = ManuallyDrop::new(thread.alloc_dirty::<Large>().unwrap());
    dying.die();
    std::mem::forget(dying);
    move || {
        let sweeps: Action<'_> = Box::new(|| {
            first.sweep().unwrap();
        });
        let claims: Action<'_> = Box::new(|| {
            if let Ok(thread) = first.thread() {
                cell(&thread, 2);
                cell::free(&thread, offset).unwrap();
            }
        });
        together(vec![sweeps, claims]);
        look(&first, 1);
    }
}

/// A swept slot is claimed by the next process, which dies too. No two threads sweep it at the same
/// time, even if one of them belongs to the process of the first sweep and is at its end.
fn again() -> impl Fn() + Send + Sync + 'static {
    let first = region(3, 1);
    let dying = first.another().unwrap();
    let _ = ManuallyDrop::new(dying.thread().unwrap());
    dying.die();
    std::mem::forget(dying);
    move || {
        let next = ManuallyDrop::new(first.another().unwrap());
        let sweeps: Action<'_> = Box::new(|| {
            first.sweep().unwrap();
        });
        let dies: Action<'_> = Box::new(|| {
            let Ok(thread) = next.thread() else { return };
            let thread = ManuallyDrop::new(thread);
            let _ = ManuallyDrop::new(thread.alloc_dirty::<Large>().unwrap());
            next.die();
            let swept: Vec<_> = first.dead_threads().unwrap().collect();
            let beside = first.dead_threads().unwrap().count();
            assert!(swept.is_empty() || beside == 0, "two sweep one slot");
        });
        together(vec![sweeps, dies]);
        first.sweep().unwrap();
        look(&first, 0);
    }
}
