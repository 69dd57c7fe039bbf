//! Rules for what people read: documents, and the pointers of comments and messages to files and sections.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::root;

const LONGEST_README: usize = 150;

/// Names that say nothing of what a module holds.
const FORBIDDEN_MODULES: [&str; 7] = [
    "common", "helper", "helpers", "manager", "misc", "util", "utils",
];

/// Files in which people write, and what a comment begins with there.
const COMMENTS: [(&str, &str); 8] = [
    ("rs", "//"),
    ("c", "*"),
    ("h", "*"),
    ("py", "#"),
    ("sh", "#"),
    ("sql", "--"),
    ("toml", "#"),
    ("", "#"),
];

/// Every file of the checkout that belongs to it, and what the documents say.
#[derive(Default)]
struct House {
    /// Relative to the root; directories end in a slash.
    paths: BTreeSet<String>,
    /// Markdown, by path.
    documents: BTreeMap<String, String>,
}

impl House {
    fn of(files: &[(&str, &str)]) -> Self {
        let mut house = Self::default();
        for (path, text) in files {
            house.add((*path).to_owned());
            if path.ends_with(".md") {
                house
                    .documents
                    .insert((*path).to_owned(), (*text).to_owned());
            }
        }
        house
    }

    fn read() -> Self {
        let mut house = Self::default();
        house.walk(&root(), "");
        house.add_what_is_built();
        assert!(house.documents.len() > 10, "{:?}", house.documents.keys());
        house
    }

