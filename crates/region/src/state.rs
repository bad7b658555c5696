//! Reads the state of a process that has a region open from `/proc/PID`.
//!
//! A pid is valid only in its own pid namespace, and another process may get it later. So the
//! namespace and the start time in the process slot are compared first.

use core::time::Duration;

use latchwork_machine::ConstMachine;

use crate::{ProcessInfo, Region, token};

/// The state of a process, as other processes can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessState {
    /// It runs, or waits for something.
    Running,
    /// A signal (`SIGSTOP`, `SIGTSTP`) or a debugger has stopped it. It keeps locks and latches
    /// until it continues.
    Stopped,
    /// It has ended.
    Dead,
    /// It is alive in another pid namespace, or `/proc` is not mounted.
    Unknown,
}

impl ProcessState {
    /// Returns its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
        }
    }
}

/// State and start time of a process, from `/proc/PID/stat`.
fn stat(pid: &str) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything; field 3 follows its end.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

impl ProcessInfo {
    /// The state of the process with this pid, if it is the slot's.
    fn seen(&self) -> Option<char> {
        let (_, _, here) = token::identity();
        if !self.alive || self.namespace == 0 || self.namespace != here {
            return None;
        }
        let (state, start) = stat(&self.pid.to_string())?;
        (start == self.start).then_some(state)
    }

    /// Returns its state. Reads two files of `/proc`.
    pub fn state(&self) -> ProcessState {
        match self.seen() {
            _ if !self.alive => ProcessState::Dead,
            Some('T' | 't') => ProcessState::Stopped,
            Some(_) => ProcessState::Running,
            None => ProcessState::Unknown,
        }
    }

    /// Returns its command line, with a blank between two arguments; none if it cannot be read.
    pub fn command(&self) -> Option<String> {
        self.seen()?;
        let bytes = std::fs::read(format!("/proc/{}/cmdline", self.pid)).ok()?;
        let words: Vec<_> =
            bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
        Some(String::from_utf8_lossy(&words.join(&b' ')).into_owned()).filter(|all| !all.is_empty())
    }

    /// Returns the time since the process started; none if it cannot be read.
    pub fn age(&self) -> Option<Duration> {
        self.seen()?;
        let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        // SAFETY: it only reads a constant.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        let began = self.start as f64 / if ticks > 0 { ticks as f64 } else { 100.0 };
        Some(Duration::from_secs_f64((uptime - began).max(0.0)))
    }
}

impl<M: ConstMachine> Region<M> {
    /// Returns the process of a thread slot that is held, alive or dead; none if the slot is free
    /// or retained, or its process slot has another owner.
    pub fn process_of(&self, thread: u32) -> Option<ProcessInfo> {
        let thread = self.threads().find(|found| found.slot == thread && !found.retained)?;
        let its = |process: &ProcessInfo| {
            (process.slot, process.generation) == (thread.process, thread.process_generation)
        };
        self.processes().into_iter().find(its)
    }

    /// Returns the pid of a thread slot's process if a signal or a debugger has stopped it. None if
    /// it runs, or if its state cannot be read. A thread that has waited for a second or more can
    /// name the process in its error. Reads two files of `/proc` and makes a system call for each
    /// process of the region, so it is not for a fast path.
    pub fn stopped(&self, thread: u32) -> Option<u32> {
        let process = self.process_of(thread)?;
        (process.state() == ProcessState::Stopped).then_some(process.pid)
    }
}
