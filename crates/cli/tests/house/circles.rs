//! No circles between the modules at the top of a crate: of two rooms one stands on the other. Nor between the
//! folders of a room, which are the steps of its work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{root, sources};

/// Files of one crate, by path below its `src`, and what is in them.
type Files = BTreeMap<String, String>;

/// Which rooms each room takes from.
type Edges = BTreeMap<String, BTreeSet<String>>;

/// The crate's own root uses all rooms, and none uses it.
const ROOTS: [&str; 3] = ["lib", "main", "bin"];

/// Code without comments: they may point anywhere.
fn code(text: &str) -> String {
    let lines = text.lines();
    let code = lines.map(|line| line.split("//").next().unwrap_or(line));
    code.collect::<Vec<_>>().join("\n")
}

/// The modules that a file is in, outermost first.
fn modules(path: &str) -> Vec<&str> {
    let mut modules: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    if modules.last() == Some(&"mod") {
        modules.pop();
    }
    modules
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The first names of `{a, b::c, d::{e, f}}`, or of `a::b`.
fn first_names(text: &str) -> Vec<&str> {
    let Some(list) = text.strip_prefix('{') else {
        return vec![word(text)];
    };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                names.push(word(list[start..at].trim()));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    // Behind a comma at the end is none.
    names.retain(|name| !name.is_empty());
    names
}

/// Names that the root re-exports, with the room that each comes from.
fn re_exports(files: &Files) -> BTreeMap<&str, &str> {
    let mut found = BTreeMap::new();
    for text in ["lib.rs", "main.rs"]
        .iter()
        .filter_map(|root| files.get(*root))
    {
        for export in text.split("pub use ").skip(1) {
            if let Some((room, names)) = export.split_once("::") {
                let names = first_names(names).into_iter();
                found.extend(names.map(|name| (name, room)));
            }
        }
    }
    found
}

fn edges(files: &Files) -> Edges {
    let files: Files = files
        .iter()
        .map(|(path, text)| (path.clone(), code(text)))
        .collect();
    let is_room = |room: &&str| !ROOTS.contains(room);
    let rooms: BTreeSet<&str> = files
        .keys()
        .map(|path| modules(path)[0])
        .filter(is_room)
        .collect();
    let re_exports = re_exports(&files);
    let mut edges = Edges::new();
    for (path, text) in &files {
        let modules = modules(path);
        let room = modules[0];
        if !rooms.contains(room) {
            continue;
        }
        // As many `super` as there are modules around lead to the root, too.
        for prefix in ["crate::".to_owned(), "super::".repeat(modules.len())] {
            for used in text.split(&prefix).skip(1) {
                for name in first_names(used) {
                    let other = match rooms.get(name) {
                        Some(other) => other,
                        None => re_exports.get(name).copied().unwrap_or(room),
                    };
                    if other != room {
                        let of_room = edges.entry(room.to_owned()).or_default();
                        of_room.insert(other.to_owned());
                    }
                }
            }
        }
    }
    edges
}

/// Whether `to` can be reached from `from`.
fn reaches<'e>(edges: &'e Edges, from: &'e str, to: &str, seen: &mut BTreeSet<&'e str>) -> bool {
    from == to
        || seen.insert(from)
            && edges
                .get(from)
                .is_some_and(|next| next.iter().any(|next| reaches(edges, next, to, seen)))
}

/// Every edge that is part of a circle.
fn circles(files: &Files) -> Vec<String> {
    let edges = edges(files);
    let all = edges
        .iter()
        .flat_map(|(from, others)| others.iter().map(move |to| (from, to)));
    all.filter(|(from, to)| reaches(&edges, to, from, &mut BTreeSet::new()))
        .map(|(from, to)| format!("{from} uses {to}, which uses {from}"))
        .collect()
}

fn files_of(source: &Path) -> Files {
    let mut paths = Vec::new();
    sources(source, &mut paths);
    let read = |path: &Path| {
        let below = path.strip_prefix(source).unwrap().to_str().unwrap();
        (below.to_owned(), fs::read_to_string(path).unwrap())
    };
    let rust = |path: &&std::path::PathBuf| path.extension().is_some_and(|of| of == "rs");
    paths.iter().filter(rust).map(|path| read(path)).collect()
}

