//! Small runs of the latch benchmark: the faults it must catch and the rows it must report.

use std::time::Duration;

use latchwork_bench::{
    Bench, Cell, Exclusive, Fault, Kind, Report, Role, Settings, Shared, Subject, run,
};

fn tiny(only: &[Bench], threads: usize) -> Settings {
    Settings {
        only: only.to_vec(),
        threads: Some(vec![threads]),
        runs: 2,
        window: Duration::from_millis(10),
        ..Settings::default()
    }
}

fn named(names: &[&str]) -> Vec<Subject> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Subject::select(Subject::all(), &names).unwrap()
}

fn run_quietly(settings: Settings, subjects: Vec<Subject>) -> Result<Report, Fault> {
    run(settings, subjects, &mut |_| ())
}

#[test]
fn each_pause_has_a_row() {
    let outside_ns = vec![0, 200, 5000];
    let settings = Settings { outside_ns, ..tiny(&[Bench::Uncontended, Bench::Short], 2) };
    let cells = Cell::all(&settings);
    let of = |bench| cells.iter().filter(move |c| c.bench == bench).map(|c| c.outside_ns);
    assert_eq!(of(Bench::Short).collect::<Vec<_>>(), [0, 200, 5000]);
    assert_eq!(of(Bench::Uncontended).collect::<Vec<_>>(), [0, 0, 0]);
    let default = Cell::all(&Settings { outside_ns: Vec::new(), ..settings.clone() });
    assert!(default.iter().any(|c| c.bench == Bench::Short && c.outside_ns == 100));
}

/// A latch that excludes nothing.
#[derive(Default)]
struct Open;

impl Exclusive for Open {
    fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
}

impl Shared for Open {
    fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
}

/// A latch that admits readers while a writer is inside.
#[derive(Default)]
struct Porous(std::sync::Mutex<()>);

impl Exclusive for Porous {
    fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock().unwrap();
        f()
    }
}

impl Shared for Porous {
    fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
}

/// A latch that can be acquired only once.
#[derive(Default)]
struct Jammed(std::sync::Mutex<()>);

impl Exclusive for Jammed {
    fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let guard = self.0.lock().unwrap();
        let result = f();
        std::mem::forget(guard);
        result
    }
}

#[test]
fn a_latch_that_does_not_exclude_is_detected() {
    // Windows long enough for two threads to meet on one processor. They are repeated on a busy
    // machine until the threads meet.
    let window = Duration::from_millis(100);
    let settings = Settings { window, runs: 50, ..tiny(&[Bench::Long], 4) };
    let open = vec![Subject::exclusive::<Open>("open", false)];
    let fault = run_quietly(settings, open).err().expect("it does not exclude");
    assert!(matches!(fault, Fault::Overlap { subject: "open", .. }), "{fault}");
    assert!(fault.to_string().contains("open does not exclude (long section, threads: 4)"));
}

#[test]
fn a_latch_that_lets_readers_in_too_early_is_detected() {
    let settings = Settings {
        window: Duration::from_millis(100),
        runs: 50,
        writes: vec![50.0],
        ..tiny(&[Bench::Mix], 4)
    };
    for subject in
        [Subject::shared::<Porous>("porous", false), Subject::shared::<Open>("open", false)]
    {
        let fault = run_quietly(settings.clone(), vec![subject]).err().expect("readers are let in");
        assert!(matches!(fault, Fault::Overlap { .. }), "{fault}");
    }
}

#[test]
fn a_latch_that_loses_a_thread_is_reported_without_a_hang() {
    let patience = Duration::from_millis(300);
    let settings = Settings { patience, ..tiny(&[Bench::Short], 3) };
    let jammed = vec![Subject::exclusive::<Jammed>("jammed", false)];
    let fault = run_quietly(settings, jammed).err().expect("it never comes back");
    assert!(matches!(fault, Fault::Stuck { threads: 3, .. }), "{fault}");
}

#[test]
fn one_thread_is_not_judged() {
    let alone = run_quietly(tiny(&[Bench::Short], 1), named(&["std-mutex"])).unwrap();
    let rows = alone.rows();
    assert_eq!((rows[0].contended, rows[0].fairness), (Some(0.0), None));
}

#[test]
fn all_subjects_pass_all_workloads() {
    for subject in Subject::all() {
        let report = run_quietly(tiny(&Bench::ALL, 3), vec![subject]).unwrap();
        let expected = if subject.kind == Kind::Exclusive { 3 } else { 2 + 1 + 2 + 2 };
        assert_eq!(report.rows().len(), expected, "{}", subject.name);
    }
}

#[test]
fn a_row_has_the_fields_that_programs_rely_on() {
    let mut steps = Vec::new();
    let settings = tiny(&[Bench::Uncontended, Bench::Mix], 2);
    let report = run(settings, named(&["shfl-rwlock", "parking-lot"]), &mut |step| {
        steps.push((step.done, step.total));
    });
    // Two runs of one mutex and, in five cells, of two reader-writer latches.
    assert_eq!((steps.len(), steps[0], steps[21]), (22, (0, 22), (21, 22)));
    for row in report.unwrap().rows() {
        let json = serde_json::to_value(&row).unwrap();
        let fields = [
            ("bench", "string"),
            ("subject", "string"),
            ("rival", "bool"),
            ("machine", "string"),
            ("threads", "number"),
            ("procs", "number"),
            ("params", "object"),
            ("ops_per_s", "number"),
            ("ns_per_op", "number"),
            ("spread", "number"),
            ("p50_ns", "number"),
            ("p99_ns", "number"),
            ("fairness", "number or null"),
            ("runs", "number"),
            ("noisy", "bool"),
        ];
        for (field, kind) in fields {
            let value = json.get(field).unwrap_or_else(|| panic!("{field} is missing: {json}"));
            let is = match value {
                serde_json::Value::Null => "null",
                serde_json::Value::Bool(_) => "bool",
                serde_json::Value::Number(_) => "number",
                serde_json::Value::String(_) => "string",
                serde_json::Value::Array(_) => "array",
                serde_json::Value::Object(_) => "object",
            };
            assert!(kind.contains(is), "{field} is {value}");
        }
        assert_eq!((&json["bench"], &json["machine"]), (&"latch".into(), &"native".into()));
        assert_eq!(json["params"]["role"], json["role"]);
        if row.params.workload == "mix" {
            assert_eq!(json["params"]["mix"], row.params.mix.unwrap());
            assert!(row.params.mix != Some(0.0) || row.role == Role::Read, "no writes, no row");
        }
        let product = row.ops_per_s * row.ns_per_op;
        assert!((product - 1e9).abs() < 1.0, "{product}");
    }
}

#[test]
fn subjects_are_called_by_name_or_by_family() {
    let names = |wanted: &[&str]| -> Vec<&str> { named(wanted).iter().map(|s| s.name).collect() };
    assert_eq!(names(&[]).len(), Subject::all().len());
    assert_eq!(
        names(&["lw-latch", "std"]),
        ["std-mutex", "lw-latch", "lw-latch-cas", "std-rwlock"]
    );
    let rivals = Subject::all().iter().filter(|s| s.rival).count();
    assert_eq!(names(&["shfl-mutex"]).len(), 1 + rivals, "rivals stay");
    let unknown = ["shfl".to_owned(), "mcs".to_owned()];
    assert_eq!(Subject::select(Subject::all(), &unknown).err(), Some("mcs"));
    assert!(Subject::select(Subject::all(), &["s".to_owned()]).is_err());
    assert!(Subject::select(Subject::all(), &["std-mutex\u{e9}".to_owned()]).is_err());
}
