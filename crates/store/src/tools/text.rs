//! The text format of a dump: the tables of a store at one position of the log.
//!
//! ```text
//! latchwork dump 2              the number of the format
//! page 8192                     page size of the store, in bytes
//! at 123456                     the position of the log
//! key str                       the type of the keys of the following table
//! value u64                     the type of its values
//! version 3                     its schema version, if that is not 0
//! table fruit                   its name
//! \x02pear\x00 TAB \x03         a record: key and value
//! records 1                     the number of its records
//! end 1 1 crc32c 2b7c1a40       tables, records, and the CRC32C of all lines before
//! ```
//!
//! Bytes from space to `~` stand for themselves, except the backslash, which is `\\`. All other
//! bytes are `\x` and two hexadecimal digits. So the line of a record contains exactly one tab, and
//! no other line contains any: a record cannot be confused with a line of the format. A table
//! without recorded types has no type lines, and neither has a table in format 1, which can also be
//! read. Tables are in the order of their names, records in the order of their keys.
//!
//! A reader trusts nothing in a dump. Lines have a maximum length, every count is verified, and
//! anything out of order, duplicate, or after the end is refused with its line number. Damage that
//! leaves every line valid is detected by the checksum in the last line. A reader that must know
//! before it uses the data reads the dump twice ([`DumpReader::check`]).

use core::fmt;
use std::io::{self, BufRead, Read, Write};

use latchwork_disk::crc32c_append;

use crate::{Error, KEY_MAX, TableInfo, VALUE_MAX};

/// The format that is written, and the latest readable one. Format 1 has no types.
const FORMAT: u64 = 2;
const TITLE: &str = "latchwork dump ";
/// Maximum length in bytes of a line that is not a record, and of an escaped key.
const SHORT_MAX: usize = 1 << 19;
/// Maximum length of a line: the longest key and value, with each byte escaped, a tab and a line
/// end.
const LINE_MAX: usize = 4 * (KEY_MAX + VALUE_MAX) + 2;

/// Why a dump could not be written or read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DumpError {
    /// The system failed to read or write it.
    Io {
        /// The kind.
        kind: io::ErrorKind,
        /// The message of the system.
        why: String,
    },
    /// The store failed.
    Store(Error),
    /// The first line is not that of a dump.
    NotADump,
    /// The dump has an unknown format.
    Version {
        /// The format of the dump.
        found: u64,
        /// The latest format that this program reads.
        known: u64,
    },
    /// A line is not valid at its place.
    Line {
        /// Its number, from 1.
        line: u64,
        /// The error.
        what: &'static str,
    },
    /// The dump ends before its last line.
    Truncated {
        /// The number of complete lines.
        lines: u64,
    },
    /// All lines are valid, but they differ from the written ones.
    Checksum {
        /// The checksum in the last line.
        said: u32,
        /// The checksum of the lines.
        found: u32,
    },
    /// No table of that name exists.
    NoTable {
        /// The name.
        table: String,
    },
    /// A table to be loaded contains records.
    NotEmpty {
        /// Its name.
        table: String,
    },
}

impl From<io::Error> for DumpError {
    fn from(why: io::Error) -> Self {
        Self::Io { kind: why.kind(), why: why.to_string() }
    }
}

impl From<Error> for DumpError {
    fn from(why: Error) -> Self {
        Self::Store(why)
    }
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { why, .. } => f.write_str(why),
            Self::Store(why) => why.fmt(f),
            Self::NotADump => f.write_str("this is no dump: its first line is another"),
            Self::Version { found, known } => {
                write!(f, "the dump has format {found}, known here is {known}")
            }
            Self::Line { line, what } => write!(f, "the dump is damaged: line {line}: {what}"),
            Self::Truncated { lines } => {
                write!(f, "the dump is cut off: it ends after line {lines}, and has no last line")
            }
            Self::Checksum { said, found } => {
                write!(f, "the dump is damaged: its checksum is {found:08x}, and was {said:08x}")
            }
            Self::NoTable { table } => write!(f, "there is no table {table}"),
            Self::NotEmpty { table } => {
                write!(f, "the table {table} has records; merge the dump into it, or remove them")
            }
        }
    }
}

