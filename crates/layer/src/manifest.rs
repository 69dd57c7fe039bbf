//! The manifest: a layer's commit record, created last.
//!
//! It also carries what is known only when the backup ends and must be exact:
//! `backup_label`, `tablespace_map` and `pg_control`. Constant in size but for
//! one line per index part (one part per 8 GiB of cluster or less).

use jiff::Timestamp;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use serde::{Deserialize, Serialize};

use crate::bytes::{from_hex, from_hex_exact, to_hex};
use crate::cluster::check_server;
use crate::digest::contents_hex;
use crate::entry::check_path;
use crate::error::{Error, Result};
use crate::label::{Label, LayerKind};
use crate::record;

const KIND: &str = "manifest";

/// Of the manifests of merged layers: they name what they replace.
const MERGED_VERSION: u32 = 2;

/// Of the manifests that name a layer beside theirs, merged or not.
const BESIDE_VERSION: u32 = 3;

/// Size of `pg_control` on every supported version.
const MAX_CONTROL_BYTES: u32 = 8192;

/// What a layer is, on what it stands, and where its contents are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The layer's own label.
    pub label: String,
    /// 128 random bits in hexadecimal; every pack, index and digest part of the
    /// layer carries them, so an object of another layer is never taken for one.
    pub layer_id: String,
    /// The layer this one stands on; `None` for a full layer.
    pub parent: Option<ParentRef>,
    /// Layers with the very state of this one: who stands on one of them may stand on this one instead. Not empty only
    /// of layers that were made by merging; the layer of the backup itself is the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<ParentRef>,
    /// Out of which layers this one was merged, newest first, and out of which these were, as far as they were still
    /// there. Whatever became of the merge, it is known by this that nobody asked to keep them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<ParentRef>,
    /// What of the same timeline may lie beside this layer rather than before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
    /// Which cluster was backed up.
    pub cluster: ClusterIdentity,
    /// Program and version that wrote the layer.
    pub written_by: String,
    /// When the backup started and when its manifest was written.
    pub started_at: Timestamp,
    /// See `started_at`.
    pub finished_at: Timestamp,
    /// Redo location of the start checkpoint: recovery starts here.
    pub start_lsn: Lsn,
    /// Recovery must replay to here; WAL needed is `[start_lsn, stop_lsn)`.
    pub stop_lsn: Lsn,
    /// Timeline of `start_lsn`, and of `stop_lsn` (they are equal: a promotion voids the backup).
    pub timeline: TimelineId,
    /// Taken from a standby.
    pub from_standby: bool,
    /// How changed pages were found.
    pub change_source: ChangeSourceRecord,
    /// What the page tracker needs to answer the next backup, when it ran.
    pub tracker_token: Option<String>,
    /// `backup_label` as `pg_backup_stop` returned it, to the byte.
    pub backup_label: String,
    /// `tablespace_map` likewise; `None` when it was empty.
    pub tablespace_map: Option<String>,
    /// `global/pg_control`, read last; hexadecimal, trailing zero bytes cut.
    pub pg_control: String,
    /// Size in bytes to which `pg_control` is padded with zeros.
    pub pg_control_size: u32,
    /// Tablespaces outside the data directory and in place.
    pub tablespaces: Vec<Tablespace>,
    /// Index parts in order of path; part `n` is the object `index-n`.
    pub index: Vec<IndexPartRef>,
    /// Number of packs; pack `n` is the object `pack-n`.
    pub pack_count: u32,
    /// Total bytes of all packs.
    pub pack_bytes: u64,
    /// What was read, found and stored.
    pub totals: Totals,
    /// Pages whose checksum failed twice. Not empty: the layer is marked damaged at the source.
    pub corrupt_pages: Vec<CorruptPage>,
    /// How the layer is sealed; `None` when it is not. Versions 1 to 3 of the object hold nothing else.
    pub encryption: Option<Encryption>,
}

/// A reference to the parent, by name and by contents.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParentRef {
    /// The parent's label.
    pub label: String,
    /// BLAKE3 of the parent's manifest object, hexadecimal.
    pub manifest_digest: String,
}

