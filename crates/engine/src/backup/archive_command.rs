//! What `archive_command` says of the repository.

/// Whether a command with `--repo URL` names another repository than that at `url`. One that names it by other means, or
/// by a name in a configuration file, says nothing.
pub(super) fn names_another(command: &str, url: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    let after = words
        .iter()
        .position(|word| *word == "--repo")
        .and_then(|at| words.get(at + 1).copied());
    let mut joined = words.iter().filter_map(|word| {
        let told = word.strip_prefix("--repo=");
        told.or_else(|| word.strip_prefix("PGSTRATA_REPO="))
    });
    let Some(told) = after.or_else(|| joined.next()) else {
        return false;
    };
    let bare = |url: &str| {
        let url = url.trim_matches(['\'', '"']);
        let path = url.strip_prefix("file://").unwrap_or(url);
        path.trim_end_matches('/').to_owned()
    };
    let is_url = told.contains("://") || told.trim_matches(['\'', '"']).starts_with('/');
    is_url && bare(told) != bare(url)
}

#[cfg(test)]
mod tests {
    use super::names_another;

    #[test]
    fn a_command_that_names_a_url_names_one_repository() {
        let url = "file:///backup";
        for same in [
            "pgstrata --repo file:///backup --cluster main archive-push %p",
            "pgstrata --repo=/backup/ archive-push %p",
            "PGSTRATA_REPO='file:///backup' pgstrata archive-push %p",
            "pgstrata --repo near archive-push %p",
            "pgstrata archive-push %p",
            "pgstrata archive-push %p --repo",
        ] {
            assert!(!names_another(same, url), "{same}");
        }
        for other in [
            "pgstrata --repo file:///other archive-push %p",
            "pgstrata --repo=s3://backup archive-push %p",
            "env PGSTRATA_REPO=/elsewhere pgstrata archive-push %p",
        ] {
            assert!(names_another(other, url), "{other}");
        }
    }
}