impl core::error::Error for DumpError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Store(why) => Some(why),
            _ => None,
        }
    }
}

/// A summary of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpSummary {
    /// The position of the log.
    pub at: u64,
    /// The page size of the store, in bytes.
    pub page: u32,
    /// The number of tables.
    pub tables: u64,
    /// The number of records.
    pub records: u64,
    /// The number of bytes of text.
    pub bytes: u64,
    /// The CRC32C of all lines but the last.
    pub checksum: u32,
}

/// Appends bytes in escaped form.
fn escape(bytes: &[u8], to: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for &byte in bytes {
        match byte {
            b'\\' => to.extend_from_slice(b"\\\\"),
            b' '..=b'~' => to.push(byte),
            _ => {
                let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
                to.extend_from_slice(&[b'\\', b'x', DIGITS[high], DIGITS[low]]);
            }
        }
    }
}

/// Reverses `escape`; `None` if the text is not a possible result of it.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'\\', [b'\\', after @ ..]) => {
                bytes.push(b'\\');
                after
            }
            (b'\\', [b'x', high, low, after @ ..]) => {
                bytes.push(digit(*high)? << 4 | digit(*low)?);
                after
            }
            (b'\\', _) => return None,
            (b' '..=b'~', after) => {
                bytes.push(*first);
                after
            }
            _ => return None,
        };
    }
    Some(bytes)
}

/// Writes a dump: tables in the order of their names, and in each its records in the order of their
/// keys.
///
/// # Examples
///
/// ```
/// use latchwork_store::{DumpItem, DumpReader, DumpWriter};
///
/// let mut dump = DumpWriter::new(Vec::new(), 8192, 64)?;
/// dump.table("fruit")?;
/// dump.record(b"pear", b"\x03")?;
/// let (text, written) = dump.finish()?;
/// assert!(text.starts_with(b"latchwork dump 2\n"));
///
/// let mut again = DumpReader::new(&text[..])?;
/// assert!(matches!(again.next_item()?, Some(DumpItem::Table(table)) if table.name == "fruit"));
/// let pear = DumpItem::Record { key: b"pear".to_vec(), value: vec![3] };
/// assert_eq!(again.next_item()?, Some(pear));
/// assert_eq!(again.next_item()?, None);
/// assert_eq!(again.summary(), written);
/// # Ok::<(), latchwork_store::DumpError>(())
/// ```
#[derive(Debug)]
pub struct DumpWriter<W: Write> {
    to: W,
    line: Vec<u8>,
    summary: DumpSummary,
    /// The number of records in the current table.
    here: Option<u64>,
}

impl<W: Write> DumpWriter<W> {
    /// Begins a dump of a store with this page size, at a position of its log.
    ///
    /// # Errors
    ///
    /// [`DumpError::Io`].
    pub fn new(to: W, page: u32, at: u64) -> Result<Self, DumpError> {
        let summary = DumpSummary { page, at, ..DumpSummary::default() };
        let mut dump = Self { to, line: Vec::new(), summary, here: None };
        dump.say(&format!("{TITLE}{FORMAT}"))?;
        dump.say(&format!("page {page}"))?;
        dump.say(&format!("at {at}"))?;
        Ok(dump)
    }

    fn say(&mut self, line: &str) -> Result<(), DumpError> {
        self.line.clear();
        self.line.extend_from_slice(line.as_bytes());
        self.put()
    }

    /// Writes the line and its end.
    fn put(&mut self) -> Result<(), DumpError> {
        self.line.push(b'\n');
        self.summary.checksum = crc32c_append(self.summary.checksum, &self.line);
        self.summary.bytes += self.line.len() as u64;
        Ok(self.to.write_all(&self.line)?)
    }

    fn end_table(&mut self) -> Result<(), DumpError> {
        match self.here.take() {
            Some(records) => self.say(&format!("records {records}")),
            None => Ok(()),
        }
    }

