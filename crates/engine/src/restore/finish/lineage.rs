//! The lineage of a restored directory: which directory that is, and where its own links lead.
//!
//! It lists no layer. The next restore in place goes by it; the next backup compares, and is listed.

use std::fs::File;

use pgstrata_layer::lineage::encode;
use pgstrata_store::catalog::Layer;
use pgstrata_store::error::{FileContext, Result};

use crate::restore::place::claim::Root;
use crate::server::lineage::{self, Circumstances};

/// Writes the lineage of `data`, whose `pg_control` is in the file `control` and not in its place yet. Returns
/// what it wrote.
pub(crate) fn write(layer: &Layer, data: &Root, control: &File) -> Result<Vec<u8>> {
    let status = control
        .metadata()
        .context(|| "could not look at the new pg_control".to_owned())?;
    let place = lineage::place_with_control(&data.path, lineage::identity(&status))?;
    // The restore syncs all it writes, and no server has run here since.
    let now = Circumstances::now(layer.manifest.cluster.system_identifier, true, None);
    let lineage = now.lineage(place, Vec::new(), None);
    lineage::write(&data.dir, &data.path, &lineage)?;
    Ok(encode(&lineage))
}
