//! A helper: makes shares of a backup that another process leads.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::share::Share;
use pgstrata_pgdata::ControlFile;
use pgstrata_pgdata::control::ClusterState;
use tokio::runtime::Handle;

use super::super::abort::Abort;
use super::super::packer::Destination;
use super::super::prepare::{check_record, control_of};
use super::Desk;
use super::make::Maker;
use crate::blocking::blocking;
use crate::catalog::{Catalog, Layer, Unfinished, cluster_record};
use crate::cluster::control::check_start_is_visible;
use crate::cluster::scan::identity;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::repository::Repository;
use crate::shares::HelpReport;

/// How often a helper looks whether the leader has cut its work.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How often a helper at work looks whether it is still waited for.
const LOOK_WHETHER_OVER_EVERY: Duration = Duration::from_secs(2);

/// Everything a helper can be told.
#[derive(Clone, Debug)]
pub struct HelpOptions {
    /// The backup; `None`: the one that runs.
    pub label: Option<Label>,
    /// The leader's data directory, as this host sees it.
    pub data_directory: PathBuf,
    /// Workers; 0: one per core.
    pub jobs: usize,
    /// Bytes per second to read at most.
    pub max_rate: Option<u64>,
    /// How long to wait until the leader has cut its work.
    pub timeout: Duration,
}

/// Makes shares of a backup until none is free.
///
/// # Errors
/// When there is no such backup, the directory is not the leader's, or a share cannot be made; the leader then makes it.
pub async fn help(
    repository: &Repository,
    cluster: &ClusterName,
    options: &HelpOptions,
    progress: Progress,
) -> Result<HelpReport> {
    let record = cluster_record(repository, cluster).await?;
    let control = control_of(&options.data_directory).await?.control;
    check_record(&record, &control)?;
    let catalog = Catalog::load(repository, cluster).await?;
    let (label, leader) = leader(&catalog, options.label.as_ref())?;
    let desk = Desk::new(Destination {
        repository: repository.clone(),
        cluster: cluster.clone(),
        label,
        layer_id: claim::layer_id_bytes(&leader)?,
        progress: progress.clone(),
        runtime: Handle::current(),
    });
    let first = first_share(&desk, options.timeout).await?;
    // Only now: the checkpoint of the start came before the shares.
    let control = control_of(&options.data_directory).await?.control;
    check_directory(&options.data_directory, &control, &first)?;
    let chain = chain(&catalog, &first)?;
    let abort = Abort::new();
    let watching = tokio::spawn(abort.clone().watch(progress, over(desk.clone())));
    let directory = options.data_directory.clone();
    let limits = (options.jobs, options.max_rate);
    let maker = Maker::new(desk, chain, directory, limits, abort);
    let outcome = blocking(move || {
        let outcome = make_shares(&maker, first.count);
        if !maker.desk.wait(maker.desk.is_wanted())? {
            // What we stored since the leader removed its shares.
            maker.desk.remove_shares();
        }
        outcome
    })
    .await;
    watching.abort();
    outcome
}

/// The backup to help: of that label, or the newest that is under way.
fn leader(catalog: &Catalog, wanted: Option<&Label>) -> Result<(Label, ClaimRecord)> {
    let at_work = |one: &&Unfinished| match wanted {
        Some(label) => one.label == *label,
        None => !one.is_abandoned(),
    };
    let found = catalog.unfinished.iter().rfind(at_work);
    let claim = found.and_then(|one| Some((one.label.clone(), one.claim.clone()?)));
    claim.ok_or_else(|| {
        let what = match wanted {
            Some(label) => format!("no backup {label} is under way"),
            None => "no backup is under way".to_owned(),
        };
        Error::new(Kind::NotFound, what).hint("start \"pgstrata backup --shares N\" first")
    })
}

