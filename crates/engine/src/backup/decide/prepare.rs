//! Before a backup: the repository's cluster, the server, its directory, and that all three are one.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::manifest::{ClusterIdentity, Tablespace};
use pgstrata_pgdata::{ControlFile, Lsn, TimelineHistory, TimelineId};
use pgstrata_store::blocking::blocking;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::Repository;

use super::backup_type::Standpoint;
use crate::backup::options::BackupOptions;
use crate::server::apart::{answering, require_apart, require_apart_from};
use crate::server::control::{check_record, control_of_server};
use crate::server::outside::outside;
use crate::server::scan::{Scan, files_of, tablespaces};
use crate::server::storage;
use crate::server::summary::written_before;
use crate::server::{NoTracker, Session, Tracker};

/// The cluster, its session and its directory: they are there and fit together.
pub(crate) struct Ready {
    pub(crate) session: Arc<Session>,
    pub(crate) data_directory: PathBuf,
    /// As it was before the backup started: its timeline may be that before a promotion.
    pub(crate) control: ControlFile,
    pub(crate) identity: ClusterIdentity,
    /// The server's page tracker, or why there is none.
    pub(crate) tracker: std::result::Result<Tracker, NoTracker>,
    /// The cluster as the repository has it.
    pub(crate) record: ClusterRecord,
    /// Where the backup is stored.
    repositories: Vec<Repository>,
}

impl Ready {
    /// Where a backup stands that starts at `start_lsn`, with `control` as the control file then.
    pub(crate) fn standpoint(&self, control: &ControlFile, start_lsn: Lsn) -> Standpoint {
        Standpoint {
            start_lsn,
            timeline: control.timeline,
            data_checksum_version: control.data_checksum_version,
            from_standby: self.session.facts().in_recovery,
            history: history(&self.data_directory.join("pg_wal"), control.timeline),
        }
    }

    /// Where a backup would start now. A primary will write a checkpoint; a standby starts at its last
    /// restartpoint.
    pub(crate) async fn would_start(&self) -> Result<Lsn> {
        match self.session.facts().in_recovery {
            true => Ok(self.control.redo_lsn),
            false => self.session.wal_end().await,
        }
    }

    /// Where the WAL is now, when all WAL summaries are of WAL from before.
    pub(crate) async fn summaries_written(&self) -> Option<Lsn> {
        let own = self.session.own_timeline().await.ok().flatten();
        written_before(&self.session, own.unwrap_or(self.control.timeline)).await
    }

    /// The files of the cluster as they are now, with its configuration outside of the data directory.
    pub(crate) async fn scan(&self) -> Result<Scan> {
        storage::require_visible(&self.session, &self.data_directory, self.control.major).await?;
        let mut scan = files_of(&self.data_directory, self.control.major).await?;
        let (repositories, linked) = (self.repositories.clone(), scan.linked.clone());
        blocking(move || {
            let linked = || linked.iter().map(PathBuf::as_path);
            let mut repositories = repositories.iter();
            repositories.try_for_each(|repository| require_apart_from(repository, linked()))
        })
        .await?;
        scan.add_outside(outside(&self.session, &self.data_directory).await?);
        Ok(scan)
    }

    /// The tablespaces that are there.
    pub(crate) async fn tablespaces(&self) -> Result<Vec<Tablespace>> {
        let directory = self.data_directory.clone();
        blocking(move || tablespaces(&directory)).await
    }

    /// What to say about tablespaces that are there and were not when the backup began, in `before`: the WAL makes them.
    pub(crate) async fn tablespaces_since(&self, before: &[Tablespace]) -> Result<Vec<String>> {
        let now = self.tablespaces().await?;
        let new = now.into_iter().filter(|one| !before.contains(one));
        // One in place is a directory that replay makes by itself.
        let placed = new.filter_map(|one| Some((one.oid, one.location?)));
        Ok(placed
            .map(|(oid, location)| {
                format!("tablespace {oid} was created in \"{location}\" while the backup ran: recovery needs that very directory, which --tablespace-map cannot move; back up again to have the tablespace in a layer")
            })
            .collect())
    }
}

