//! The pool and the store on 192 simulated cores. A run is the same on every host.

use latchwork_bench::sim::{Plan, Point, Subject, Workload, run};
use latchwork_sim::Spec;

fn point(workload: &str, subject: &str, threads: usize, us: f64) -> Point {
    let spec = Spec::shipped("broadwell-ex-192").expect("a machine that is shipped");
    let workload = Workload::named(workload).expect("a workload that there is");
    let subject = Subject::named(subject).expect("an engine that there is");
    let plan = Plan { spec: &spec, workload, subject, threads, ns: us * 1e3, seed: 1 };
    run(&plan).unwrap_or_else(|error| panic!("{workload:?}, {threads} threads: {error}"))
}

/// Throughput over that of one thread times the number of threads.
fn linear(workload: &str, subject: &str, threads: usize) -> f64 {
    let rate = |threads| point(workload, subject, threads, 60.0).ops_per_s;
    rate(threads) / (rate(1) * threads as f64)
}

#[test]
fn readers_without_writes_do_not_slow_each_other() {
    for (workload, subject) in
        [("pool-hot", "pool"), ("pool-uniform", "pool"), ("store-get", "store")]
    {
        let part = linear(workload, subject, 192);
        assert!(part > 0.95, "{workload}: {part}");
    }
    // The measure detects a pool that does not scale: readers that pin.
    let pinned = linear("pool-hot", "pinned", 192);
    assert!(pinned < 0.05, "{pinned}");
}

#[test]
fn readers_with_a_separate_count_slow_each_other() {
    let rate = |subject| point("pool-hot", subject, 192, 60.0).ops_per_s;
    let isolated = rate("pinned-isolated") / rate("pinned");
    assert!((0.9..1.1).contains(&isolated), "{isolated}");
    let part = linear("pool-hot", "pinned-isolated", 192);
    assert!(part < 0.05, "{part}");
}

#[test]
fn writers_of_a_socket_do_more_than_a_single_one() {
    let rate = |threads| point("store-put", "store", threads, 500.0).ops_per_s;
    let one = rate(1);
    for threads in [8, 24] {
        let times = rate(threads) / one;
        assert!(times > 1.6, "{threads} threads, {times} of one: the log's latch is a convoy");
    }
}

#[test]
fn a_run_does_not_depend_on_host_addresses() {
    let run = || point("store-tproc-b", "store", 30, 60.0);
    let (first, noise) = (run(), vec![0u8; 8 * 1001]);
    let (second, _) = (run(), noise);
    assert_eq!(first.accesses, second.accesses);
    assert_eq!(first.ops_per_s, second.ops_per_s);
}
