//! The output of `bench store`, with stores that exist everywhere or nowhere.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_latchwork"))
        .args(["bench", "store"])
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const TINY: [&str; 9] =
    ["--quick", "--ms", "10", "--rows", "400", "--store", "ours,berkeley-db,redb", "--only", "put"];

#[test]
fn tables_fit_and_missing_stores_are_named() {
    let output = run(&TINY);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    for line in stdout.lines() {
        assert!(line.chars().count() <= 100 && !line.contains('\u{1b}'), "{line}");
    }
    assert!(stdout.lines().any(|line| line.contains("ours") && line.contains(" %")), "{stdout}");
    for name in ["berkeley-db", "redb"] {
        let missing = stderr.contains(&format!("{name} is missing"));
        let measured = stdout.lines().any(|line| line.contains(name) && line.contains(" %"));
        assert_ne!(missing, measured, "{name}: {stdout}{stderr}");
    }
}

#[test]
fn the_csv_output_has_only_rows() {
    let output = run(&[&TINY[..], &["--json"]].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    for row in stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
        assert_eq!((&row["bench"], &row["machine"]), (&"store".into(), &"native".into()));
        assert_eq!(row["params"]["workload"], "put");
        assert_eq!(row["rival"], row["subject"] != "ours");
        assert!(row["ops_per_s"].as_f64().unwrap() > 0.0);
    }
    assert!(stdout.contains("\"ours\""), "{stderr}");
}

