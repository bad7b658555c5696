//! Processes that measure: how they are started, and the lines that go both ways.
//!
//! A process is told its job in one line of JSON. It opens, says that it is ready, hears when to
//! begin, and says what came of it, or what went wrong. Its own lines have a sign in front, for a
//! test harness prints lines too.

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
    // A parent that does not listen has ended.
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
        // The process that started this one is gone.
        _ => std::process::exit(1),
    }
}

/// What a process is to measure.
pub(crate) fn job<J: DeserializeOwned>() -> J {
    serde_json::from_str(&hear()).unwrap_or_else(|error| fail(&error))
}

/// Says that all is open, and hears when to begin.
pub(crate) fn start() -> u64 {
    say(READY);
    hear().trim().parse().unwrap_or_else(|error| fail(&error))
}

/// Ends the process with a fault if it has not ended within this time.
pub(crate) fn end_within(patience: Duration) {
    thread::spawn(move || {
        thread::sleep(patience);
        fail(&format!("stuck: it has not ended within {patience:?}"));
    });
}

/// Ends the process when the one that started it ends.
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

/// Says what came of it, and ends the process.
pub(crate) fn done(outcome: &impl Serialize) -> ! {
    tell(outcome);
    std::process::exit(0)
}

/// Says what came of it, and waits to be killed.
pub(crate) fn done_and_wait(outcome: &impl Serialize) -> ! {
    tell(outcome);
    loop {
        hear();
    }
}

/// A process that measures; killed if it is let go of.
pub(crate) struct Worker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Worker {
    /// Kills it, as `kill -9` does, and does not wait for its end.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// Whether it has ended.
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

    /// Tells it when to begin.
    pub(crate) fn begin(&mut self, at: u64) -> io::Result<()> {
        writeln!(self.to, "{at}")
    }

    /// Reads until a line begins so: its rest. Otherwise what went wrong.
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
        // It has ended by itself, or nobody wants to know any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
