//! Small runs of the lock manager benchmark: the rows it must report and the faults it must catch.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use latchwork_bench::lock::{
    Cell, Fault, Outcome, Place, Report, Settings, Subject, Workload, figures, run, serve,
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
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lock-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn tiny(only: &[Workload]) -> Settings {
    Settings {
        only: only.to_vec(),
        runs: 1,
        // With many writers, names seldom become weak.
        window: Duration::from_millis(25),
        trials: 2,
        waiters: 300,
        rival_waiters: 20,
        held: 5000,
        ..Settings::quick()
    }
}

fn measured(settings: Settings) -> Report {
    run(settings, &launch, &mut |_| ()).unwrap_or_else(|fault| panic!("{fault}"))
}

#[test]
fn every_workload_has_its_rows_and_they_were_really_measured() {
    let dir = folder("rows");
    let settings = Settings { dir: Some(dir.clone()), ..tiny(&Workload::ALL) };
    let mut steps = 0;
    let report = run(settings, &launch, &mut |step| {
        assert_eq!(step.done, steps);
        steps += 1;
    });
    let report = report.unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(report.absent.is_some(), report.release.is_none());
    let subjects = if report.release.is_some() { 2 } else { 1 };
    let cells = Cell::all(&Workload::ALL);
    // Four of five, two of three, and six that are measured in one place only.
    assert_eq!(cells.len(), 4 * 5 + 2 * 3 + 6);
    assert_eq!((report.rows().len(), steps), (cells.len() * subjects, cells.len() * subjects));
    for (series, row) in report.series.iter().zip(report.rows()) {
        let json = serde_json::to_value(&row).unwrap();
        for field in [
            "bench",
            "subject",
            "rival",
            "machine",
            "threads",
            "procs",
            "params",
            "ops_per_s",
            "ns_per_op",
            "spread",
            "p50_ns",
            "p99_ns",
            "fairness",
            "runs",
            "noisy",
        ] {
            assert!(json.get(field).is_some(), "{field} is missing: {json}");
        }
        assert_eq!(json["bench"], "lock");
        assert!(row.counted > 0 && row.ops_per_s > 0.0 && row.p99_ns > 0.0, "{json}");
        let workload = series.cell.workload;
        if series.subject == Subject::Ours && !workload.is_strong() {
            // Writers close the fast path.
            let least = if workload == Workload::Zipf { 0.0 } else { 0.9 };
            assert!(row.fast.unwrap() > least, "{json}");
        }
        assert_eq!(row.ratio.is_some(), subjects == 2 && !row.rival, "{json}");
        assert_eq!(row.victims.is_some(), workload.cycle().is_some(), "{json}");
        assert_eq!(row.bytes_per_lock.is_some(), workload == Workload::Held, "{json}");
        let procs = if series.cell.place == Place::Processes { 2 } else { 1 };
        assert_eq!(row.procs, procs);
    }
    // Without the rival eleven figures are missing: those relative to it.
    let judged = figures(&report).len();
    assert_eq!(judged, if subjects == 2 { 29 } else { 18 });
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "shared memory is left behind");
}

#[test]
fn steps_with_many_owners_are_judged() {
    let steep = [Workload::StrongBeside, Workload::OwnerBeside, Workload::WaitBehind];
    let judged = figures(&measured(tiny(&steep)));
    let whats: Vec<&str> = judged.iter().map(|figure| figure.what.as_str()).collect();
    assert_eq!(
        whats,
        ["strong-beside, time: 10000 / 1", "wait-behind 10000, us", "owner-beside 10000, us"]
    );
}

#[test]
fn ours_runs_without_the_rival() {
    let settings = Settings { subjects: vec![Subject::Ours], ..tiny(&[Workload::Strong]) };
    let report = measured(settings);
    assert!(report.rows().iter().all(|row| !row.rival && row.ratio.is_none()));
    assert_eq!((report.release, report.absent), (None, None));
}

#[test]
fn a_deadlock_is_broken_once() {
    let report = measured(Settings { trials: 3, ..tiny(&[Workload::Cycle2, Workload::Cycle100]) });
    for series in report.series {
        let outcome = &series.outcomes[0];
        assert_eq!(outcome.cycles, 3, "{series:?}");
        assert!(outcome.victims >= 3, "{series:?}");
    }
}