#[test]
fn our_store_runs_each_workload() {
    let output = run(&["--quick", "--ms", "10", "--rows", "400", "--store", "ours", "--json"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    for workload in
        ["get", "get-rw", "batch", "scan-all", "durable", "wrand", "tproc-b-1", "ycsb-e"]
    {
        assert!(stdout.contains(&format!("\"workload\":\"{workload}\"")), "{workload}: {stderr}");
    }
}

/// Runs in a tiny form, and finds a row.
fn rows(only: &str, more: &[&str]) -> Vec<serde_json::Value> {
    let tiny = ["--quick", "--ms", "20", "--rows", "400", "--store", "ours", "--json", "--only"];
    let output = run(&[&tiny[..], &[only], more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn row<'r>(rows: &'r [serde_json::Value], workload: &str, subject: &str) -> &'r serde_json::Value {
    let is = |row: &&serde_json::Value| {
        row["params"]["workload"] == workload && row["subject"] == subject
    };
    rows.iter().find(is).unwrap_or_else(|| panic!("no row of {workload}: {rows:?}"))
}

fn number(row: &serde_json::Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("no {name}: {row}"))
}

#[test]
fn durable_commits_are_given_in_rounds_of_the_device() {
    let found = rows("durable", &[]);
    let (ours, device) = (row(&found, "durable", "ours"), row(&found, "durable", "device"));
    assert_eq!((number(device, "of_device"), &device["rival"]), (1.0, &false.into()));
    let rounds = number(ours, "p99_rounds") * number(device, "p50_ns");
    assert!((0.99..1.01).contains(&(rounds / number(ours, "p99_ns"))), "{ours}");
    // One thread waits for a sync of its own for each commit. On a busy machine the thread that
    // counts syncs is late at the edges of the window: enough are left to tell this from none, or
    // from commits that share one.
    let commits = 1e-9 * 20e6 * number(ours, "ops_per_s");
    let syncs = number(ours, "syncs_per_op") * commits;
    assert!(syncs >= 0.3 * commits - 2.0, "{ours}");
}

#[test]
fn a_reader_beside_a_writer_is_compared_with_both_alone() {
    let found = rows("read-while-writing", &[]);
    let [both, reads, writes] =
        ["read-while-writing", "get", "put"].map(|workload| row(&found, workload, "ours"));
    let near = |one: f64, other: f64| (0.99..1.01).contains(&(one / other));
    let kept = |of| number(both, "ops_per_s") / number(of, "ops_per_s");
    assert!(near(number(both, "reads_kept"), kept(reads)), "{both}");
    let kept = number(both, "writes_per_s") / number(writes, "ops_per_s");
    assert!(near(number(both, "writes_kept"), kept), "{both}");
    assert!(number(both, "p99_over_alone") > 0.0);
}

#[test]
fn a_held_snapshot_keeps_a_history_and_no_more() {
    let found = rows("held-snapshot,load", &["--bytes", "6MiB"]);
    let held = row(&found, "held-snapshot", "ours");
    assert_eq!(number(held, "data_growth_bytes"), 0.0, "{held}");
    assert_eq!(number(held, "too_old"), 1.0, "more was logged than the history: {held}");
    assert!(number(held, "held_bytes") >= 6e6 && number(held, "held_kept") > 0.0, "{held}");
    // The history, the log between two checkpoints, and segments that are made ahead.
    let history = number(held, "history_bytes");
    let log = number(held, "log_bytes");
    assert!(log <= history * 1.5 + 4e6, "{held}");
    let load = row(&found, "load", "ours");
    assert!(number(load, "bytes_per_record") >= 116.0 && number(load, "log_bytes") > 0.0);
    assert!(number(load, "written_per_byte") >= 2.0, "the log and the pages: {load}");
}

#[test]
fn kills_and_crashes_lose_nothing_acknowledged() {
    let found = rows("kill-one,kill-all,crash", &["--runs", "2"]);
    for (workload, trials) in [("kill-one", 4.0), ("kill-all", 2.0), ("crash", 2.0)] {
        let row = row(&found, workload, "ours");
        assert_eq!((number(row, "lost"), number(row, "trials")), (0.0, trials), "{row}");
        assert!(number(row, "p99_ns") >= number(row, "p50_ns"), "{row}");
    }
    let one = row(&found, "kill-one", "ours");
    assert_eq!((number(one, "stuck"), &one["procs"]), (0.0, &8.into()), "{one}");
    assert!(number(one, "longest_ns") >= number(one, "p99_ns"), "{one}");
    let crash = row(&found, "crash", "ours");
    assert!(number(crash, "redo_bytes") >= 1e6, "{crash}");
    assert!(number(crash, "p50_ns") > number(crash, "open_ns") * 0.9, "{crash}");
}

#[test]
fn misuse_is_an_error() {
    for args in [
        ["--only", "fast"],
        ["--store", "oracle"],
        ["--runs", "0"],
        ["--rows", "1"],
        ["--bytes", "1PB"],
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(args[1]) && output.stdout.is_empty());
    }
    let nowhere = run(&["--quick", "--plot", "/nonexistent/plot.svg"]);
    assert_eq!(nowhere.status.code(), Some(2), "an unwritable plot is reported first");
    let help = text(&run(&["--help"]).stdout);
    assert!(help.contains("Examples:") && !help.contains("--serve"), "{help}");
}

#[test]
fn an_old_plot_is_kept_until_a_new_one_is_complete() {
    let old = Path::new(env!("CARGO_TARGET_TMPDIR")).join("old.svg");
    fs::write(&old, "old").unwrap();
    let plot = ["--plot", old.to_str().unwrap()];
    let failed = run(&[&TINY[..], &plot, &["--memory", "/nonexistent"]].concat());
    assert_eq!(failed.status.code(), Some(2), "{}", text(&failed.stderr));
    assert_eq!(fs::read(&old).unwrap(), b"old");
    // The rows are printed, whatever happens to the plot.
    let full = run(&[&TINY[..], &["--json", "--plot", "/dev/full"]].concat());
    assert_eq!(full.status.code(), Some(2), "{}", text(&full.stdout));
    assert!(text(&full.stdout).contains("\"ours\"") && text(&full.stderr).contains("/dev/full"));
    assert!(run(&[&TINY[..], &plot].concat()).status.success());
    assert!(fs::read_to_string(&old).unwrap().starts_with("<svg"));
}