impl ParentRef {
    /// Whether a layer can have this name: its label is one, and its digest a digest.
    pub(crate) fn can_be(&self) -> bool {
        let digest = from_hex_exact::<32>(&self.manifest_digest);
        Label::parse(&self.label).is_some() && digest.is_some()
    }

    /// All of them can be.
    pub(crate) fn check<'a>(layers: impl IntoIterator<Item = &'a Self>) -> Result<()> {
        match layers.into_iter().find(|layer| !layer.can_be()) {
            None => Ok(()),
            Some(layer) => Err(Error::damaged(format!(
                "layer {:?} with digest {:?} cannot be",
                layer.label, layer.manifest_digest
            ))),
        }
    }
}

/// The newest layer of the same timeline when the backup started, and why the data directory does not seem to come
/// after it: as when it is a copy, or its storage was set back. The WAL of both has the same names, so an archive
/// cannot hold both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// That layer.
    pub layer: ParentRef,
    /// One line, for people.
    pub reason: String,
}

/// What must be equal for two backups to be of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterIdentity {
    /// From `pg_control`.
    pub system_identifier: u64,
    /// Major version, 15 to 18.
    pub major: u16,
    /// From `pg_control`.
    pub catalog_version: u32,
    /// Bytes per page.
    pub block_size: u32,
    /// Bytes per WAL segment.
    pub wal_segment_size: u32,
    /// 0: data checksums off.
    pub data_checksum_version: u32,
}

/// Ways to find changed pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeSource {
    /// A full backup: everything is stored.
    Everything,
    /// The server extension's map.
    Tracker,
    /// WAL summaries of PostgreSQL 17 and later.
    Summary,
    /// Page LSN for main forks, digests for the rest.
    Lsn,
    /// Digests of every page.
    Digest,
}

impl ChangeSource {
    /// The word for it, as in the manifest.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Everything => "everything",
            Self::Tracker => "tracker",
            Self::Summary => "summary",
            Self::Lsn => "lsn",
            Self::Digest => "digest",
        }
    }
}

/// Which change source ran, and why that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeSourceRecord {
    /// The source that was used.
    pub used: ChangeSource,
    /// One line, for people.
    pub reason: String,
}

/// A tablespace at the time of the backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tablespace {
    /// OID: the name below `pg_tblspc`.
    pub oid: u32,
    /// Directory at the source; `None` for one that lies in place below `pg_tblspc`.
    pub location: Option<String>,
}

/// One part of the index and its digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexPartRef {
    /// Path of the part's first entry: the shard directory.
    pub first_path: String,
    /// Number of entries.
    pub entries: u64,
    /// Length in bytes of the object `index-n`.
    pub index_bytes: u64,
    /// BLAKE3 of that object, hexadecimal.
    pub index_digest: String,
    /// Length in bytes of the object `digest-n`.
    pub digest_bytes: u64,
}

/// Counts of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Files and directories listed.
    pub files: u64,
    /// Sum of the sizes of all files, in bytes: what a restore writes.
    pub cluster_bytes: u64,
    /// Blocks of all relation segments.
    pub relation_blocks: u64,
    /// Blocks the change source called changed or possibly changed.
    pub pages_marked: u64,
    /// Relation pages stored in frames.
    pub pages_stored: u64,
    /// Relation pages that are all zeros (in `zero_runs`).
    pub pages_zero: u64,
    /// Bytes read from the cluster's files.
    pub bytes_read: u64,
}

/// A page whose checksum did not match when read twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorruptPage {
    /// File, relative to the data directory.
    pub path: String,
    /// Block within the file.
    pub block: u32,
    /// What is wrong, for people.
    pub reason: String,
}

/// How a layer is sealed (`docs/adr/0034-sealed-objects.md`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encryption {
    /// Version of the scheme.
    pub version: u32,
    /// Whose keys open it, from 1.
    #[serde(default)]
    pub epoch: u32,
    /// The layer's data key, sealed to the epoch's recipient: an age file in hexadecimal.
    #[serde(default)]
    pub data_key: String,
    /// 128 random bits in hexadecimal, for the key of the manifest.
    #[serde(default)]
    pub salt: String,
}

