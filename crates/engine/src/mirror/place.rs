//! Whether a directory is a place for a copy: a second one, and none that goes with what it is a copy of.

use std::path::Path;

use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::{resolved, same_directory};

/// Refuses a target that is the source under whatever name, lies in it or around it, or lies in a data directory.
///
/// # Errors
/// `Usage` then.
pub(super) fn check(source: Option<&Path>, target: &Path) -> Result<()> {
    let shown = target.display();
    let refused =
        |what: String| Err(Error::new(Kind::Usage, what).hint("name another repository with --to"));
    let there = resolved(target);
    if let Some(source) = source {
        let here = resolved(source);
        if same_directory(source, target) {
            return refused(format!("{shown} is the repository out of which to copy"));
        }
        let place = match (there.starts_with(&here), here.starts_with(&there)) {
            (true, _) => "in",
            (_, true) => "around",
            (false, false) => "",
        };
        if !place.is_empty() {
            return refused(format!(
                "{shown} lies {place} the repository out of which to copy, {}: who loses one loses both",
                source.display()
            ));
        }
    }
    let is_data = |path: &&Path| path.join("global/pg_control").is_file();
    match there.ancestors().find(is_data) {
        None => Ok(()),
        Some(data) => refused(format!(
            "{shown} lies in the data directory of a server, {}",
            data.display()
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_copy_goes_to_no_other_name_of_its_source_and_not_into_it() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::create_dir_all(at("own/main")).unwrap();
        fs::create_dir_all(at("data/global")).unwrap();
        fs::write(at("data/global/pg_control"), "x").unwrap();
        symlink(at("own"), at("link")).unwrap();
        symlink(at("data"), at("server")).unwrap();
        let source = at("own");
        for name in [
            "own",
            "link",
            "own/main/copy",
            "link/copy",
            "",
            "data/copy",
            "server/a/b",
        ] {
            let error = check(Some(&source), &at(name)).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{name}: {error}");
        }
        for name in ["other", "own-2", "other/deep"] {
            check(Some(&source), &at(name)).unwrap();
        }
        check(None, &at("own")).unwrap();
        assert!(check(None, &at("data")).is_err());
        // The source by its other name.
        assert!(check(Some(&at("link")), &source).is_err());
    }
}