#[test]
fn a_silent_process_is_an_error() {
    let silent = || Command::new("true");
    let fault = run(tiny(&[Workload::Weak]), &silent, &mut |_| ()).unwrap_err();
    // The process may end before it reads its job or before it answers.
    assert!(matches!(fault, Fault::Failed { .. } | Fault::Process(_)), "{fault}");
    let missing = || Command::new("/nonexistent");
    let fault = run(tiny(&[Workload::Weak]), &missing, &mut |_| ()).unwrap_err();
    assert!(matches!(fault, Fault::Process(_)), "{fault}");
}

#[test]
fn a_measurement_that_does_not_end_is_an_error() {
    let settings = Settings {
        window: Duration::from_secs(600),
        patience: Duration::from_millis(200),
        ..tiny(&[Workload::Strong])
    };
    let fault = run(settings, &launch, &mut |_| ()).unwrap_err();
    assert!(fault.to_string().contains("stuck: it has not ended within 200ms"), "{fault}");
}
#[test]
fn steps_are_measured_with_few_and_many_owners() {
    let steep = [Workload::StrongBeside, Workload::OwnerBeside, Workload::WaitBehind];
    let report = measured(tiny(&steep));
    // No rival runs these.
    let rows = report.rows();
    assert_eq!(rows.len(), steep.len() * Cell::OTHERS.len());
    for (series, row) in report.series.iter().zip(rows) {
        assert_eq!(row.params.others, Some(series.cell.others as u64));
        assert!(!row.rival && row.p50_ns > 0.0);
    }
    let mut outcome = Outcome { others: 0, ..fine() };
    let cell =
        Cell { workload: Workload::WaitBehind, place: Place::Private, workers: 1, others: 100 };
    assert_eq!(outcome.missing(&cell, Subject::Ours), Some("owner besides"));
    outcome.others = 100;
    assert_eq!(outcome.missing(&cell, Subject::Ours), None);
}

/// A valid outcome of one worker.
fn fine() -> Outcome {
    Outcome {
        ops_per_s: 1.0,
        p50_ns: 1.0,
        p99_ns: 1.0,
        by_worker: vec![10],
        asked: 10,
        counted: 10,
        ..Outcome::default()
    }
}

#[test]
fn events_that_did_not_happen_are_not_measured() {
    let cell = |workload| Cell { workload, place: Place::Private, workers: 1, others: 0 };
    let lacks = |workload, change: fn(&mut Outcome)| {
        let mut outcome = fine();
        change(&mut outcome);
        outcome.missing(&cell(workload), Subject::Ours)
    };
    assert_eq!(lacks(Workload::Strong, |_| ()), None);
    assert!(lacks(Workload::Strong, |o| o.asked = 0).is_some());
    assert!(lacks(Workload::Strong, |o| o.by_worker = vec![0]).is_some());
    assert!(lacks(Workload::Strong, |o| o.by_worker = vec![5, 5]).is_some(), "one worker too many");
    assert!(lacks(Workload::Strong, |o| o.counted = 9).is_some(), "it was not asked");
    assert!(lacks(Workload::Table, |o| o.fast = 10).is_some(), "they were kept");
    assert_eq!(lacks(Workload::Table, |o| o.fast = 1), None);
    assert!(lacks(Workload::Weak, |_| ()).is_some(), "the fast path never fired");
    assert_eq!(lacks(Workload::Weak, |o| o.fast = 10), None);
    assert_eq!(fine().missing(&cell(Workload::Weak), Subject::BerkeleyDb), None, "it has none");
    assert!(lacks(Workload::Cycle2, |o| o.waiters = 1).is_some(), "no cycle");
    assert!(lacks(Workload::Cycle2, |o| (o.waiters, o.cycles) = (1, 1)).is_some(), "no victim");
    assert_eq!(lacks(Workload::Cycle2, |o| (o.waiters, o.cycles, o.victims) = (1, 1, 1)), None);
    assert!(lacks(Workload::Detecting, |o| (o.cycles, o.victims) = (1, 1)).is_some(), "no waiters");
    assert!(lacks(Workload::Calm, |o| (o.waiters, o.victims) = (1, 1)).is_some(), "not calm");
    assert!(lacks(Workload::Held, |o| o.held = 10).is_some(), "no size");
    assert_eq!(lacks(Workload::Held, |o| (o.held, o.bytes_per_lock) = (10, Some(99.0))), None);
}
