//! The book of `docs`: its contents name every page, links lead to headings that exist, and the
//! programs that it shows are examples that CI runs.

use std::collections::BTreeSet;
use std::path::Path;

use crate::sources::{files, read, root, short};

/// The targets of a page's links, without those on the web.
fn links(text: &str) -> BTreeSet<String> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://")).map(str::to_owned).collect()
}

/// The examples that a page shows: each is followed by a line with its source.
fn sources(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.starts_with("Source: ["));
    lines.filter_map(|line| Some(line.split_once("](")?.1.split(')').next()?.to_owned())).collect()
}

/// The anchors of a page: its headings, as GitHub and mdbook name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut program) = (BTreeSet::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            program = !program;
        }
        let title = line.trim_start_matches('#');
        if program || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let title: String = title.trim().to_lowercase().chars().filter(kept).collect();
        found.insert(title.replace(' ', "-"));
    }
    found
}

#[test]
fn contents_name_every_page() {
    let docs = root().join("docs");
    let named = links(&read(&docs.join("SUMMARY.md")));
    assert!(named.len() > 30, "the contents are not understood: {named:?}");
    let pages = files(&docs, ".md").into_iter().filter(|page| !page.ends_with("SUMMARY.md"));
    let name = |page: &Path| page.strip_prefix(&docs).unwrap().display().to_string();
    let pages: BTreeSet<_> = pages.map(|page| name(&page)).collect();
    let missing: Vec<_> = pages.difference(&named).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not name {missing:?}");
    let gone: Vec<_> = named.difference(&pages).collect();
    assert!(gone.is_empty(), "docs/SUMMARY.md names {gone:?}, which do not exist");
}

#[test]
fn anchors_exist() {
    assert_eq!(anchors("# A `b`: c\n```\n# no\n```\n").into_iter().collect::<Vec<_>>(), ["a-b-c"]);
    let mut checked = 0;
    for page in files(&root(), ".md") {
        let text = read(&page);
        for link in links(&text) {
            let Some((path, anchor)) = link.split_once('#') else { continue };
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            if target.extension().is_none_or(|ending| ending != "md") {
                continue;
            }
            let known = anchors(&read(&target));
            assert!(known.contains(anchor), "{} links to {link}", short(&page));
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked} links with anchors");
}

#[test]
fn programs_in_the_guide_are_examples_that_ci_runs() {
    let ci = read(&root().join(".ci/run"));
    let line = ci.lines().find(|line| line.starts_with("for example in ")).expect("CI runs them");
    let run: BTreeSet<_> = line.trim_end_matches("; do").split(' ').skip(3).collect();
    let mut programs = 0;
    for page in files(&root().join("docs"), ".md") {
        let text = read(&page);
        for source in sources(&text) {
            let program =
                format!("```rust,no_run\n{}```\n", read(&page.parent().unwrap().join(&source)));
            assert!(text.contains(&program), "{} does not show {source} as it is", short(&page));
            let name = Path::new(&source).file_stem().unwrap().to_str().unwrap();
            assert!(run.contains(name), "CI does not run {name}, which {} has", short(&page));
            programs += 1;
        }
    }
    assert!(programs >= 9, "{programs} programs in the guide");
    let examples = files(&root().join("crates/latchwork/examples"), ".rs");
    let named: BTreeSet<_> = examples.iter().map(|path| path.file_stem().unwrap()).collect();
    let absent: Vec<_> =
        run.iter().filter(|name| !named.contains(std::ffi::OsStr::new(name))).collect();
    assert!(absent.is_empty(), "CI runs {absent:?}, which do not exist");
}
