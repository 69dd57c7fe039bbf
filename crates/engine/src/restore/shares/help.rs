//! A helper: makes shares of a restore that another process leads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::restore_share::{self, RestoreWork};
use tokio::runtime::Handle;

use super::super::Source;
use super::super::destination::{Layout, Root, read_marker, resolve};
use super::super::plan::prefixes;
use super::make::Maker;
use super::{BEAT_EVERY, Desk, LOOK_EVERY, SHARES, WORK, exists, read};
use crate::blocking::blocking;
use crate::catalog::{Catalog, Layer};
use crate::error::{Error, FileContext, Kind, Result};
use crate::progress::Progress;
use crate::repository::Repository;
use crate::shares::HelpReport;

/// Everything a helper can be told.
#[derive(Clone, Debug)]
pub struct HelpOptions {
    /// The data directory to be, that of the restore under way.
    pub directory: PathBuf,
    /// Threads that fetch, decode and write.
    pub jobs: usize,
    /// How long to wait until the leader has cut its work.
    pub timeout: Duration,
}

/// Makes shares of a restore until none is free.
///
/// # Errors
/// When no such restore is under way, it is of something else, or a share cannot be made; the leader then makes it.
pub async fn help(
    repository: &Repository,
    cluster: &ClusterName,
    options: &HelpOptions,
    progress: Progress,
) -> Result<HelpReport> {
    let directory = resolve(&options.directory)?;
    let (places, work) = join(&directory, cluster, options.timeout, &progress).await?;
    let label = Label::parse(&work.label)
        .ok_or_else(|| Error::new(Kind::Damaged, "the restore is of no layer"))?;
    let chain = chain(repository, cluster, &label, &work).await?;
    let layout = layout_of(&work);
    let maker = Maker {
        desk: Desk::new(places, &work.restore_id, &chain[0]),
        work,
        source: Source {
            repository: repository.clone(),
            cluster: cluster.clone(),
            runtime: Handle::current(),
        },
        chain,
        prefixes: prefixes(&layout),
        jobs: options.jobs,
        progress,
    };
    blocking(move || help_while_wanted(&maker, label)).await
}

