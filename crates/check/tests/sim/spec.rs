//! Descriptions of machines: what is wrong with one is told, with line and key.

use latchwork_sim::{SHIPPED, Spec, SpecError};

const GOOD: &str = r#"name = "mine"
title = "a machine"
source = "invented"
ghz = 2.0

[topology]
sockets = 3
cores = 4
hops = [
  [0, 1, 2],
  [1, 0, 1],
  [2, 1, 0],
]

[latency]
unit = "cycles"
load.modified = [100, 300, 400]
load.exclusive = [100, 300, 400]
load.shared = [50, 250, 350]
load.memory = [300, 400, 500]
store.modified = [100, 300, 400]
store.exclusive = [100, 300, 400]
store.shared = [100, 300, 400]
atomic.modified = [100, 300, 400]
atomic.shared = [100, 300, 400]

[core] # a comment
l1 = 5
atomic_hit = 20
pause = 10
smt_share = 1.5

[coherence]
near_bias = 0.3
overlap = 0.8
hold = 6
migratory = 0.8
invalidate_per_socket = 3
store_buffer = 32

[os]
slice_us = 1000.0
wake_us = 2.0
switch_us = 1.2
syscall_ns = 150.0
"#;

#[test]
fn a_good_file_is_good() {
    let spec = Spec::parse(GOOD).unwrap();
    assert_eq!((spec.name.as_str(), spec.topology.cpus(), spec.costs.l1), ("mine", 12, 5));
    assert_eq!(spec.costs.store.memory, [300.0, 400.0, 500.0], "as for loads");
    assert_eq!(spec.cycles(1000.0), 2000);
}

#[test]
fn what_a_file_does_not_say_of_its_protocol_is_plain() {
    let spec = Spec::parse(GOOD).unwrap();
    let rules = spec.coherence;
    assert!(!rules.owned && !rules.broadcast && rules.travel == 0.0 && rules.probe == 0.0);
    assert_eq!(spec.costs.reload, spec.costs.l1);
    // An owned line costs as the state that it is most like, until a file says more.
    let owned = GOOD.replace("hold = 6", "hold = 6\nowned = true");
    let costs = Spec::parse(&owned).unwrap().costs;
    assert_eq!(costs.load.owned, costs.load.modified);
    assert_eq!(costs.store.owned, costs.store.shared);
    assert_eq!(costs.atomic.owned, costs.atomic.shared);
    let told = owned.replace("load.shared", "load.owned = [110, 310, 410]\nload.shared");
    assert_eq!(Spec::parse(&told).unwrap().costs.load.owned, [110.0, 310.0, 410.0]);
}

/// The line of the good file that begins so, from one.
fn line_of(start: &str) -> usize {
    let at = GOOD.lines().position(|line| line.starts_with(start));
    at.unwrap_or_else(|| panic!("no line {start:?}")) + 1
}

/// The good file with one line changed.
fn with(start: &str, instead: &str) -> String {
    let at = line_of(start);
    let change = |(n, line): (usize, &str)| match n + 1 == at {
        true => format!("{instead}\n"),
        false => format!("{line}\n"),
    };
    GOOD.lines().enumerate().map(change).collect()
}

const INVALIDATE: &str = "coherence.invalidate_per_socket";

