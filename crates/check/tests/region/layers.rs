//! Layers of a region: a dead thread's slot is free only after each layer has repaired the thread's
//! state, in order.

use std::mem::forget;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_check::cell;
use latchwork_machine::{Deadline, Native};
use latchwork_region::{Dead, Error, Fate, InHand, Layer, Offset, Options, Region, Repair};

type Words = [AtomicU64; 7];

fn region() -> Region<Native> {
    let options =
        Options { processes: 64, threads: 64, waiters: 64, limit: 64 << 20, ..Options::default() };
    Region::heap(&options).unwrap()
}

/// The repairs of all layers of a test: the layer and the slots.
type Done = Arc<Mutex<Vec<(Layer, Vec<u32>)>>>;

/// A layer that notes a cell in its first intent word before publishing it.
struct Fake {
    layer: Layer,
    region: Region<Native>,
    done: Done,
    /// The slot that it cannot repair.
    fails_at: Mutex<Option<u32>>,
    /// The cells reachable from it.
    leads: Mutex<Vec<Offset<()>>>,
}

impl Repair for Fake {
    fn layer(&self) -> Layer {
        self.layer
    }

    fn repair(&self, dead: &[Dead<'_>]) -> Result<(), Error> {
        let slots: Vec<u32> = dead.iter().map(Dead::number).collect();
        let fails = self.fails_at.lock().unwrap().is_some_and(|slot| slots.contains(&slot));
        self.done.lock().unwrap().push((self.layer, slots));
        if fails {
            return Err(Error::Repair(self.layer));
        }
        let thread = self.region.sweeper()?;
        for dead in dead {
            let word = &dead.intent_of(self.layer)[0];
            let noted = Offset::<Words>::from_raw(word.load(Relaxed) as u32);
            if noted.raw() != 0 && self.region.lent(noted)?.is_some() {
                cell::free(&thread, noted)?;
            }
            word.store(0, Relaxed);
        }
        Ok(())
    }

    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, Error> {
        let leads = self.leads.lock().unwrap();
        Ok(cells.iter().map(|cell| leads.contains(&cell.offset)).collect())
    }
}

fn layer(region: &Region<Native>, layer: Layer, done: &Done) -> (Arc<Fake>, Arc<dyn Repair>) {
    let fake = Arc::new(Fake {
        layer,
        // Another handle: the same one would keep itself alive.
        region: region.another().unwrap(),
        done: done.clone(),
        fails_at: Mutex::default(),
        leads: Mutex::default(),
    });
    let repair: Arc<dyn Repair> = fake.clone();
    region.register(&repair).unwrap();
    (fake, repair)
}

/// A dead process with `threads` threads, each with a cell noted by each of these layers.
fn dead(region: &Region<Native>, threads: usize, layers: &[Layer]) {
    let process = region.another().unwrap();
    for _ in 0..threads {
        let thread = process.thread().unwrap();
        for layer in layers {
            let cell = thread.alloc::<Words>().unwrap();
            thread.intent_of(*layer).unwrap()[0].store(u64::from(cell.offset().raw()), Relaxed);
            cell.publish();
        }
        forget(thread);
    }
    process.die();
}

#[test]
fn each_layer_repairs_in_order_and_only_then_is_the_slot_free() {
    let (region, done) = (region(), Done::default());
    let order = [Layer::Log, Layer::Pool, Layer::Tree, Layer::Locks, Layer::Store];
    // Registered in another order.
    let kept: Vec<_> = order.iter().rev().map(|one| layer(&region, *one, &done)).collect();
    assert!(region.layers().unwrap().eq(order));
    dead(&region, 3, &order);
    assert_eq!(region.audit().unwrap().used(), 15);
    assert_eq!(region.sweep(), Ok(3));
    let told: Vec<_> = order.into_iter().map(|layer| (layer, vec![0, 1, 2])).collect();
    assert_eq!(*done.lock().unwrap(), told);
    assert_eq!(region.threads().count(), 0);
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.used() == 0, "{audit:?}");
    let next = region.thread().unwrap();
    for layer in order {
        let words = next.intent_of(layer).unwrap();
        assert_eq!(words.len(), if layer == Layer::Locks { 16 } else { 8 });
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
    }
    drop(kept);
}

