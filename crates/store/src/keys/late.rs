//! Key boxes that a later epoch has made for the catalog of an older one.
//!
//! A key box is signed by its epoch, and only readers of that epoch can. When none of them is left, somebody who is let in could
//! not even read which layers there are, and so make no backup. So the readers of a later epoch vouch for him, with a box
//! that opens the older catalog and no page: they give out what they have.

use std::collections::BTreeMap;

use pgstrata_layer::epoch::EpochRecord;

use super::Home;
use super::ring::{Ring, role_of};
use crate::error::Result;

impl Ring {
    /// Finds such boxes among the objects of each epoch, and opens those that open something more.
    pub(super) async fn open_late(
        &mut self,
        home: Home<'_>,
        keys: &BTreeMap<u32, Vec<String>>,
    ) -> Result<()> {
        let records: Vec<EpochRecord> = self.records().cloned().collect();
        for epoch in &mut self.epochs {
            let found = keys.get(&epoch.record.number).into_iter().flatten();
            let late = found.filter_map(|key| {
                let maker = late_maker(records.iter(), &epoch.record, key)?;
                Some((key.clone(), maker.clone()))
            });
            epoch.late_boxes = late.collect();
            let late = epoch.late_boxes.clone();
            for identity in self.own.iter() {
                if epoch.secrets.is_some() || late.is_empty() {
                    break;
                }
                match epoch.open_boxes(home, identity, &late).await {
                    Ok(_) => {}
                    // Everybody who may create objects can put something there.
                    Err(error) if error.is_of_one_object() => {
                        tracing::debug!(%error, "a key box opens nothing");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// The epoch that has made the key box of `epoch` at `key`, as its name says: that one itself, or a later one.
    pub(super) fn maker_of<'a>(
        &'a self,
        epoch: &'a EpochRecord,
        key: &str,
    ) -> Option<&'a EpochRecord> {
        match epoch.is_named_by(key) {
            true => Some(epoch),
            false => late_maker(self.records(), epoch, key),
        }
    }
}

/// The later one of the epochs that has made the key box of `epoch` at `key`, as its name says.
fn late_maker<'a>(
    mut records: impl Iterator<Item = &'a EpochRecord>,
    epoch: &EpochRecord,
    key: &str,
) -> Option<&'a EpochRecord> {
    if epoch.is_named_by(key) || !matches!(role_of(key), Some("writer" | "keeper")) {
        return None;
    }
    records.find(|maker| maker.number > epoch.number && maker.is_named_by(key))
}
