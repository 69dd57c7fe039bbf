//! Making a cluster known to a repository: once, and for one cluster only.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::cluster::{
    ClusterRecord, FORMAT, RETAINED_FORMAT, RetentionRecord, SEALED_FORMAT, SealRecord, encode,
};
use pgstrata_layer::keys::ClusterName;
use pgstrata_pgdata::control::ControlFile;
use pgstrata_store::catalog::WRITTEN_BY;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::keys::{self, Recipients};

use crate::server::apart::{require_apart, require_outside};
use crate::server::control::control_of;

/// What `init` found or made.
#[derive(Clone, Debug)]
pub struct InitReport {
    /// Whether the record is new.
    pub created: bool,
    /// The record as it is in the repository.
    pub record: ClusterRecord,
}

/// Records the cluster of `data_directory` under the name that `cluster` has, after proving that the
/// store honours create-if-absent. With `recipients` everything of it will be sealed for them,
/// with `retention` it will be locked in the store. In a directory what it makes belongs to the owner of the data directory. Running it again for the same cluster changes nothing.
///
/// # Errors
/// `Refused` when the name belongs to another cluster, the store overwrites, or the repository lies in the cluster.
pub async fn init(
    cluster: &ClusterRepository,
    data_directory: &Path,
    recipients: Option<&Recipients>,
    retention: Option<RetentionRecord>,
) -> Result<InitReport> {
    let reading = control_of(data_directory).await?;
    require_apart(&cluster.repository, data_directory).await?;
    require_outside(&cluster.repository).await?;
    let like = fs::metadata(data_directory)
        .context(|| format!("could not look up \"{}\"", data_directory.display()))?;
    let home = cluster.name.as_str();
    if let Some(retention) = retention {
        cluster.repository.require_lock().await?;
        cluster.repository.retain(retention.into());
    }
    cluster.repository.make_home(home, &like).await?;
    cluster.repository.probe(home).await?;
    let mut wanted = record_of(&cluster.name, &reading.control);
    wanted.retention = retention;
    if recipients.is_none() {
        require_not_sealed(cluster).await?;
    }
    if let Some(recipients) = recipients {
        if let Some(report) = already_there(cluster, &wanted, Some(recipients)).await? {
            return Ok(report);
        }
        // A cluster is sealed from its first object on: the keys come before the record.
        let seal_id = keys::begin(cluster.home(), recipients).await?;
        wanted.format = SEALED_FORMAT;
        wanted.sealing = Some(SealRecord {
            version: 1,
            seal_id,
        });
    }
    if retention.is_some() {
        wanted.format = RETAINED_FORMAT;
    }
    let created = record(cluster, wanted, recipients).await?;
    if created.created && retention.is_some() {
        prove_lock(cluster).await?;
    }
    cluster.repository.lay_up_room().await;
    Ok(created)
}

/// Refuses a cluster that was sealed, and has lost the record that says so: a clear record would hide it.
async fn require_not_sealed(cluster: &ClusterRepository) -> Result<()> {
    match cluster.record().await {
        Err(error) if error.kind() == Kind::Damaged && cluster.has_keys().await? => Err(error),
        Err(error) if error.kind() == Kind::NotFound && cluster.has_keys().await? => {
            let (name, keys) = (cluster.name.as_str(), cluster.name.keys_prefix());
            let what = format!(
                "cluster \"{name}\" has keys below \"{keys}\" and no record: it was sealed, and what is stored now would be clear"
            );
            Err(Error::new(Kind::Refused, what).hint(
                "run \"init --encrypt\", or bring its record back from a copy of the repository; if a clear cluster is wanted all the same, delete those keys first, or choose another --cluster",
            ))
        }
        _ => Ok(()),
    }
}

/// Refuses a store that takes locked objects and does not lock them.
async fn prove_lock(cluster: &ClusterRepository) -> Result<()> {
    let locked = cluster
        .repository
        .locked_until(&cluster.name.cluster_key())
        .await?;
    if locked.is_some_and(|until| until > Timestamp::now()) {
        return Ok(());
    }
    let url = cluster.repository.url();
    let what =
        format!("the store at {url} has not locked the cluster's record, although it was told to");
    Err(Error::new(Kind::Refused, what).hint("\"pgstrata check\" says what is protected"))
}

