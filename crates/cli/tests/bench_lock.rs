//! What `bench lock` prints.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_latchwork"))
        .args(["bench", "lock"])
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const TINY: [&str; 6] = ["--quick", "--ms", "5", "--runs", "1", "--only"];

#[test]
fn tables_fit_and_figures_are_judged() {
    let output = run(&[&TINY[..], &["weak,one-object,release-all,cycle-2"]].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    for line in stdout.lines() {
        assert!(line.chars().count() <= 100 && !line.contains('\u{1b}'), "{line}");
    }
    for word in
        ["weak:", "processes", "lockmgr", "% fast", "figures", "to reach", "cycle of 2 broken"]
    {
        assert!(stdout.contains(word), "no {word} in {stdout}");
    }
    let missing = stderr.contains("THE RIVAL IS MISSING");
    assert_ne!(stdout.contains("berkeley-db"), missing, "{stdout}{stderr}");
}

#[test]
fn the_csv_output_has_only_rows() {
    let output = run(&[&TINY[..], &["strong", "--json"]].concat());
    let stdout = text(&output.stdout);
    let rows: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ours = rows.iter().filter(|row| row["subject"] == "lockmgr");
    assert_eq!(ours.filter(|row| row["params"]["mode"] == "strong").count(), 5, "{stdout}");
    assert!(text(&output.stderr).contains("strong lock and unlock, ns"));
}

#[test]
fn misuse_is_an_error() {
    for args in [["--only", "fast"], ["--subject", "innodb"], ["--runs", "0"], ["--held", "1"]] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(args[1]) && output.stdout.is_empty());
    }
    let nowhere = run(&["--quick", "--only", "strong", "--dir", "/nonexistent"]);
    assert_eq!(nowhere.status.code(), Some(2));
    let help = text(&run(&["--help"]).stdout);
    assert!(help.contains("Examples:") && !help.contains("--serve"), "{help}");
}
