//! How the server archives: what `archive_command` says of the repository, and how the archiver does.
//!
//! Asked and compared, not judged: [`crate::health`] says what is wrong with it, and a backup decides by it where its WAL
//! comes from.

use std::path::Path;
use std::time::Duration;

use pgstrata_layer::keys::ClusterName;
use pgstrata_store::archive::Archive;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Kind, Result};

use super::pg_wal::waiting;
use super::session::{Archiver, Session};

/// An archiver that works takes a finished segment within seconds; one that failed tries again
/// after a minute.
pub(crate) const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// How a command names a cluster.
const CLUSTER: [&str; 2] = ["--cluster", "PGSTRATA_CLUSTER"];

/// How a command names a repository.
const REPOSITORY: [&str; 2] = ["--repo", "PGSTRATA_REPO"];

/// Where a shell ends a word, though no space comes.
const ENDS: [char; 10] = [';', '&', '|', '(', ')', '<', '>', '`', '\'', '"'];

/// How a server archives, seen from one repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Archiving {
    /// Whether its WAL goes to an archiver at all, in its present role.
    pub(crate) archives: bool,
    /// Whether it is a standby.
    pub(crate) in_recovery: bool,
    pub(crate) command: String,
    pub(crate) library: String,
    /// Whether the command names another repository.
    pub(crate) names_another: bool,
    /// Whether it names this one, and this cluster in it.
    pub(crate) names_this: bool,
    /// The cluster that it names, when that is another one.
    pub(crate) other_cluster: Option<String>,
    pub(crate) archiver: Archiver,
    /// What the archiver should have taken by now.
    pub(crate) late: Option<String>,
    /// Whether the file archived last is in the repository, or why that is not known; `None` when there is none.
    pub(crate) last_is_here: Option<std::result::Result<bool, String>>,
}

impl Archiving {
    /// Asks the server, and looks for the file that it archived last. What waits in `pg_wal`, longer than `patience`, is not
    /// looked at when it is not known where that is.
    ///
    /// # Errors
    /// When the server does not answer; `Repository`.
    pub(crate) async fn ask(
        session: &Session,
        pg_wal: Option<&Path>,
        cluster: &ClusterRepository,
        archive: &Archive,
        patience: Duration,
    ) -> Result<Self> {
        let facts = session.facts();
        let url = cluster.repository.url();
        let command = &facts.archive_command;
        let same = names_same(command, url);
        let archiver = session.archiver().await?;
        let last_is_here = match &archiver.archived {
            None => None,
            Some((file, _)) => match archive.holds(file).await {
                Err(error) if error.kind() == Kind::Repository => return Err(error),
                held => Some(held.map_err(|error| error.to_string())),
            },
        };
        Ok(Self {
            archives: facts.archives(),
            in_recovery: facts.in_recovery,
            command: facts.archive_command.clone(),
            library: facts.archive_library.clone(),
            names_another: same == Some(false),
            names_this: same == Some(true) && names_cluster(command, cluster.name.as_str()),
            other_cluster: other_cluster(command, cluster.name.as_str()).map(str::to_owned),
            late: pg_wal.and_then(|pg_wal| late(pg_wal, patience.max(TAKEN_WITHIN))),
            archiver,
            last_is_here,
        })
    }

    /// Whether the server's command is ours.
    pub(crate) fn is_ours(&self) -> bool {
        is_ours(&self.command)
    }

    /// What is wrong with the archiver, whatever it calls.
    pub(crate) fn trouble(&self) -> Option<String> {
        trouble(&self.archiver, self.late.as_deref())
    }

    /// Why the server's archiver is not relied on; `None` when it is.
    pub(crate) fn doubt(&self) -> Option<String> {
        if !self.is_ours() {
            return Some("the server archives elsewhere".to_owned());
        }
        // A copy of that repository has what was archived last, too.
        if self.names_another {
            return Some("the server archives to another repository".to_owned());
        }
        if let Some(other) = &self.other_cluster {
            return Some(format!("the server archives as cluster \"{other}\""));
        }
        if let Some(trouble) = self.trouble() {
            return Some(trouble);
        }
        let Some((file, _)) = &self.archiver.archived else {
            return Some("the server has archived nothing since its statistics began".to_owned());
        };
        match &self.last_is_here {
            Some(Ok(true)) => None,
            Some(Err(why)) => Some(why.clone()),
            Some(Ok(false)) | None => Some(format!(
                "{file}, which the server archived last, is not in this repository"
            )),
        }
    }

    /// Whether a segment that arrives would clear the doubt. A command that names another repository, or another cluster, never
    /// brings one.
    pub(crate) fn may_be_proved(&self) -> bool {
        self.archives && self.is_ours() && !self.is_for_another()
    }