/// Creates the cluster's record, or compares the one that is there.
async fn record(
    cluster: &ClusterRepository,
    wanted: ClusterRecord,
    recipients: Option<&Recipients>,
) -> Result<InitReport> {
    let body = Bytes::from(encode(&wanted));
    match cluster
        .repository
        .create(&cluster.name.cluster_key(), body)
        .await
    {
        Ok(()) => Ok(InitReport {
            created: true,
            record: wanted,
        }),
        Err(error) if error.kind() == Kind::AlreadyExists => {
            let there = already_there(cluster, &wanted, recipients).await?;
            there.ok_or(error)
        }
        Err(error) => Err(error),
    }
}

/// What is there, if anything is and it is what was wanted.
async fn already_there(
    cluster: &ClusterRepository,
    wanted: &ClusterRecord,
    recipients: Option<&Recipients>,
) -> Result<Option<InitReport>> {
    let record = match cluster.record().await {
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        read => read?,
    };
    require_same(&record, wanted)?;
    // Copied from elsewhere, it may be in a bucket in which nothing can be locked, and so nothing created.
    cluster.require_lock(&record).await?;
    if wanted.retention.is_some() && record.retention != wanted.retention {
        let what = format!(
            "cluster \"{}\" is there, and has another retention, or none",
            record.name
        );
        return Err(Error::new(Kind::Refused, what)
            .hint("objects are locked from the first one on: choose another --cluster"));
    }
    if recipients.is_some() && record.sealing.is_none() {
        let what = format!("cluster \"{}\" is there, and is not sealed", record.name);
        return Err(Error::new(Kind::Refused, what).hint(
            "a cluster is sealed from its first object on: choose another --cluster, take a full backup there, and expire this one",
        ));
    }
    if let Some(recipients) = recipients {
        require_open_to(cluster, recipients).await?;
        tracing::info!("the cluster is sealed already; \"pgstrata key\" changes who can read it");
    }
    Ok(Some(InitReport {
        created: false,
        record,
    }))
}

/// Refuses a sealed cluster that is not for these recipients: it may be a stranger's, made where ours was to be.
async fn require_open_to(cluster: &ClusterRepository, recipients: &Recipients) -> Result<()> {
    let sealing = cluster.sealing().await?;
    let epochs = match sealing.ring() {
        Some(ring) => ring.survey(cluster.home()).await?,
        None => Vec::new(),
    };
    let boxes = epochs.last().map(|epoch| epoch.boxes.as_slice());
    let boxes = boxes.unwrap_or_default();
    let has = |role, named: &str| {
        boxes
            .iter()
            .any(|own| own.role == role && own.recipient == named)
    };
    let mut named = recipients.all.iter();
    let Some((role, other)) = named.find(|(role, named)| !has(*role, named)) else {
        return Ok(());
    };
    let what = format!(
        "cluster \"{}\" is there, and is sealed for others: {other} is not a {} of its current epoch",
        cluster.name.as_str(),
        role.as_str()
    );
    Err(Error::new(Kind::Refused, what).hint(
        "\"pgstrata key check\" lists for whom; if they are yours, \"pgstrata key add\" lets others in; if not, choose another --cluster or repository",
    ))
}

fn record_of(name: &ClusterName, control: &ControlFile) -> ClusterRecord {
    let narrow = |value: u64| u32::try_from(value).expect("a WAL segment has at most 1 GiB");
    ClusterRecord {
        name: name.as_str().to_owned(),
        format: FORMAT,
        system_identifier: control.system_identifier,
        major: u16::try_from(control.major.get()).expect("a major version is 15 to 18"),
        catalog_version: control.catalog_version,
        block_size: control.block_size,
        wal_segment_size: narrow(control.wal_segment_size.get()),
        created_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
        sealing: None,
        retention: None,
    }
}

fn require_same(record: &ClusterRecord, found: &ClusterRecord) -> Result<()> {
    let differing = [
        (
            "system identifier",
            record.system_identifier,
            found.system_identifier,
        ),
        (
            "major version",
            u64::from(record.major),
            u64::from(found.major),
        ),
        (
            "block size",
            u64::from(record.block_size),
            u64::from(found.block_size),
        ),
        (
            "WAL segment size",
            u64::from(record.wal_segment_size),
            u64::from(found.wal_segment_size),
        ),
    ]
    .into_iter()
    .find(|(_, recorded, found)| recorded != found);
    let Some((what, recorded, found)) = differing else {
        return Ok(());
    };
    let message = format!(
        "cluster \"{}\" in the repository is another one: its {what} is {recorded}, that of the data directory is {found}",
        record.name
    );
    Err(Error::new(Kind::Refused, message)
        .hint("give this cluster a name of its own with --cluster (after pg_upgrade: RUNBOOKS.md, \"Go to a new major version\")"))
}
