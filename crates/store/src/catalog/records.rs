//! The records beside layers and WAL: which of them cannot be read.
//!
//! Each is small, and nobody who restores needs one. But who removes obeys them, and what cannot be read is obeyed as the
//! worst that it may say.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::{distrust, removal, restoring, seal, verified};

use super::{FETCH_AT_ONCE, mark, wal_given_up};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

/// The marks, removals, restores, verifications, failed audits and records of WAL given up that cannot be read, by their
/// keys. Of a sealed one that no identity at hand opens it is looked whether it is whole.
///
/// # Errors
/// When the repository cannot be read.
pub async fn unreadable_records(cluster: &ClusterRepository) -> Result<Vec<(String, Error)>> {
    let name = &cluster.name;
    let (marks, released) = futures::try_join!(mark::load(cluster), wal_given_up(cluster))?;
    let mut unreadable = marks.into_wrong();
    unreadable.extend(released.unreadable);
    for prefix in [
        name.removals_prefix(),
        name.restores_prefix(),
        name.verified_prefix(),
        name.distrust_prefix(),
    ] {
        let listed = cluster.repository.list(&prefix).await?.into_iter();
        let listed: BTreeSet<String> = listed.map(|object| object.key).collect();
        let counts = |key: &&String| {
            // Signs of life say nothing by themselves, and neither does the verdict of a removal that is not announced.
            let wanted = key
                .strip_suffix("/verdict")
                .map(|id| format!("{id}/wanted"));
            !key.contains("/beat-") && wanted.is_none_or(|wanted| listed.contains(&wanted))
        };
        let reading = listed.iter().filter(counts);
        let reading = reading.map(|key| read(cluster, key.clone()));
        let read = futures::stream::iter(reading).buffered(FETCH_AT_ONCE);
        let read: Vec<Option<(String, Error)>> = read.try_collect().await?;
        unreadable.extend(read.into_iter().flatten());
    }
    Ok(unreadable)
}

/// What is wrong with the record, if anything is. One that has gone meanwhile served its time.
async fn read(cluster: &ClusterRepository, key: String) -> Result<Option<(String, Error)>> {
    let object = match cluster.repository.find_record(&key).await? {
        Some(Ok(object)) => object,
        Some(Err(error)) => return Ok(Some((key, error))),
        None => return Ok(None),
    };
    let name = &cluster.name;
    let tells_much = [name.restores_prefix(), name.distrust_prefix()];
    let decoded = match tells_much.iter().any(|prefix| key.starts_with(prefix)) {
        // What nobody needs to see is sealed.
        true => match cluster
            .sealing()
            .await?
            .open_record(name, &key, object.clone())
        {
            Err(error) if error.is_lack_of_key() => {
                seal::check_any(&object).map(|_| ()).map_err(Error::from)
            }
            opened => opened.and_then(|opened| decode(name, &key, &opened)),
        },
        false => decode(name, &key, &object),
    };
    Ok(decoded.err().map(|error| (key, error)))
}

fn decode(name: &ClusterName, key: &str, opened: &[u8]) -> Result<()> {
    let parts: Vec<&str> = name.within(key).split('/').collect();
    let decoded = match parts[..] {
        ["removal", _, "wanted"] => removal::decode(opened).map(|_| ()),
        ["removal", _, "verdict"] => removal::decode_verdict(opened).map(|_| ()),
        ["restore", _, _] => restoring::decode(opened).map(|_| ()),
        ["verified", _] => verified::decode(opened).map(|_| ()),
        ["distrust", label] => match distrust::decode(opened) {
            Ok(record) if record.label != label => {
                let what = format!("it is of the audit of {}", record.label);
                return Err(Error::new(Kind::Damaged, what));
            }
            decoded => decoded.map(|_| ()),
        },
        // Of a name that nobody knows.
        _ => Ok(()),
    };
    Ok(decoded?)
}
