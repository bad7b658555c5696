//! Reports of simulated runs name every word of every lock.

use latchwork_bench::sim::{Kind, Plan, Subject, Workload, run};
use latchwork_sim::Spec;

/// The words of a lock that waited for their cache lines in a run on two sockets.
fn words(subject: Subject, workload: &str) -> Vec<String> {
    let spec = Spec::shipped("broadwell-ex-192").expect("a machine that is shipped");
    // Dekker's algorithm is for two threads.
    let threads = if subject.make(30).is_some() { 30 } else { 2 };
    let workload = Workload::named(workload).expect("a workload that there is");
    let plan = Plan { spec: &spec, workload, subject, threads, ns: 60e3, seed: 1 };
    let point = run(&plan).unwrap_or_else(|error| panic!("{}: {error}", subject.name));
    assert!(point.ops_per_s > 0.0, "{} did nothing", subject.name);
    point.misses.into_iter().map(|(word, _)| word).collect()
}

#[test]
fn all_words_of_a_lock_are_named() {
    for subject in Subject::all().into_iter().filter(|s| s.kind == Kind::Latch) {
        let words = words(subject, "rw-mix");
        let known = |word: &&String| {
            ["table", "slot-table"].iter().any(|part| word.starts_with(part))
                || word.starts_with("slot.")
                || word.strip_prefix(subject.name).is_some_and(|rest| rest.starts_with('.'))
        };
        let unknown: Vec<_> = words.iter().filter(|word| !known(word)).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", subject.name);
        let own = words.iter().filter(|word| word.starts_with(subject.name)).count();
        assert!(own > 0 || subject.name == "none", "{}: {words:?}", subject.name);
    }
}
