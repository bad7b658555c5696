//! Plain English: phrases that manuals of databases do not use, counted in pages and comments.
//!
//! A phrase is a sign and not the fault: rewrite the sentence, with its subject first.

use std::collections::BTreeSet;
use std::path::Path;

use regex::{Regex, RegexBuilder};

use crate::sources::{compare, files, read, root, short};

/// Phrases in a thousand words of one file, if it has so many words.
const MOST: f64 = 6.0;
const WORDS: usize = 300;

/// Phrases in a thousand words of all files together.
const MOST_OF_ALL: f64 = 2.0;

/// Each with what to write in its place. A match with the group `fine` does not count.
const PHRASES: &[(&str, &str)] = &[
    (r"\banew\b", "again, rebuild"),
    (r"\bbeside\b", "next to, compared with, concurrently with"),
    (r"\b(is|are|was|were|be) told\b|\btells? (nobody|it|them|of|what|why|who)\b", "reports"),
    (r"\bputs? (it |this |that |them |what )?right\b|\bmend(s|ed|ing)?\b", "repair, restore"),
    (r"\bnobody\b", "no process, no thread, never"),
    (r"\bthe dead\b|\bdead one\b|\bcorpses?\b", "killed process, dead process"),
    (
        r"(^|[.;:(,]\s+|\b(or|and|by|of|for|to|from|than|if) )who(ev\x65r)?\b(?<fine> (is|are) (this|that))?",
        "name the subject",
    ),
    (r"\bthat one\b|\bone that\b|\bthose that\b", "name the subject"),
    (r"\bof which\b|\bof whom\b", "standard order"),
    (r"\b(is|are|was|were) to (be|have|go|do|come|make|wait|undo|write|read)\b", "must, will"),
    (
        r"\b(goes|go|went)\b(?<fine> (to|through|into|back|down|up)\b)?",
        "is removed, is released, exits",
    ),
    (r"\bto be had\b|\bnot had\b|\bis had\b|\bcan be had\b|\bis there\b|\bare there\b", "exists"),
    (
        r"\bas a rule\b|\bnow and then\b|\ball the same\b|\bnevertheless\b|\bmeanwhile\b",
        "usually; while",
    ),
    (r", for (it|the|that|they|this|what|a|no|nobody|its|those|one|each|there)\b", "because"),
    (r"(^|[.;:]\s+)What \w+", "name the subject"),
    (r", too\b", "also"),
    (r"\bthus\b|\blest\b|\bbe it\b", "so"),
    (r"\bat it\b|\bby then\b|\bjust (being|making|at|opening)\b", "name the action"),
];

fn phrases() -> Vec<(Regex, &'static str)> {
    let regex =
        |pattern| RegexBuilder::new(pattern).case_insensitive(true).multi_line(true).build();
    PHRASES.iter().map(|(pattern, say)| (regex(pattern).unwrap(), *say)).collect()
}

/// The text of a page without its programs, or the comments of a source.
fn prose(path: &Path) -> String {
    let (text, source) = (read(path), path.extension().is_some_and(|ending| ending == "rs"));
    let (mut prose, mut program) = (String::new(), false);
    for line in text.lines() {
        let line = match line.trim_start().strip_prefix("//") {
            Some(comment) if source => comment.trim_start_matches(['/', '!']),
            _ if source => continue,
            _ => line,
        };
        if line.trim_start().starts_with("```") {
            program = !program;
        } else if !program {
            prose.push_str(line.strip_prefix(' ').unwrap_or(line));
            prose.push('\n');
        }
    }
    prose
}

/// How many phrases a text has, and how many words.
fn count(text: &str, phrases: &[(Regex, &str)]) -> (usize, usize) {
    let of = |regex: &Regex| {
        let names = regex.capture_names().flatten().any(|name| name == "fine");
        let is_fine = |found: &regex::Captures<'_>| names && found.name("fine").is_some();
        regex.captures_iter(text).filter(|found| !is_fine(found)).count()
    };
    let is_word = |word: &&str| word.starts_with(|c: char| c.is_ascii_alphabetic());
    let words = text.split(|c: char| !c.is_ascii_alphabetic() && c != '\'').filter(is_word);
    (phrases.iter().map(|(regex, _)| of(regex)).sum(), words.count())
}

#[test]
fn english_is_plain() {
    let phrases = phrases();
    let control = "Who goes told nobody. It goes to sleep, for it is late, beside the dead one.";
    assert_eq!(count(control, &phrases).0, 6);
    assert_eq!(count("A killed process holds no lock. Readers never block.", &phrases), (0, 9));
    let (mut found, mut all) = (BTreeSet::new(), (0, 0));
    for path in files(&root(), ".rs").into_iter().chain(files(&root(), ".md")) {
        if path.ends_with("house/prose.rs") {
            continue;
        }
        let (marks, words) = count(&prose(&path), &phrases);
        all = (all.0 + marks, all.1 + words);
        if words >= WORDS && 1000.0 * marks as f64 > MOST * words as f64 {
            found.insert(short(&path));
        }
    }
    let rate = 1000.0 * all.0 as f64 / all.1 as f64;
    println!("{rate:.1} phrases in 1,000 words, {} files above {MOST}", found.len());
    for (phrase, say) in PHRASES {
        println!("{say}: {phrase}");
    }
    assert!(rate <= MOST_OF_ALL, "{rate:.1} phrases in 1,000 words, and {MOST_OF_ALL} at most");
    compare("prose", &found);
}
