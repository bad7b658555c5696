//! What the pool and the store do on 192 simulated cores. A run is the same on every host.

use latchwork_bench::sim::{Plan, Point, Subject, Workload, run};
use latchwork_sim::Spec;

fn point(workload: &str, subject: &str, threads: usize, us: f64) -> Point {
    let spec = Spec::shipped("broadwell-ex-192").expect("a machine that is shipped");
    let workload = Workload::named(workload).expect("a workload that there is");
    let subject = Subject::named(subject).expect("an engine that there is");
    let plan = Plan { spec: &spec, workload, subject, threads, ns: us * 1e3, seed: 1 };
    run(&plan).unwrap_or_else(|error| panic!("{workload:?}, {threads} threads: {error}"))
}

/// Throughput over that of one thread, times the threads.
fn linear(workload: &str, subject: &str, threads: usize) -> f64 {
    let rate = |threads| point(workload, subject, threads, 60.0).ops_per_s;
    rate(threads) / (rate(1) * threads as f64)
}

#[test]
fn readers_that_write_nothing_do_not_slow_each_other() {
    for (workload, subject) in
        [("pool-hot", "pool"), ("pool-uniform", "pool"), ("store-get", "store")]
    {
        let part = linear(workload, subject, 192);
        assert!(part > 0.95, "{workload}: {part}");
    }
    // The measure finds what it is for: readers that pin come to nothing.
    let pinned = linear("pool-hot", "pinned", 192);
    assert!(pinned < 0.05, "{pinned}");
}

#[test]
fn a_count_on_a_line_of_its_own_is_no_way_out() {
    let rate = |subject| point("pool-hot", subject, 192, 60.0).ops_per_s;
    let isolated = rate("pinned-isolated") / rate("pinned");
    assert!((0.9..1.1).contains(&isolated), "{isolated}");
}