    fn walk(&mut self, directory: &Path, below: &str) {
        const NOT_OURS: [&str; 3] = ["target", "build", "golden"];
        // What continuous integration runs is in it.
        const HIDDEN_AND_OURS: &str = ".ci";
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let relative = format!("{below}{name}");
            if path.is_dir() {
                let is_hidden = name.starts_with('.') && name != HIDDEN_AND_OURS;
                if !is_hidden {
                    self.add(format!("{relative}/"));
                }
                if !is_hidden && !NOT_OURS.contains(&name) {
                    self.walk(&path, &format!("{relative}/"));
                }
                continue;
            }
            if name.ends_with(".md") {
                let text = fs::read_to_string(&path).unwrap();
                self.documents.insert(relative.clone(), text);
            }
            self.add(relative);
        }
    }

    /// A comment may name what a build makes, and a clean checkout has nothing built.
    fn add_what_is_built(&mut self) {
        let ignored = fs::read_to_string(root().join(".gitignore")).unwrap();
        for built in ignored.lines().filter_map(|line| line.strip_prefix('/')) {
            self.add(built.to_owned());
        }
    }

    fn add(&mut self, path: String) {
        let mut above = String::new();
        for part in path.split_inclusive('/') {
            above.push_str(part);
            self.paths.insert(above.clone());
        }
    }

    /// A file or directory of that path.
    fn has(&self, path: &str) -> bool {
        let bare = path.trim_end_matches('/');
        self.paths.contains(bare) || self.paths.contains(&format!("{bare}/"))
    }

    /// Files whose path ends in `tail`.
    fn ending_in(&self, tail: &str) -> Option<&String> {
        let below = format!("/{tail}");
        let mut paths = self.paths.iter();
        paths.find(|path| *path == tail || path.ends_with(&below))
    }

    fn has_decision(&self, number: u32) -> bool {
        let start = format!("docs/adr/{number:04}-");
        self.paths.iter().any(|path| path.starts_with(&start))
    }

    /// Whether a document has a section of that name, or of that number.
    fn has_section(&self, document: &str, section: &str) -> bool {
        let mut headings = headings(&self.documents[document]);
        headings.any(|heading| match heading.split_once(". ") {
            Some((number, name)) => number == section || name == section || heading == section,
            None => heading == section,
        })
    }

    /// Pointers of a file that lead nowhere.
    fn dead_pointers(&self, path: &str, text: &str) -> Vec<String> {
        // One line of a message may be two lines of the source.
        let text = text.replace("\\\n", "").replace('\\', "");
        let mut dead = Vec::new();
        for (word, before, after) in words(&text) {
            let is_shell = before.ends_with(['$', '{', '*', '<', '>']);
            let is_pattern = after.starts_with(['$', '{', '*', '<', '…']);
            if is_shell || is_pattern || word.starts_with('/') {
                continue;
            }
            let word = word.trim_start_matches("../").trim_end_matches('.');
            if !self.leads_somewhere(path, word) {
                dead.push(format!("{path}: {word}"));
            } else if let Some(section) = section_meant(word, before, after)
                && let Some(document) = self.ending_in(&document_of(word))
                && !self.has_section(document, section)
            {
                dead.push(format!("{path}: {word}, section {section:?}"));
            } else if section_meant(word, before, after).is_some()
                && self.ending_in(&document_of(word)).is_none()
            {
                dead.push(format!("{path}: {word}"));
            } else if matches!(word, "ADR" | "ADRs")
                && let Some(number) = number_at(after)
                && !self.has_decision(number)
            {
                dead.push(format!("{path}: ADR {number}"));
            }
        }
        dead
    }

    fn leads_somewhere(&self, path: &str, word: &str) -> bool {
        let (stem, extension) = word.rsplit_once('.').unwrap_or((word, ""));
        let ours = ["docs/", "crates/", "scripts/", "ext/"];
        if ours.iter().any(|top| word.starts_with(top) && word != *top) {
            return self.has(word) || is_decision_number(word) && self.starts(word);
        }
        let is_document = path.ends_with(".md");
        match extension {
            "md" if is_document || stem.chars().all(|c| c.is_ascii_uppercase() || c == '/') => {
                self.ending_in(word).is_some()
            }
            "rs" | "py" if stem.contains('/') => self.ending_in(word).is_some(),
            _ => true,
        }
    }

    fn starts(&self, start: &str) -> bool {
        self.paths.iter().any(|path| path.starts_with(start))
    }

    /// Links of a document that lead nowhere.
    fn dead_links(&self, path: &str, text: &str) -> Vec<String> {
        let mut dead = Vec::new();
        let (above, _) = path.rsplit_once('/').unwrap_or_default();
        let targets = text.split("](").skip(1);
        for target in targets.filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => path.to_owned(),
                file => resolved(above, file),
            };
            let there = match anchor {
                "" => self.has(&file),
                anchor => self
                    .documents
                    .get(&file)
                    .is_some_and(|text| headings(text).any(|heading| slug(&heading) == anchor)),
            };
            if !there {
                dead.push(format!("{path}: {target}"));
            }
        }
        dead
    }
}

/// `file` as seen from the directory `above`.
fn resolved(above: &str, file: &str) -> String {
    let mut parts: Vec<&str> = above.split('/').filter(|part| !part.is_empty()).collect();
    for part in file.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The headings of a document, without their marks.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| line.trim_start_matches('#').trim().replace('`', ""))
}

/// The anchor that a heading gets where the documents are published.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

/// Everything that could be a path or a name, with the text before and after it.
fn words(text: &str) -> Vec<(&str, &str, &str)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let mut found = Vec::new();
    let mut rest = 0;
    while let Some(start) = text[rest..].find(is_word).map(|at| rest + at) {
        let length = text[start..].find(|c| !is_word(c));
        let end = length.map_or(text.len(), |length| start + length);
        found.push((&text[start..end], &text[..start], &text[end..]));
        rest = end;
    }
    found
}

/// The document that a word means: `FORMAT` and `FORMAT.md` alike.
fn document_of(word: &str) -> String {
    format!("{}.md", word.trim_end_matches(".md"))
}

