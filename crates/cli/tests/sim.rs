//! `latchwork sim`: its lists, its refusals, and runs that depend only on their seed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_latchwork")).arg("sim").args(args).output().unwrap()
}

#[track_caller]
fn printed(args: &[&str]) -> String {
    let output = sim(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn rows(args: &[&str]) -> Vec<Value> {
    printed(args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn refused(args: &[&str], says: &[&str]) {
    fails(args, 2, says);
}

/// A name means nothing.
#[track_caller]
fn absent(args: &[&str], says: &[&str]) {
    fails(args, 1, says);
}

#[track_caller]
fn fails(args: &[&str], code: i32, says: &[&str]) {
    let output = sim(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(says.iter().all(|what| stderr.contains(what)), "{stderr}");
    assert!(output.stdout.is_empty());
}

/// A file of this test's own.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sim-{name}"))
}

/// A short run: 3 latches, some of them with 1 to 12 threads.
const SHORT: &[&str] = &[
    "run",
    "--machine",
    "opteron-48",
    "--workload",
    "lock-loop",
    "--latch",
    "mcs,tas,shfl-mutex",
    "--threads",
    "1,3,..12",
    "--us",
    "20",
    "--seeds",
    "2",
];

fn short<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SHORT.iter().chain(more).copied().collect()
}

/// A sweep of two points.
const SWEEP: &[&str] = &[
    "sweep",
    "--machine",
    "opteron-48",
    "--workload",
    "lock1",
    "--outside",
    "0,1000",
    "--threads",
    "6",
    "--latch",
    "shfl-mutex,shfl-spin,mcs,tas",
    "--us",
    "20",
];

#[test]
fn a_sweep_compares_with_the_best_rival() {
    let rows = rows(&[SWEEP, &["--json"]].concat());
    assert_eq!(rows.len(), 8);
    for point in rows.chunks(4) {
        let speed = |row: &Value| row["ops_per_s"].as_f64().unwrap();
        let best = point[2..].iter().max_by(|a, b| speed(a).total_cmp(&speed(b))).unwrap();
        assert_eq!(point[0]["ratio_to"], best["subject"], "{point:?}");
        let ratio = point[0]["ratio"].as_f64().unwrap();
        assert!((ratio - speed(&point[0]) / speed(best)).abs() < 1e-3, "{point:?}");
    }
    let text = printed(SWEEP);
    assert!(text.contains("of 2 points; lowest"), "{text}");
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
}

#[test]
fn a_sweep_draws_its_ratios() {
    let path = file("sweep.svg");
    printed(&[SWEEP, &["--plot", path.to_str().unwrap()]].concat());
    let svg = fs::read_to_string(path).unwrap();
    assert!(svg.contains("lock1 on opteron-48") && svg.contains("pause 1000"));
}

#[test]
fn a_sweep_without_a_rival_is_refused() {
    refused(&["sweep", "--latch", "shfl-mutex,shfl-spin"], &["no rival among the latches"]);
    refused(&["sweep", "--workload", "store-put"], &["store-put is about a store"]);
}

#[test]
fn what_there_is() {
    let names = |word: &str, key: &str| -> Vec<String> {
        let all = rows(&[word, "--json"]);
        all.iter().map(|row| row[key].as_str().unwrap().to_owned()).collect()
    };
    let machines = names("machines", "machine");
    assert!(["westmere-ex-80", "rome-128"].iter().all(|m| machines.iter().any(|n| n == m)));
    assert!(names("workloads", "workload").contains(&"hash-table".to_owned()));
    let latches = names("latches", "subject");
    assert!(["shfl-mutex", "mcs", "none"].iter().all(|l| latches.iter().any(|n| n == l)));
    for word in ["machines", "workloads", "latches"] {
        for line in printed(&[word]).lines() {
            assert!(line.chars().count() <= 100 && !line.contains('\u{1b}'), "{line}");
        }
    }
    assert!(printed(&["machines", "rome-128"]).contains("name = \"rome-128\""));
}

#[test]
fn rows_have_the_fields_of_every_bench() {
    let rows = rows(&short(&["--json"]));
    let cells: Vec<_> = rows
        .iter()
        .map(|row| (row["threads"].as_u64().unwrap(), row["subject"].as_str().unwrap().to_owned()))
        .collect();
    let expected: Vec<_> = [1, 3, 6, 12]
        .into_iter()
        .flat_map(|n| ["mcs", "tas", "shfl-mutex"].map(|latch| (n, latch.to_owned())))
        .collect();
    assert_eq!(cells, expected);
    for row in &rows {
        assert_eq!((&row["bench"], &row["machine"]), (&"sim".into(), &"opteron-48".into()));
        assert_eq!(row["rival"], row["subject"] != "shfl-mutex");
        assert_eq!((&row["procs"], &row["runs"]), (&1.into(), &2.into()));
        assert_eq!(row["params"]["workload"], "lock-loop");
        for number in ["ops_per_s", "ns_per_op", "p50_ns", "p99_ns"] {
            assert!(row[number].as_f64().unwrap() > 0.0, "{number}: {row}");
        }
        let fair = row["fairness"].as_f64().unwrap();
        assert!((0.5..=1.0).contains(&fair), "{row}");
        assert!(row["spread"].is_number() && row["noisy"].is_boolean());
        assert_eq!(row["ratio"].is_null(), row["subject"] == "mcs");
    }
}

#[test]
fn a_seed_decides_everything() {
    let simulated = |more: &[&str]| -> Vec<Value> {
        let mut rows = rows(&short(more));
        for row in &mut rows {
            let row = row.as_object_mut().unwrap();
            for host in ["host_s", "host_accesses_per_s"] {
                assert!(row.remove(host).unwrap().as_f64().unwrap() > 0.0, "{host}");
            }
        }
        rows
    };
    let once = simulated(&["--json", "--jobs", "1"]);
    assert_eq!(once, simulated(&["--json", "--jobs", "4"]));
    assert_ne!(once, simulated(&["--json", "--seed", "77"]));
}

#[test]
fn tables_fit_and_a_csv_has_a_header() {
    let text = printed(SHORT);
    for line in text.lines() {
        assert!(line.chars().count() <= 100 && !line.contains('\u{1b}'), "{line}");
    }
    assert_eq!(text.matches("threads  ").count(), 3, "{text}");
    let csv = printed(&short(&["--csv"]));
    let widths: Vec<_> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(widths.len() == 13 && widths.iter().all(|width| *width == widths[0]), "{csv}");
    assert!(csv.lines().next().unwrap().split(',').any(|name| name == "ops_per_s"));
}

/// Latches and lock managers have different parameters, and every one a column.
#[test]
fn each_cell_of_a_csv_is_in_its_column() {
    let csv = printed(&[
        "run",
        "--workload",
        "lockmgr-seed",
        "--machine",
        "xeon-24t",
        "--threads",
        "1",
        "--us",
        "20",
        "--csv",
    ]);
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().unwrap();
    let at = |what: &str| names.iter().position(|name| *name == what).unwrap();
    let rows: Vec<_> = lines.collect();
    assert!(rows.iter().all(|row| row.len() == names.len()), "{csv}");
    let subjects: Vec<_> = rows.iter().map(|row| row[at("subject")]).collect();
    assert!(subjects.contains(&"lockmgr") && subjects.contains(&"stock-mutex"), "{csv}");
    assert!(rows.iter().all(|row| row[at("threads")] == "1"), "{csv}");
}

#[test]
fn a_plot_that_cannot_be_written_is_refused_before_anything_is_simulated() {
    refused(&short(&["--plot", "/nowhere/at/all.svg"]), &["/nowhere/at/all.svg"]);
}

#[test]
fn a_plot_names_every_latch_in_every_panel() {
    let path = file("plot.svg");
    let _ = fs::remove_file(&path);
    printed(&short(&["--plot", path.to_str().unwrap()]));
    let svg = fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for latch in ["mcs", "tas", "shfl-mutex"] {
        assert_eq!(svg.lines().filter(|line| line.trim() == latch).count(), 3, "{latch}");
    }
}

#[test]
fn the_table_shows_where_cycles_were_spent() {
    let args =
        ["explain", "--machine", "opteron-48", "--workload", "lock-loop", "--latch", "shfl-spin"];
    let args: Vec<_> = args.into_iter().chain(["--threads", "12", "--us", "50"]).collect();
    let json: Vec<_> = args.iter().copied().chain(["--json"]).collect();
    let rows = rows(&json);
    let share: f64 = rows.iter().map(|row| row["share"].as_f64().unwrap()).sum();
    assert!((share - 1.0).abs() < 0.01, "{share}");
    assert!(rows.iter().any(|row| row["line"].as_str().unwrap().starts_with("shfl-spin")));
    assert!(rows.iter().any(|row| row["far_per_op"].as_f64().unwrap() > 0.0));
    assert!(printed(&args).lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn an_error_in_a_file_names_line_and_key() {
    let good = printed(&["machines", "graviton-64"]);
    let path = file("wrong.toml");
    fs::write(&path, good.replace("cores = 64", "cores = 999")).unwrap();
    let line = good.lines().position(|line| line.starts_with("cores")).unwrap() + 1;
    let says = format!("latchwork: {}:{line}: topology.cores: ", path.display());
    refused(&["run", "--machine", path.to_str().unwrap()], &[&says]);
    refused(&["run", "--machine", "no/such.toml"], &["no/such.toml"]);
    fs::write(&path, good.replace("graviton-64", "mine")).unwrap();
    let mine = path.to_str().unwrap();
    let mut own = short(&["--json"]);
    own.iter_mut().filter(|arg| **arg == "opteron-48").for_each(|arg| *arg = mine);
    assert!(rows(&own).iter().all(|row| row["machine"] == "mine"));
}

#[test]
fn unknown_names_are_answered_with_the_known_ones() {
    absent(&["run", "--machine", "pdp-11"], &["pdp-11", "rome-128", "here"]);
    refused(&["run", "--workload", "coffee"], &["coffee", "hash-table"]);
    refused(&["run", "--latch", "mcs,padlock"], &["padlock", "shfl-mutex"]);
    refused(&["run", "--threads", "0"], &["0"]);
    absent(&["machines", "pdp-11"], &["rome-128"]);
    refused(&["brew"], &["brew"]);
}
