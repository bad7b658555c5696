//! What the tests of the simulated machine share.

use latchwork_check::explore::Body;
use latchwork_machine::{Machine, Padded};
use latchwork_sim::{Outcome, Simulated, Simulation, Spec, clock, work};

pub(crate) type U32 = <Simulated as Machine>::AtomicU32;
/// A word alone on its lines, wherever it lies.
pub(crate) type Alone = Padded<U32>;

pub(crate) fn westmere() -> Spec {
    Spec::shipped("westmere-ex-80").unwrap()
}

/// So many sockets, cores and hardware threads.
pub(crate) fn small(sockets: usize, cores: usize, smt: usize) -> Spec {
    let like = if sockets == 1 { "xeon-24t" } else { "westmere-ex-80" };
    let far = if sockets == 1 { "" } else { ", 324" };
    Spec::parse(&format!(
        "name = \"small\"\ntitle = \"small\"\nsource = \"invented\"\nlike = \"{like}\"\nghz = 2.0\n\
         [topology]\nsockets = {sockets}\ncores = {cores}\nsmt = {smt}\n\
         [latency]\nunit = \"cycles\"\natomic.modified = [120{far}]\n"
    ))
    .unwrap()
}

/// Runs to the end.
pub(crate) fn run(spec: &Spec, seed: u64, bodies: Vec<Body<'_>>) -> Outcome {
    Simulation::new(spec, seed).run(bodies).unwrap_or_else(|stuck| panic!("{stuck}"))
}

/// This thread's simulated time.
pub(crate) fn ns() -> f64 {
    clock().expect("in a simulated thread").1
}

/// Computes until `ns`.
pub(crate) fn until(spec: &Spec, at: f64) {
    let left = at - ns();
    assert!(left >= 0.0, "{at} has passed");
    work((left * spec.ghz) as u64);
}