/// The section that is named together with a document: `"Keys" in FORMAT.md`; `FORMAT.md, section "Keys"`; `FORMAT, section 7`.
fn section_meant<'a>(word: &str, before: &'a str, after: &'a str) -> Option<&'a str> {
    let stem = word.rsplit('/').next()?.trim_end_matches(".md");
    if stem.len() < 4 || !stem.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
        return None;
    }
    if let Some(quoted) = before.strip_suffix("\" in ") {
        return quoted.rsplit('"').next();
    }
    let after = after.trim_start_matches(['`', ',']);
    let named = after.strip_prefix(" section ")?;
    match named.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => named.split(|c: char| !c.is_ascii_digit()).next(),
    }
}

/// `docs/adr/0012`, without the rest of its name.
fn is_decision_number(word: &str) -> bool {
    let number = word.strip_prefix("docs/adr/");
    number.is_some_and(|number| number.len() == 4 && number.parse::<u32>().is_ok())
}

fn number_at(text: &str) -> Option<u32> {
    let digits = text.strip_prefix(' ')?;
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())].parse().ok()
}

/// The comments of a source file.
fn comments(text: &str, mark: &str) -> String {
    let is_comment = |line: &&str| {
        let line = line.trim_start();
        line.starts_with(mark) && !line.starts_with("#[") || line.starts_with("/*")
    };
    let lines: Vec<&str> = text.lines().filter(is_comment).collect();
    lines.join("\n")
}

/// The number of columns of a row of a table.
fn column_count(row: &str) -> usize {
    let row = row.trim().replace("\\|", "");
    row.trim_start_matches('|')
        .trim_end_matches('|')
        .split('|')
        .count()
}

/// Rows that have more or fewer columns than the first of their table.
fn uneven_rows(text: &str) -> Vec<&str> {
    let mut uneven = Vec::new();
    let mut columns = None;
    for line in text.lines() {
        if !line.starts_with('|') {
            columns = None;
        } else if *columns.get_or_insert(column_count(line)) != column_count(line)
            || !line.trim_end().ends_with('|')
        {
            uneven.push(line);
        }
    }
    uneven
}

#[test]
fn tables_have_the_same_columns_in_every_row() {
    for (path, text) in House::read().documents {
        assert_eq!(uneven_rows(&text), Vec::<&str>::new(), "{path}");
    }
}

#[test]
fn an_uneven_table_is_noticed() {
    let even = "| a | b |\n| --- | --- |\n| `x \\| y` | |\n\n| c |\n| --- |\n";
    assert_eq!(uneven_rows(even), Vec::<&str>::new());
    for wrong in ["| 1 | 2 | 3 |", "| 1 |", "| 1 | 2"] {
        assert_eq!(
            uneven_rows(&format!("{even}\n| d | e |\n{wrong}\n")),
            [wrong]
        );
    }
}

#[test]
fn the_readme_is_short() {
    let readme = House::read().documents["README.md"].lines().count();
    assert!(readme <= LONGEST_README, "{readme} lines");
}

/// Modules whose name says nothing.
fn empty_names(house: &House) -> Vec<&String> {
    let mut paths = house.paths.iter();
    let is_empty_name = |path: &&String| {
        let name = path.trim_end_matches('/').rsplit('/').next();
        let name = name.map(|name| name.trim_end_matches(".rs"));
        path.starts_with("crates/") && name.is_some_and(|name| FORBIDDEN_MODULES.contains(&name))
    };
    paths.by_ref().filter(is_empty_name).collect()
}

#[test]
fn modules_are_named_after_what_they_hold() {
    assert_eq!(empty_names(&House::read()), Vec::<&String>::new());
}

#[test]
fn a_name_that_says_nothing_is_noticed() {
    let wrong = [
        "crates/layer/src/utils.rs",
        "crates/engine/src/common/mod.rs",
        "crates/cli/tests/helpers.rs",
    ];
    for path in wrong {
        assert_eq!(empty_names(&House::of(&[(path, "")])).len(), 1, "{path}");
    }
    let house = House::of(&[("crates/engine/tests/restore_common/mod.rs", "")]);
    assert!(empty_names(&house).is_empty());
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let house = House::read();
    for (path, text) in &house.documents {
        assert_eq!(house.dead_links(path, text), Vec::<String>::new());
    }
}

