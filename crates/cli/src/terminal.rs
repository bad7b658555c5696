//! A terminal that is drawn on and restored.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::output;

/// Whether a signal ended the command.
static OVER: AtomicBool = AtomicBool::new(false);
/// That signal; zero before.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: i32) {
    // Neither word publishes other memory.
    SIGNAL.store(signal, Relaxed);
    stop();
}

/// Only interrupts a poll.
extern "C" fn resized(_: i32) {}

/// Makes ending signals only set [`over`], and a size change of the terminal end the wait for a
/// key. Signals that were ignored, for example by nohup, stay ignored.
pub(crate) fn catch_signals() {
    catch(0);
}

/// [`catch_signals`] for one signal: a second one ends the program as usual.
pub(crate) fn catch_first_signal() {
    catch(libc::SA_RESETHAND);
}

fn catch(flags: i32) {
    let ends = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|s| (s, note as extern "C" fn(i32)));
    for (signal, handler) in ends.into_iter().chain([(libc::SIGWINCH, resized as _)]) {
        // SAFETY: zero is a value of it.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to what it should be.
        unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
        if action.sa_sigaction != libc::SIG_IGN {
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = flags;
            // SAFETY: as above, and the handlers store to two words at most.
            unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
        }
    }
}

/// Returns whether the command was ended.
pub(crate) fn over() -> bool {
    OVER.load(Relaxed)
}

/// Returns the signal that ended it.
pub(crate) fn signal() -> Option<i32> {
    Some(SIGNAL.load(Relaxed)).filter(|signal| *signal != 0)
}

/// Ends the command.
pub(crate) fn stop() {
    OVER.store(true, Relaxed);
}

/// The options of a live view.
#[derive(clap::Args)]
pub(crate) struct Pace {
    /// Seconds between two frames
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Print one frame
    #[arg(long)]
    once: bool,
    /// Print one frame as JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds
        .filter(|time| (Duration::from_millis(20)..=Duration::from_secs(3600)).contains(time))
        .ok_or_else(|| "must be 0.02 to 3600 seconds".to_owned())
}

impl Pace {
    /// Creates a live view with a frame each `interval`.
    pub(crate) fn live(interval: Duration) -> Self {
        Self { interval, once: false, json: false }
    }

    /// Returns the screen of a live view; none if one frame is wanted, or no terminal could end it.
    pub(crate) fn screen(&self) -> Option<Screen> {
        let live = !self.once && !self.json && io::stdin().is_terminal();
        if live { Screen::take(Stream::Out) } else { None }
    }

    /// Shows a frame of at most so many lines at each interval from `first` on, until q or Ctrl-C.
    pub(crate) fn watch(
        &self,
        screen: &Screen,
        first: Duration,
        mut frame: impl FnMut(usize) -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<()> {
        catch_signals();
        let mut until = Instant::now() + first;
        while !over() {
            let left = until.saturating_duration_since(Instant::now());
            let key = if left.is_zero() { None } else { screen.key(left) };
            match key {
                Some(b'q' | b'Q' | 3) => break,
                Some(_) => continue,
                // The interval has passed, or the terminal's size has changed.
                None => {}
            }
            let rows = screen.size().1.saturating_sub(1);
            let mut lines = frame(rows)?;
            lines.truncate(rows);
            lines.push("q quits".to_owned());
            screen.show(&lines)?;
            until = Instant::now() + self.interval;
        }
        Ok(())
    }
}

/// The stream of a screen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// A terminal's alternate screen, until this is dropped, and its keys, without echo and line
/// buffering, if available.
pub(crate) struct Screen {
    stream: Stream,
    before: Option<libc::termios>,
}

impl Screen {
    /// Takes it, if the stream is a terminal.
    pub(crate) fn take(stream: Stream) -> Option<Self> {
        let screen = match stream {
            Stream::Out => io::stdout().is_terminal(),
            Stream::Err => io::stderr().is_terminal(),
        };
        if !screen {
            return None;
        }
        let screen = Self { stream, before: keys() };
        let _ = screen.write("\x1b[?1049h\x1b[?25l");
        Some(screen)
    }

    fn write(&self, text: &str) -> io::Result<()> {
        match self.stream {
            Stream::Out => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes())?;
                out.flush()
            }
            Stream::Err => io::stderr().lock().write_all(text.as_bytes()),
        }
    }

    /// Returns columns and lines.
    pub(crate) fn size(&self) -> (usize, usize) {
        let stream =
            if self.stream == Stream::Out { libc::STDOUT_FILENO } else { libc::STDERR_FILENO };
        // SAFETY: zero is a value of it.
        let mut size: libc::winsize = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to the structure of this call.
        let said = unsafe { libc::ioctl(stream, libc::TIOCGWINSZ, &mut size) };
        match (said, size.ws_col, size.ws_row) {
            (0, columns, rows) if columns != 0 && rows != 0 => (columns.into(), rows.into()),
            _ => (80, 24),
        }
    }

    /// Shows these lines, as many and as much of each as fits, over the previous frame.
    pub(crate) fn show(&self, lines: &[String]) -> io::Result<()> {
        let (columns, rows) = self.size();
        let mut text = "\x1b[H".to_owned();
        for (at, line) in lines.iter().take(rows).enumerate() {
            // The line is cleared first: after a line of full width the cursor is on its last
            // column, which would be cleared as well.
            text.push_str(if at == 0 { "\x1b[2K" } else { "\r\n\x1b[2K" });
            text.push_str(&output::crop(line, columns));
        }
        if lines.len() < rows {
            text.push_str("\r\n\x1b[J");
        }
        self.write(&text)
    }

    /// Waits for a key; none if none comes in time, or the terminal's size changes. The end of
    /// input is a `q`.
    pub(crate) fn key(&self, wait: Duration) -> Option<u8> {
        let mut poll = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
        let (wait, count) = (wait.as_millis().min(3_600_000) as i32, self.before.is_some());
        // SAFETY: one description, which outlives the call, or none.
        if unsafe { libc::poll(&mut poll, count.into(), wait) } <= 0 {
            return None;
        }
        let mut key = 0u8;
        // SAFETY: one byte is writable there.
        match unsafe { libc::read(libc::STDIN_FILENO, (&raw mut key).cast(), 1) } {
            1 => Some(key),
            _ => Some(b'q'),
        }
    }
}

/// Makes keys available at once, and returns the previous settings; none if stdin is no terminal,
/// or belongs to another job.
fn keys() -> Option<libc::termios> {
    // SAFETY: it has no preconditions.
    let mine = unsafe { libc::getpgrp() };
    // SAFETY: as above; it fails for anything but a terminal.
    let ours = unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) } == mine;
    // SAFETY: zero is a value of it.
    let mut before: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid.
    if !ours || unsafe { libc::tcgetattr(libc::STDIN_FILENO, &mut before) } != 0 {
        return None;
    }
    let mut quiet = before;
    // Ctrl-C stays a signal. Ctrl-Z has no effect, because it would leave our screen to the shell.
    quiet.c_lflag &= !(libc::ICANON | libc::ECHO);
    quiet.c_cc[libc::VSUSP] = libc::_POSIX_VDISABLE;
    // SAFETY: as above.
    unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &quiet) };
    Some(before)
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.write("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.before {
            // SAFETY: with the settings that `keys` returned.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, before) };
        }
    }
}
