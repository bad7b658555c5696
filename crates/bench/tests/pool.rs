//! Small runs of the pool benchmark: the rows it must report and the faults it must catch.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use latchwork_bench::pool::{
    Cell, Fault, Place, Report, Settings, Subject, Workload, figures, run, serve,
};

const TOLD: &str = "LATCHWORK_TEST_SERVE";

/// This test program as a measuring process.
fn launch() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_process_that_measures", "--nocapture"]).env(TOLD, "1");
    command
}

/// Not a test: started by `launch`.
#[test]
fn the_process_that_measures() {
    if std::env::var_os(TOLD).is_some() {
        serve();
    }
}

/// A directory of one test.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("pool-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn tiny(name: &str, only: &[Workload]) -> Settings {
    let window = Duration::from_millis(10);
    Settings {
        only: only.to_vec(),
        runs: 1,
        window,
        frames: 256,
        dir: folder(name),
        ..Settings::default()
    }
}

fn measured(settings: Settings) -> Report {
    run(settings, &launch, &mut |_| ()).unwrap_or_else(|fault| panic!("{fault}"))
}

#[test]
fn every_workload_has_its_rows_and_they_were_really_measured() {
    let settings = tiny("rows", &Workload::ALL);
    let dir = settings.dir.clone();
    let report = measured(settings);
    let ours: Vec<_> =
        report.rows().into_iter().filter(|row| row.subject == Subject::Pool.name()).collect();
    // Four of three cells, seven of two, and two with two workers only.
    let direct = if report.no_direct.is_some() { 2 } else { 0 };
    assert_eq!(ours.len(), 4 * 3 + 7 * 2 + 2 - direct);
    for row in ours {
        let json = serde_json::to_value(&row).unwrap();
        assert!(row.ops_per_s > 0.0 && row.p99_ns >= row.p50_ns && row.p50_ns > 0.0, "{json}");
        assert_eq!(row.ratio.is_some(), report.absent.is_none() && json["ratio"].is_number());
        let hits = row.hit_rate.unwrap();
        match row.params.workload {
            "beyond-memory" | "beyond-direct" => assert!(hits < 0.9, "{json}"),
            "scan" | "scan-told" | "write-back" => assert!(hits > 0.5, "{json}"),
            _ => assert!(hits > 0.99 && row.stores_per_read.unwrap() < 0.1, "{json}"),
        }
    }
    assert!(!figures(&report).is_empty());
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "files are left behind");
}

#[test]
fn a_failing_process_reports_the_reason() {
    let settings = Settings { threads: vec![2], ..tiny("fails", &[Workload::Hot]) };
    let broken = || Command::new("false");
    let fault = run(settings, &broken, &mut |_| ()).unwrap_err();
    let whole = Cell { workload: Workload::Hot, place: Place::Processes, workers: 2 };
    assert!(matches!(fault, Fault::Refused { subject: Subject::Pool, .. } | Fault::System(_)));
    assert_eq!(whole.to_string(), "hot, 2 processes");
}
