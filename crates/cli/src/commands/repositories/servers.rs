//! Whether all repositories are of one server. Two that were cut off from each other may each archive into one of them, under
//! one name and on one timeline: whoever takes WAL out of both has a database that there never was.
//!
//! What is planned over several compares the newest segments that two of them have. Recovery asks for one file after the other
//! and for hours, so `archive-get` looks again when the repository that gives a segment is not the one that gave the segment before.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use futures::future::join_all;
use pgstrata_engine::restore::TimelineChoice;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_pgdata::wal::{ArchiveFile, WalSegment, WalSegmentSize};
use pgstrata_store::archive::{Archive, GetOutcome, LastGiver, Spool};
use pgstrata_store::blocking::blocking;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use tokio::time::timeout;

use super::super::Context;
use super::{ANSWERS_WITHIN, act_in};
use crate::args::ArchiveGetArgs;

/// A segment has 24 digits, of which the first eight are its timeline's.
const TIMELINE_DIGITS: usize = 8;

/// What is to be said of repositories that two servers have filled, on the timelines to `last`, when that is given. What cannot
/// be read says nothing here, and is found out by who reads it.
pub(super) async fn rivals(all: &[&Context], last: Option<TimelineId>) -> Vec<String> {
    let listed = all.iter().map(async |context: &&Context| {
        let archive = Archive::load(&context.cluster().ok()?).await.ok()?;
        let files = archive.files().await.ok()?;
        Some((context.config.name().unwrap_or_default(), archive, files))
    });
    let listed: Vec<_> = join_all(listed).await.into_iter().flatten().collect();
    let mut found = Vec::new();
    for (at, (name, archive, files)) in listed.iter().enumerate() {
        for (other, rival, theirs) in &listed[at + 1..] {
            let looked = archive.first_difference(rival, (files, theirs), last);
            match looked.await {
                Ok(None) => {}
                Ok(Some(file)) => {
                    let file = file.file_name(archive.segment_size());
                    found.push(two_servers((name, other), &file));
                }
                Err(error) => {
                    tracing::debug!(%error, "the WAL in {name} and in {other} is not compared");
                }
            }
        }
    }
    found
}

fn two_servers((one, other): (&str, &str), file: &str) -> String {
    format!(
        "repositories {one} and {other} hold different files of the name {file}: two servers have archived under this cluster's \
         name, each into one of them"
    )
}

/// Refuses a restore out of repositories that two servers have filled.
///
/// # Errors
/// `Target` then.
pub(super) async fn require_one(all: &[&Context], timeline: Option<TimelineChoice>) -> Result<()> {
    let last = match timeline {
        // It comes from earlier ones alone.
        Some(TimelineChoice::Number(number)) => Some(number),
        _ => None,
    };
    let Some(what) = rivals(all, last).await.into_iter().next() else {
        return Ok(());
    };
    Err(Error::new(Kind::Target, what).hint(
        "nobody can tell which of them is meant: restore out of one of them alone, with --repo, and out of each once if you do not \
         know what each has; then keep one, and give the other server a cluster name or a repository of its own",
    ))
}

/// Refuses a segment of another server than that of the segment before, which the server that asks has in the directory in
/// which it wants this one.
///
/// # Errors
/// `AlreadyExists` then; `Repository` when it is not known because one of them does not answer.
pub(super) async fn require_goes_on(
    several: &[Context],
    (giver, cluster): (&Context, &ClusterRepository),
    args: &ArchiveGetArgs,
    outcome: &GetOutcome,
) -> Result<()> {
    let size = WalSegmentSize::try_from(outcome.raw_bytes);
    let Ok(size) = size else {
        return Ok(());
    };
    let Ok(ArchiveFile::Segment(segment)) = ArchiveFile::parse(&args.name, size) else {
        return Ok(());
    };
    let name = giver.config.name().unwrap_or_default();
    let directory = args.path.parent().unwrap_or(&args.path);
    let place = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let last = last_giver(giver, args, &place)?;
    if let Some((before, path)) = before(&place, segment, size) {
        let file_name = before.file_name(size);
        if !last.gave(name, &file_name) {
            let joint = Joint {
                several,
                giver,
                before: ArchiveFile::Segment(before),
                file_name: &file_name,
            };
            joint.judge(cluster, &path).await?;
        }
    }
    let (name, file_name) = (name.to_owned(), args.name.clone());
    blocking(move || {
        last.note(&name, &file_name);
        Ok(())
    })
    .await
}

fn last_giver(giver: &Context, args: &ArchiveGetArgs, place: &Path) -> Result<LastGiver> {
    let root = args.spool.as_ref().or(giver.config.settings.spool.as_ref());
    let root = root.cloned().unwrap_or_else(Spool::default_root);
    let cluster = giver.config.cluster()?;
    Ok(LastGiver::new(root, place, cluster.as_str()))
}

