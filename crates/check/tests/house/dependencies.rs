//! Crates of others that the workspace builds with: their licences and where they come from.

use std::process::Command;

use crate::sources::root;

/// Licences under which code may be linked into programs of any licence.
const LICENCES: [&str; 9] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BlueOak-1.0.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Whether an SPDX expression is met by the licences above alone. Older crates write `/` for OR.
fn is_met(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let open = expression.find('(');
    if let Some(open) = open {
        let length = expression[open..].find(')').expect("a parenthesis is closed");
        let inner = &expression[open + 1..open + length];
        let value = if is_met(inner) { "MIT" } else { "none" };
        let (before, after) = (&expression[..open], &expression[open + length + 1..]);
        return is_met(&format!("{before}{value}{after}"));
    }
    expression.split(" OR ").any(|all| all.split(" AND ").all(|one| LICENCES.contains(&one.trim())))
}

#[test]
fn licences_are_read() {
    for met in ["MIT", "GPL-3.0 OR MIT", "Unlicense/MIT", "(MIT OR GPL-3.0) AND Unicode-3.0"] {
        assert!(is_met(met), "{met}");
    }
    for unmet in ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR LGPL-2.1) AND MIT", ""] {
        assert!(!is_met(unmet), "{unmet}");
    }
}

#[test]
fn dependencies_come_from_the_registry_under_permissive_licences() {
    // Of this platform alone: a build has loaded most of these, and none of the rest.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let arguments = ["metadata", "--format-version", "1", "--locked"];
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).args(["--filter-platform", &platform]).current_dir(root());
    let cargo = cargo.output().unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&cargo.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "the workspace has dependencies");
    let mut wrong = Vec::new();
    for package in packages {
        let (name, licence) = (&package["name"], package["license"].as_str());
        if !licence.is_some_and(is_met) {
            wrong.push(format!("{name} has the licence {licence:?}"));
        }
        if package["source"].as_str().is_some_and(|source| source != REGISTRY) {
            wrong.push(format!("{name} comes from {}", package["source"]));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
