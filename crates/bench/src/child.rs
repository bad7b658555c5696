//! Measuring processes: how they are started and the protocol between parent and child.
//!
//! The parent sends the job as one line of JSON. The child opens its files, reports that it is
//! ready, waits for the start and reports its result or its error. Each line of the child starts
//! with a sign, because a test harness prints lines too.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) const READY: &str = "@ready";
pub(crate) const DONE: &str = "@done ";
pub(crate) const FAULT: &str = "@fault ";

fn say(what: &str) {
    let mut out = io::stdout().lock();
    // The parent has ended if it does not read.
    let _ = writeln!(out, "\n{what}").and_then(|()| out.flush());
}

/// Reports an error and ends the process: other threads may be blocked.
pub(crate) fn fail(why: &dyn core::fmt::Display) -> ! {
    say(&format!("{FAULT}{why}"));
    std::process::exit(1)
}

fn hear() -> String {
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(length) if length > 0 => line,
        // The parent is gone.
        _ => std::process::exit(1),
    }
}

/// Reads the job of this process.
pub(crate) fn job<J: DeserializeOwned>() -> J {
    serde_json::from_str(&hear()).unwrap_or_else(|error| fail(&error))
}

/// Reports that everything is open and waits for the start time.
pub(crate) fn start() -> u64 {
    say(READY);
    hear().trim().parse().unwrap_or_else(|error| fail(&error))
}

/// Ends the process with an error after `patience`.
pub(crate) fn end_within(patience: Duration) {
    thread::spawn(move || {
        thread::sleep(patience);
        fail(&format!("stuck: it has not ended within {patience:?}"));
    });
}

/// Ends the process when its parent ends.
pub(crate) fn end_with_parent() {
    thread::spawn(|| {
        loop {
            hear();
        }
    });
}

fn tell(outcome: &impl Serialize) {
    let text = serde_json::to_string(outcome).unwrap_or_else(|error| fail(&error));
    say(&format!("{DONE}{text}"));
}

/// Reports the result and ends the process.
pub(crate) fn done(outcome: &impl Serialize) -> ! {
    tell(outcome);
    std::process::exit(0)
}

/// Reports the result and waits to be killed.
pub(crate) fn done_and_wait(outcome: &impl Serialize) -> ! {
    tell(outcome);
    loop {
        hear();
    }
}

/// A measuring process. Dropping it kills the process.
pub(crate) struct Worker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Worker {
    /// Sends `SIGKILL` and does not wait.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn start(mut command: Command, job: &impl Serialize) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(mut to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a process without its pipes"));
        };
        writeln!(to, "{}", serde_json::to_string(job)?)?;
        Ok(Self { child, to, from: BufReader::new(from) })
    }

    /// Sends the start time.
    pub(crate) fn begin(&mut self, at: u64) -> io::Result<()> {
        writeln!(self.to, "{at}")
    }

    /// Reads up to a line that starts with `sign` and returns the rest of the line, or the child's
    /// error.
    pub(crate) fn hear(&mut self, sign: &str) -> Result<String, String> {
        let mut line = String::new();
        loop {
            line.clear();
            match self.from.read_line(&mut line) {
                Ok(0) => return Err("it ended without a word".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
            if let Some(rest) = line.strip_prefix(sign) {
                return Ok(rest.trim().to_owned());
            }
            if let Some(why) = line.strip_prefix(FAULT) {
                return Err(why.trim().to_owned());
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process has ended, or its result is no longer needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