/// The segment before in that directory, as recovery has left it there: of its own timeline, or else of the last one before.
fn before(
    directory: &Path,
    segment: WalSegment,
    size: WalSegmentSize,
) -> Option<(WalSegment, PathBuf)> {
    let number = segment.number.checked_sub(1)?;
    let of = |timeline| {
        let before = WalSegment { timeline, number };
        let path = directory.join(before.file_name(size));
        let is_whole = fs::metadata(&path).is_ok_and(|found| found.len() == size.get());
        is_whole.then_some((before, path))
    };
    of(segment.timeline).or_else(|| {
        let own = segment.file_name(size);
        let before = of_any_timeline(&WalSegment { number, ..segment }.file_name(size))?.to_owned();
        let entries = fs::read_dir(directory).ok()?.flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names
            .filter(|name| of_any_timeline(name) == Some(&before) && *name < own)
            .collect();
        names.sort_unstable();
        names
            .iter()
            .rev()
            .find_map(|name| match ArchiveFile::parse(name, size) {
                Ok(ArchiveFile::Segment(found)) => of(found.timeline),
                _ => None,
            })
    })
}

fn of_any_timeline(name: &str) -> Option<&str> {
    name.get(TIMELINE_DIGITS..)
}

/// Where recovery goes on in another repository.
struct Joint<'a> {
    several: &'a [Context],
    giver: &'a Context,
    before: ArchiveFile,
    file_name: &'a str,
}

impl Joint<'_> {
    /// What the server has itself counts when the repository has the same. Else it may have come from the server's
    /// primary, and was not finished: only another repository that has another one shows that there are two servers.
    async fn judge(&self, cluster: &ClusterRepository, path: &Path) -> Result<()> {
        let archive = Archive::load(cluster).await?;
        if archive.holds_as(self.before, path).await? != Some(false) {
            return Ok(());
        }
        let name = self.giver.config.name().unwrap_or_default();
        let others = self.several.iter();
        let others = others.filter(|other| other.config.name() != self.giver.config.name());
        let asked = others.map(async |other| {
            let asking = async {
                let other = Archive::load(&other.cluster()?).await?;
                archive.is_same_in(&other, self.before).await
            };
            let asked = timeout(ANSWERS_WITHIN, asking).await;
            let silent = |_| Err(Error::new(Kind::Repository, "it does not answer"));
            (other, asked.unwrap_or_else(silent))
        });
        for (other, asked) in join_all(asked).await {
            match asked {
                Ok(Some(false)) => {
                    let rival = other.config.name().unwrap_or_default();
                    let what = two_servers((name, rival), self.file_name);
                    return Err(self.refusal(Kind::AlreadyExists, what));
                }
                Ok(_) => {}
                // It has not given what nobody here opens.
                Err(error) if error.is_lack_of_key() => {}
                Err(error) => {
                    let what = format!(
                        "{} in {} is another one than in repository {name}, and it is not known whether it is of another server: {}",
                        self.file_name,
                        path.parent()
                            .map_or(OsStr::new("."), Path::as_os_str)
                            .display(),
                        error.while_doing(act_in(other)),
                    );
                    return Err(self.refusal(Kind::Repository, what));
                }
            }
        }
        Ok(())
    }

    fn refusal(&self, kind: Kind, what: String) -> Error {
        let what = format!("recovery does not go on in another repository: {what}");
        Error::new(kind, what).hint(
            "find out which of the repositories this server is to follow, and name that one in its restore_command with --repo",
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn the_segment_before_is_of_the_last_timeline_that_may_lead_there() {
        let size = WalSegmentSize::try_from(1 << 20).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let segment = |timeline, number| WalSegment {
            timeline: TimelineId::new(timeline),
            number,
        };
        let found = |timeline, number| {
            let found = before(directory.path(), segment(timeline, number), size);
            found.map(|(before, _)| before)
        };
        let put = |timeline, number, length: u64| {
            let name = segment(timeline, number).file_name(size);
            let file = fs::File::create(directory.path().join(name)).unwrap();
            file.set_len(length).unwrap();
        };
        assert_eq!(found(1, 0), None);
        assert_eq!(found(3, 4096), None);
        put(1, 4095, size.get());
        put(2, 4095, size.get());
        put(4, 4095, size.get());
        assert_eq!(found(3, 4096), Some(segment(2, 4095)));
        put(3, 4095, 100);
        assert_eq!(found(3, 4096), Some(segment(2, 4095)));
        put(3, 4095, size.get());
        assert_eq!(found(3, 4096), Some(segment(3, 4095)));
        assert_eq!(found(1, 4096), Some(segment(1, 4095)));
    }
}
