//! The pool and the store on 192 simulated cores. A run is the same on every host.

use latchwork_bench::sim::{Plan, Point, Subject, Workload, run};
use latchwork_sim::Spec;

fn point(workload: &str, subject: &str, threads: usize, us: f64) -> Point {
    let spec = Spec::shipped("broadwell-ex-192").expect("a machine that is shipped");
    point_on(&spec, workload, subject, threads, us)
}

fn point_on(spec: &Spec, workload: &str, subject: &str, threads: usize, us: f64) -> Point {
    let workload = Workload::named(workload).expect("a workload that there is");
    let subject = Subject::named(subject).expect("an engine that there is");
    let plan = Plan { spec, workload, subject, threads, ns: us * 1e3, seed: 1 };
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

/// Threads that wait in an append must not make others wait, who then yield in turn. Before a
/// waiting thread moved the log's end itself, 32 threads appended a quarter as much as 8.
#[test]
fn four_threads_for_each_processor_append_almost_as_much_as_one() {
    let text = include_str!("../../sim/machines/xeon-24t.toml");
    let text = text.replace("cores = 12", "cores = 8").replace("smt = 2", "smt = 1");
    let spec = Spec::parse(&text).expect("a machine of 8 processors");
    let rate = |threads| point_on(&spec, "log-append", "log", threads, 4_000.0).ops_per_s;
    let part = rate(32) / rate(8);
    assert!(part > 0.7, "{part}");
}

/// Threads that commit again and again share each sync. Without the leader's wait for them they
/// form two groups, and 8 threads make 0.55 of 8 times the commits of one.
#[test]
fn threads_that_commit_again_share_each_sync() {
    let text = include_str!("../../sim/machines/xeon-24t.toml");
    let spec = Spec::parse(text).expect("the machine is built in");
    let rate = |threads| point_on(&spec, "log-durable", "log", threads, 4_000.0).ops_per_s;
    let one = rate(1);
    for threads in [2, 8] {
        let part = rate(threads) / one / threads as f64;
        assert!(part > 0.85, "{threads} threads: {part}");
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