    /// Begins a table without types. Its name must be greater than the previous one.
    ///
    /// # Errors
    ///
    /// [`DumpError::Io`].
    pub fn table(&mut self, name: &str) -> Result<(), DumpError> {
        self.table_of(&TableInfo { name: name.to_owned(), ..TableInfo::default() })
    }

    /// Begins a table with its types and its schema version. Its name must be greater than the
    /// previous one.
    ///
    /// # Errors
    ///
    /// [`DumpError::Io`].
    pub fn table_of(&mut self, table: &TableInfo) -> Result<(), DumpError> {
        self.end_table()?;
        let TableInfo { name, key, value, version, .. } = table;
        for (word, of) in [("key ", key), ("value ", value)] {
            let Some(of) = of else { continue };
            self.line.clear();
            self.line.extend_from_slice(word.as_bytes());
            escape(of.as_bytes(), &mut self.line);
            self.put()?;
        }
        if *version != 0 {
            self.say(&format!("version {version}"))?;
        }
        self.line.clear();
        self.line.extend_from_slice(b"table ");
        escape(name.as_bytes(), &mut self.line);
        self.put()?;
        self.summary.tables += 1;
        self.here = Some(0);
        Ok(())
    }

    /// Writes a record. Its key must be greater than the previous one.
    ///
    /// # Errors
    ///
    /// [`DumpError::Io`].
    pub fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), DumpError> {
        self.line.clear();
        escape(key, &mut self.line);
        self.line.push(b'\t');
        escape(value, &mut self.line);
        self.put()?;
        self.summary.records += 1;
        if let Some(here) = &mut self.here {
            *here += 1;
        }
        Ok(())
    }

    /// Writes the last line. Returns the flushed writer, and a summary of the dump.
    ///
    /// # Errors
    ///
    /// [`DumpError::Io`].
    pub fn finish(mut self) -> Result<(W, DumpSummary), DumpError> {
        self.end_table()?;
        let DumpSummary { tables, records, checksum, .. } = self.summary;
        self.say(&format!("end {tables} {records} crc32c {checksum:08x}"))?;
        self.summary.checksum = checksum;
        self.to.flush()?;
        Ok((self.to, self.summary))
    }

    /// Returns a summary of what is written so far.
    pub fn summary(&self) -> DumpSummary {
        self.summary
    }
}

/// The next item of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpItem {
    /// A table begins.
    Table(TableInfo),
    /// A record of the table.
    Record {
        /// Its key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
}

/// Reads a dump, which may be damaged or malicious: see [`DumpWriter`] for an example.
#[derive(Debug)]
pub struct DumpReader<R: BufRead> {
    from: R,
    line: Vec<u8>,
    lines: u64,
    summary: DumpSummary,
    /// The current table, the number of its records so far, and the last key.
    table: Option<(Vec<u8>, u64, Option<Vec<u8>>)>,
    /// The types of the next table, as read so far.
    next: TableInfo,
    /// Whether the table's count of records was read.
    closed: bool,
    over: bool,
}

impl<R: BufRead> DumpReader<R> {
    /// Reads the beginning of a dump.
    ///
    /// # Errors
    ///
    /// [`DumpError::NotADump`], [`DumpError::Version`]; those of [`next_item`](Self::next_item).
    pub fn new(from: R) -> Result<Self, DumpError> {
        let mut dump = Self {
            from,
            line: Vec::new(),
            lines: 0,
            summary: DumpSummary::default(),
            table: None,
            next: TableInfo::default(),
            closed: true,
            over: false,
        };
        let title = dump.next_line().map_err(|why| match why {
            DumpError::Line { .. } | DumpError::Truncated { .. } => DumpError::NotADump,
            other => other,
        })?;
        let title = title.strip_prefix(TITLE.as_bytes()).ok_or(DumpError::NotADump)?;
        let found = number(title).ok_or(DumpError::NotADump)?;
        if !(1..=FORMAT).contains(&found) {
            return Err(DumpError::Version { found, known: FORMAT });
        }
        let page = number(dump.next_line()?.strip_prefix(b"page ").unwrap_or_default());
        let page = page.and_then(|page| u32::try_from(page).ok());
        dump.summary.page = page.ok_or_else(|| dump.wrong("no size of a page"))?;
        let at = number(dump.next_line()?.strip_prefix(b"at ").unwrap_or_default());
        dump.summary.at = at.ok_or_else(|| dump.wrong("no position of a log"))?;
        Ok(dump)
    }