#[test]
fn no_crate_has_circles_between_its_rooms() {
    let (mut found, mut edge_count) = (Vec::new(), 0);
    for directory in fs::read_dir(root().join("crates")).unwrap() {
        let directory = directory.unwrap();
        let files = files_of(&directory.path().join("src"));
        edge_count += edges(&files).values().map(BTreeSet::len).sum::<usize>();
        let name = directory.file_name().into_string().unwrap();
        let circles = circles(&files).into_iter();
        found.extend(circles.map(|circle| format!("{name}: {circle}")));
    }
    assert!(edge_count > 100, "only {edge_count} edges were seen");
    assert!(found.is_empty(), "{found:#?}");
}

/// The folders of a crate's rooms, each room as if it were a crate. A room's own files may use all of its folders.
fn steps(files: &Files) -> BTreeMap<&str, Files> {
    let mut rooms: BTreeMap<&str, Files> = BTreeMap::new();
    for (path, text) in files {
        let mut parts = path.splitn(3, '/');
        if let (Some(room), Some(step), Some(file)) = (parts.next(), parts.next(), parts.next()) {
            let own = format!("crate::{room}::");
            let inside = text.replace(&own, "\0").replace("crate::", "elsewhere::");
            let files = rooms.entry(room).or_default();
            files.insert(format!("{step}/{file}"), inside.replace('\0', "crate::"));
        }
    }
    rooms
}

#[test]
fn no_room_has_circles_between_its_steps() {
    let (mut found, mut edge_count) = (Vec::new(), 0);
    for directory in fs::read_dir(root().join("crates")).unwrap() {
        let files = files_of(&directory.unwrap().path().join("src"));
        for (room, files) in steps(&files) {
            edge_count += edges(&files).values().map(BTreeSet::len).sum::<usize>();
            let circles = circles(&files).into_iter();
            found.extend(circles.map(|circle| format!("{room}: {circle}")));
        }
    }
    assert!(edge_count > 3, "only {edge_count} edges were seen");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_circle_between_steps_is_noticed() {
    let with = |in_copy: &str| {
        let files = [
            (
                "backup/decide/source.rs",
                "use crate::backup::copy::read;\n",
            ),
            ("backup/copy/read.rs", in_copy),
            ("backup/run.rs", "use super::decide::source;\n"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        circles(&steps(&Files::from(files))["backup"])
    };
    assert_eq!(with("use crate::server::decide;\n"), Vec::<String>::new());
    for upwards in [
        "use super::super::decide::source;\n",
        "use crate::backup::decide::source;\n",
    ] {
        assert_eq!(with(upwards).len(), 2, "{upwards}");
    }
}

#[test]
fn a_circle_is_noticed() {
    let with = |in_backup: &str, in_restore: &str, in_check: &str| {
        let files = [
            ("lib.rs", "pub use restore::{Plan, plan};\nuse check::x;"),
            ("backup/mod.rs", "mod copy;"),
            ("backup/copy.rs", in_backup),
            ("restore/mod.rs", in_restore),
            ("check.rs", in_check),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        circles(&Files::from(files)).len()
    };
    let uses_backup = "use crate::backup::{self, copy};";
    for in_backup in [
        "use crate::restore::select;",
        "use crate::{other, a::{b, c}, restore};",
        "let x = crate::restore::plan();",
        "use super::super::restore;",
        "use crate::Plan;",
    ] {
        assert_eq!(with(in_backup, uses_backup, ""), 2, "{in_backup}");
        assert_eq!(with(in_backup, "", uses_backup), 0, "{in_backup}");
    }
    for harmless in [
        "/// See [`crate::restore::plan`].",
        "use super::restore;",
        "use crate::backup::other;",
        "use pgstrata_store::restore;",
    ] {
        assert_eq!(with(harmless, uses_backup, ""), 0, "{harmless}");
    }
    let through_a_third = with("use crate::restore;", "use super::check;", uses_backup);
    assert_eq!(through_a_third, 3);
}