#[test]
fn a_wrong_value_is_told_with_line_and_key() {
    for (start, wrong, key) in [
        ("ghz", "ghz = 0.0", "ghz"),
        ("ghz", "ghz = nan", "ghz"),
        ("ghz", "ghz = 11", "ghz"),
        ("sockets", "sockets = 0", "topology.sockets"),
        ("cores", "cores = 0", "topology.cores"),
        ("cores", "cores = 257", "topology.cores"),
        ("cores", "cores = 100", "topology.cores"),
        ("cores", "cores = 4\nsmt = 0", "topology.smt"),
        ("cores", "cores = 4\ncaches = 0", "topology.caches"),
        ("  [2, 1, 0]", "  [2, 1, 1],", "topology.hops"),
        ("  [2, 1, 0]", "  [3, 1, 0],", "topology.hops"),
        ("  [2, 1, 0]", "  [2, 1],", "topology.hops"),
        ("  [2, 1, 0]", "", "topology.hops"),
        ("sockets", "sockets = 4", "topology.hops"),
        ("load.modified", "load.modified = [100, 300]", "latency.load.modified"),
        ("load.exclusive", "load.exclusive = [1, 2, 3, 4]", "latency.load.exclusive"),
        ("load.shared", "load.shared = [0, 250, 350]", "latency.load.shared"),
        ("load.memory", "load.memory = [300, -400, 500]", "latency.load.memory"),
        ("store.modified", "store.modified = [100, inf, 400]", "latency.store.modified"),
        ("store.exclusive", "store.exclusive = []", "latency.store.exclusive"),
        ("store.shared", "store.shared = [nan, 1, 1]", "latency.store.shared"),
        ("atomic.modified", "atomic.modified = [100, 300, 1e9]", "latency.atomic.modified"),
        ("atomic.shared", "atomic.shared = [100]", "latency.atomic.shared"),
        ("l1", "l1 = 0", "core.l1"),
        ("atomic_hit", "atomic_hit = 100000", "core.atomic_hit"),
        ("pause", "pause = 0", "core.pause"),
        ("smt_share", "smt_share = 0.5", "core.smt_share"),
        ("smt_share", "smt_share = nan", "core.smt_share"),
        ("near_bias", "near_bias = 1.5", "coherence.near_bias"),
        ("overlap", "overlap = -0.1", "coherence.overlap"),
        ("migratory", "migratory = nan", "coherence.migratory"),
        ("hold", "hold = 10000000", "coherence.hold"),
        ("invalidate", "invalidate_per_socket = 9999999", INVALIDATE),
        ("store_buffer", "store_buffer = 0", "coherence.store_buffer"),
        ("hold", "hold = 6\ntravel = 1.1", "coherence.travel"),
        ("hold", "hold = 6\nprobe = -0.1", "coherence.probe"),
        ("invalidate", "broadcast = true\ninvalidate_per_socket = 3", INVALIDATE),
        (
            "load.shared",
            "load.shared = [50, 250, 350]\nload.owned = [1, 2, 3]",
            "latency.load.owned",
        ),
        ("l1", "l1 = 5\nreload = 0", "core.reload"),
        ("slice_us", "slice_us = 0", "os.slice_us"),
        ("wake_us", "wake_us = -2.0", "os.wake_us"),
        ("switch_us", "switch_us = inf", "os.switch_us"),
        ("syscall_ns", "syscall_ns = nan", "os.syscall_ns"),
    ] {
        let error = Spec::parse(&with(start, wrong)).expect_err(wrong);
        let SpecError::Value { line, key: told, .. } = &error else { panic!("{wrong}: {error:?}") };
        assert_eq!(*told, key, "{wrong}: {error}");
        let expected = match (key, wrong.split_once('\n')) {
            ("topology.hops", _) => line_of("hops"),
            (_, Some(_)) => line_of(start) + 1,
            _ => line_of(start),
        };
        assert_eq!(*line, expected, "{wrong}: {error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("line {line}: {key}: ")), "{text}");
    }
}

#[test]
fn a_file_that_is_none_is_told_with_line_and_key() {
    for (start, wrong, line, key) in [
        ("ghz", "ghz = \"fast\"", line_of("ghz"), "ghz"),
        ("ghz", "", 1, "ghz"),
        ("name", "", 1, "name"),
        ("cores", "cores = -1", line_of("cores"), "topology.cores"),
        ("cores", "cores = 4\nthreads = 2", line_of("cores") + 1, "threads"),
        ("cores", "", line_of("[topology]"), "cores"),
        ("  [1, 0, 1]", "  [1, 0, \"x\"],", line_of("  [1, 0, 1]"), "topology.hops"),
        ("  [1, 0, 1]", "  [1, 0, 300],", line_of("  [1, 0, 1]"), "topology.hops"),
        ("unit", "unit = \"miles\"", line_of("unit"), "latency.unit"),
        ("load.shared", "load.shared = 50", line_of("load.shared"), "latency.load.shared"),
        ("load.shared", "load.shard = [1]", line_of("load.shared"), "shard"),
        ("l1", "l1 = 5.5", line_of("l1"), "core.l1"),
        ("hold", "hold = true", line_of("hold"), "coherence.hold"),
        ("hold", "", line_of("[coherence]"), "hold"),
        ("hold", "hold = = 1", line_of("hold"), "hold"),
        ("slice_us", "", line_of("[os]"), "slice_us"),
        ("slice_us", "slice_us = 1\nslice_us = 2", line_of("slice_us") + 1, "slice_us"),
        ("[os]", "[system]", line_of("[os]"), "system"),
    ] {
        let error = Spec::parse(&with(start, wrong)).expect_err(wrong);
        let SpecError::Syntax { line: told, .. } = &error else { panic!("{wrong}: {error:?}") };
        assert_eq!(*told, line, "{wrong:?}: {error}");
        assert!(error.to_string().contains(key), "{wrong:?}: {error}");
    }
}

/// The good file without what is between two lines.
fn without(from: &str, to: Option<&str>) -> String {
    let to = to.map_or(GOOD.lines().count() + 1, line_of);
    let keep = |(n, _): &(usize, &str)| !(line_of(from)..to).contains(&(n + 1));
    GOOD.lines().enumerate().filter(keep).map(|(_, line)| format!("{line}\n")).collect()
}

#[test]
fn what_is_left_out_is_told_unless_another_machine_has_it() {
    for (from, to, key) in [
        ("[core]", Some("[coherence]"), "core"),
        ("[coherence]", Some("[os]"), "coherence"),
        ("[os]", None, "os"),
        ("hops", Some("[latency]"), "topology.hops"),
        ("load.memory", Some("store.modified"), "latency.load.memory"),
        ("atomic.modified", Some("atomic.shared"), "latency.atomic.modified"),
    ] {
        let text = without(from, to);
        let error = Spec::parse(&text).unwrap_err();
        assert!(
            matches!(error, SpecError::Value { line: 0, key: told, .. } if told == key),
            "{error}"
        );
        let like = text.replace("ghz = 2.0", "like = \"westmere-ex-80\"\nghz = 2.0");
        let never = ["topology.hops", "latency.atomic.modified"].contains(&key);
        assert_eq!(Spec::parse(&like).is_ok(), !never, "{key} is like another's");
    }
}

#[test]
fn a_machine_is_like_another_that_there_is() {
    for wrong in ["mine", "nonesuch"] {
        let text = GOOD.replace("ghz = 2.0", &format!("like = \"{wrong}\"\nghz = 2.0"));
        let error = Spec::parse(&text).unwrap_err();
        assert!(matches!(error, SpecError::Value { line: 4, key: "like", .. }), "{error}");
    }
    let error = Spec::shipped("nonesuch").unwrap_err();
    assert_eq!(error, SpecError::Unknown("nonesuch".into()));
    assert!(SHIPPED.iter().all(|(name, _)| error.to_string().contains(name)), "{error}");
}