impl Encryption {
    /// Of a layer that is sealed with the keys of `epoch`, and with this data key, which is an age file. The salt is random.
    #[must_use]
    pub fn new(version: u32, epoch: u32, data_key: &[u8], salt: [u8; 16]) -> Self {
        Self {
            version,
            epoch,
            data_key: to_hex(data_key),
            salt: to_hex(&salt),
        }
    }

    pub(crate) fn salt_bytes(&self) -> Result<[u8; 16]> {
        from_hex_exact(&self.salt)
            .ok_or_else(|| Error::damaged("salt is not 32 hexadecimal digits"))
    }

    /// The age file with the data key.
    ///
    /// # Errors
    /// When it is not hexadecimal.
    pub fn data_key_bytes(&self) -> Result<Vec<u8>> {
        from_hex(&self.data_key).ok_or_else(|| Error::damaged("data key is not hexadecimal"))
    }
}

/// The object's bytes.
#[must_use]
pub fn encode(manifest: &Manifest) -> Vec<u8> {
    let version = match (&manifest.beside, manifest.replaces.is_empty()) {
        (Some(_), _) => BESIDE_VERSION,
        (None, true) => record::VERSION,
        (None, false) => MERGED_VERSION,
    };
    record::encode_version(KIND, version, manifest)
}

