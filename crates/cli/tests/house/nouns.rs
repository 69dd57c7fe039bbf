//! One noun for each thing: no two types of the product's crates below the command line have one name.

use std::collections::BTreeMap;
use std::fs;

use super::{root, sources};

const CRATES: [&str; 4] = ["pgdata", "layer", "store", "engine"];

/// Each crate has its own error, and says so under the name that Rust's own library uses.
const EVERYWHERE: [&str; 3] = ["Error", "Kind", "Result"];

/// The name of the type that a line of code at a module's top level defines.
fn defined(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        let rest = rest.trim_start();
        rest.strip_prefix('(')
            .and_then(|rest| rest.split_once(')'))
            .map_or(rest, |(_, rest)| rest.trim_start())
    });
    let name = ["struct ", "enum ", "trait ", "type "]
        .iter()
        .find_map(|word| line.strip_prefix(word))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())])
}

/// Names with all files that define one so named.
fn nouns<'t>(files: impl Iterator<Item = (&'t str, &'t str)>) -> BTreeMap<&'t str, Vec<&'t str>> {
    let mut nouns: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, text) in files {
        // Types of tests are theirs alone.
        let code = text.split("#[cfg(test)]\nmod tests {").next();
        for name in code.unwrap_or_default().lines().filter_map(defined) {
            nouns.entry(name).or_default().push(path);
        }
    }
    nouns
}

fn doubled(nouns: BTreeMap<&str, Vec<&str>>) -> Vec<String> {
    nouns
        .into_iter()
        .filter(|(name, files)| files.len() > 1 && !EVERYWHERE.contains(name))
        .map(|(name, files)| format!("{name} is defined in {}", files.join(" and ")))
        .collect()
}

#[test]
fn every_noun_is_defined_once() {
    let mut found = Vec::new();
    for name in CRATES {
        sources(&root().join("crates").join(name).join("src"), &mut found);
    }
    let texts: Vec<(String, String)> = found
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| !path.ends_with("tests.rs"))
        .map(|path| {
            let below = path.strip_prefix(root()).unwrap();
            let text = fs::read_to_string(path).unwrap();
            (below.to_str().unwrap().to_owned(), text)
        })
        .collect();
    let files = texts.iter();
    let nouns = nouns(files.map(|(path, text)| (path.as_str(), text.as_str())));
    assert!(nouns.len() > 300, "only {} types were found", nouns.len());
    assert_eq!(doubled(nouns), Vec::<String>::new());
}

#[test]
fn a_noun_that_is_defined_twice_is_noticed() {
    let one = "pub(crate) struct Layer<'a> {\n    path: &'a str,\n}\npub enum Kind {}\ntype Pair = (u8, u8);\n";
    let two = "struct Layer;\nenum Kind {}\nimpl Iterator for Layer {\n    type Item = u8;\n}\n\
               #[cfg(test)]\nmod tests {\nstruct Pair;\n}\n";
    assert_eq!(
        doubled(nouns([("one.rs", one), ("two.rs", two)].into_iter())),
        ["Layer is defined in one.rs and two.rs"]
    );
}