    fn wrong(&self, what: &'static str) -> DumpError {
        DumpError::Line { line: self.lines, what }
    }

    /// Reads the next line, without its end.
    fn next_line(&mut self) -> Result<&[u8], DumpError> {
        self.line.clear();
        let mut most = SHORT_MAX;
        Read::take(&mut self.from, most as u64).read_until(b'\n', &mut self.line)?;
        // The line of a record may be longer. The buffer grows only with the text that was read.
        let mut seen = 0;
        while self.line.len() == most
            && most < LINE_MAX
            && self.line.contains(&b'\t')
            && self.line[seen..].iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        {
            seen = most;
            most = LINE_MAX.min(2 * most);
            let rest = (most - seen) as u64;
            Read::take(&mut self.from, rest).read_until(b'\n', &mut self.line)?;
        }
        if self.line.last() == Some(&b'\n') {
            self.lines += 1;
        } else if self.line.len() == most {
            self.lines += 1;
            return Err(self.wrong("it is longer than any line of a dump, or no text"));
        } else {
            return Err(DumpError::Truncated { lines: self.lines });
        }
        // The checksum does not include the last line.
        if !self.line.starts_with(b"end ") || self.line.contains(&b'\t') {
            self.summary.checksum = crc32c_append(self.summary.checksum, &self.line);
        }
        self.summary.bytes += self.line.len() as u64;
        Ok(&self.line[..self.line.len() - 1])
    }

