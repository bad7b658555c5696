//! A dump: tables as text, of one position of the log.
//!
//! ```text
//! latchwork dump 2              the format's number
//! page 8192                     bytes of a page of the store that it is of
//! at 123456                     the position of the log
//! key str                       the type of the keys of the table that follows
//! value u64                     the type of its values
//! version 3                     its schema version, if that is not 0
//! table fruit                   a name
//! \x02pear\x00 TAB \x03         a record: key and value
//! records 1                     how many the table has
//! end 1 1 crc32c 2b7c1a40       tables, records, and the CRC32C of all lines before
//! ```
//!
//! Bytes from space to `~` stand for themselves, but the backslash, which is `\\`; all others are
//! `\x` and two hexadecimal digits. So a tab is in a record's line, once, and in no other, and no
//! line of a table can pass for one of the format. A table whose types the store does not know has
//! no lines of types, nor has one of format 1, which is read as well. Tables are in the order of
//! their names, records in that of their keys.
//!
//! Nothing that a dump says is believed: a line has a bound, each count is counted again, and what
//! is out of order, twice there, or behind the end is refused by its line's number. What is damaged
//! so that each line still is one is found by the checksum, which only the last line has: a reader
//! that wants to know before it uses anything reads a dump twice ([`DumpReader::check`]).

use core::fmt;
use std::io::{self, BufRead, Read, Write};

use latchwork_disk::crc32c_append;

use crate::{Error, KEY_MAX, TableInfo, VALUE_MAX};

/// The format that is written, and the last one that is read. Format 1 has no types.
const FORMAT: u64 = 2;
const TITLE: &str = "latchwork dump ";
/// The longest line that is no record's, and the longest key, in bytes, and more.
const SHORT_MAX: usize = 1 << 19;
/// The longest line: the longest key and value, each byte of them escaped, a tab, an end.
const LINE_MAX: usize = 4 * (KEY_MAX + VALUE_MAX) + 2;

/// Why a dump was not written, or not read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DumpError {
    /// The system did not read or write it.
    Io {
        /// The kind.
        kind: io::ErrorKind,
        /// What it said.
        why: String,
    },
    /// The store failed.
    Store(Error),
    /// The first line is not that of a dump.
    NotADump,
    /// The dump has a format that is not known here.
    Version {
        /// The dump's.
        found: u64,
        /// The one known here.
        known: u64,
    },
    /// A line is not what may stand there.
    Line {
        /// Its number, from 1 on.
        line: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It ends before its last line: so many lines are whole.
    Truncated {
        /// How many.
        lines: u64,
    },
    /// Each line is one, but they are not those that were written.
    Checksum {
        /// What the last line says.
        said: u32,
        /// What the lines give.
        found: u32,
    },
    /// There is no table of that name.
    NoTable {
        /// The name.
        table: String,
    },
    /// A table has records, and was to be loaded into as an empty one.
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

/// What a dump has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpSummary {
    /// The position of the log that it is of.
    pub at: u64,
    /// Bytes of a page of the store that it is of.
    pub page: u32,
    /// How many tables.
    pub tables: u64,
    /// How many records.
    pub records: u64,
    /// How many bytes of text.
    pub bytes: u64,
    /// The CRC32C of all lines but the last.
    pub checksum: u32,
}

/// Adds bytes as a dump has them.
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

/// The bytes that `escape` was given; none if it never wrote this.
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

/// Writes a dump: the tables in order, and in each its records in order.
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
    /// Records of the present table.
    here: Option<u64>,
}

impl<W: Write> DumpWriter<W> {
    /// Begins a dump of a store with pages of so many bytes, at a position of its log.
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

    /// Writes the line, and its end.
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

    /// Begins a table without types, whose name is greater than those before.
    ///
    /// # Errors
    ///
    /// [`DumpError::Io`].
    pub fn table(&mut self, name: &str) -> Result<(), DumpError> {
        self.table_of(&TableInfo { name: name.to_owned(), ..TableInfo::default() })
    }

    /// Begins a table with its types and its schema version. The name is greater than those before.
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

    /// Writes a record, whose key is greater than those before.
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

    /// Writes the last line. What was written to comes back, flushed.
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

    /// What is written so far.
    pub fn summary(&self) -> DumpSummary {
        self.summary
    }
}

/// What a dump has next.
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

/// Reads a dump that may be anything: see [`DumpWriter`] for an example.
#[derive(Debug)]
pub struct DumpReader<R: BufRead> {
    from: R,
    line: Vec<u8>,
    lines: u64,
    summary: DumpSummary,
    /// The present table, the records so far and the last key.
    table: Option<(Vec<u8>, u64, Option<Vec<u8>>)>,
    /// What is known of the next table.
    next: TableInfo,
    /// Whether the table's records were counted.
    closed: bool,
    over: bool,
}

impl<R: BufRead> DumpReader<R> {
    /// Reads what a dump begins with.
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

    /// The next line, without its end.
    fn next_line(&mut self) -> Result<&[u8], DumpError> {
        self.line.clear();
        let mut most = SHORT_MAX;
        Read::take(&mut self.from, most as u64).read_until(b'\n', &mut self.line)?;
        // That of a record may be longer; no more memory is taken for it than it has of text.
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
        // The last line is not part of what it has the checksum of.
        if !self.line.starts_with(b"end ") || self.line.contains(&b'\t') {
            self.summary.checksum = crc32c_append(self.summary.checksum, &self.line);
        }
        self.summary.bytes += self.line.len() as u64;
        Ok(&self.line[..self.line.len() - 1])
    }

    /// What comes next; none behind the last record, when all counts and the checksum are right.
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

    /// A line that is no record's.
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

    /// A line about the table that comes next; false if it is another one.
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

    /// What was read so far; all of the dump after [`next_item`](Self::next_item) gave none.
    pub fn summary(&self) -> DumpSummary {
        self.summary
    }

    /// Reads all of it, and says what it has.
    ///
    /// # Errors
    ///
    /// As [`next_item`](Self::next_item).
    pub fn check(mut self) -> Result<DumpSummary, DumpError> {
        while self.next_item()?.is_some() {}
        Ok(self.summary)
    }
}

/// A number as it is written: digits alone, and no zero in front.
fn number(text: &[u8]) -> Option<u64> {
    let digits =
        text.iter().all(u8::is_ascii_digit) && (text.len() == 1 || !text.starts_with(b"0"));
    core::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}