#[test]
fn a_dead_link_is_noticed() {
    let house = House::of(&[
        ("README.md", "# Read\n## Two `words`, here\n"),
        ("docs/FORMAT.md", "# Format\n## 1. Conventions\n"),
    ]);
    let alive =
        "[a](../README.md#two-words-here) [b](FORMAT.md) [c](#1-conventions) [d](https://x/y.md)";
    assert_eq!(
        house.dead_links("docs/FORMAT.md", alive),
        Vec::<String>::new()
    );
    for dead in ["../STYLE.md", "../README.md#three", "#2-keys", "README.md"] {
        let found = house.dead_links("docs/FORMAT.md", &format!("[a]({dead})"));
        assert_eq!(found, [format!("docs/FORMAT.md: {dead}")]);
    }
}

/// Whether people write comments in a file: in sources, and in programs, which may have no extension. What has none
/// elsewhere is data, as are most files of the fuzzer.
fn has_comments(path: &str, extension: &str) -> bool {
    let is_below = |tops: &[&str]| tops.iter().any(|top| path.starts_with(top));
    match extension {
        "toml" => true,
        "" => path == "Makefile" || is_below(&[".ci/", "ext/", "scripts/"]),
        "rs" if path.starts_with("fuzz/") => true,
        _ => is_below(&["crates/", "ext/", "scripts/"]) && !path.contains("/golden/"),
    }
}

#[test]
fn every_pointer_to_a_file_or_a_section_leads_somewhere() {
    const ONE_OF_EACH_KIND: [&str; 8] = [
        ".ci/run",
        "Makefile",
        "clippy.toml",
        "crates/cli/tests/house.rs",
        "ext/pgstrata.c",
        "ext/test/torture",
        "fuzz/targets/input.rs",
        "scripts/check",
    ];
    let house = House::read();
    let mut looked_at = BTreeSet::new();
    let mut dead = Vec::new();
    for path in &house.paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        let (_, extension) = name.rsplit_once('.').unwrap_or((name, ""));
        let mark = COMMENTS.iter().find(|(known, _)| *known == extension);
        // This file has bad examples.
        let is_ours = !path.ends_with("house/documents.rs") && has_comments(path, extension);
        if path.ends_with('/') || !is_ours {
            continue;
        }
        let Some((_, mark)) = mark else { continue };
        let text = fs::read_to_string(root().join(path)).unwrap();
        looked_at.insert(path.as_str());
        dead.extend(house.dead_pointers(path, &comments(&text, mark)));
        dead.extend(house.dead_pointers(path, &strings(&text)));
    }
    for (path, text) in &house.documents {
        dead.extend(house.dead_pointers(path, text));
    }
    assert!(looked_at.len() > 100, "looked at {looked_at:?}");
    for path in ONE_OF_EACH_KIND {
        assert!(looked_at.contains(path), "did not look at {path}");
    }
    dead.sort();
    dead.dedup();
    assert!(dead.is_empty(), "{dead:#?}");
}

/// Lines of a source that name a document: messages send people there.
fn strings(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(".md")).collect();
    lines.join("\n")
}

#[test]
fn a_pointer_to_what_is_not_there_is_noticed() {
    let house = House::of(&[
        (
            "docs/FORMAT.md",
            "# Format\n## 2. Keys\n### Rules for entries\n",
        ),
        ("docs/adr/0001-frame-size.md", ""),
        ("crates/layer/src/frame.rs", ""),
    ]);
    let alive = [
        "`docs/FORMAT.md`, section \"Rules for entries\"",
        "see \"2. Keys\" in FORMAT.md; FORMAT, section 2; docs/adr/0001; ADR 1",
        "`layer/src/frame.rs`, crates/layer/src, docs/adr/*, https://a.b/c/d.rs, /etc/x.md",
    ];
    for text in alive {
        assert_eq!(
            house.dead_pointers("crates/a.rs", text),
            Vec::<String>::new()
        );
    }
    let dead = [
        (
            "see \"What is backed up\" in FORMAT.md",
            "FORMAT.md, section \"What is backed up\"",
        ),
        ("(DESIGN section 4)", "DESIGN"),
        ("docs/FORMAT.md, section 3", "docs/FORMAT.md, section \"3\""),
        ("OPERATIONS.md has it", "OPERATIONS.md"),
        ("docs/adr/0002 and so on", "docs/adr/0002"),
        ("this is ADR 12.", "ADR 12"),
        ("`layer/src/pack.rs`", "layer/src/pack.rs"),
        ("run scripts/gone", "scripts/gone"),
    ];
    for (text, what) in dead {
        let found = house.dead_pointers("crates/a.rs", text);
        assert_eq!(found, [format!("crates/a.rs: {what}")], "{text}");
    }
}