    /// Returns the next item, or `None` after the last record if all counts and the checksum match.
    ///
    /// # Errors
    ///
    /// [`DumpError::Line`], [`DumpError::Truncated`], [`DumpError::Checksum`]; [`DumpError::Io`].
    pub fn next_item(&mut self) -> Result<Option<DumpItem>, DumpError> {
        while !self.over {
            self.next_line()?;
            let line = core::mem::take(&mut self.line);
            let text = &line[..line.len() - 1];
            let item = match text.iter().position(|byte| *byte == b'\t') {
                Some(tab) => self.record(&text[..tab], &text[tab + 1..]).map(Some),
                None => self.other(text),
            };
            self.line = line;
            if let Some(item) = item? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<DumpItem, DumpError> {
        let unknown = self.wrong("bytes that are not escaped as a dump has them");
        let (Some(key), Some(value)) = (unescape(key), unescape(value)) else {
            return Err(unknown);
        };
        if key.len() > KEY_MAX {
            return Err(self.wrong("a key that is too long"));
        }
        let (early, order) = (self.wrong("a record of no table"), self.wrong("not in order"));
        let table = self.table.as_mut().filter(|_| !self.closed);
        let (_, records, last) = table.ok_or(early)?;
        if last.as_ref().is_some_and(|last| *last >= key) {
            return Err(order);
        }
        *last = Some(key.clone());
        *records += 1;
        self.summary.records += 1;
        Ok(DumpItem::Record { key, value })
    }

    /// Handles a line that is not a record.
    fn other(&mut self, line: &[u8]) -> Result<Option<DumpItem>, DumpError> {
        if self.about_next(line)? {
            return Ok(None);
        }
        if let Some(name) = line.strip_prefix(b"table ") {
            let name = unescape(name).ok_or_else(|| self.wrong("a name that is not escaped"))?;
            let text = String::from_utf8(name.clone()).map_err(|_| self.wrong("no name"))?;
            if !self.closed {
                return Err(self.wrong("the table before has no count"));
            }
            if self.table.as_ref().is_some_and(|(last, ..)| *last >= name) {
                return Err(self.wrong("not in order"));
            }
            self.table = Some((name, 0, None));
            self.closed = false;
            self.summary.tables += 1;
            let next = core::mem::take(&mut self.next);
            if next.key.is_some() != next.value.is_some() {
                return Err(self.wrong("a table with one of its two types"));
            }
            return Ok(Some(DumpItem::Table(TableInfo { name: text, ..next })));
        }
        if let Some(count) = line.strip_prefix(b"records ") {
            let here = self.table.as_ref().filter(|_| !self.closed).map(|table| table.1);
            if number(count).is_none_or(|count| Some(count) != here) {
                return Err(self.wrong("the table has another number of records"));
            }
            self.closed = true;
            return Ok(None);
        }
        if self.next != TableInfo::default() {
            return Err(self.wrong("types of no table"));
        }
        match line.strip_prefix(b"end ") {
            Some(end) => self.end(end).map(|()| None),
            None => Err(self.wrong("no line of a dump")),
        }
    }

    /// Handles a line about the next table; returns false for any other line.
    fn about_next(&mut self, line: &[u8]) -> Result<bool, DumpError> {
        let word = line.iter().position(|byte| *byte == b' ').map_or(0, |space| space + 1);
        let (word, of) = line.split_at(word);
        if ![&b"key "[..], b"value ", b"version "].contains(&word) {
            return Ok(false);
        }
        if !self.closed {
            return Err(self.wrong("the table before has no count"));
        }
        let wrong = self.wrong("no type, or no schema version");
        match word {
            b"version " => {
                let version = number(of).and_then(|version| u32::try_from(version).ok());
                self.next.version = version.filter(|version| *version != 0).ok_or(wrong)?;
            }
            _ => {
                let text = unescape(of).and_then(|text| String::from_utf8(text).ok());
                let text = Some(text.ok_or_else(|| wrong.clone())?);
                let of = if word == b"key " { &mut self.next.key } else { &mut self.next.value };
                if of.is_some() {
                    return Err(wrong);
                }
                *of = text;
            }
        }
        Ok(true)
    }

    fn end(&mut self, line: &[u8]) -> Result<(), DumpError> {
        let text = core::str::from_utf8(line).map_err(|_| self.wrong("no last line"))?;
        let parts: Vec<_> = text.split(' ').collect();
        let [tables, records, "crc32c", said] = parts[..] else {
            return Err(self.wrong("no last line"));
        };
        let counted = number(tables.as_bytes()) == Some(self.summary.tables)
            && number(records.as_bytes()) == Some(self.summary.records);
        if !self.closed || !counted {
            return Err(self.wrong("the dump has another number of tables or records"));
        }
        let lower = said.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let said = u32::from_str_radix(said, 16).ok().filter(|_| lower && said.len() == 8);
        let said = said.ok_or_else(|| self.wrong("no checksum"))?;
        let found = self.summary.checksum;
        if said != found {
            return Err(DumpError::Checksum { said, found });
        }
        if !self.from.fill_buf()?.is_empty() {
            self.lines += 1;
            return Err(self.wrong("there is something behind the last line"));
        }
        self.over = true;
        Ok(())
    }

    /// Returns a summary of what was read so far; complete after [`next_item`](Self::next_item) has
    /// returned `None`.
    pub fn summary(&self) -> DumpSummary {
        self.summary
    }

    /// Reads all of the dump. Returns a summary.
    ///
    /// # Errors
    ///
    /// Those of [`next_item`](Self::next_item).
    pub fn check(mut self) -> Result<DumpSummary, DumpError> {
        while self.next_item()?.is_some() {}
        Ok(self.summary)
    }
}

/// Parses a number: digits without a leading zero.
fn number(text: &[u8]) -> Option<u64> {
    let digits =
        text.iter().all(u8::is_ascii_digit) && (text.len() == 1 || !text.starts_with(b"0"));
    core::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}