/// What to say of tablespaces that lie one inside the other, or inside the data directory, which PostgreSQL allows: each is
/// a directory of its own to a restore.
pub(crate) fn nested(tablespaces: &[Tablespace], data_directory: &Path) -> Vec<String> {
    let placed = || {
        let placed = tablespaces.iter();
        placed.filter_map(|one| Some((one.oid, one.location.as_deref()?)))
    };
    let say = |inner: u32, at: &str, outer: &str| {
        format!(
            "tablespace {inner} in \"{at}\" lies inside {outer}: a restore refuses to put both there, so it needs \
             --tablespace-map for one tablespace"
        )
    };
    let pairs = placed().flat_map(|inner| placed().map(move |outer| (inner, outer)));
    let nested = pairs.filter(|((inner, at), (outer, around))| {
        inner != outer && Path::new(at).starts_with(around)
    });
    let nested = nested.map(|((inner, at), (outer, around))| {
        say(inner, at, &format!("tablespace {outer} in \"{around}\""))
    });
    let within = placed().filter(|(_, at)| Path::new(at).starts_with(data_directory));
    let within = within.map(|(inner, at)| {
        say(
            inner,
            at,
            &format!("the data directory \"{}\"", data_directory.display()),
        )
    });
    nested.chain(within).collect()
}

/// Connects and checks. Changes nothing, in the repository or the server.
pub(crate) async fn prepare(cluster: &ClusterRepository, options: &BackupOptions) -> Result<Ready> {
    let record = cluster.record().await?;
    if let Some(doubt) = cluster.doubt(&record) {
        let advice = doubt.hint_text().unwrap_or_default();
        tracing::warn!("{doubt}; {advice}");
    }
    let session = Session::connect(&options.connection).await?;
    let facts = session.facts();
    facts.check_fitness()?;
    let data_directory = match (&options.data_directory, &facts.data_directory) {
        (Some(directory), _) => directory.clone(),
        (None, Some(directory)) => PathBuf::from(directory),
        (None, None) => {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "role \"{}\" may not see where the data directory is",
                    facts.role
                ),
            )
            .hint(format!(
                "give --pgdata, or GRANT pg_read_all_settings TO \"{}\"",
                facts.role
            )));
        }
    };
    let reading = match control_of_server(&session, &data_directory).await {
        Ok(reading) => reading,
        Err(error) => {
            // A server that has stopped meanwhile took its lock file with it.
            session.is_in_recovery().await?;
            return Err(error);
        }
    };
    check_record(&record, &reading.control)?;
    let own = iter::once(cluster.repository.clone());
    let repositories: Vec<Repository> = own.chain(answering(&options.others).await).collect();
    for repository in &repositories {
        require_apart(repository, &data_directory).await?;
    }
    let identity = identity(&reading.control);
    let tracker = Tracker::find(&session, &options.connection).await;
    Ok(Ready {
        session: Arc::new(session),
        data_directory,
        control: reading.control,
        identity,
        tracker,
        record,
        repositories,
    })
}

fn identity(control: &ControlFile) -> ClusterIdentity {
    ClusterIdentity {
        system_identifier: control.system_identifier,
        major: u16::try_from(control.major.get()).expect("15 to 18"),
        catalog_version: control.catalog_version,
        block_size: control.block_size,
        wal_segment_size: u32::try_from(control.wal_segment_size.get()).expect("at most 1 GiB"),
        data_checksum_version: control.data_checksum_version,
    }
}

/// The history of `timeline` as the server has it, or why it is not known.
pub(crate) fn history(
    wal_directory: &Path,
    timeline: TimelineId,
) -> std::result::Result<TimelineHistory, String> {
    if timeline == TimelineId::FIRST {
        return Ok(TimelineHistory::first(timeline));
    }
    let path = wal_directory.join(timeline.history_file_name());
    let contents = fs::read(&path)
        .map_err(|error| format!("could not read \"{}\": {error}", path.display()))?;
    TimelineHistory::read(timeline, &contents).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tablespaces_one_inside_the_other_are_named_once() {
        let placed = |oid, location: Option<&str>| Tablespace {
            oid,
            location: location.map(str::to_owned),
        };
        let apart = [
            placed(1, Some("/a")),
            placed(2, Some("/ab")),
            placed(3, None),
        ];
        let data = Path::new("/data");
        assert_eq!(nested(&apart, data), [""; 0]);
        let found = nested(&[placed(1, Some("/a/b")), placed(2, Some("/a"))], data);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("1 in \"/a/b\" lies inside tablespace 2"),
            "{found:?}"
        );
        let found = nested(
            &[placed(1, Some("/data/in")), placed(2, Some("/data2"))],
            data,
        );
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("lies inside the data directory"),
            "{found:?}"
        );
    }
}