    /// Whether the command is seen to name another repository or another cluster.
    pub(crate) fn is_for_another(&self) -> bool {
        self.names_another || self.other_cluster.is_some()
    }

    /// Whether the server archives, but to no place where waiting would help. A command that is
    /// not seen to be ours may be a wrapper: the file archived last tells, unless the command keeps nothing.
    pub(crate) fn is_elsewhere(&self) -> bool {
        !self.is_ours() && (keeps_nothing(&self.command) || self.last_is_here != Some(Ok(true)))
    }

    /// What the server calls, in words.
    pub(crate) fn describe(&self) -> String {
        match self.command.as_str() {
            "" => format!("archive_library is \"{}\"", self.library),
            command => format!("archive_command is \"{command}\""),
        }
    }
}

/// What is wrong with the server's archiver, whatever it calls.
pub(crate) fn trouble(archiver: &Archiver, late: Option<&str>) -> Option<String> {
    if let (true, Some((file, time))) = (archiver.is_failing, &archiver.failed) {
        let since = match &archiver.archived {
            Some((last, since)) => format!("{since}, when it archived {last}"),
            None => "its statistics begin".to_owned(),
        };
        return Some(format!(
            "the server's archiver fails with {file}, last at {time}, and has archived nothing since {since}"
        ));
    }
    late.map(|late| format!("the server's archiver {late}"))
}

/// What the archiver should have taken by now. An `archive_command` that cannot be started (exit
/// codes above 125) ends the archiver, and `pg_stat_archiver` never hears of it.
pub(crate) fn late(pg_wal: &Path, within: Duration) -> Option<String> {
    let (since, file) = waiting(pg_wal).ok()?.first?;
    let age = since.elapsed().ok()?;
    (age > within).then(|| format!("has not taken {file} for {} s", age.as_secs()))
}

pub(crate) fn is_ours(command: &str) -> bool {
    command.contains("pgstrata")
        && (command.contains("archive-push") || command.contains("wal-push"))
}

/// Whether a command stores WAL nowhere, or is seen to name another cluster than this one.
pub(crate) fn is_for_another(command: &str, cluster: &str) -> bool {
    keeps_nothing(command) || other_cluster(command, cluster).is_some()
}

/// The cluster that a command names, when that is not this one. What a shell would put in its place is not known, and a command
/// may push to several.
fn other_cluster<'a>(command: &'a str, cluster: &str) -> Option<&'a str> {
    let told = told(command, CLUSTER);
    let is_known = told.iter().all(|name| ClusterName::parse(name).is_some());
    let is_other = is_known && !told.contains(&cluster);
    told.first().copied().filter(|_| is_other)
}

/// Whether it says of every file that it is archived, which PostgreSQL's manual names as a way to archive nothing (20.5.3).
fn keeps_nothing(command: &str) -> bool {
    let command = command.trim().trim_end_matches(';').trim_end();
    let program = command.rsplit('/').next().unwrap_or(command);
    ["true", ":", "exit 0"].contains(&program)
}

/// Whether a command with `--repo URL` names the repository at `url`, or none but others. One that names it by other means, or
/// by a name in a configuration file, says nothing.
fn names_same(command: &str, url: &str) -> Option<bool> {
    let path = |url: &str| {
        let path = url.strip_prefix("file://").unwrap_or(url);
        path.trim_end_matches('/').to_owned()
    };
    let is_same = |told: &str| {
        let is_url = told.contains("://") || told.starts_with('/');
        // What a shell would put there is not known.
        let is_known = is_url && !told.contains('$');
        is_known.then(|| path(told) == path(url))
    };
    let told = told(command, REPOSITORY).into_iter();
    let same: Vec<Option<bool>> = told.map(is_same).collect();
    if same.contains(&Some(true)) {
        return Some(true);
    }
    let is_known = !same.is_empty() && !same.contains(&None);
    is_known.then_some(false)
}

/// Whether a command names the cluster, and no other. One that is named in a configuration file is not known.
fn names_cluster(command: &str, name: &str) -> bool {
    let told = told(command, CLUSTER);
    !told.is_empty() && told.iter().all(|told| *told == name)
}

/// What the words of a command say by that option, or by that variable, each time that they do.
fn told<'a>(command: &'a str, [option, variable]: [&str; 2]) -> Vec<&'a str> {
    let mut told = Vec::new();
    let mut before = "";
    for word in command.split_whitespace() {
        let joined = word.split_once('=').filter(|(name, _)| {
            let name = name.rsplit(ENDS).next().unwrap_or_default();
            name == option || name == variable
        });
        match joined {
            Some((_, value)) => told.push(bare(value)),
            None if before == option => told.push(bare(word)),
            None => {}
        }
        before = word;
    }
    told
}

