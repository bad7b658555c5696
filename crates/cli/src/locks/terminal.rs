//! A terminal that is drawn on, and given back as it was.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// A signal said that it is over.
static OVER: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: i32) {
    OVER.store(true, Relaxed);
}

/// From now on the signals that end a program only have [`over`] say so.
pub(crate) fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: zero is a value of it.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as extern "C" fn(i32) as *const () as usize;
        // SAFETY: the pointer is to what it should be, and the handler stores to a word only.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}

/// Whether it is over.
pub(crate) fn over() -> bool {
    OVER.load(Relaxed)
}

/// A terminal without echo and lines, on its second screen, until this is dropped.
pub(super) struct Screen {
    before: libc::termios,
}

impl Screen {
    /// Takes it, if stdin and stdout are one.
    pub(super) fn take() -> Option<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return None;
        }
        // SAFETY: zero is a value of it.
        let mut before: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to what it should be.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, &mut before) } != 0 {
            return None;
        }
        let mut quiet = before;
        quiet.c_lflag &= !(libc::ICANON | libc::ECHO);
        // SAFETY: as above. Ctrl-C stays a signal.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &quiet) };
        let screen = Self { before };
        let _ = screen.write("\x1b[?1049h\x1b[?25l");
        Some(screen)
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        // SAFETY: zero is a value of it.
        let mut size: libc::winsize = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to what the call wants.
        let said = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
        match (said, size.ws_col, size.ws_row) {
            (0, columns, rows) if columns != 0 && rows != 0 => (columns.into(), rows.into()),
            _ => (80, 24),
        }
    }

    /// Shows these lines, over what was there.
    pub(super) fn show(&self, lines: &[String]) -> io::Result<()> {
        let mut text = "\x1b[H".to_owned();
        for (at, line) in lines.iter().enumerate() {
            let end = if at + 1 == lines.len() { "\x1b[K" } else { "\x1b[K\r\n" };
            text.push_str(line);
            text.push_str(end);
        }
        text.push_str("\x1b[J");
        self.write(&text)
    }

    /// Waits for a key; none if none comes in time. End of input is a `q`.
    pub(super) fn key(&self, wait: Duration) -> Option<u8> {
        let mut poll = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
        let wait = wait.as_millis().min(3_600_000) as i32;
        // SAFETY: one description, which outlives the call.
        if unsafe { libc::poll(&mut poll, 1, wait) } <= 0 {
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

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.write("\x1b[?25h\x1b[?1049l");
        // SAFETY: as `take` found it.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, &self.before) };
    }
}
