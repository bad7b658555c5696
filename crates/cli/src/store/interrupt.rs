//! Long commands that a signal ends early: the store is closed as usual, and incomplete output is
//! removed. A killed command would leave its memory to the next process.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::terminal;

/// How long a signal that comes just before a wait for a pipe can stay unnoticed, in milliseconds.
const LOOK: i32 = 200;

/// The error of an interrupted command.
const INTERRUPTED: &str = "interrupted";

/// The payload that unwinds from a callback to [`until_signal`].
struct Interrupted;

/// Runs a function of the library that calls the given closure periodically, and ends it there
/// after a signal. It unwinds, because such a callback returns nothing.
pub(super) fn until_signal<T>(
    work: impl FnOnce(&dyn Fn()) -> Result<T, latchwork_store::Error>,
) -> anyhow::Result<T> {
    let look = || {
        if terminal::signal().is_some() {
            resume_unwind(Box::new(Interrupted));
        }
    };
    // Everything it was given is dropped or abandoned: the caller only closes the store.
    match catch_unwind(AssertUnwindSafe(|| work(&look))) {
        Ok(done) => Ok(done?),
        Err(why) if why.is::<Interrupted>() => anyhow::bail!(INTERRUPTED),
        Err(why) => resume_unwind(why),
    }
}

/// Fails if a signal came.
pub(super) fn look() -> io::Result<()> {
    match terminal::signal() {
        Some(_) => Err(io::Error::other(INTERRUPTED)),
        None => Ok(()),
    }
}

/// A file, or a pipe that may block, until a signal comes.
#[derive(Debug)]
pub(super) struct UntilSignal<F>(pub(super) F);

impl<F: AsFd> UntilSignal<F> {
    /// Waits until it can be read or written. Errors are reported by the read or write.
    fn wait(&self, events: i16) -> io::Result<()> {
        loop {
            look()?;
            let mut poll = libc::pollfd { fd: self.0.as_fd().as_raw_fd(), events, revents: 0 };
            // SAFETY: one description, which outlives the call.
            match unsafe { libc::poll(&mut poll, 1, LOOK) } {
                0 => {}
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return Ok(()),
            }
        }
    }
}

impl<F: Read + AsFd> Read for UntilSignal<F> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.wait(libc::POLLIN)?;
        self.0.read(to)
    }
}

impl<F: Write + AsFd> Write for UntilSignal<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(libc::POLLOUT)?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_at_a_signal_and_not_before() {
        // The environment of these tests may ignore it, as `nohup` does. SAFETY: this sets no
        // handler.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        terminal::catch_first_signal();
        let work = |look: &dyn Fn()| {
            look();
            Ok(())
        };
        assert!(look().is_ok() && until_signal(work).is_ok());
        // SAFETY: it is caught, and only once.
        assert_eq!(unsafe { libc::raise(libc::SIGHUP) }, 0);
        assert_eq!(terminal::signal(), Some(libc::SIGHUP));
        assert_eq!(until_signal(work).unwrap_err().to_string(), INTERRUPTED);
        let (from, to) = std::io::pipe().unwrap();
        let read = UntilSignal(from).read(&mut [0]).unwrap_err();
        assert_eq!((read.to_string().as_str(), look().is_err()), (INTERRUPTED, true));
        drop(to);
    }
}