/// The first share, when the leader has cut its work.
async fn first_share(desk: &Desk, timeout: Duration) -> Result<Share> {
    let begun = Instant::now();
    loop {
        let asking = desk.clone();
        if let Some(share) = blocking(move || asking.share(0)).await? {
            return Ok(share);
        }
        let (cluster, label) = (&desk.destination.cluster, &desk.destination.label);
        let claim = cluster.claim_key(label);
        let given_up = desk.destination.repository.size(&claim).await?.is_none();
        if given_up || begun.elapsed() >= timeout {
            let what = format!("backup {label} has no shares to make");
            return Err(Error::new(Kind::NotFound, what).hint(
                "it runs without --shares, has not started yet (see --share-timeout), or is all but done",
            ));
        }
        if desk.destination.progress.is_cancelled() {
            return Err(Error::new(Kind::Interrupted, "the helper was interrupted"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Refuses a directory that is not the leader's, or does not show the start of its backup.
fn check_directory(directory: &Path, control: &ControlFile, share: &Share) -> Result<()> {
    let refuse = |what: String| {
        Err(Error::new(
            Kind::Refused,
            format!(
                "\"{}\" is not the data directory of backup {}: {what}",
                directory.display(),
                share.label
            ),
        )
        .hint("name the very directory that the leader reads, on shared storage or in a snapshot taken since the backup started"))
    };
    if control.system_identifier != share.system_identifier {
        return refuse(format!(
            "its system identifier is {}, expected {}",
            control.system_identifier, share.system_identifier
        ));
    }
    if control.timeline != share.timeline {
        return refuse(format!(
            "it is on timeline {}, expected {}",
            control.timeline, share.timeline
        ));
    }
    let state = ClusterState::of_running(share.from_standby);
    if control.state != state {
        return refuse(format!(
            "its state is \"{}\", expected \"{state}\"",
            control.state
        ));
    }
    let path = directory.join("PG_VERSION");
    let found = fs::metadata(&path).map_or(0, |metadata| identity(&metadata));
    if found != 0 && share.version_identity != 0 && found != share.version_identity {
        return refuse("its files are others: it is a copy".to_owned());
    }
    check_start_is_visible(directory, control, share.start_lsn)
}

/// The chain of the parent that the leader names.
fn chain(catalog: &Catalog, share: &Share) -> Result<Vec<Arc<Layer>>> {
    let Some(parent) = &share.parent else {
        return Ok(Vec::new());
    };
    let layer = catalog
        .layers
        .iter()
        .find(|layer| layer.reference() == *parent);
    let layer = layer.ok_or_else(|| {
        let what = format!(
            "layer {}, the parent of backup {}, is not there",
            parent.label, share.label
        );
        Error::new(Kind::NotFound, what)
    })?;
    let chain = catalog.chain(&layer.label)?;
    Ok(chain
        .into_iter()
        .map(|layer| Arc::new(layer.clone()))
        .collect())
}

/// Resolves when the backup is over, whatever came of it.
async fn over(desk: Desk) -> Error {
    loop {
        tokio::time::sleep(LOOK_WHETHER_OVER_EVERY).await;
        if matches!(desk.is_wanted().await, Ok(false)) {
            return desk.unwanted();
        }
    }
}

fn make_shares(maker: &Maker, count: u32) -> Result<HelpReport> {
    let destination = &maker.desk.destination;
    let mut report = HelpReport {
        label: destination.label.clone(),
        share_count: count,
        made: Vec::new(),
        too_late: Vec::new(),
    };
    let mut total = 0;
    for number in 0..count {
        if maker.abort.is_raised() {
            let error = maker.abort.take();
            // Over, while we were between two shares: there is nothing left to make.
            match error.kind() {
                Kind::Refused => break,
                _ => return Err(error),
            }
        }
        let cluster = &destination.cluster;
        let key = cluster.share_claim_key(&destination.label, (number, 0));
        // A share that is claimed is not looked at: its description may be large.
        if destination
            .runtime
            .block_on(destination.repository.size(&key))?
            .is_some()
        {
            continue;
        }
        let Some(share) = maker.desk.share(number)? else {
            break;
        };
        if !maker.desk.claim(&key)? {
            continue;
        }
        total += share.files.iter().map(|file| file.size_bytes).sum::<u64>();
        destination.progress.set_total(total);
        // Whatever failed, that nobody waits for us any more is the better reason.
        let made = maker.make(&share, 0);
        let made = made.or_else(|error| maker.desk.check_wanted().and(Err(error)))?;
        match made {
            true => report.made.push(number),
            false => report.too_late.push(number),
        }
    }
    Ok(report)
}
