//! Objects of which nobody knows what they are for.
//!
//! They do no harm. But somebody has put them there, or an object has lost its name, and a repository of a newer version has
//! objects that this program cannot judge.

use pgstrata_pgdata::ArchiveFile;
use pgstrata_store::archive::Archive;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;

use super::FindingKind;
use super::finding::Findings;

/// Names each object of the cluster that has no place there. Those of layers are compared with the manifest elsewhere. Without
/// an `archive` names of WAL are not judged.
pub(super) async fn find(
    cluster: &ClusterRepository,
    archive: Option<&Archive>,
    findings: &Findings,
) -> Result<()> {
    let wal = format!("{}/", cluster.name.wal_prefix());
    for object in cluster.repository.list(cluster.name.as_str()).await? {
        let name = object.key.rsplit('/').next().unwrap_or_default();
        let is_known = cluster.name.has_place_for(&object.key);
        let is_strange_wal = archive.is_some_and(|archive| {
            let file = ArchiveFile::parse(name, archive.segment_size());
            object.key.starts_with(&wal)
                && file.map(|file| archive.key(file)).ok().as_ref() != Some(&object.key)
        });
        if !is_known || is_strange_wal {
            let what = format!("nobody knows what it is for ({} bytes)", object.size_bytes);
            findings.add(FindingKind::Stray, "", object.key, what);
        }
    }
    Ok(())
}