/// The numbers of the decision records, in order.
fn decisions(house: &House) -> Vec<u32> {
    let names = house.paths.iter();
    let names = names.filter_map(|path| path.strip_prefix("docs/adr/"));
    let numbers = names.filter_map(|name| name.split('-').next());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Whether they are 1, 2, 3 and so on.
fn have_no_holes(decisions: &[u32]) -> bool {
    decisions.iter().copied().eq((1..).take(decisions.len()))
}

#[test]
fn decisions_are_numbered_without_holes() {
    let house = House::read();
    let decisions = decisions(&house);
    assert!(decisions.len() > 20, "found only {decisions:?}");
    assert!(have_no_holes(&decisions), "{decisions:?}");
    for (path, text) in &house.documents {
        let Some(name) = path.strip_prefix("docs/adr/") else {
            continue;
        };
        let number: u32 = name[..4].parse().unwrap();
        assert!(text.starts_with(&format!("# {number}. ")), "{path}");
    }
}

#[test]
fn a_hole_in_the_numbers_is_noticed() {
    for (second, is_right) in [("0002-b", true), ("0003-b", false), ("0001-b", false)] {
        let second = format!("docs/adr/{second}.md");
        let house = House::of(&[("docs/adr/0001-a.md", ""), (&second, "")]);
        assert_eq!(have_no_holes(&decisions(&house)), is_right, "{second}");
    }
}

/// The modules at the top of each crate, as `crate/module`.
fn rooms(house: &House) -> BTreeSet<String> {
    const ENTRANCES: [&str; 3] = ["lib", "main", "bin"];
    let mut rooms = BTreeSet::new();
    for path in &house.paths {
        let mut parts = path.split('/');
        if let (Some("crates"), Some(name), Some("src"), Some(room)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        {
            let room = room.trim_end_matches(".rs");
            if !room.is_empty() && !ENTRANCES.contains(&room) {
                rooms.insert(format!("{name}/{room}"));
            }
        }
    }
    rooms
}

/// The modules that a text lists in its sections "Rooms: crate": in each line, what is before two spaces.
fn listed_rooms(text: &str) -> BTreeSet<String> {
    let mut listed = BTreeSet::new();
    for section in text.split("\n## Rooms: ").skip(1) {
        let section = section.split("\n## ").next().unwrap_or(section);
        let (name, lines) = section.split_once('\n').unwrap_or((section, ""));
        let lines = lines.lines().filter_map(|line| line.strip_prefix("    "));
        for line in lines.filter(|line| !line.starts_with(' ')) {
            let rooms = line.split("  ").next().unwrap_or(line).split(", ");
            listed.extend(rooms.map(|room| format!("{name}/{}", room.trim_end_matches('/'))));
        }
    }
    listed
}

#[test]
fn the_architecture_lists_every_room_and_no_other() {
    let house = House::read();
    let (there, listed) = (
        rooms(&house),
        listed_rooms(&house.documents["ARCHITECTURE.md"]),
    );
    let missing: Vec<_> = there.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&there).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "missing {missing:?}, gone {gone:?}"
    );
}

