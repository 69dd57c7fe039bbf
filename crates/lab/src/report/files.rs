//! The raw files of a result, as links that lead there from a page.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

/// A file of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Where it is, from the page.
    pub href: String,
    /// Its name.
    pub name: String,
    /// What is in it.
    pub what: &'static str,
}

/// What experiments write, and what is in it.
const KNOWN: [(&str, &str); 8] = [
    ("result.json", "everything measured"),
    ("runs.csv", "a line for each value of each run"),
    ("plan.toml", "the plan, written before the first run"),
    ("env.json", "the environment of the base"),
    ("runs/", "what pgbench said in each run"),
    (
        "transactions.log.zst",
        "every transaction of the load, as pgbench logged it",
    ),
    ("slices.csv", "when each slice of the load began and ended"),
    ("pgbench.err", "what pgbench complained of"),
];

/// Links from `page` to those files of `result` that there are; `result` is its file or its directory.
#[must_use]
pub fn links(result: &Path, page: &Path) -> Vec<Link> {
    let directory = match result.is_dir() {
        true => result,
        false => parent(result),
    };
    let (Ok(to), Ok(from)) = (directory.canonicalize(), parent(page).canonicalize()) else {
        return Vec::new();
    };
    let way = way(&from, &to);
    let link = |name: &str, what| Link {
        href: format!("{way}{}", encoded(name)),
        name: name.to_owned(),
        what,
    };
    let known = KNOWN.iter().filter(|(name, _)| to.join(name).exists());
    let known = known.map(|(name, what)| link(name, what));
    let pictures = pictures(&to);
    let pictures = pictures.iter().map(|name| link(name, "a flame graph"));
    known.chain(pictures).collect()
}

fn parent(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// `bench speed --profile` writes one for each command.
fn pictures(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| Path::new(name).extension().is_some_and(|end| end == "svg"))
        .collect();
    names.sort();
    names
}

/// How one directory is reached from another: nothing, or something with a slash at its end.
fn way(from: &Path, to: &Path) -> String {
    let common: PathBuf = from
        .components()
        .zip(to.components())
        .take_while(|(here, there)| here == there)
        .map(|(here, _)| here)
        .collect();
    let beyond = |path: &Path| -> Vec<String> {
        let rest = path.strip_prefix(&common).unwrap_or(path);
        let names = rest.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        });
        names.collect()
    };
    let up = "../".repeat(beyond(from).len());
    let down = beyond(to).into_iter().map(|name| encoded(&name) + "/");
    up + &down.collect::<String>()
}

/// A name as a link takes it.
fn encoded(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => {
                out.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_the_page_to_files_that_there_are() {
        let scratch = tempfile::tempdir().unwrap();
        let result = scratch.path().join("a result");
        std::fs::create_dir_all(result.join("runs")).unwrap();
        std::fs::create_dir_all(scratch.path().join("pages/of today")).unwrap();
        for name in [
            "result.json",
            "plan.toml",
            "transactions.log.zst",
            "full 1.svg",
            "other.txt",
        ] {
            std::fs::write(result.join(name), "").unwrap();
        }
        let hrefs = |result: &Path, page: &str| -> Vec<String> {
            let found = links(result, &scratch.path().join(page));
            found.into_iter().map(|link| link.href).collect()
        };
        assert_eq!(
            hrefs(&result, "a result/report.html"),
            [
                "result.json",
                "plan.toml",
                "runs/",
                "transactions.log.zst",
                "full%201.svg"
            ]
        );
        let elsewhere = hrefs(&result.join("result.json"), "pages/of today/page.html");
        assert_eq!(elsewhere[0], "../../a%20result/result.json");
        assert_eq!(hrefs(&result, "page.html")[1], "a%20result/plan.toml");
        assert_eq!(hrefs(&scratch.path().join("gone"), "no/page.html").len(), 0);
    }
}
