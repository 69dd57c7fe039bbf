//! Objects of which nobody knows what they are for.
//!
//! They do no harm. But somebody has put them there, or an object has lost its name, and a repository of a newer version has
//! objects that this program cannot judge.

use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_pgdata::ArchiveFile;
use pgstrata_store::archive::Archive;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;
use pgstrata_store::repository::ObjectInfo;

use super::FindingKind;
use super::finding::Findings;

/// Names those of `objects`, which are all that lie below the label of a layer, that are none of so many index parts and packs.
pub(super) fn of_layer(
    (name, label): (&ClusterName, &Label),
    (parts, packs): (usize, u32),
    objects: &[ObjectInfo],
    findings: &Findings,
) {
    let parts = u32::try_from(parts).unwrap_or(u32::MAX);
    let prefix = name.layer_prefix(label);
    for object in objects {
        let own = object.key[prefix.len()..].trim_start_matches('/');
        let numbered = |kind: &str, count: u32, key: &dyn Fn(u32) -> String| {
            let number = own.strip_prefix(kind).and_then(|n| n.parse().ok());
            number.is_some_and(|n: u32| n < count && key(n) == object.key)
        };
        let known = matches!(own, "claim" | "manifest" | "committed")
            || own.starts_with("beat-")
            || numbered("index-", parts, &|n| name.index_key(label, n))
            || numbered("digest-", parts, &|n| name.digest_key(label, n))
            || numbered("pack-", packs, &|n| name.pack_key(label, n));
        if !known {
            let what = format!(
                "the manifest does not name it ({} bytes)",
                object.size_bytes
            );
            findings.add(FindingKind::Stray, label, object.key.clone(), what);
        }
    }
}

/// Names each object of the cluster that has no place there. Without an `archive` names of WAL are not judged.
///
/// Answers the files of the archive that no recovery asks for: labels of backups, and segments that were not finished.
pub(super) async fn find(
    cluster: &ClusterRepository,
    archive: Option<&Archive>,
    findings: &Findings,
) -> Result<Vec<ArchiveFile>> {
    let wal = format!("{}/", cluster.name.wal_prefix());
    let mut aside = Vec::new();
    for object in cluster.repository.list(cluster.name.as_str()).await? {
        let archive = archive.filter(|_| object.key.starts_with(&wal));
        let file = archive.and_then(|archive| file_of(archive, &object.key));
        let is_strange_wal = archive.is_some() && file.is_none();
        if !cluster.name.has_place_for(&object.key) || is_strange_wal {
            let what = format!("nobody knows what it is for ({} bytes)", object.size_bytes);
            findings.add(FindingKind::Stray, "", object.key, what);
        }
        aside.extend(file.filter(|file| match file {
            ArchiveFile::BackupLabel { .. } | ArchiveFile::Partial(_) => true,
            ArchiveFile::Segment(_) | ArchiveFile::History(_) => false,
        }));
    }
    Ok(aside)
}

/// The file of the archive that the object below the WAL is named as.
fn file_of(archive: &Archive, key: &str) -> Option<ArchiveFile> {
    let name = key.rsplit('/').next().unwrap_or_default();
    let file = ArchiveFile::parse(name, archive.segment_size()).ok()?;
    (archive.key(file) == key).then_some(file)
}