/// A word as a shell reads it, without quotes and up to its end. Nothing of one that goes on behind a space.
fn bare(word: &str) -> &str {
    let mut quotes = ['\'', '"'].into_iter();
    match quotes.find(|quote| word.starts_with(*quote)) {
        Some(quote) => word[1..].split_once(quote).map_or("", |(told, _)| told),
        None => word.split(ENDS).next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Archiving, keeps_nothing, names_cluster, names_same, other_cluster};

    #[test]
    fn a_command_that_keeps_nothing_is_no_wrapper() {
        for nothing in ["true", "/bin/true", " : ", "exit 0;"] {
            assert!(keeps_nothing(nothing), "{nothing}");
        }
        for wrapper in ["/usr/local/bin/archive %p", "test ! -f x || true", ""] {
            assert!(!keeps_nothing(wrapper), "{wrapper}");
        }
    }

    #[test]
    fn no_segment_proves_a_command_that_names_another_repository() {
        let archiving = |names_another| Archiving {
            archives: true,
            command: "pgstrata archive-push %p".to_owned(),
            names_another,
            ..Archiving::default()
        };
        assert!(archiving(false).may_be_proved());
        assert!(!archiving(true).may_be_proved());
    }

    #[test]
    fn a_command_names_a_cluster_in_words_of_its_own() {
        let command = "PGSTRATA_CLUSTER='main' pgstrata archive-push %p";
        assert!(names_cluster(command, "main"));
        let command = "pgstrata --repo /backup --cluster other archive-push %p";
        assert!(names_cluster(command, "other") && !names_cluster(command, "main"));
        assert!(!names_cluster("pgstrata archive-push %p", "main"));
        assert_eq!(other_cluster(command, "main"), Some("other"));
        for same in [
            "pgstrata --cluster other archive-push %p",
            "pgstrata --cluster=\"other\" archive-push %p",
            "pgstrata --cluster \"$NAME\" archive-push %p",
            "pgstrata archive-push %p",
        ] {
            assert_eq!(other_cluster(same, "other"), None, "{same}");
        }
        for main in [
            "export PGSTRATA_CLUSTER=main; pgstrata archive-push %p",
            "sh -c 'PGSTRATA_CLUSTER=main pgstrata archive-push %p'",
            "pgstrata archive-push %p --cluster main||exit 255",
            "pgstrata archive-push %p --cluster main;",
            "(pgstrata archive-push %p --cluster main)",
            "test -z \"`pgstrata archive-push %p --cluster=main`\"",
        ] {
            assert_eq!(other_cluster(main, "main"), None, "{main}");
            assert_eq!(other_cluster(main, "dr"), Some("main"), "{main}");
            assert!(names_cluster(main, "main"), "{main}");
        }
    }

    #[test]
    fn a_command_that_pushes_twice_is_for_both_clusters() {
        let push = "pgstrata --repo /near --cluster main archive-push %p";
        let both = format!("{push} && pgstrata --repo /far --cluster dr archive-push %p");
        for this in ["main", "dr"] {
            assert_eq!(other_cluster(&both, this), None, "{this}");
            assert!(!names_cluster(&both, this), "{this}");
        }
        assert_eq!(other_cluster(&both, "other"), Some("main"));
        for url in ["file:///near", "file:///far"] {
            assert_eq!(names_same(&both, url), Some(true), "{url}");
        }
        assert_eq!(names_same(&both, "file:///other"), Some(false));
        // Either may be meant by what the shell puts in.
        let open =
            format!("{push} && pgstrata --repo \"$FAR\" --cluster \"$NAME\" archive-push %p");
        assert_eq!(other_cluster(&open, "dr"), None);
        assert_eq!(names_same(&open, "file:///far"), None);
    }

    #[test]
    fn a_command_that_names_a_url_names_one_repository() {
        let url = "file:///backup";
        for same in [
            "pgstrata --repo file:///backup --cluster main archive-push %p",
            "pgstrata --repo=/backup/ archive-push %p",
            "PGSTRATA_REPO='file:///backup' pgstrata archive-push %p",
            "export PGSTRATA_REPO=/backup; pgstrata archive-push %p",
        ] {
            assert_eq!(names_same(same, url), Some(true), "{same}");
        }
        for unknown in [
            "pgstrata --repo near archive-push %p",
            "pgstrata archive-push %p",
            "pgstrata archive-push %p --repo",
            "pgstrata --repo '/my backup' archive-push %p",
            "pgstrata --repo /backup/$HOST archive-push %p",
        ] {
            assert_eq!(names_same(unknown, url), None, "{unknown}");
        }
        for other in [
            "pgstrata --repo file:///other archive-push %p",
            "pgstrata --repo=s3://backup archive-push %p",
            "env PGSTRATA_REPO=/elsewhere pgstrata archive-push %p",
        ] {
            assert_eq!(names_same(other, url), Some(false), "{other}");
        }
    }
}
