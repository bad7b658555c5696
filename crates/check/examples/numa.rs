//! The topology of a machine with several nodes, and the nodes between which latches are handed.
//!
//! The only program of a four-node guest (`guest/run`); it also runs on any real machine. Exits
//! with 1 if something is not as it must be.

use std::process::ExitCode;
use std::time::Duration;

use latchwork_check::law::{self, Locality};
use latchwork_latch::{Park, Policy};
use latchwork_machine::{Level, Machine, Native};

/// Turns of four, so that their end is seen.
#[derive(Default)]
struct ShortTurns;

impl Policy for ShortTurns {
    const PARKS: bool = true;
    const PATIENCE: u32 = 0;
    const BATCH: u32 = 4;
}

/// Never brings anybody forward: the control.
#[derive(Default)]
struct InOrder;

impl Policy for InOrder {
    const PARKS: bool = true;
    const PATIENCE: u32 = 0;
    const BATCH: u32 = 1;
}

fn pin(cpu: usize) -> bool {
    // SAFETY: a cpu set is integers, for which all zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is whole, and 0 is this thread.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) == 0 }
}

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn main() -> ExitCode {
    let nodes = number("LATCHWORK_GUEST_NODES", 1);
    let each = number("LATCHWORK_GUEST_CPUS_PER_NODE", 1);
    let mut wrong = 0;
    let mut expect = |said: String, right: bool| {
        println!("{} {said}", if right { "ok   " } else { "WRONG" });
        wrong += u32::from(!right);
    };
    for cpu in 0..nodes * each {
        let pinned = pin(cpu);
        // A call or two late, where asking is expensive.
        let place = (0..64).fold(Native::place(), |_, _| Native::place());
        let right = pinned && place.node() as usize == cpu / each && place.core() as usize <= cpu;
        expect(format!("cpu {cpu}: {place:?}"), right);
    }
    let spread = Native::spread(Level::Node);
    expect(format!("spread over nodes: {spread}"), spread == (nodes > 1));
    let stand = |node: usize| {
        pin(node * each);
    };
    let (threads, rounds) = (6 * nodes, 400);
    let show = |l: Locality| {
        let share = 100.0 * l.share();
        format!("{share:.0} % of {} stayed on the node, worst wait {}", l.possible, l.worst_wait)
    };
    let long = law::locality::<Park, Native>(threads, nodes, rounds, stand);
    expect(format!("turns of {}: {}", Park::BATCH, show(long)), long.share() >= 0.9);
    let short = law::locality::<ShortTurns, Native>(threads, nodes, rounds, stand);
    let bound = law::worst_wait::<ShortTurns>(threads, nodes);
    expect(format!("turns of 4: {}, bound {bound}", show(short)), short.worst_wait <= bound);
    // The order in which threads arrive depends on the host: if it runs one node's CPUs for a
    // while, they arrive by nodes. With a lock that takes turns they always do.
    let in_order = || law::locality::<InOrder, Native>(threads, nodes, rounds, stand);
    let is_mixed = |control: &Locality| nodes == 1 || control.share() < 0.6;
    let mut control = in_order();
    for _ in 1..20 {
        if !is_mixed(&control) {
            std::thread::sleep(Duration::from_millis(100));
            control = in_order();
        }
    }
    let right = is_mixed(&control);
    expect(format!("in order of arrival: {}", show(control)), right);
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
