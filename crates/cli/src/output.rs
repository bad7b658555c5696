//! Output: data to stdout, everything else to stderr.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};

/// The width of all output in columns.
pub(crate) const WIDTH: usize = 100;

/// Returns the columns of the stream's terminal; none if it is no terminal, or does not report
/// them.
pub(crate) fn columns(stream: &impl std::os::fd::AsRawFd) -> Option<usize> {
    // SAFETY: zero is a value of it.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to the structure of this call.
    let said = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCGWINSZ, &mut size) };
    (said == 0 && size.ws_col > 0).then(|| size.ws_col.into())
}

/// Prints one line to stderr.
pub(crate) fn complain(what: &str) {
    let _ = writeln!(anstream::stderr(), "latchwork: {what}");
}

/// The error of a command whose argument names something that does not exist.
#[derive(Debug)]
pub(crate) struct Absent(pub(crate) String);

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Absent {}

/// Returns the exit code for an error: 1 if an argument names something that does not exist,
/// otherwise `other`.
pub(crate) fn code(error: &anyhow::Error, other: u8) -> u8 {
    if error.downcast_ref::<Absent>().is_some() { 1 } else { other }
}

/// Formats an error with its causes, each once, because many errors already include their causes.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Prints to stdout; a closed pipe is no error.
pub(crate) fn print(
    write: impl FnOnce(&mut io::StdoutLock<'static>) -> io::Result<()>,
) -> io::Result<()> {
    is_read(write).map(drop)
}

/// [`print()`] for repeated output: returns whether the reader still exists.
pub(crate) fn is_read(
    write: impl FnOnce(&mut io::StdoutLock<'static>) -> io::Result<()>,
) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Returns whether stderr is a terminal that supports colours.
pub(crate) fn colour_on_stderr() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stderr().is_terminal()
}

/// Returns a table without lines. Columns in `right` contain numbers.
pub(crate) fn table(header: &[&str], right: std::ops::Range<usize>, colour: bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().map(|name| Cell::new(name).add_attribute(Attribute::Dim)));
    for (index, column) in table.column_iter_mut().enumerate() {
        // None after the last column, where it would be trailing blanks.
        column.set_padding((0, if index + 1 < header.len() { 2 } else { 0 }));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table
}

/// Formats a time in three or four characters and a unit.
pub(crate) fn time(ns: u64) -> String {
    match ns as f64 {
        ns if ns < 999.5 => format!("{ns:.0} ns"),
        ns if ns < 999_500.0 => format!("{:.1} us", ns / 1e3),
        ns if ns < 999_500_000.0 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// Formats a count in at most five characters.
pub(crate) fn count(n: u64) -> String {
    match n as f64 {
        _ if n < 100_000 => n.to_string(),
        n if n < 999_500.0 => format!("{:.0}k", n / 1e3),
        n if n < 999_500_000.0 => format!("{:.1}M", n / 1e6),
        n => format!("{:.1}G", n / 1e9),
    }
}

/// Formats a count with the singular or plural: `1 latch`, `2 latches`.
pub(crate) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// Formats a number of bytes in at most nine characters.
pub(crate) fn bytes(n: u64) -> String {
    match n as f64 {
        n if n < 9999.5 => format!("{n:.0} B"),
        n if n < 999_500.0 => format!("{:.1} kB", n / 1e3),
        n if n < 999_500_000.0 => format!("{:.1} MB", n / 1e6),
        n => format!("{:.1} GB", n / 1e9),
    }
}

/// Returns the last `width` characters of a text; the first of them is a mark if some are omitted.
pub(crate) fn tail(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    format!("~{}", text.chars().skip(length - width + 1).collect::<String>())
}

/// Returns the first `width` characters of a text; the last of them is a mark if some are omitted.
pub(crate) fn head(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    format!("{}~", text.chars().take(width - 1).collect::<String>())
}

/// Returns the part of a line that fits so many columns. Colour codes take none.
pub(crate) fn crop(line: &str, columns: usize) -> String {
    let (mut text, mut used, mut code) = (String::new(), 0, false);
    for char in line.chars() {
        if code || char == '\x1b' {
            // Up to the letter that ends it. Codes after the last column are kept, because they
            // reset colours.
            code = !(char.is_ascii_alphabetic());
            text.push(char);
        } else if used + width(char) <= columns {
            used += width(char);
            text.push(char);
        } else {
            used = columns;
        }
    }
    text
}

/// The columns of a character in a terminal: two for East Asian characters and pictures, none for
/// combining marks.
fn width(char: char) -> usize {
    match u32::from(char) {
        0x300..=0x36f | 0x200b..=0x200f | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff => 2,
        0xfe30..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300..=0x1faff => 2,
        0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// Checks that a file can be written, before the work whose result it will contain. Does not change
/// an existing file and leaves no new one. A dangling link is refused, because checking it would
/// create its target.
pub(crate) fn writable(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true);
    match options.open(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Err(_) if path.is_symlink() => {
            Err(io::Error::new(io::ErrorKind::NotFound, "a link to what is not there"))
        }
        // No other process intervenes: the removed file is the created one.
        Err(_) => options.create_new(true).open(path).and_then(|_| fs::remove_file(path)),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{chain, crop, plural, writable};

    #[test]
    fn a_cause_is_told_once() {
        let full = std::io::Error::other("the disk is full");
        let error = anyhow::Error::new(full).context("writing: the disk is full").context("a dump");
        assert_eq!(chain(&error), "a dump: writing: the disk is full");
        assert_eq!(chain(&anyhow::anyhow!("alone")), "alone");
    }

    #[test]
    fn asking_whether_a_file_can_be_written_changes_nothing() {
        let dir = std::env::temp_dir().join(format!("latchwork-writable-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let [file, none, link, dangling] =
            ["file", "none", "link", "dangling"].map(|name| dir.join(name));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        std::os::unix::fs::symlink("gone", &dangling).unwrap();
        assert!(writable(&file).is_ok() && writable(&link).is_ok() && writable(&none).is_ok());
        let refused = writable(&dangling).unwrap_err().to_string();
        assert!(refused.contains("link"), "{refused}");
        assert!(writable(&dir.join("no/file")).is_err() && writable(&dir).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"old");
        assert!(link.is_symlink() && dangling.is_symlink());
        assert!(!none.exists() && !dir.join("gone").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(plural(1, "latch", "latches"), "1 latch");
        assert_eq!(plural(0, "latch", "latches"), "0 latches");
        assert_eq!(plural(200_000, "time", "times"), "200k times");
    }

    #[test]
    fn a_line_is_cropped_by_what_is_seen_of_it() {
        assert_eq!(crop("abcdef", 4), "abcd");
        assert_eq!(crop("abc", 4), "abc");
        assert_eq!(crop("\x1b[1mab\x1b[0mcdef\x1b[0m", 3), "\x1b[1mab\x1b[0mc\x1b[0m");
        // Two columns do not fit into one; the following text is not shown either.
        assert_eq!(crop("a\u{4e00}b", 2), "a");
        assert_eq!(crop("a\u{4e00}b", 3), "a\u{4e00}");
        assert_eq!(crop("e\u{301}x", 1), "e\u{301}");
    }
}
