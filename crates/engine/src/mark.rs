//! Pins and annotations: what people say of a layer, and what expiry obeys.
//!
//! Only a layer that can be restored is pinned: a pin is a promise. A pin that was said to be made holds beside whatever
//! removes layers; [`pgstrata_store::catalog::mark`] says why.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use pgstrata_layer::label::Label;
use pgstrata_layer::mark::{self, Annotation, Mark, Pin};
use pgstrata_layer::plain::turns_text;
use pgstrata_store::archive::Archive;
use pgstrata_store::catalog::{self, Catalog, Layer, StoreTime};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use serde::Serialize;

use crate::health;

/// What is said of a layer now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MarkReport {
    /// Its label.
    pub label: String,
    /// The pin that is in force.
    pub pin: Option<PinInfo>,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
    /// Layers on which it stands, the nearest first: they stay as long as it does.
    pub stands_on: Vec<String>,
}

/// A pin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinInfo {
    /// Until when; for ever without.
    pub until: Option<Timestamp>,
    /// Why.
    pub note: Option<String>,
}

impl From<Pin> for PinInfo {
    fn from(pin: Pin) -> Self {
        Self {
            until: pin.until,
            note: pin.note,
        }
    }
}

/// Pins a layer.
///
/// # Errors
/// `Usage` for a note that is none, or a time that is over; `NotFound`; `Damaged` or `WalMissing` when the layer cannot be
/// restored; `Refused` when it is being removed; `Busy`; when the repository cannot be read or written.
pub async fn pin(cluster: &ClusterRepository, label: &Label, pin: Pin) -> Result<MarkReport> {
    let act = |error: Error| error.while_doing(format!("could not pin layer {label}"));
    let says = Mark::Pin(pin.clone());
    check(&says)?;
    if let Some(until) = pin.until {
        require_future(cluster, until).await.map_err(act)?;
    }
    let catalog = catalog::examine_as_verified(cluster).await?;
    let layer = catalog.layer(label)?;
    catalog.whole(label).map_err(act)?;
    if let Some(found) = health::found_damaged(&catalog, label) {
        let error = Error::new(Kind::Damaged, found);
        return Err(act(error).hint("When it is in order again, run \"pgstrata verify\"."));
    }
    let archive = Archive::load(cluster).await?;
    let mut archived = archive.list(std::iter::empty()).await?;
    archive.read_short(&mut archived).await?;
    if let Some(problem) = health::problem(&catalog, layer, Some(&archived)) {
        let error = Error::new(
            Kind::WalMissing,
            format!("it cannot be restored: {problem}"),
        );
        return Err(act(error).hint("store the segment with \"pgstrata archive-push FILE\""));
    }
    let chain = catalog.chain(label).map_err(act)?.into_iter();
    let chain: Vec<Arc<Layer>> = chain.map(|layer| Arc::new(layer.clone())).collect();
    catalog::mark::pin(cluster, &chain, pin)
        .await
        .map_err(act)?;
    report(cluster, &catalog, layer).await
}

/// Refuses a time that is over, by this host's clock or by that of the store, by which an expiry goes.
async fn require_future(cluster: &ClusterRepository, until: Timestamp) -> Result<()> {
    let over_by = |clock| {
        Error::new(Kind::Usage, format!("--until {until} is over by {clock}"))
            .hint("name a time to come")
    };
    if until <= Timestamp::now() {
        return Err(over_by("this host's clock"));
    }
    let store = StoreTime::look(cluster).await?.timestamp();
    match until <= store {
        true => Err(over_by(
            "the clock of the repository's store, by which layers expire",
        )),
        false => Ok(()),
    }
}

/// Takes a pin back, also that of a layer which somebody has deleted. A merged layer is named by its own label, or by that of the
/// layer whose pin it has.
///
/// # Errors
/// `NotFound` when there is no such layer, or it is not pinned; when the repository cannot be read or written.
pub async fn unpin(cluster: &ClusterRepository, label: &Label) -> Result<MarkReport> {
    let catalog = Catalog::load(cluster).await?;
    let layer = match catalog.layer(label) {
        Ok(layer) => layer,
        Err(error) => {
            let said = catalog::mark::unpin_gone(cluster, &catalog, label).await?;
            let report = said.map(|said| MarkReport {
                label: label.to_string(),
                pin: None,
                annotations: said.annotations,
                stands_on: Vec::new(),
            });
            return report.ok_or(error);
        }
    };
    if !catalog::mark::unpin(cluster, &catalog, layer).await? {
        let what = format!("layer {label} is not pinned");
        return Err(
            Error::new(Kind::NotFound, what).hint("\"pgstrata info\" shows which layers are")
        );
    }
    report(cluster, &catalog, layer).await
}

/// Writes a key with its value, or takes it away.
///
/// # Errors
/// `Usage` for a key or a value that is none; `NotFound`; when the repository cannot be read or written.
pub async fn annotate(
    cluster: &ClusterRepository,
    label: &Label,
    annotation: Annotation,
) -> Result<MarkReport> {
    let says = Mark::Annotate(annotation);
    check(&says)?;
    let catalog = Catalog::load(cluster).await?;
    let layer = catalog.layer(label)?;
    catalog::mark::add(cluster, layer, says).await?;
    report(cluster, &catalog, layer).await
}

fn check(says: &Mark) -> Result<()> {
    let text = match says {
        Mark::Pin(pin) => pin.note.as_deref(),
        Mark::Annotate(annotation) => annotation.value.as_deref(),
        Mark::Unpin(_) => None,
    };
    let turns = text.is_some_and(|text| text.contains(turns_text));
    let complaint = turns.then(|| "a note or value may not turn the direction of text".to_owned());
    match mark::complaint(says).or(complaint) {
        None => Ok(()),
        Some(complaint) => Err(Error::new(Kind::Usage, complaint)),
    }
}

async fn report(
    cluster: &ClusterRepository,
    catalog: &Catalog,
    layer: &Layer,
) -> Result<MarkReport> {
    let marks = catalog::mark::load(cluster).await?.of(layer);
    let in_force = marks.is_pinned(Timestamp::now());
    let links = catalog.links(&layer.label).unwrap_or_default().into_iter();
    Ok(MarkReport {
        label: layer.label.to_string(),
        pin: marks.pin.filter(|_| in_force).map(PinInfo::from),
        annotations: marks.annotations,
        stands_on: links.skip(1).map(|layer| layer.label.to_string()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_any_script_is_taken_and_none_that_turns_others() {
        let check = |value: &str| {
            check(&Mark::Annotate(Annotation {
                key: "why".to_owned(),
                value: Some(value.to_owned()),
            }))
        };
        for good in ["before the upgrade", "до обновления", "לפני השדרוג", "🙂"]
        {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["a\u{202E}b", "\u{2066}", "a\nb", "a\u{7}"] {
            assert_eq!(check(bad).unwrap_err().kind(), Kind::Usage, "{bad:?}");
        }
    }
}
