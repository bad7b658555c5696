//! Reader-writer latches on simulated sockets: what docs/waiting.md says of them can fail here.

use std::cell::Cell;

use latchwork_check::explore::{Body, body};
use latchwork_check::law::Latch;
use latchwork_latch::{FetchAdd, LwLatch, ShflRwLock};
use latchwork_machine::{Integer, Machine, Padded};
use latchwork_sim::{Simulated, Simulation, Spec, clock, work};
use std::sync::atomic::Ordering::Relaxed;

/// Nanoseconds that are counted, after as many to warm up.
const NS: f64 = 1_000_000.0;

/// Sections of `threads` threads in a microsecond, `writes` in a thousand of them exclusive.
fn rate<L: Latch>(threads: usize, writes: usize) -> f64 {
    let spec = Spec::shipped("broadwell-ex-192").unwrap();
    let latch = Padded::<L>::default();
    let line = Padded::<<Simulated as Machine>::AtomicU64>::default();
    let sections = Cell::new(0u32);
    let life = |me: usize| -> Body<'_> {
        let (latch, line, sections) = (&latch, &line, &sections);
        body(move || {
            let mut at = me * 37;
            while clock().is_some_and(|(_, ns)| ns < 2.0 * NS) {
                work(150 + (at >> 40 & 127) as u64);
                at = at
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let write = (at >> 33) % 1000 < writes;
                if write {
                    latch.lock()
                } else {
                    latch.share()
                }
                if write {
                    line.fetch_add(1, Relaxed);
                }
                work(150);
                if write {
                    latch.unlock()
                } else {
                    latch.unshare()
                }
                if clock().is_some_and(|(_, ns)| ns >= NS) {
                    sections.set(sections.get() + 1);
                }
            }
        })
    };
    let simulation = Simulation::new(&spec, 1).last_ns(1e9);
    simulation.run((0..threads).map(life).collect()).unwrap();
    f64::from(sections.get()) / (NS / 1e3)
}

#[test]
fn readers_and_writers_of_four_sockets_do_not_collapse() {
    let shfl = [24, 96].map(|threads| rate::<ShflRwLock<Simulated>>(threads, 10));
    let lw = [24, 96].map(|threads| rate::<LwLatch<FetchAdd, Simulated>>(threads, 10));
    println!("a microsecond, 24 and 96 threads: shfl {shfl:?}, lw {lw:?}");
    assert!(shfl[1] >= 0.75 * shfl[0], "{shfl:?}");
    assert!(lw[1] >= 0.75 * lw[0], "{lw:?}");
    assert!(lw[0] >= 0.7 * shfl[0] && lw[1] >= 0.7 * shfl[1], "{lw:?}, {shfl:?}");
}

#[test]
fn readers_and_writers_of_one_socket_wait_awake() {
    let shfl = [1, 24].map(|threads| rate::<ShflRwLock<Simulated>>(threads, 100));
    let lw = [1, 24].map(|threads| rate::<LwLatch<FetchAdd, Simulated>>(threads, 100));
    println!("a microsecond, 1 and 24 threads: shfl {shfl:?}, lw {lw:?}");
    assert!(shfl[1] >= 1.1 * shfl[0], "{shfl:?}");
    assert!(lw[1] >= 1.1 * lw[0], "{lw:?}");
}
