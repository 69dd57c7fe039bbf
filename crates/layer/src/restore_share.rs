//! Shares: a restore that several processes make, each some of the files.
//!
//! These records lie beside the files, in the directory that is restored, while the
//! restore is under way; no repository holds them. Who has claimed the directory says
//! what each share is, before anybody begins; whoever makes one says what came of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes::from_hex_exact;
use crate::entry::check_paths;
use crate::error::{Error, Result};
use crate::keys::ClusterName;
use crate::label::Label;
use crate::record;

const KIND: &str = "restore-work";
const DONE_KIND: &str = "restore-share-done";

/// What the shares are, and all that their makers must know beside the repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreWork {
    /// Of this attempt at the restore, 128 random bits.
    pub restore_id: String,
    /// The cluster's name in the repository.
    pub cluster: String,
    /// The layer that is restored.
    pub label: String,
    /// BLAKE3 of its manifest.
    pub manifest_digest: String,
    /// The data directory, as all hosts see it.
    pub data_directory: String,
    /// The directories of tablespaces by OID.
    pub tablespaces: BTreeMap<u32, String>,
    /// The directory for WAL, when it is outside of the data directory.
    pub wal_directory: Option<String>,
    /// The first file of each share; it has all files from there to the first one of the next.
    pub first_paths: Vec<String>,
}

/// What came of one share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreShareDone {
    /// As in [`RestoreWork`].
    pub restore_id: String,
    /// Which share.
    pub number: u32,
    /// Which attempt: names the directory that holds the files.
    pub attempt: u32,
    /// Who made it.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Pages written.
    pub pages: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes fetched from packs.
    pub fetched_bytes: u64,
    /// Frames decoded.
    pub frames: u64,
    /// The files in order of path.
    pub files: Vec<RestoredFile>,
}

/// A file that was restored, as `backup_manifest` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoredFile {
    /// As in the index.
    pub path: String,
    /// As in the index.
    pub modified: i64,
    /// As in the index.
    pub size_bytes: u64,
    /// CRC32C of the contents.
    pub crc: u32,
}

/// The bytes of the record that says what the shares are.
#[must_use]
pub fn encode(work: &RestoreWork) -> Vec<u8> {
    record::encode(KIND, work)
}

/// Reads it.
///
/// # Errors
/// When it is damaged, of another version, or contradicts itself.
pub fn decode(bytes: &[u8]) -> Result<RestoreWork> {
    record::decode_checked(KIND, bytes, RestoreWork::check)
}

/// The bytes of the record that says what came of a share.
#[must_use]
pub fn encode_done(done: &RestoreShareDone) -> Vec<u8> {
    record::encode(DONE_KIND, done)
}

/// Reads it.
///
/// # Errors
/// When it is damaged, of another version, or contradicts itself.
pub fn decode_done(bytes: &[u8]) -> Result<RestoreShareDone> {
    record::decode_checked(DONE_KIND, bytes, |done: &RestoreShareDone| {
        check_id(&done.restore_id)?;
        check_paths(done.files.iter().map(|file| &file.path))
    })
}

impl RestoreWork {
    /// How many shares there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.first_paths.len()).unwrap_or(u32::MAX)
    }

    /// The first path of a share, and the first that is not of it any more; `None` for a number that no share has.
    #[must_use]
    pub fn range(&self, number: u32) -> Option<(&str, Option<&str>)> {
        let position = usize::try_from(number).ok()?;
        let first = self.first_paths.get(position)?;
        let next = self.first_paths.get(position + 1);
        Some((first, next.map(String::as_str)))
    }

    fn check(&self) -> Result<()> {
        check_id(&self.restore_id)?;
        let cluster = ClusterName::parse(&self.cluster).is_some();
        let label = Label::parse(&self.label).is_some();
        if !cluster || !label || from_hex_exact::<32>(&self.manifest_digest).is_none() {
            return Err(Error::damaged(format!(
                "is of layer {:?} of cluster {:?}, which cannot be",
                self.label, self.cluster
            )));
        }
        check_paths(self.first_paths.iter())
    }
}

fn check_id(id: &str) -> Result<()> {
    match from_hex_exact::<16>(id) {
        Some(_) => Ok(()),
        None => Err(Error::damaged(format!("has the id {id:?}"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    fn work() -> RestoreWork {
        RestoreWork {
            restore_id: "0f".repeat(16),
            cluster: "main".to_owned(),
            label: "20261121-093305F".to_owned(),
            manifest_digest: "0f".repeat(32),
            data_directory: "/srv/restored".to_owned(),
            tablespaces: BTreeMap::from([(16_384, "/fast/restored".to_owned())]),
            wal_directory: None,
            first_paths: vec!["PG_VERSION".to_owned(), "base/5/16384".to_owned()],
        }
    }

    fn done() -> RestoreShareDone {
        let file = |path: &str| RestoredFile {
            path: path.to_owned(),
            modified: -1,
            size_bytes: 8192,
            crc: u32::MAX,
        };
        RestoreShareDone {
            restore_id: "0f".repeat(16),
            number: 1,
            attempt: 0,
            host: "db2".to_owned(),
            pid: 4711,
            pages: 1,
            written_bytes: 8192,
            fetched_bytes: 77,
            frames: 1,
            files: vec![file("base/5/16384"), file("base/5/16384_vm")],
        }
    }

    #[test]
    fn records_read_back_and_survive_no_flip_or_cut() {
        assert_eq!(decode(&encode(&work())).unwrap(), work());
        require_damage_found(&encode(&work()), decode);
        assert_eq!(decode_done(&encode_done(&done())).unwrap(), done());
        require_damage_found(&encode_done(&done()), decode_done);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |change: fn(&mut RestoreWork)| {
            let mut work = work();
            change(&mut work);
            assert!(decode(&encode(&work)).is_err());
        };
        refused(|work| work.restore_id.clear());
        refused(|work| work.cluster = "../main".to_owned());
        refused(|work| work.label = "latest".to_owned());
        refused(|work| work.first_paths.clear());
        refused(|work| work.first_paths.swap(0, 1));
        refused(|work| work.first_paths[0] = "../PG_VERSION".to_owned());
        let mut wrong = done();
        wrong.files[0].path = "/etc/passwd".to_owned();
        assert!(decode_done(&encode_done(&wrong)).is_err());
    }

    #[test]
    fn a_share_ends_where_the_next_one_begins() {
        let work = work();
        assert_eq!(work.count(), 2);
        assert_eq!(work.range(0), Some(("PG_VERSION", Some("base/5/16384"))));
        assert_eq!(work.range(1), Some(("base/5/16384", None)));
        assert_eq!(work.range(2), None);
    }
}
