//! Before a backup: the repository's cluster, the server, its directory, and that all three are one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::{ClusterIdentity, Tablespace};
use pgstrata_pgdata::{ControlFile, Lsn, Major, TimelineHistory, TimelineId};

use super::choose::Standpoint;
use super::options::BackupOptions;
use crate::blocking::blocking;
use crate::catalog::cluster_record;
use crate::cluster::control::{ControlReading, check_same_cluster};
use crate::cluster::scan::{Scan, scan, tablespaces};
use crate::cluster::{NoTracker, Session, Tracker, read_control};
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// The cluster, its session and its directory: they are there and fit together.
pub(super) struct Ready {
    pub(super) session: Arc<Session>,
    pub(super) data_directory: PathBuf,
    /// As it was before the backup started.
    pub(super) control: ControlFile,
    pub(super) identity: ClusterIdentity,
    /// The server's page tracker, or why there is none.
    pub(super) tracker: std::result::Result<Tracker, NoTracker>,
    /// The cluster as the repository has it.
    pub(super) record: ClusterRecord,
}

impl Ready {
    /// Where a backup stands that starts at `start_lsn`, with `control` as the control file then.
    pub(super) fn standpoint(&self, control: &ControlFile, start_lsn: Lsn) -> Standpoint {
        Standpoint {
            start_lsn,
            timeline: control.timeline,
            data_checksum_version: control.data_checksum_version,
            from_standby: self.session.facts().in_recovery,
            history: history(&self.data_directory, control.timeline),
        }
    }

    /// The files of the cluster as they are now.
    pub(super) async fn scan(&self) -> Result<Scan> {
        files_of(&self.data_directory, self.control.major).await
    }

    /// What to say about tablespaces that are there and were not among those `listed`: their
    /// files come out of the WAL alone.
    pub(super) async fn tablespaces_since(&self, listed: &[Tablespace]) -> Result<Vec<String>> {
        let directory = self.data_directory.clone();
        let now = blocking(move || tablespaces(&directory)).await?;
        let new = now.into_iter().filter(|one| !listed.contains(one));
        // One in place is a directory that replay makes by itself.
        let placed = new.filter_map(|one| Some((one.oid, one.location?)));
        Ok(placed
            .map(|(oid, location)| {
                format!("tablespace {oid} was created in \"{location}\" while the backup ran: recovery needs that very directory, which --tablespace-map cannot move; back up again to have the tablespace in a layer")
            })
            .collect())
    }
}

/// Connects and checks. Changes nothing, in the repository or the server.
pub(super) async fn prepare(
    repository: &Repository,
    cluster: &ClusterName,
    options: &BackupOptions,
) -> Result<Ready> {
    let record = cluster_record(repository, cluster).await?;
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
    let reading = control_of(&data_directory).await?;
    check_same_cluster(&data_directory, &reading.control, facts)?;
    check_record(&record, &reading.control)?;
    let identity = identity(&reading.control);
    let tracker = Tracker::find(&session, &options.connection).await;
    Ok(Ready {
        session: Arc::new(session),
        data_directory,
        control: reading.control,
        identity,
        tracker,
        record,
    })
}

/// The list of files, made on a thread that may block.
pub(crate) async fn files_of(data_directory: &Path, major: Major) -> Result<Scan> {
    let directory = data_directory.to_owned();
    blocking(move || scan(&directory, major)).await
}

/// The control file, read on a thread that may block.
pub(crate) async fn control_of(data_directory: &Path) -> Result<ControlReading> {
    let directory = data_directory.to_owned();
    tokio::task::spawn_blocking(move || read_control(&directory))
        .await
        .unwrap_or_else(|error| {
            Err(Error::new(
                Kind::File,
                format!("could not read pg_control: {error}"),
            ))
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

/// Refuses a cluster that is not the repository's.
pub(crate) fn check_record(record: &ClusterRecord, control: &ControlFile) -> Result<()> {
    let refuse = |what: &str, server: String, repository: String| {
        Err(Error::new(
            Kind::Refused,
            format!("cluster \"{}\" in the repository is another one: its {what} is {repository}, the server's is {server}", record.name),
        )
        .hint("use another --cluster name for this server"))
    };
    if record.system_identifier != control.system_identifier {
        return refuse(
            "system identifier",
            control.system_identifier.to_string(),
            record.system_identifier.to_string(),
        );
    }
    if u32::from(record.major) != control.major.get() {
        return refuse(
            "version",
            control.major.to_string(),
            record.major.to_string(),
        );
    }
    if record.catalog_version != control.catalog_version {
        return refuse(
            "catalog version",
            control.catalog_version.to_string(),
            record.catalog_version.to_string(),
        );
    }
    if u64::from(record.wal_segment_size) != control.wal_segment_size.get() {
        return refuse(
            "WAL segment size",
            control.wal_segment_size.to_string(),
            record.wal_segment_size.to_string(),
        );
    }
    Ok(())
}

/// The history of `timeline` as the server has it, or why it is not known.
fn history(
    data_directory: &Path,
    timeline: TimelineId,
) -> std::result::Result<TimelineHistory, String> {
    if timeline == TimelineId::FIRST {
        return Ok(TimelineHistory::first(timeline));
    }
    let path = data_directory
        .join("pg_wal")
        .join(timeline.history_file_name());
    let text = fs::read_to_string(&path)
        .map_err(|error| format!("could not read \"{}\": {error}", path.display()))?;
    TimelineHistory::parse(timeline, &text).map_err(|error| error.to_string())
}
