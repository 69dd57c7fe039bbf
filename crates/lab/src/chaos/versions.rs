//! Versions of `pg_hba.conf`: each replaces the one before by a rename, as editors do, so a copy is one whole version.

use std::fs;

use anyhow::{Context, Result};

use super::world::World;

/// What begins the lines of a version that mean nothing to the server.
const MARK: &str = "# chaos";

/// Writes a version of this number, with so many lines more than the rules.
pub(super) fn write(world: &World, number: u64, lines: u64) -> Result<()> {
    let path = world.home.data.join("pg_hba.conf");
    let context = || format!("could not rewrite \"{}\"", path.display());
    let old = fs::read_to_string(&path).with_context(context)?;
    let new = path.with_extension("new");
    fs::write(&new, text(&old, number, lines)).with_context(context)?;
    world.server.own(&new)?;
    fs::rename(&new, &path).with_context(context)
}

fn text(old: &str, number: u64, lines: u64) -> String {
    let mark = format!("{MARK} {number}\n");
    let filling = mark.repeat(usize::try_from(lines).unwrap_or_default());
    let rules = old.lines().filter(|line| !line.starts_with(MARK));
    let rules: String = rules.map(|line| format!("{line}\n")).collect();
    format!("{mark}{rules}{filling}{MARK} {number} ends\n")
}

/// Whether all marks of a text are of one version, and both ends are there.
pub(super) fn is_one(text: &str) -> bool {
    let mut marks = text.lines().filter(|line| line.starts_with(MARK));
    let Some(first) = marks.next() else {
        return true;
    };
    let last = format!("{first} ends");
    let is_whole = text.starts_with(first) && text.ends_with(&format!("\n{last}\n"));
    is_whole && marks.all(|mark| mark == first || mark == last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_two_versions_is_noticed() {
        let first = text("local all\n", 1, 3);
        let second = text(&first, 2, 0);
        assert_eq!(second, "# chaos 2\nlocal all\n# chaos 2 ends\n");
        assert!(is_one("local all\n") && is_one(&first) && is_one(&second));
        let torn = format!("{}{}", &second[..15], &first[15..]);
        assert!(!is_one(&torn), "{torn}");
        assert!(!is_one(&first[..first.len() - 15]));
    }
}
