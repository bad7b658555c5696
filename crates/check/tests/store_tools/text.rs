//! Dumps as text, also with random contents.

use latchwork_check::dump_bytes::{Tables, exercise, read, sound, written};
use latchwork_check::random::Random;
use latchwork_store::{DumpError, DumpReader};

fn bytes(random: &mut Random, longest: u64) -> Vec<u8> {
    (0..random.below(longest)).map(|_| random.below(256) as u8).collect()
}

fn tables(random: &mut Random) -> Tables {
    let mut tables: Tables = (0..random.below(4))
        .map(|_| {
            let mut records: Vec<_> =
                (0..random.below(12)).map(|_| (bytes(random, 9), bytes(random, 30))).collect();
            records.sort();
            records.dedup_by(|one, other| one.0 == other.0);
            (String::from_utf8_lossy(&bytes(random, 8)).into_owned(), records)
        })
        .collect();
    tables.sort();
    tables.dedup_by(|one, other| one.0 == other.0);
    tables
}

#[test]
fn a_written_dump_is_read() {
    let mut random = Random(7);
    for round in 0..500 {
        let tables = tables(&mut random);
        let (text, summary) = written(&tables, 4096, round * 16);
        let (read, found) = read(&text).unwrap();
        assert_eq!((read, found), (tables, summary));
        assert!(text.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\t')));
        assert_eq!(summary.bytes, text.len() as u64);
    }
}

#[test]
fn a_dump_truncated_anywhere_is_an_error() {
    let text = sound();
    for length in 0..text.len() {
        let why = read(&text[..length]).unwrap_err();
        let cut = matches!(why, DumpError::Truncated { .. } | DumpError::NotADump);
        assert!(cut, "of {length} bytes: {why}");
    }
}

#[test]
fn every_changed_byte_is_detected() {
    let text = sound();
    let mut random = Random(11);
    for at in 0..text.len() {
        for other in [
            b'\n',
            b'\t',
            b'\\',
            b' ',
            text[at] ^ 1,
            text[at] ^ 0x80,
            b'0',
            random.below(256) as u8,
        ] {
            let mut changed = text.clone();
            changed[at] = other;
            let found = read(&changed);
            assert_eq!(found.is_ok(), changed == text, "byte {at} as {other}: {found:?}");
        }
    }
}

/// The short form of the fuzz target `dump`.
#[test]
fn any_bytes_are_a_dump_or_an_error() {
    let text = sound();
    let mut random = Random(13);
    for _ in 0..4000 {
        let mut changed = text.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(changed.len() as u64) as usize;
            let end = (at + random.below(40) as usize).min(changed.len());
            match random.below(5) {
                0 => drop(changed.drain(at..end)),
                1 => drop(changed.splice(at..at, bytes(&mut random, 20))),
                2 => changed.extend_from_within(at..end),
                3 => changed[at] = random.below(256) as u8,
                _ => drop(changed.splice(at..at, text[at.min(text.len() - 1)..].iter().copied())),
            }
            if changed.is_empty() {
                break;
            }
        }
        exercise(&changed);
        exercise(&bytes(&mut random, 200));
    }
}

/// Valid lines with a correct checksum that do not form a dump.
#[test]
fn invalid_lines_are_refused_with_their_number() {
    let refused = |lines: &[&str], at: u64| {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let sum = latchwork_disk::crc32c(body.as_bytes());
        for end in ["end 1 1", "end 1 0", "end 1 2", "end 2 0", "end 0 0", "end 2 1"] {
            let text = format!("{body}{end} crc32c {sum:08x}\n");
            match read(text.as_bytes()) {
                Err(DumpError::Line { line, .. }) => assert_eq!(line, at, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    };
    let head = ["latchwork dump 1", "page 8192", "at 64"];
    let with = |rest: &[&'static str]| [&head[..], rest].concat();
    refused(&with(&["a\tb"]), 4);
    refused(&with(&["table t", "b\t", "a\t", "records 2"]), 6);
    refused(&with(&["table t", "a\t", "a\t", "records 2"]), 6);
    refused(&with(&["table t", "a\t", "records 2"]), 6);
    refused(&with(&["table t", "records 01"]), 5);
    refused(&with(&["table t", "a\t", "table u", "records 0"]), 6);
    refused(&with(&["table t", "records 0", "table t", "records 0"]), 6);
    refused(&with(&["table t", "records 0", "a\tb"]), 6);
    refused(&with(&["table t", "records 0", "records 0"]), 6);
    refused(&with(&["table \\xff", "records 0"]), 4);
    refused(&with(&["table t", "\\xFF\t"]), 5);
    refused(&with(&["table t", "a\t\u{e9}"]), 5);
    refused(&with(&["table t", "a\tb\tc"]), 5);
    refused(&with(&["table t", "a", "records 0"]), 5);
    refused(&with(&["key str", "table t", "records 0"]), 5);
    refused(&with(&["key str", "key str", "value u64", "table t", "records 0"]), 5);
    refused(&with(&["version 0", "table t", "records 0"]), 4);
    refused(&with(&["table t", "version 1", "records 0"]), 5);
    refused(&with(&["table t", "records 0", "key str"]), 7);
    refused(&["latchwork dump 1", "page x", "at 64"], 2);
    refused(&["latchwork dump 1", "page 8192", "at -1"], 3);
    let long = format!("table t\n{}\t\n", "a".repeat(1901));
    let text = format!("{}\n{long}", head.join("\n"));
    assert!(matches!(read(text.as_bytes()), Err(DumpError::Line { line: 5, .. })));
    let endless = format!("{}\ntable {}", head.join("\n"), "a".repeat(2 << 20));
    assert!(matches!(read(endless.as_bytes()), Err(DumpError::Line { line: 4, .. })));
}

#[test]
fn another_format_is_named_in_the_error() {
    let newer = DumpReader::new(&b"latchwork dump 3\nwhatever"[..]).err();
    assert_eq!(newer, Some(DumpError::Version { found: 3, known: 2 }));
    for other in ["", "\n", "VERSION=3\n", "latchwork dump \n", "latchwork dump one\n"] {
        assert_eq!(DumpReader::new(other.as_bytes()).err(), Some(DumpError::NotADump), "{other:?}");
    }
    let mut behind = sound();
    behind.push(b'\n');
    assert!(matches!(read(&behind), Err(DumpError::Line { .. })));
}