#[test]
fn a_process_that_lacks_a_layer_frees_nothing() {
    let (region, done) = (region(), Done::default());
    let (_log, log) = layer(&region, Layer::Log, &done);
    let other = region.another().unwrap();
    let (_, pool) = layer(&other, Layer::Pool, &done);
    dead(&region, 2, &[Layer::Log]);
    assert_eq!(region.sweep(), Err(Error::NoRepair(Layer::Pool)));
    assert_eq!(other.sweep(), Err(Error::NoRepair(Layer::Log)));
    for dead in region.dead_threads().unwrap() {
        assert_eq!(dead.finish(|_| Fate::Free), Err(Error::NoRepair(Layer::Log)));
    }
    assert_eq!((region.threads().count(), done.lock().unwrap().len()), (2, 0));
    // A repair whose handle was dropped does not count.
    other.register(&log).unwrap();
    drop(pool);
    assert_eq!(other.sweep(), Err(Error::NoRepair(Layer::Pool)));
    let (_pool, _keep) = layer(&other, Layer::Pool, &done);
    assert_eq!(other.sweep(), Ok(2));
    assert_eq!(region.threads().count(), 0);
}

#[test]
fn a_slot_that_cannot_be_repaired_stops_no_other() {
    let (region, done) = (region(), Done::default());
    let (pool, _keep) = layer(&region, Layer::Pool, &done);
    dead(&region, 5, &[Layer::Pool]);
    *pool.fails_at.lock().unwrap() = Some(2);
    assert_eq!(region.sweep(), Err(Error::Repair(Layer::Pool)));
    let left: Vec<u32> = region.threads().map(|thread| thread.slot).collect();
    assert_eq!(left, [2]);
    assert!(region.is_dead(2) && region.is_dead(63));
    *pool.fails_at.lock().unwrap() = None;
    assert_eq!(region.sweep(), Ok(1));
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.used() == 0, "{audit:?}");
    let thread = region.thread().unwrap();
    assert!(!region.is_dead(thread.number()));
}

/// A layer that, to repair a thread, needs a resource of another dead thread and repairs that
/// thread first, like any thread that waits for it. The other thread itself cannot be repaired.
struct Needy {
    region: Region<Native>,
    holder: u32,
}

impl Repair for Needy {
    fn layer(&self) -> Layer {
        Layer::Locks
    }

    fn repair(&self, dead: &[Dead<'_>]) -> Result<(), Error> {
        let opens = |_: &Dead<'_>| {
            self.region
                .dead_threads()?
                .any(|it| it.number() == self.holder)
                .then_some(())
                .ok_or(Error::Repair(Layer::Pool))
        };
        match dead.iter().any(|dead| dead.number() == self.holder) {
            true => Err(Error::Repair(Layer::Locks)),
            false => dead.iter().try_for_each(opens),
        }
    }

    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, Error> {
        Ok(vec![false; cells.len()])
    }
}

