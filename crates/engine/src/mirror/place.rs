//! Whether a directory is a place for a copy: a second one, and none that goes with what it is a copy of.

use std::path::Path;

use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::RealDirectory;

/// Refuses a target that is the source under whatever name, or lies in it or around it.
///
/// # Errors
/// `Usage` then; `Repository` when a directory does not answer.
pub(super) async fn check(source: Option<&Path>, target: &Path) -> Result<()> {
    let shown = target.display();
    let refused =
        |what: String| Err(Error::new(Kind::Usage, what).hint("name another repository with --to"));
    if let Some(source) = source {
        let (here, there) = (RealDirectory::at(source), RealDirectory::at(target));
        let (here, there) = futures::try_join!(here, there)?;
        if here.is(&there) {
            return refused(format!("{shown} is the repository out of which to copy"));
        }
        let place = match (there.lies_in(&here), here.lies_in(&there)) {
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
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[tokio::test]
    async fn a_copy_goes_to_no_other_name_of_its_source_and_not_into_it() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::create_dir_all(at("own/main")).unwrap();
        symlink(at("own"), at("link")).unwrap();
        let source = at("own");
        for name in ["own", "link", "own/main/copy", "link/copy", ""] {
            let error = check(Some(&source), &at(name)).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{name}: {error}");
        }
        for name in ["other", "own-2", "other/deep"] {
            check(Some(&source), &at(name)).await.unwrap();
        }
        check(None, &at("own")).await.unwrap();
        // The source by its other name.
        assert!(check(Some(&at("link")), &source).await.is_err());
    }
}
