//! Many threads at one latch. Each section checks mutual exclusion.

use std::sync::Arc;
use std::time::Instant;

use latchwork_machine::Padded;

use crate::latch::{Exclusive, Shared};
use crate::measure::{Case, Part, Sample};
use crate::stats::fairness;
use crate::team::{self, Conduct, EXCLUSIVE, Load, SHARED, Slot, Tally};
use crate::work::{Extent, Random, Section, compute};
use crate::{Fault, Role};

/// An exclusive latch behind the interface of a shared one.
#[derive(Default)]
pub(crate) struct Alone<L>(L);

impl<L: Exclusive> Exclusive for Alone<L> {
    #[inline]
    fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.exclusive(f)
    }
}

impl<L: Exclusive> Shared for Alone<L> {
    #[inline]
    fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.exclusive(f)
    }
}

/// Every how many operations one first checks whether a writer is inside or a neighbour waits. The
/// check fetches a cache line that another thread is about to write, so not every operation makes
/// it.
const OPERATIONS_PER_LOOK: u64 = 16;

struct Contest<L> {
    latch: Padded<L>,
    section: Padded<Section>,
    extent: Extent,
    /// Rounds of computing between sections.
    outside: u32,
    /// An operation is a write if a random 32-bit number is below this.
    threshold: u64,
    writes_per_sample: u64,
    reads_per_sample: u64,
}

impl<L: Shared> Contest<L> {
    #[inline]
    fn write(&self, tally: &mut Tally, timed: bool) {
        let inside = || self.section.write(self.extent);
        let fine = if timed {
            let asked = Instant::now();
            let (entered, fine) = self.latch.exclusive(|| (Instant::now(), inside()));
            tally.waited(EXCLUSIVE, entered - asked);
            fine
        } else {
            self.latch.exclusive(inside)
        };
        tally.entered += 1;
        tally.met += u64::from(!fine);
    }

    #[inline]
    fn read(&self, tally: &mut Tally, timed: bool) {
        let inside = || self.section.read(self.extent);
        let fine = if timed {
            let asked = Instant::now();
            let (entered, fine) = self.latch.shared(|| (Instant::now(), inside()));
            tally.waited(SHARED, entered - asked);
            fine
        } else {
            self.latch.shared(inside)
        };
        tally.met += u64::from(!fine);
    }
}

impl<L: Shared> Load for Contest<L> {
    fn work(&self, slots: &[Slot], number: usize) -> Tally {
        let slot = &slots[number];
        let neighbour = &slots[(number + 1) % slots.len()];
        let alone = slots.len() == 1;
        let mut tally = Tally::new();
        let mut random = Random::new(number);
        let (mut writes, mut reads) = (0u64, 0u64);
        while let Some(measured) = slot.go_on() {
            let is_write = u64::from(random.any()) < self.threshold;
            let sampled = if is_write {
                writes.is_multiple_of(self.writes_per_sample)
            } else {
                reads.is_multiple_of(self.reads_per_sample)
            };
            if (writes + reads).is_multiple_of(OPERATIONS_PER_LOOK) {
                tally.looks += 1;
                let busy = self.section.occupied() || (!alone && neighbour.engaged());
                tally.busy += u64::from(busy);
            }
            slot.engage();
            if is_write {
                writes += 1;
                self.write(&mut tally, sampled && measured);
                slot.count(EXCLUSIVE);
            } else {
                reads += 1;
                self.read(&mut tally, sampled && measured);
                slot.count(SHARED);
            }
            compute(random.around(self.outside));
        }
        tally
    }
}

/// Runs the threads of the cell at one latch and checks the result.
pub(crate) fn contended<L: Shared>(case: &Case<'_>) -> Result<Sample, Fault> {
    let (cell, subject) = (case.cell, case.subject);
    let writes = if cell.side == Role::Exclusive { 1.0 } else { cell.writes };
    let contest = Arc::new(Contest {
        latch: Padded(L::default()),
        section: Padded(Section::default()),
        extent: cell.extent(case.pace),
        outside: case.pace.rounds(cell.outside_ns),
        threshold: (writes * f64::from(u32::MAX) + writes).round() as u64,
        writes_per_sample: cell.writes_per_sample(),
        reads_per_sample: cell.reads_per_sample(),
    });
    let kinds: Vec<usize> = cell.roles().iter().map(|role| kind(*role)).collect();
    let how = Conduct {
        subject,
        cell,
        threads: cell.threads,
        window: case.window,
        pin: case.pin,
        patience: case.patience,
        wanted: &kinds,
    };
    let window = team::conduct(&contest, &how)?;

    let tally = &window.tally;
    let counted = contest.section.writes();
    if counted != tally.entered || tally.met != 0 {
        let (cell, entered, met) = (cell.to_string(), tally.entered, tally.met);
        return Err(Fault::Overlap { subject, cell, entered, counted, met });
    }
    let part = |role: &Role| {
        let kind = kind(*role);
        let done: u64 = window.done.iter().map(|done| done[kind]).sum();
        if done == 0 {
            let what = role.operation();
            return Err(Fault::Nothing { subject, cell: cell.to_string(), what });
        }
        let waits = &tally.waits[kind];
        let wait = |q| (!waits.is_empty()).then(|| waits.value_at_quantile(q) as f64);
        let ops_per_s = done as f64 / window.lasted.as_secs_f64();
        let (p50_ns, p99_ns) = (wait(0.5), wait(0.99));
        Ok(Part { role: *role, ops_per_s, p50_ns, p99_ns, max_ns: wait(1.0) })
    };
    let parts = cell.roles().iter().map(part).collect::<Result<_, _>>()?;
    let per_thread: Vec<u64> = window.done.iter().map(|done| done[0] + done[1]).collect();
    let fairness = fairness(&per_thread);
    Ok(Sample { parts, fairness, looks: tally.looks, busy: tally.busy })
}

fn kind(role: Role) -> usize {
    if role == Role::Read { SHARED } else { EXCLUSIVE }
}