/// Finds what the shares are, when the leader has cut its work.
async fn join(
    directory: &Path,
    cluster: &ClusterName,
    timeout: Duration,
    progress: &Progress,
) -> Result<(Vec<Root>, RestoreWork)> {
    let begun = Instant::now();
    loop {
        check_marker(directory, cluster)?;
        let asked = directory.to_owned();
        if let Some((places, work)) = blocking(move || find_work(&asked)).await? {
            if work.cluster != cluster.as_str() {
                return Err(of_other_cluster(directory, &work.cluster));
            }
            return Ok((places, work));
        }
        if begun.elapsed() >= timeout {
            let what = format!(
                "the restore to \"{}\" has no shares to make",
                directory.display()
            );
            return Err(Error::new(Kind::NotFound, what)
                .hint("it runs without --shares, was interrupted, or is all but done"));
        }
        if progress.is_cancelled() {
            return Err(Error::new(Kind::Interrupted, "the helper was interrupted"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Refuses a directory in which no restore of the cluster is under way.
fn check_marker(directory: &Path, cluster: &ClusterName) -> Result<()> {
    let Some(marker) = read_marker(directory)? else {
        let what = format!("no restore to \"{}\" is under way", directory.display());
        return Err(Error::new(Kind::NotFound, what)
            .hint("start \"pgstrata restore --shares N\" first, and give the same --target-dir"));
    };
    if marker.cluster != cluster.as_str() {
        return Err(of_other_cluster(directory, &marker.cluster));
    }
    if marker.data_directory != directory {
        return Err(of_other_directory(directory, &marker.data_directory));
    }
    Ok(())
}

fn of_other_cluster(directory: &Path, cluster: &str) -> Error {
    let what = format!(
        "the restore to \"{}\" is of cluster \"{cluster}\"",
        directory.display()
    );
    Error::new(Kind::Refused, what).hint("give the --repo and --cluster of that restore")
}

fn of_other_directory(directory: &Path, data: &Path) -> Error {
    let what = format!(
        "\"{}\" belongs to a restore to \"{}\"",
        directory.display(),
        data.display()
    );
    Error::new(Kind::Refused, what)
        .hint("give the --target-dir of that restore; all hosts must see it at the same path")
}

/// What the shares are, and the places for files that are not in place yet.
pub(super) fn find_work(directory: &Path) -> Result<Option<(Vec<Root>, RestoreWork)>> {
    let Some((place, record)) = find_record(directory)? else {
        return Ok(None);
    };
    let path = place.path.join(WORK);
    let work = restore_share::decode(&record).map_err(|error| {
        Error::from(error).while_doing(format!("could not read \"{}\"", path.display()))
    })?;
    let layout = layout_of(&work);
    if layout.data != directory {
        return Err(of_other_directory(directory, &layout.data));
    }
    let mut places = vec![place];
    for other in &layout.directories()[1..] {
        // It was there before that of the data directory.
        let found = find_record(other)?;
        let Some((place, _)) = found.filter(|(_, other)| *other == record) else {
            if !exists(&places[0], WORK)? {
                return Ok(None);
            }
            let what = format!(
                "\"{}\" is not the one that the restore to \"{}\" writes to",
                other.display(),
                directory.display()
            );
            return Err(Error::new(Kind::Refused, what).hint(
                "every directory of the restore, those of tablespaces included, must be seen at the same path",
            ));
        };
        places.push(place);
    }
    Ok(Some((places, work)))
}

fn find_record(directory: &Path) -> Result<Option<(Root, Vec<u8>)>> {
    let path = directory.join(SHARES);
    let dir = match File::open(&path) {
        Ok(dir) => dir,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => {
            return Err(e)
                .context(|| format!("could not open the directory \"{}\"", path.display()));
        }
    };
    let place = Root { path, dir };
    let record = read(&place, WORK)?;
    Ok(record.map(|record| (place, record)))
}

fn layout_of(work: &RestoreWork) -> Layout {
    let tablespaces = work.tablespaces.iter();
    Layout {
        data: PathBuf::from(&work.data_directory),
        tablespaces: tablespaces
            .map(|(oid, path)| (*oid, PathBuf::from(path)))
            .collect::<BTreeMap<_, _>>(),
        wal: work.wal_directory.as_ref().map(PathBuf::from),
    }
}

/// The chain of the very layer that the leader restores, newest first.
async fn chain(
    repository: &Repository,
    cluster: &ClusterName,
    label: &Label,
    work: &RestoreWork,
) -> Result<Vec<Arc<Layer>>> {
    let catalog = Catalog::load(repository, cluster).await?;
    let chain = catalog.chain(label)?;
    if chain[0].manifest_digest != work.manifest_digest {
        let what = format!("layer {label} of this repository is not the one that is restored");
        return Err(
            Error::new(Kind::Refused, what).hint("give the --repo and --cluster of that restore")
        );
    }
    Ok(chain.into_iter().cloned().map(Arc::new).collect())
}

fn help_while_wanted(maker: &Maker, label: Label) -> Result<HelpReport> {
    let at_work = Mutex::new(None);
    thread::scope(|scope| {
        let (stop, stopped) = channel();
        let watched = &at_work;
        scope.spawn(move || watch(maker, watched, &stopped));
        let outcome = make_shares(maker, label, &at_work);
        drop(stop);
        outcome
    })
}

/// Says every now and then that we are at work on a share, and cancels that work when nobody waits for it.
fn watch(maker: &Maker, at_work: &Mutex<Option<u32>>, stopped: &Receiver<()>) {
    while stopped.recv_timeout(BEAT_EVERY) == Err(RecvTimeoutError::Timeout) {
        let number = *at_work.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = number
            && let Err(error) = maker.desk.beat(number)
        {
            tracing::debug!(number, %error, "could not say that the share is being made");
        }
        if matches!(maker.desk.is_wanted(), Ok(false)) {
            maker.progress.cancel();
        }
    }
}

fn make_shares(maker: &Maker, label: Label, at_work: &Mutex<Option<u32>>) -> Result<HelpReport> {
    let mut report = HelpReport {
        label,
        share_count: maker.work.count(),
        made: Vec::new(),
        too_late: Vec::new(),
    };
    for number in 0..report.share_count {
        let claimed = maker.desk.claim(number);
        if !maker.desk.is_wanted()? {
            // Over, while we were between two shares: there is nothing left to make.
            break;
        }
        if maker.progress.is_cancelled() {
            return Err(Error::new(Kind::Interrupted, "the helper was interrupted"));
        }
        if !claimed? {
            continue;
        }
        *at_work.lock().unwrap_or_else(PoisonError::into_inner) = Some(number);
        // Whatever failed, that nobody waits for us any more is the better reason.
        let made = maker.make(number, 0);
        let made = made.or_else(|error| maker.desk.check_wanted().and(Err(error)))?;
        *at_work.lock().unwrap_or_else(PoisonError::into_inner) = None;
        match made {
            true => report.made.push(number),
            false => report.too_late.push(number),
        }
    }
    Ok(report)
}
