//! A process that measures: it is told a job, opens, waits for the start, and says what came of it.
//!
//! Lines go both ways, its own with a sign in front, for a test harness prints lines too.

use std::io::{self, BufRead, Write};
use std::thread;
use std::time::Duration;

use latchwork_machine::{Native, Shared};

use super::Subject;
use super::bdb::Rival;
use super::deeds;
use super::job::{Job, Outcome};
use super::ours::Ours;
use super::table::Stop;

pub(crate) const READY: &str = "@ready";
pub(crate) const DONE: &str = "@done ";
pub(crate) const FAULT: &str = "@fault ";

fn say(what: &str) {
    let mut out = io::stdout().lock();
    // Whoever does not listen has ended.
    let _ = writeln!(out, "\n{what}").and_then(|()| out.flush());
}

/// Says why, and ends the process: other threads may wait for ever.
pub(crate) fn fail(why: &dyn core::fmt::Display) -> ! {
    say(&format!("{FAULT}{why}"));
    std::process::exit(1)
}

fn hear() -> String {
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(length) if length > 0 => line,
        // Who started this is gone.
        _ => std::process::exit(1),
    }
}

/// The life of a process that measures. It ends when the job is done.
pub fn serve() -> ! {
    let job: Job = serde_json::from_str(&hear()).unwrap_or_else(|error| fail(&error));
    let patience = Duration::from_millis(job.patience_ms);
    thread::spawn(move || {
        thread::sleep(patience);
        fail(&format!("stuck: it has not ended within {patience:?}"));
    });
    match measure(&job) {
        Ok(outcome) => {
            let text = serde_json::to_string(&outcome).unwrap_or_else(|error| fail(&error));
            say(&format!("{DONE}{text}"));
            std::process::exit(0)
        }
        Err(Stop::Deadlock) => fail(&"a deadlock where there can be none"),
        Err(Stop::Fault(why)) => fail(&why),
    }
}

fn measure(job: &Job) -> Result<Outcome, Stop> {
    let start = || {
        say(READY);
        hear().trim().parse().unwrap_or_else(|error| fail(&error))
    };
    match (job.subject, &job.dir) {
        (Subject::Ours, None) => deeds::measure::<Ours<Native>>(job, start),
        (Subject::Ours, Some(_)) => deeds::measure::<Ours<Shared>>(job, start),
        (Subject::BerkeleyDb, _) => deeds::measure::<Rival>(job, start),
    }
}
