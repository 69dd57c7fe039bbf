//! Whether the parent lies in this server's past, by the lineage file of its data directory.
//!
//! LSNs order one history only. A data directory that was restored in place, or whose storage
//! was set back to a snapshot, comes by the same LSNs again with other contents, and nothing that
//! the server says shows it. So a parent is stood upon without comparing pages only when the file
//! lists it. The file is written when a backup has stopped, and before its layer exists: the
//! directory's state is then later than all that the layer holds. Whoever brings back an
//! earlier state of the directory brings back the file as it was then, or none; or copies older
//! files over newer ones, and leaves the newer file. So the file counts while the server goes on
//! running that it was written beside, and after that only when the page tracker knows the token
//! in it: the tracker's map is bound to the control file.

use pgstrata_layer::lineage::{Lineage, line_name, with_layer};
use pgstrata_layer::manifest::{Beside, ParentRef};
use pgstrata_pgdata::TimelineId;
use pgstrata_store::blocking::blocking;
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::error::Result;

use super::prepare::Ready;
use super::source;
use crate::server::lineage::{self, Circumstances};

/// Why `parent` is not known to lie in the past of the server's data directory; `None` when it does.
pub(crate) async fn doubt(ready: &Ready, parent: &Layer) -> Option<String> {
    let why = match known(ready, ready.session.facts().fsync).await {
        Err(why) => why,
        Ok(lineage) => {
            let layers = lineage.layers(&line_name(&ready.record));
            let manifest = &parent.manifest;
            let listed = |layer| manifest.stands_for(&parent.manifest_digest, layer);
            if layers.iter().any(listed) {
                return None;
            }
            "its lineage file does not list it, as after a restore or when storage was set back"
                .to_owned()
        }
    };
    Some(format!(
        "the parent {} is not proved to lie in the past of the data directory: {why}",
        parent.label
    ))
}

/// The newest layer of `timeline` that was made from a primary, when the data directory does not seem to come after it.
/// Its own WAL then has the names of this server's. Only what the lineage file says counts here: where there is none, as
/// when it cannot be written, nothing is known.
pub(crate) async fn beside(
    ready: &Ready,
    catalog: &Catalog,
    timeline: TimelineId,
) -> Option<Beside> {
    if ready.session.facts().in_recovery {
        return None;
    }
    let of_primary =
        |layer: &&Layer| layer.manifest.timeline == timeline && !layer.manifest.from_standby;
    let newest = catalog.layers.iter().rfind(of_primary)?;
    let data = ready.data_directory.clone();
    let read = blocking(move || Ok((lineage::read(&data)?, lineage::place(&data)?)));
    let (Some(found), place) = read.await.ok()? else {
        return None;
    };
    let listed = |layer| newest.manifest.stands_for(&newest.manifest_digest, layer);
    let reason = match lineage::of_another(&found, &place, ready.control.system_identifier) {
        Some(why) => why,
        None if found.layers(&line_name(&ready.record)).iter().any(listed) => return None,
        None => {
            "its lineage file does not list it, as after a restore or when storage was set back"
                .to_owned()
        }
    };
    Some(Beside {
        layer: newest.reference(),
        reason,
    })
}

/// Adds a layer to those that lie in the past of the data directory: when its backup has stopped, and before it exists.
pub(crate) async fn remember(ready: &Ready, layer: ParentRef) {
    if let Err(error) = add(ready, layer).await {
        tracing::warn!("the next backup will compare every page: {error}");
    }
}

async fn add(ready: &Ready, layer: ParentRef) -> Result<()> {
    // Off at either time: what was written in between may not outlive a crash of the operating system.
    let fsync = ready.session.facts().fsync && ready.session.fsync().await?;
    let lines = known(ready, fsync).await.map(|lineage| lineage.lines);
    let lines = with_layer(lines.unwrap_or_default(), &line_name(&ready.record), layer);
    let token = source::make_token(ready)
        .await
        .and_then(std::result::Result::ok);
    let now = circumstances(ready, fsync);
    let data = ready.data_directory.clone();
    blocking(move || lineage::write(&data, &now.lineage(lineage::place(&data)?, lines, token)))
        .await
}

fn circumstances(ready: &Ready, fsync: bool) -> Circumstances {
    let run = ready.session.server_run().to_owned();
    Circumstances::now(ready.control.system_identifier, fsync, Some(run))
}

/// The lineage of the data directory, or why it says nothing.
async fn known(ready: &Ready, fsync: bool) -> std::result::Result<Lineage, String> {
    let data = ready.data_directory.clone();
    let now = circumstances(ready, fsync);
    let known = blocking(move || {
        let Some(lineage) = lineage::read(&data)? else {
            return Ok(Err("it has no lineage file".to_owned()));
        };
        let place = lineage::place(&data)?;
        let doubt = lineage::doubt(&lineage, &place, &now);
        Ok(doubt.map_or(Ok(lineage), Err))
    });
    let lineage = known.await.unwrap_or_else(|error| Err(error.to_string()))?;
    match not_set_back(ready, &lineage).await {
        None => Ok(lineage),
        Some(why) => Err(why),
    }
}

/// Why older files may have been copied over the directory since its lineage file was written; `None` when that
/// cannot be.
async fn not_set_back(ready: &Ready, lineage: &Lineage) -> Option<String> {
    if lineage.server_run.as_deref() == Some(ready.session.server_run()) {
        return None;
    }
    let restarted = "the server was started since its lineage file was written";
    let (Ok(tracker), Some(token)) = (&ready.tracker, &lineage.tracker_token) else {
        return Some(format!(
            "{restarted}, and only the page tracker can tell that no older state was put back before"
        ));
    };
    match tracker.doubt(token).await {
        Ok(None) => None,
        Ok(Some(why)) => Some(format!(
            "{restarted}, and the page tracker does not know its token: {why}"
        )),
        Err(error) => Some(format!("{restarted}, and {error}")),
    }
}
