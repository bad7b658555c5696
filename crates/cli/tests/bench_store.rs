//! What `bench store` prints, with stores that are there everywhere or not at all.

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
fn programs_get_rows_and_nothing_else() {
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
fn our_store_does_each_workload() {
    let output = run(&["--quick", "--ms", "10", "--rows", "400", "--store", "ours", "--json"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    for workload in
        ["get", "get-rw", "batch", "scan-all", "durable", "wrand", "tproc-b-1", "ycsb-e"]
    {
        assert!(stdout.contains(&format!("\"workload\":\"{workload}\"")), "{workload}: {stderr}");
    }
}

#[test]
fn misuse_is_told() {
    for args in [["--only", "fast"], ["--store", "oracle"], ["--runs", "0"], ["--rows", "1"]] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(args[1]) && output.stdout.is_empty());
    }
    let nowhere = run(&["--quick", "--plot", "/nonexistent/plot.svg"]);
    assert_eq!(nowhere.status.code(), Some(2), "a plot that cannot be written is told first");
    let help = text(&run(&["--help"]).stdout);
    assert!(help.contains("Examples:") && !help.contains("--serve"), "{help}");
}