/// A thread that cannot be repaired is not claimed while the others are repaired. Otherwise they,
/// and all that sweep, would wait forever for its resource.
#[test]
fn a_thread_that_cannot_be_repaired_stays_available_to_others() {
    let region = region();
    let repair: Arc<dyn Repair> = Arc::new(Needy { region: region.another().unwrap(), holder: 2 });
    region.register(&repair).unwrap();
    dead(&region, 40, &[]);
    assert_eq!(region.sweep(), Err(Error::Repair(Layer::Locks)));
    assert_eq!(region.threads().map(|thread| thread.slot).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_sweep_claims_sixteen_at_a_time() {
    let (region, done) = (region(), Done::default());
    let (_pool, _keep) = layer(&region, Layer::Pool, &done);
    dead(&region, 40, &[Layer::Pool]);
    assert_eq!(region.sweep(), Ok(40));
    let sizes: Vec<_> = done.lock().unwrap().iter().map(|(_, slots)| slots.len()).collect();
    assert_eq!(sizes, [16, 16, 8]);
}

/// A sweep with a deadline does at least one batch, and no other after the deadline.
#[test]
fn a_deadline_ends_a_sweep_after_sixteen() {
    let (region, done) = (region(), Done::default());
    let kept = layer(&region, Layer::Locks, &done);
    dead(&region, 40, &[Layer::Locks]);
    let past = Some(Deadline::after::<Native>(Duration::ZERO));
    let mut swept = Vec::new();
    while region.threads().count() != 0 {
        swept.push(region.sweep_with(Some(&kept.1), past).unwrap());
    }
    assert_eq!(swept, [16, 16, 8]);
    dead(&region, 40, &[Layer::Locks]);
    let later = Some(Deadline::after::<Native>(Duration::from_secs(3600)));
    assert_eq!(region.sweep_with(Some(&kept.1), later), Ok(40));
}

#[test]
fn a_waiter_has_the_layers_up_to_its_own_repair_one_thread() {
    let (region, done) = (region(), Done::default());
    let (log, _kept) = layer(&region, Layer::Log, &done);
    let (_, pool) = layer(&region, Layer::Pool, &done);
    let (_, tree) = layer(&region, Layer::Tree, &done);
    dead(&region, 3, &[Layer::Pool]);
    assert_eq!(region.repair_upto(&pool, 1), Ok(true));
    let told = vec![(Layer::Log, vec![1]), (Layer::Pool, vec![1])];
    assert_eq!(std::mem::take(&mut *done.lock().unwrap()), told);
    // The slot is still dead: no thread claims it, and a sweep finds it.
    assert!(region.is_dead(1) && region.threads().count() == 3);
    let alive = region.thread().unwrap();
    assert_eq!(region.repair_upto(&pool, alive.number()), Ok(false));
    assert_eq!(region.repair_upto(&pool, 40), Ok(false), "a free slot");
    assert_eq!(region.repair_upto(&pool, 1 << 20), Ok(false), "no slot");
    let claimed = region.dead_threads().unwrap().next().unwrap();
    assert_eq!(region.repair_upto(&pool, claimed.number()), Ok(false), "another sweeps it");
    drop(claimed);
    *log.fails_at.lock().unwrap() = Some(0);
    assert_eq!(region.repair_upto(&pool, 0), Err(Error::Repair(Layer::Log)));
    assert!(done.lock().unwrap().iter().all(|(layer, _)| *layer == Layer::Log));
    *log.fails_at.lock().unwrap() = None;
    drop((tree, log, _kept));
    assert_eq!(region.repair_upto(&pool, 0), Err(Error::NoRepair(Layer::Log)));
}

#[test]
fn a_free_slot_is_kept_from_others_for_a_moment() {
    let region = region();
    let (first, second) = (region.thread().unwrap(), region.thread().unwrap());
    assert_eq!(region.while_free(first.number(), || ()), Ok(None));
    let number = first.number();
    drop(first);
    let kept = region.while_free(number, || {
        assert!(region.is_dead(number) && region.dead_threads().unwrap().next().is_none());
        region.thread().unwrap().number()
    });
    assert_eq!(kept, Ok(Some(2)), "the next one");
    assert_eq!(region.thread().unwrap().number(), number);
    drop(second);
}

#[test]
fn a_cell_in_hand_is_kept_if_any_layer_leads_to_it() {
    let (region, done) = (region(), Done::default());
    let (_log, _keep) = layer(&region, Layer::Log, &done);
    let (tree, _kept) = layer(&region, Layer::Tree, &done);
    let process = region.another().unwrap();
    let thread = process.thread().unwrap();
    let cells = [thread.alloc::<Words>().unwrap(), thread.alloc::<Words>().unwrap()];
    let led = cells[1].offset();
    tree.leads.lock().unwrap().push(led.cast());
    forget(cells);
    forget(thread);
    process.die();
    assert_eq!(region.sweep(), Ok(1));
    assert_eq!(region.audit().unwrap().used(), 1);
    cell::free(&region.thread().unwrap(), led).unwrap();
    assert!(region.audit().unwrap().is_sound());
}

/// Slots reserved for sweepers: the last ones remain when dead threads have all others.
#[test]
fn sweepers_have_slots_of_their_own() {
    let region = region();
    let held: Vec<_> = (0..64).map(|_| region.thread().unwrap()).collect();
    assert_eq!(region.thread().err(), Some(Error::Threads(64)));
    let sweepers: Vec<_> = (0..16).map(|_| region.sweeper().unwrap()).collect();
    let mut numbers: Vec<_> = sweepers.iter().map(|thread| thread.number()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(64..80));
    assert_eq!(region.sweeper().err(), Some(Error::Threads(64)));
    let cell = sweepers[3].alloc::<Words>().unwrap().publish();
    cell::free(&held[5], cell).unwrap();
    assert_eq!(region.threads().count(), 80);
    drop((held, sweepers));
    assert_eq!(region.threads().count(), 0);
    assert!(region.audit().unwrap().is_sound());
}
