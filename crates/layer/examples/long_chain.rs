//! Makes a long history out of one layer, for measurements: more layers with the contents of one that is there.
//!
//!     long_chain DIRECTORY CLUSTER LABEL COUNT
//!
//! `LABEL` is a full layer, of which more are made, or an increment in which nothing has changed, on which more are put, each on the
//! one before. `COUNT` layers are there at the end that were not. Their objects are hard links to those of `LABEL`.

use std::fs;
use std::io::{Error, Result};
use std::path::Path;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use pgstrata_layer::claim;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::manifest::{self, ParentRef};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, cluster, label, count] = &words[..] else {
        return Err(Error::other(
            "usage: long_chain DIRECTORY CLUSTER LABEL COUNT",
        ));
    };
    let cluster =
        ClusterName::parse(cluster).ok_or_else(|| Error::other("not a cluster's name"))?;
    let first = Label::parse(label).ok_or_else(|| Error::other("not a label"))?;
    let count: u32 = count.parse().map_err(Error::other)?;
    grow(Path::new(directory), &cluster, &first, count)
}

fn grow(root: &Path, cluster: &ClusterName, first: &Label, count: u32) -> Result<()> {
    let object = fs::read(root.join(cluster.manifest_key(first)))?;
    let mut manifest = manifest::decode(&object).map_err(Error::other)?;
    let mut parent = ParentRef {
        label: first.to_string(),
        manifest_digest: manifest::digest(&object),
    };
    let (mut label, stands) = (first.clone(), manifest.parent.is_some());
    let mut time = DateTime::constant(2027, 1, 1, 0, 0, 0, 0);
    for _ in 0..count {
        time += SignedDuration::from_mins(1);
        let kind = if stands {
            LayerKind::Incremental
        } else {
            LayerKind::Full
        };
        label = label.successor(kind, time);
        manifest.label = label.to_string();
        manifest.parent = stands.then_some(parent);
        let object = manifest::encode(&manifest);
        parent = ParentRef {
            label: label.to_string(),
            manifest_digest: manifest::digest(&object),
        };
        let folder = root.join(cluster.layer_prefix(&label));
        fs::create_dir(&folder)?;
        for entry in fs::read_dir(root.join(cluster.layer_prefix(first)))? {
            let entry = entry?;
            let to = folder.join(entry.file_name());
            match entry.file_name().to_str() {
                Some("manifest") => {}
                Some("claim" | "committed") => {
                    let mut claim =
                        claim::decode(&fs::read(entry.path())?).map_err(Error::other)?;
                    claim.label = label.to_string();
                    fs::write(to, claim::encode(&claim))?;
                }
                _ => fs::hard_link(entry.path(), to)?,
            }
        }
        fs::write(root.join(cluster.manifest_key(&label)), object)?;
    }
    Ok(())
}
