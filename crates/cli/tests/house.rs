//! The rules of the house that no compiler checks: which crate may use which,
//! and how long a file may get. This crate is on top, so it sees all others.
//! Rules for documents, and against circles, are in the modules of those names.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "house/circles.rs"]
mod circles;
#[path = "house/documents.rs"]
mod documents;
#[path = "house/nouns.rs"]
mod nouns;

/// Each crate of the workspace and the crates below it. Whatever is not listed
/// is a wrong direction. A further crate needs a decision record first.
const MAY_USE: [(&str, &[&str]); 7] = [
    ("pgstrata-pgdata", &[]),
    ("pgstrata-layer", &["pgstrata-pgdata"]),
    ("pgstrata-store", &["pgstrata-layer", "pgstrata-pgdata"]),
    (
        "pgstrata-engine",
        &["pgstrata-layer", "pgstrata-pgdata", "pgstrata-store"],
    ),
    (
        "pgstrata",
        &[
            "pgstrata-engine",
            "pgstrata-layer",
            "pgstrata-pgdata",
            "pgstrata-store",
        ],
    ),
    // docs/adr/0024: below all tests, so it uses nothing of what they test.
    ("pgstrata-testbed", &[]),
    // docs/adr/0010: one experiment unpacks a chain as other tools would.
    ("pgstrata-lab", &["pgstrata-layer", "pgstrata-testbed"]),
];

/// Tests of any crate may start clusters.
const TESTS_MAY_USE: &str = "pgstrata-testbed";

/// Crates that decide, and what only crates that act may use.
const PURE: [&str; 2] = ["pgstrata-pgdata", "pgstrata-layer"];
const ACTS: [&str; 8] = [
    "futures",
    "object_store",
    "postgres",
    "reqwest",
    "rustix",
    "tempfile",
    "tokio",
    "tokio-postgres",
];

/// Crates that reach a repository through `pgstrata-store` alone, and what only that may use.
const ABOVE_THE_STORE: [&str; 2] = ["pgstrata-engine", "pgstrata"];
const ACCESS: &str = "object_store";

const LONGEST_FILE: usize = 800;

/// What a manifest says, as far as the rules go.
#[derive(Debug, Default, Clone)]
struct Manifest {
    /// Normal and build dependencies, by package name.
    uses: BTreeSet<String>,
    /// Dependencies of tests.
    tests_use: BTreeSet<String>,
}

impl Manifest {
    fn parse(text: &str) -> (String, Self) {
        let manifest: toml::Table = text.parse().unwrap();
        let mut parsed = Self::default();
        parsed.collect(&manifest);
        if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
            for target in targets.values() {
                parsed.collect(target.as_table().unwrap());
            }
        }
        let name = manifest["package"]["name"].as_str().unwrap();
        (name.to_owned(), parsed)
    }

    fn collect(&mut self, table: &toml::Table) {
        self.uses.extend(names(table, "dependencies"));
        self.uses.extend(names(table, "build-dependencies"));
        self.tests_use.extend(names(table, "dev-dependencies"));
    }
}

/// The packages of one section; a dependency may go by another name.
fn names(table: &toml::Table, section: &str) -> Vec<String> {
    let Some(section) = table.get(section).and_then(toml::Value::as_table) else {
        return Vec::new();
    };
    let real_name = |(name, value): (&String, &toml::Value)| {
        let package = value.get("package").and_then(toml::Value::as_str);
        package.unwrap_or(name).to_owned()
    };
    section.iter().map(real_name).collect()
}

