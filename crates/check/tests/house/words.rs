//! One word for one thing: the words that the project does not use for what has a name in the
//! field.

use std::collections::BTreeSet;

use crate::sources::{compare, files, read, root, short, words};

/// Each word in the forms in which it stands, and what to say instead.
const WORDS: &[(&[&str], &str)] = &[
    (&["ring", "rings"], "cycle, deadlock; circular log; corrupt list"),
    (&["bell", "bells"], "notifier; wake list"),
    (&["deed", "deeds"], "operation, BatchOp"),
    (&["seat", "seats"], "reservation; request counter"),
    (&["mend", "mends", "mended", "mending"], "repair"),
    (&["bury", "buries", "buried", "bequeath", "bequeathed"], "release dead owners"),
    (&["corpse", "corpses"], "the dead; sweep"),
    (&["sacrifice", "sacrificed", "doom", "doomed", "dooms"], "abort the victim"),
    (&["verdict", "verdicts"], "deadlock report"),
    (&["soften", "softened", "softening"], "reorder"),
    (&["wish", "wishes", "wished"], "waiter, waiting request"),
    (&["dear", "dearer"], "expensive, heavy"),
    (&["monitor", "monitors"], "Condvar"),
    (&["whoever"], "name the subject: the thread that.."),
];

fn forbidden(text: &str) -> BTreeSet<String> {
    words(text).filter(|word| WORDS.iter().any(|(not, _)| not.contains(&word.as_str()))).collect()
}

#[test]
fn one_word_for_one_thing() {
    let control = forbidden("fn mend_list(deeds: BatchDeed) {} // a ring-buffer, or a string");
    assert_eq!(control.into_iter().collect::<Vec<_>>(), ["deed", "deeds", "mend", "ring"]);
    let mut found = BTreeSet::new();
    for ending in [".rs", ".md"] {
        for path in files(&root(), ending) {
            // The list itself.
            if path.ends_with("house/words.rs") || path.ends_with("CHANGELOG.md") {
                continue;
            }
            let said = forbidden(&read(&path));
            found.extend(said.iter().map(|word| format!("{} {word}", short(&path))));
        }
    }
    for (not, say) in WORDS {
        let files =
            found.iter().filter(|line| not.iter().any(|w| line.ends_with(&format!(" {w}"))));
        println!("{}: {} times; say {say}", not.join(", "), files.count());
    }
    compare("word", &found);
}
