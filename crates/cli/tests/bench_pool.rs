//! What `bench pool` prints.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_latchwork"))
        .args(["bench", "pool"])
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const TINY: [&str; 8] = ["--quick", "--frames", "256", "--ms", "5", "--runs", "1", "--only"];

#[test]
fn the_table_fits_and_figures_are_judged() {
    let output = run(&[&TINY[..], &["hot,scan,beyond-memory,calm,write-back"]].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    for line in stdout.lines() {
        assert!(line.chars().count() <= 100 && !line.contains('\u{1b}'), "{line}");
    }
    for word in ["2 procs", "pread", "mmap", "write-back", "to reach", "hit rate of the hot set"] {
        assert!(stdout.contains(word), "no {word} in {stdout}");
    }
    let missing = stderr.contains("THE RIVAL IS MISSING");
    assert_ne!(stdout.contains("berkeley-db"), missing, "{stdout}{stderr}");
}

#[test]
fn the_csv_output_has_only_rows() {
    let output = run(&[&TINY[..], &["uniform", "--json"]].concat());
    let stdout = text(&output.stdout);
    let rows: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ours: Vec<_> = rows.iter().filter(|row| row["subject"] == "pool").collect();
    let workers: Vec<_> = ours.iter().map(|row| (&row["threads"], &row["procs"])).collect();
    assert_eq!(workers.len(), 3, "one thread, two threads, two processes: {stdout}");
    for row in ours {
        assert!(row["stores_per_read"].as_f64().unwrap() < 0.1, "{row}");
        assert!(row["hit_rate"].as_f64().unwrap() > 0.9, "{row}");
        assert!(row["p99_ns"].as_f64() >= row["p50_ns"].as_f64(), "{row}");
    }
    assert!(text(&output.stderr).contains("uniform, rate: 2 threads / 1"));
}

#[test]
fn misuse_is_an_error() {
    for args in [["--only", "fast"], ["--runs", "0"], ["--frames", "1"], ["--threads", "0"]] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(args[1]) && output.stdout.is_empty());
    }
    let nowhere = run(&["--quick", "--only", "hot", "--dir", "/nonexistent"]);
    assert_eq!(nowhere.status.code(), Some(2));
    let help = text(&run(&["--help"]).stdout);
    assert!(help.contains("Examples:") && !help.contains("--serve"), "{help}");
}