fn violations(manifests: &BTreeMap<String, Manifest>) -> Vec<String> {
    let rules = BTreeMap::from(MAY_USE);
    let ours = |name: &&String| name.starts_with("pgstrata");
    let mut found = Vec::new();
    for (name, manifest) in manifests {
        let Some(allowed) = rules.get(name.as_str()) else {
            found.push(format!("{name} is not a crate of the design"));
            continue;
        };
        for used in manifest.uses.iter().filter(ours) {
            if !allowed.contains(&used.as_str()) {
                found.push(format!("{name} uses {used}"));
            }
        }
        for used in manifest.tests_use.iter().filter(ours) {
            if used != TESTS_MAY_USE && !allowed.contains(&used.as_str()) {
                found.push(format!("tests of {name} use {used}"));
            }
        }
        for used in manifest.uses.iter().filter(|_| PURE.contains(&&**name)) {
            if ACTS.contains(&used.as_str()) {
                found.push(format!("{name} decides and so may not use {used}"));
            }
        }
        if manifest.uses.contains(ACCESS) && ABOVE_THE_STORE.contains(&&**name) {
            found.push(format!("{name} uses {ACCESS} beside the store"));
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn manifests() -> BTreeMap<String, Manifest> {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    crates
        .map(|entry| entry.unwrap().path().join("Cargo.toml"))
        .map(|path| Manifest::parse(&fs::read_to_string(path).unwrap()))
        .collect()
}

#[test]
fn crates_depend_downwards_only() {
    let manifests = manifests();
    for (name, _) in MAY_USE {
        assert!(manifests.contains_key(name), "{name} was not looked at");
    }
    assert_eq!(violations(&manifests), Vec::<String>::new());
}

#[test]
fn a_wrong_direction_is_noticed() {
    let wrong = [
        (
            "pgstrata-pgdata",
            "[dependencies]\npgstrata-layer.workspace = true",
        ),
        (
            "pgstrata-layer",
            "[build-dependencies]\npgstrata-engine = '1'",
        ),
        (
            "pgstrata-layer",
            "[dependencies]\nio = { package = 'tokio', version = '1' }",
        ),
        (
            "pgstrata-engine",
            "[target.'cfg(unix)'.dependencies]\npgstrata = '1'",
        ),
        ("pgstrata-engine", "[dev-dependencies]\npgstrata = '1'"),
        (
            "pgstrata-engine",
            "[dependencies]\npgstrata-testbed.workspace = true",
        ),
        (
            "pgstrata-engine",
            "[dev-dependencies]\npgstrata-lab.workspace = true",
        ),
        (
            "pgstrata-testbed",
            "[dependencies]\npgstrata-layer.workspace = true",
        ),
        (
            "pgstrata-store",
            "[dependencies]\npgstrata-engine.workspace = true",
        ),
        ("pgstrata-engine", "[dependencies]\nobject_store = '1'"),
        (
            "pgstrata-lab",
            "[dependencies]\npgstrata-pgdata.workspace = true",
        ),
        ("pgstrata-extra", ""),
    ];
    for (name, dependencies) in wrong {
        let mut manifests = manifests();
        let text = format!("[package]\nname = '{name}'\n{dependencies}");
        let (name, manifest) = Manifest::parse(&text);
        manifests.insert(name, manifest);
        assert_eq!(violations(&manifests).len(), 1, "{text}");
    }
}

#[test]
fn tests_may_use_the_testbed() {
    let text = "[package]\nname = 'pgstrata-layer'\n[dev-dependencies]\npgstrata-testbed = '1'";
    let manifests = BTreeMap::from([Manifest::parse(text)]);
    assert!(violations(&manifests).is_empty());
}

/// Every file that people write: Rust, C, SQL, scripts.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    const NOT_OURS: [&str; 4] = ["target", "golden", "vectors", "corpus"];
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !name.starts_with('.') && !NOT_OURS.contains(&name) {
                sources(&path, found);
            }
            continue;
        }
        let extension = path.extension().map(|of| of.to_str().unwrap());
        match extension {
            Some("rs" | "c" | "h" | "sql" | "pl" | "py" | "sh") => found.push(path),
            None if directory.ends_with("scripts") => found.push(path),
            _ => {}
        }
    }
}

#[test]
fn files_are_short_and_rust_files_say_what_they_are_for() {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    assert!(files.len() > 20, "found only {files:?}");
    let mut complaints = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let line_count = text.lines().count();
        if line_count > LONGEST_FILE {
            complaints.push(format!("{} has {line_count} lines", path.display()));
        }
        if path.extension().is_some_and(|of| of == "rs") && !text.starts_with("//!") {
            complaints.push(format!("{} does not begin with //!", path.display()));
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// The rules of physical backup by the numbers after which tests are named, or parts of tests. Of the fourth, on
/// finding what has changed, and of the thirteenth, on faults of our own, each part has a test: tools have got these
/// wrong most. The twelfth repeats others.
const RULES: [&str; 35] = [
    "1", "2", "3", "4_1", "4_2", "4_3", "4_4", "4_5", "4_6", "4_7", "4_8", "4_9", "4_10", "4_11",
    "4_12", "5", "6", "7", "8", "9", "10", "11", "13_1", "13_2", "13_3", "13_4", "13_5", "13_6",
    "13_7", "13_8", "13_9", "13_10", "13_11", "13_12", "13_13",
];

#[test]
fn every_rule_of_physical_backup_has_a_test_named_after_it() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let texts: String = files
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let untested = RULES.map(|rule| format!("fn rule_{rule}_"));
    let untested: Vec<_> = untested
        .iter()
        .filter(|name| !texts.contains(*name))
        .collect();
    assert!(untested.is_empty(), "{untested:?}");
}

/// What stands between quotes in `text` and looks like the name of a document: `info/1`.
fn document_names(text: &str) -> Vec<&str> {
    let quoted = text
        .lines()
        .flat_map(|line| line.split('"').skip(1).step_by(2));
    let names = quoted.filter(|word| {
        word.split_once('/').is_some_and(|(name, version)| {
            name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.chars().all(|c| c.is_ascii_lowercase() || c == '-')
                && !version.is_empty()
                && version.chars().all(|c| c.is_ascii_digit())
        })
    });
    names.collect()
}

#[test]
fn every_json_document_has_a_schema_file() {
    let mut files = Vec::new();
    sources(&root().join("crates/cli/src"), &mut files);
    let mut printed = BTreeSet::new();
    for path in files {
        let text = fs::read_to_string(path).unwrap();
        let names = document_names(&text).into_iter();
        printed.extend(names.map(|name| format!("{}.json", name.replace('/', "-"))));
    }
    assert!(printed.len() > 10, "found only {printed:?}");
    let files = fs::read_dir(root().join("docs/schema")).unwrap();
    let described: BTreeSet<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        printed, described,
        "documents that are printed, and docs/schema"
    );
    assert_eq!(
        document_names("report(\"new/2\", \"Not/1\", \"a b/1\")"),
        ["new/2"]
    );
}