/// BLAKE3 of a manifest object, in hexadecimal: how a child refers to it.
#[must_use]
pub fn digest(object: &[u8]) -> String {
    contents_hex(object)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged, of another version, or contradicts itself.
pub fn decode(object: &[u8]) -> Result<Manifest> {
    let (version, manifest): (u32, Manifest) =
        record::decode_versions(KIND, BESIDE_VERSION, object)?;
    let beside = version == BESIDE_VERSION;
    let merged = match beside {
        true => !manifest.replaces.is_empty(),
        false => version == MERGED_VERSION,
    };
    if merged == manifest.replaces.is_empty() || merged == manifest.inputs.is_empty() {
        return Err(Error::damaged(format!(
            "manifest of version {version} names {} layers that it replaces and {} inputs",
            manifest.replaces.len(),
            manifest.inputs.len()
        )));
    }
    if beside != manifest.beside.is_some() {
        return Err(Error::damaged(format!(
            "manifest of version {version} names {} layer beside its own",
            if beside { "no" } else { "a" }
        )));
    }
    manifest.check().map_err(|e| e.within("manifest"))?;
    Ok(manifest)
}

impl Manifest {
    /// The layer's label.
    ///
    /// # Errors
    /// When it is not a label.
    pub fn parsed_label(&self) -> Result<Label> {
        parse_label(&self.label)
    }

    /// The layer's id as its objects carry it.
    ///
    /// # Errors
    /// When it is not 128 bits of hexadecimal.
    pub fn layer_id_bytes(&self) -> Result<[u8; 16]> {
        from_hex_exact(&self.layer_id).ok_or_else(|| {
            Error::damaged(format!(
                "layer id {:?} is not 32 hexadecimal digits",
                self.layer_id
            ))
        })
    }

    /// Whether a tablespace lies within the data directory.
    #[must_use]
    pub fn tablespaces_in_place(&self) -> bool {
        self.tablespaces
            .iter()
            .any(|tablespace| tablespace.location.is_none())
    }

    /// `global/pg_control` in its full size.
    ///
    /// # Errors
    /// When it is not hexadecimal or longer than its size.
    pub fn pg_control_bytes(&self) -> Result<Vec<u8>> {
        let wrong = || Error::damaged("pg_control is not hexadecimal or does not fit its size");
        let mut bytes = from_hex(&self.pg_control).ok_or_else(wrong)?;
        let size =
            usize::try_from(self.pg_control_size.min(MAX_CONTROL_BYTES)).map_err(|_| wrong())?;
        if bytes.is_empty() || bytes.len() > size || self.pg_control_size > MAX_CONTROL_BYTES {
            return Err(wrong());
        }
        bytes.resize(size, 0);
        Ok(bytes)
    }

    fn check(&self) -> Result<()> {
        if let Some(encryption) = &self.encryption {
            return Err(Error::unsupported(format!(
                "layer is sealed by scheme {} in a manifest that is not sealed itself",
                encryption.version
            )));
        }
        let identity = &self.cluster;
        check_server(
            identity.major,
            identity.block_size,
            identity.wal_segment_size,
        )?;
        self.layer_id_bytes()?;
        self.pg_control_bytes()?;
        self.check_parent()?;
        self.check_merged()?;
        if self.start_lsn > self.stop_lsn || self.timeline.get() == 0 {
            return Err(Error::damaged(format!(
                "backup cannot run from {} to {} on timeline {}",
                self.start_lsn, self.stop_lsn, self.timeline
            )));
        }
        self.check_tablespaces()?;
        self.check_index()?;
        for page in &self.corrupt_pages {
            check_path(&page.path).map_err(Error::into_damage)?;
        }
        let beside = self.beside.iter().map(|beside| &beside.layer);
        ParentRef::check(beside)
    }

    fn check_parent(&self) -> Result<()> {
        let label = self.parsed_label()?;
        let wrong = |what: &str| Err(Error::damaged(format!("layer {label} {what}")));
        let Some(parent) = &self.parent else {
            return match label.kind() {
                LayerKind::Full => Ok(()),
                LayerKind::Differential | LayerKind::Incremental => wrong("names no parent"),
            };
        };
        let parent_label = parse_label(&parent.label)?;
        if from_hex_exact::<32>(&parent.manifest_digest).is_none() {
            return wrong("names its parent with a digest that is not 64 hexadecimal digits");
        }
        let fits = match label.kind() {
            LayerKind::Full => false,
            LayerKind::Differential => parent_label.kind() == LayerKind::Full,
            LayerKind::Incremental => true,
        };
        if !fits || parent_label.root() != label.root() || parent_label == label {
            return wrong(&format!("cannot stand on {parent_label}"));
        }
        Ok(())
    }

    /// When the backup was made whose state this is, by the label of its layer: compares as time does.
    #[must_use]
    pub fn state_stamp(&self) -> String {
        let original = self
            .replaces
            .last()
            .map_or(&self.label, |replaced| &replaced.label);
        Label::parse(original).map_or_else(String::new, |label| label.own_stamp().to_owned())
    }

    /// Whether who names `parent` may stand on this layer, whose manifest has the digest `own_digest`.
    #[must_use]
    pub fn stands_for(&self, own_digest: &str, parent: &ParentRef) -> bool {
        let own = self.label == parent.label && own_digest == parent.manifest_digest;
        own || self.replaces.contains(parent)
    }

    fn check_merged(&self) -> Result<()> {
        for other in self.replaces.iter().chain(&self.inputs) {
            let label = parse_label(&other.label)?;
            if label.as_str() == self.label
                || from_hex_exact::<32>(&other.manifest_digest).is_none()
            {
                return Err(Error::damaged(format!(
                    "layer {} cannot be merged out of {label}",
                    self.label
                )));
            }
        }
        Ok(())
    }

    fn check_tablespaces(&self) -> Result<()> {
        let mut last = 0;
        for tablespace in &self.tablespaces {
            let location = tablespace.location.as_deref();
            let fits = location.is_none_or(|path| path.starts_with('/') && !path.contains('\0'));
            if tablespace.oid <= last || !fits {
                return Err(Error::damaged(format!(
                    "tablespace {} at {location:?} cannot be",
                    tablespace.oid
                )));
            }
            last = tablespace.oid;
        }
        Ok(())
    }

    fn check_index(&self) -> Result<()> {
        let mut last = "";
        for (number, part) in self.index.iter().enumerate() {
            check_path(&part.first_path).map_err(Error::into_damage)?;
            let digest = from_hex_exact::<32>(&part.index_digest).is_some();
            if part.first_path.as_str() <= last || part.entries == 0 || !digest {
                return Err(Error::damaged(format!(
                    "index part {number} from {:?} with {} entries cannot be",
                    part.first_path, part.entries
                )));
            }
            last = &part.first_path;
        }
        Ok(())
    }
}

fn parse_label(text: &str) -> Result<Label> {
    Label::parse(text)
        .ok_or_else(|| Error::damaged(format!("{text:?} is not the label of a layer")))
}
