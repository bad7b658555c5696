//! Dialogues between owners: which requests wait, for whom, and what ends each wait. The texts are
//! in `dialogues`.

use std::fs;
use std::path::{Path, PathBuf};

use latchwork_lockmgr::{Manager, Modes, Options};
use latchwork_machine::{ConstMachine, Native, Shared};
use latchwork_region::Region;

#[allow(unreachable_pub, reason = "a module of this test")]
use crate::dialogue::{Script, perform};

fn texts() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dialogues");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "txt"));
    paths.sort();
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

fn private(modes: &Modes, weak: bool) -> Manager<Native> {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    Manager::new(region, modes.clone(), Options { weak, ..latchwork_check::early::early() })
        .unwrap()
}

/// Runs all dialogues of a text; returns the first difference.
fn all<M: ConstMachine>(
    text: &str,
    manager: impl Fn(&Modes) -> Manager<M>,
) -> Result<usize, String> {
    let script: Script = text.parse()?;
    for lines in &script.dialogues {
        perform(&manager(&script.modes), &script, lines)?;
    }
    Ok(script.dialogues.len())
}

#[test]
fn each_dialogue_has_the_written_results() {
    let (mut files, mut dialogues, mut failed) = (0, 0, Vec::new());
    for (name, text) in texts() {
        files += 1;
        match all(&text, |modes| private(modes, true)) {
            Ok(count) => dialogues += count,
            Err(error) => failed.push(format!("{name}: {error}")),
        }
        // The results do not depend on which locks are kept in the owners' memory.
        if let Err(error) = all(&text, |modes| private(modes, false)) {
            failed.push(format!("{name}, nothing weak: {error}"));
        }
    }
    println!("{dialogues} dialogues in {files} files, {} failed", failed.len());
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(files >= 12 && dialogues >= 2 * 12, "{files} files, {dialogues} dialogues");
}

#[test]
fn dialogues_in_a_shared_file_have_the_written_results() {
    let path = std::env::temp_dir().join(format!("latchwork-dialogues-{}", std::process::id()));
    for (name, text) in texts() {
        let end = all(&text, |modes| {
            let region = Region::<Shared>::create(&path, &latchwork_region::Options::default());
            // The file is removed, but stays usable while it is open.
            fs::remove_file(&path).unwrap();
            Manager::new(region.unwrap(), modes.clone(), latchwork_check::early::early()).unwrap()
        });
        assert!(end.is_ok(), "{name}: {end:?}");
    }
}

/// An outcome that differs from the given one.
fn spoiled(outcome: &str) -> &'static str {
    if outcome.starts_with("waits") || outcome.starts_with("refused") { "granted" } else { "waits" }
}

/// Every outcome is checked: with any of them changed the dialogue fails.
#[test]
fn a_wrong_text_fails() {
    let (mut spoilt, mut passed) = (0, Vec::new());
    for (name, text) in texts() {
        let script: Script = text.parse().unwrap();
        for dialogue in &script.dialogues {
            for at in 0..dialogue.len() {
                let mut wrong = dialogue.clone();
                wrong[at].outcome = spoiled(&wrong[at].outcome).to_owned();
                let mut deaf = dialogue.clone();
                if deaf[at].others.pop().is_none() {
                    let phantom = format!("{} granted", deaf[at].step.role);
                    deaf[at].others.push(phantom);
                }
                for lines in [wrong, deaf] {
                    spoilt += 1;
                    let end = perform(&private(&script.modes, true), &script, &lines);
                    let expected = format!("line {}:", lines[at].number);
                    if !end.as_ref().is_err_and(|error| error.starts_with(&expected)) {
                        passed.push(format!("{name} {expected} {end:?}"));
                    }
                }
            }
        }
    }
    println!("{spoilt} changed, {} of them not detected", passed.len());
    assert!(passed.is_empty() && spoilt > 200, "{spoilt}, {passed:#?}");
}

#[test]
fn invalid_texts_are_refused() {
    for (text, why) in [
        ("owners a\nstep a1 a lock x X\ndialogue\n", "never taken"),
        ("owners a\nstep a1 a lock x X\ndialogue\na1 granted\ndialogue\n", "without a step"),
        ("owners a\nstep a1 b lock x X\n", "no such owner"),
        ("owners a\nstep a1 a lock x IX\n", "no such operation"),
        ("modes new\n", "no such modes"),
        ("owners a\ndialogue\na1 granted\n", "no such step"),
        ("owners a\nstep a1 a detect\na1 found 0\n", "no dialogue"),
        ("owners a\nstep a1 a detect\ndialogue\na1\n", "no outcome"),
    ] {
        let error = text.parse::<Script>().map(|_| ()).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