#[test]
fn a_room_that_is_not_listed_is_noticed() {
    let house = House::of(&[
        ("crates/layer/src/lib.rs", ""),
        ("crates/layer/src/pack.rs", ""),
        ("crates/layer/src/index/mod.rs", ""),
    ]);
    let expected = ["layer/index", "layer/pack"].map(str::to_owned);
    assert_eq!(rooms(&house), BTreeSet::from(expected.clone()));
    let text = "\n## Rooms: layer\n\n    pack, index/   both\n                 more of it\n\n## Other\n\n    frame  no room\n";
    assert_eq!(listed_rooms(text), BTreeSet::from(expected));
    assert_eq!(
        listed_rooms("\n## Rooms: layer\n\n    pack   one\n").len(),
        1
    );
}

/// In bytes. Shorter lines may well be the same: rules of tables, commands, fields of a format.
const TOO_LONG_TO_BE_THE_SAME: usize = 120;

#[test]
fn nothing_is_pasted_twice_into_a_document() {
    let mut twice = Vec::new();
    for (path, text) in House::read().documents {
        let mut seen = BTreeSet::new();
        let long = |line: &&str| line.len() > TOO_LONG_TO_BE_THE_SAME;
        for line in text.lines().filter(long) {
            if !seen.insert(line) {
                twice.push(format!("{path}: {line}"));
            }
        }
    }
    assert!(twice.is_empty(), "{twice:#?}");
}

/// The names that a backup leaves out, as the rules in `exclude.rs` have them.
fn left_out(rules: &str) -> BTreeSet<&str> {
    /// Where some of the names count.
    const PLACES: [&str; 3] = ["base", "global", "pg_tblspc"];
    let rules = rules.split("#[cfg(test)]").next().unwrap_or(rules);
    let names = rules.split("b\"").skip(1);
    let names = names.filter_map(|rest| rest.split('"').next());
    names.filter(|name| !PLACES.contains(name)).collect()
}

/// A section of a document, up to the next heading.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let (_, section) = text
        .split_once(&format!("# {heading}\n"))
        .unwrap_or_default();
    section.split("\n#").next().unwrap_or(section)
}

/// Names that a section does not say; of prefixes it may say what begins with them.
fn unsaid<'a>(names: &BTreeSet<&'a str>, section: &str) -> Vec<&'a str> {
    let is_said = |name: &str| {
        section.contains(&format!("`{name}`")) || section.contains(&format!("`{name}*`"))
    };
    names
        .iter()
        .copied()
        .filter(|name| !is_said(name))
        .collect()
}

#[test]
fn documents_say_every_name_that_a_backup_leaves_out() {
    let rules = fs::read_to_string(root().join("crates/pgdata/src/exclude.rs")).unwrap();
    let names = left_out(&rules);
    assert!(names.len() > 20, "found only {names:?}");
    for known in ["pg_wal", "postmaster.pid", "lost+found", "pgsql_tmp"] {
        assert!(names.contains(known), "{known} is not in {names:?}");
    }
    let documents = House::read().documents;
    for (path, heading) in [
        ("docs/FORMAT.md", "What is left out"),
        ("docs/OPERATIONS.md", "What is backed up"),
    ] {
        let unsaid = unsaid(&names, section(&documents[path], heading));
        assert!(unsaid.is_empty(), "{path} does not say {unsaid:?}");
    }
}

#[test]
fn a_name_that_is_left_out_unsaid_is_noticed() {
    let rules = "const A: [&[u8]; 2] = [b\"one\", b\"two\"];\nmatch x { b\"base\" => 1 }\n#[cfg(test)]\nb\"three\"";
    let names = left_out(rules);
    assert!(names.iter().eq(&["one", "two"]), "{names:?}");
    let text = "# A\n`one`, `two`\n### B\n`one*`\n## C\n`two`\n";
    assert_eq!(unsaid(&names, section(text, "A")), Vec::<&str>::new());
    assert_eq!(unsaid(&names, section(text, "B")), ["two"]);
    assert_eq!(unsaid(&names, section(text, "D")), ["one", "two"]);
}
