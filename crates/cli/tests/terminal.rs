//! Drawing on a terminal: it fits the size, ends on q and Ctrl-C, and restores the terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("latchwork-terminal-{name}-{}", std::process::id()))
}

/// A terminal, and what was written to it.
struct Terminal {
    ours: File,
    theirs: OwnedFd,
    said: Vec<u8>,
}

impl Terminal {
    fn new(columns: u16, rows: u16) -> Self {
        let (mut ours, mut theirs) = (0, 0);
        let none = std::ptr::null_mut();
        // SAFETY: two places for descriptors, and nothing else.
        let made = unsafe { libc::openpty(&mut ours, &mut theirs, none, none.cast(), none.cast()) };
        assert_eq!(made, 0);
        // SAFETY: opened above and not used otherwise.
        let ours = unsafe { File::from_raw_fd(ours) };
        // SAFETY: as above.
        let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
        let mut terminal = Self { ours, theirs, said: Vec::new() };
        terminal.resize(columns, rows);
        terminal
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the pointer is to what the call wants.
        assert_eq!(unsafe { libc::ioctl(self.ours.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    }

    /// How it treats what is typed.
    fn modes(&self) -> (u32, u8) {
        // SAFETY: zero is a value of it.
        let mut modes: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to what it should be.
        assert_eq!(unsafe { libc::tcgetattr(self.theirs.as_raw_fd(), &mut modes) }, 0);
        (modes.c_lflag, modes.c_cc[libc::VSUSP])
    }

    /// Starts a program that has it as its own.
    fn start(&self, args: &[&str], vars: &[(&str, &str)]) -> Child {
        let stdio = || Stdio::from(self.theirs.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork"));
        command.args(args).env_remove("NO_COLOR").envs(vars.iter().copied());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let own = || {
            // SAFETY: it has no preconditions.
            unsafe { libc::setsid() };
            // The parent may ignore them, as a shell does for background jobs.
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                // SAFETY: as above.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            // SAFETY: a request without an argument.
            unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
            Ok(())
        };
        // SAFETY: system calls, which a child may make.
        unsafe { command.pre_exec(own) };
        command.spawn().unwrap()
    }

    /// Reads what comes, for so long.
    fn watch(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now()).as_millis() as i32;
            let mut poll =
                libc::pollfd { fd: self.ours.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one description, which outlives the call.
            if left == 0 || unsafe { libc::poll(&mut poll, 1, left) } <= 0 {
                return;
            }
            let mut bytes = [0; 4096];
            let count = self.ours.read(&mut bytes).unwrap_or(0);
            self.said.extend(&bytes[..count]);
        }
    }

    fn end(&mut self, mut child: Child) -> ExitStatus {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            self.watch(Duration::from_millis(50));
            if let Some(status) = child.try_wait().unwrap() {
                self.watch(Duration::from_millis(50));
                return status;
            }
            assert!(Instant::now() < until, "it does not end");
        }
    }

    /// The frames shown by a program that moves to the top left, clears lines and writes them.
    fn frames(&self) -> Vec<Vec<String>> {
        let text = String::from_utf8_lossy(&self.said).into_owned();
        let frames = text.split("\x1b[H").skip(1);
        frames.map(|frame| frame.split("\r\n").map(plain).collect()).collect()
    }
}

/// A line without colours and other codes.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut code = false;
    for char in line.chars() {
        if code || char == '\x1b' {
            code = !char.is_ascii_alphabetic();
        } else if char != '\r' {
            text.push(char);
        }
    }
    text
}

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Ends it by a key, and looks that all is as before.
fn leaves(terminal: &mut Terminal, child: Child, key: u8, before: (u32, u8)) {
    assert_ne!(terminal.modes(), before, "keys are read at once");
    terminal.ours.write_all(&[key]).unwrap();
    let status = terminal.end(child);
    let said = String::from_utf8_lossy(&terminal.said).into_owned();
    assert!(status.success(), "{status}: {}", &said[said.len().saturating_sub(900)..]);
    assert_eq!(terminal.modes(), before);
    let text = String::from_utf8_lossy(&terminal.said);
    assert!(text.contains(ENTER) && text.contains(LEAVE));
    assert!(text.find(LEAVE) > text.find(ENTER));
}

fn fits(terminal: &Terminal, columns: usize, rows: usize) {
    let frames = terminal.frames();
    assert!(!frames.is_empty());
    for frame in &frames {
        assert!(frame.len() <= rows + 1, "{frame:?}");
        for line in frame {
            assert!(line.chars().count() <= columns, "{line}");
        }
    }
}

#[test]
fn top_fits_and_ends() {
    let path = file("top");
    let _ = std::fs::remove_file(&path);
    let path = path.to_str().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_latchwork"))
        .args(["locks", "demo", path, "--seconds", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !std::path::Path::new(path).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    for (columns, rows, key) in [(80, 24, b'q'), (40, 8, 3), (100, 30, b'Q'), (20, 3, 3), (7, 2, 3)]
    {
        let mut terminal = Terminal::new(columns, rows);
        let before = terminal.modes();
        let child = terminal.start(&["locks", "top", path], &[]);
        terminal.watch(Duration::from_millis(500));
        fits(&terminal, columns.into(), rows.into());
        assert!(terminal.frames()[0][0].starts_with("process"), "{:?}", terminal.frames()[0]);
        leaves(&mut terminal, child, key, before);
    }
    // A terminal that changes its size is drawn on at once, though the next look is an hour away.
    let mut terminal = Terminal::new(100, 30);
    let before = terminal.modes();
    let child = terminal.start(&["locks", "top", path, "--interval", "3600"], &[]);
    terminal.watch(Duration::from_millis(400));
    let count = terminal.frames().len();
    terminal.said.clear();
    terminal.resize(50, 10);
    terminal.watch(Duration::from_millis(400));
    assert_eq!((count, terminal.frames().len()), (1, 1));
    fits(&terminal, 50, 10);
    terminal.said.extend(ENTER.bytes());
    leaves(&mut terminal, child, b'q', before);
    // Where it is no terminal: one frame, without codes.
    let plain = Command::new(env!("CARGO_BIN_EXE_latchwork"))
        .args(["locks", "top", path])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(plain.stdout).unwrap();
    assert!(plain.status.success() && text.contains("hottest") && !text.contains('\x1b'), "{text}");
    demo.kill().unwrap();
    demo.wait().unwrap();
    let _ = std::fs::remove_file(path);
}

#[test]
fn the_bank_fits_and_ends() {
    for (columns, rows, key) in [(80, 24, b'q'), (40, 8, 3)] {
        for no_colour in [false, true] {
            let mut terminal = Terminal::new(columns, rows);
            let before = terminal.modes();
            let vars = if no_colour { &[("NO_COLOR", "1")][..] } else { &[] };
            // Few are killed, so that some live long enough to pay on a machine that others use.
            let few = ["--kills-per-second", "2"];
            let args = [&["bank", "--seconds", "60", "--processes", "4"], &few[..]].concat();
            let child = terminal.start(&args, vars);
            terminal.watch(Duration::from_millis(1500));
            fits(&terminal, columns.into(), rows.into());
            let coloured = String::from_utf8_lossy(&terminal.said).contains("\x1b[2m");
            assert_eq!(coloured, !no_colour);
            terminal.said.clear();
            terminal.said.extend(ENTER.bytes());
            leaves(&mut terminal, child, key, before);
            let text = String::from_utf8_lossy(&terminal.said).into_owned();
            let said = &text[text.find(LEAVE).unwrap()..];
            assert!(said.contains("transfers") && said.contains("right"), "{said}");
        }
    }
}
