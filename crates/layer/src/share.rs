//! Shares: a backup that several processes make, each some of the files.
//!
//! Who holds the server's backup says what each share is, before anybody begins;
//! whoever creates a share's claim makes it, and says with one object what came
//! of it. All of them are gone when the layer is finished: no reader of layers
//! needs them.

use jiff::Timestamp;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::relation::ForkKind;
use pgstrata_pgdata::timeline::TimelineId;
use serde::{Deserialize, Serialize};

use crate::audit::Sample;
use crate::bytes::from_hex_exact;
use crate::changeset::Changes;
use crate::entry::{EntryKind, check_path, check_paths};
use crate::error::{Error, Result};
use crate::frame::Codec;
use crate::label::Label;
use crate::manifest::{IndexPartRef, ParentRef, Totals};
use crate::record;

/// Numbers of packs are given out so many at once: one more request for 128 MiB of packs.
pub const PACKS_AT_ONCE: u32 = 8;

const KIND: &str = "share";
const DONE_KIND: &str = "share-done";

/// What one share is, and all that its maker must know beside the data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The layer it is of.
    pub label: String,
    /// Its id.
    pub layer_id: String,
    /// Which share, from 0 in order of path.
    pub number: u32,
    /// How many there are.
    pub count: u32,
    /// The layer on which the new one will stand.
    pub parent: Option<ParentRef>,
    /// The data directory's identity: what its `pg_control` must say.
    pub system_identifier: u64,
    /// Where the backup started: the directory must show this checkpoint, or a later one.
    pub start_lsn: Lsn,
    /// On which timeline.
    pub timeline: TimelineId,
    /// Of a standby.
    pub from_standby: bool,
    /// Identity of the file `PG_VERSION`: that of a copy differs. 0 when unknown.
    pub version_identity: u64,
    /// Whether pages have checksums.
    pub checksums: bool,
    /// Whether page headers are to be checked.
    pub check_page_headers: bool,
    /// Compression of frames, as text.
    pub codec: String,
    /// Pages to look at although they are called unchanged.
    pub audit: Option<Sample>,
    /// What changed since the parent, as far as it concerns these files.
    pub changes: Changes,
    /// The files, in order of path; not empty.
    pub files: Vec<ShareFile>,
}

/// A file or directory, as the list of the backup has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareFile {
    /// As in the index.
    pub path: String,
    /// As in the index.
    pub kind: EntryKind,
    /// As in the index.
    pub mode: u32,
    /// As in the index.
    pub modified: i64,
    /// Size when it was listed.
    pub size_bytes: u64,
    /// As in the index.
    pub identity: u64,
}

/// What came of one share: its index parts are stored, and every pack that they name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareDone {
    /// The layer's id.
    pub layer_id: String,
    /// Which share.
    pub number: u32,
    /// Which attempt: names the objects of the index parts.
    pub attempt: u32,
    /// Who made it.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When it was done.
    pub finished_at: Timestamp,
    /// The share's index parts in order of path, numbered from 0.
    pub index: Vec<IndexPartRef>,
    /// What was read, found and stored.
    pub totals: Totals,
    /// Files that were dropped before they were read.
    pub gone: Vec<String>,
    /// Pages that were not right.
    pub complaints: Vec<ShareComplaint>,
    /// Pages compared with the parent by the audit.
    pub pages_audited: u64,
    /// Those that differ, as far as they were kept.
    pub suspects: Vec<ShareSuspect>,
    /// And how many were not.
    pub more_suspects: u64,
}

/// A page that was not right. Whether that counts, the end of the backup tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareComplaint {
    /// The file.
    pub path: String,
    /// The block in it.
    pub block: u32,
    /// The page's LSN.
    pub lsn: Lsn,
    /// What is wrong, for people.
    pub reason: String,
}

/// A page that is called unchanged and differs from the parent's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareSuspect {
    /// The file.
    pub path: String,
    /// Of which fork.
    pub fork: ForkKind,
    /// The block in it.
    pub block: u32,
    /// The page, in hexadecimal.
    pub page: String,
}

impl ShareSuspect {
    /// With the page as bytes.
    #[must_use]
    pub fn new(path: String, fork: ForkKind, block: u32, page: &[u8]) -> Self {
        let page = crate::bytes::to_hex(page);
        Self {
            path,
            fork,
            block,
            page,
        }
    }

    /// The page's bytes.
    ///
    /// # Errors
    /// When it is not a page.
    pub fn page_bytes(&self) -> Result<Vec<u8>> {
        crate::bytes::from_hex(&self.page)
            .filter(|page| page.len() == crate::bytes::to_usize(crate::entry::BLOCK_BYTES))
            .ok_or_else(|| {
                Error::damaged(format!(
                    "block {} of {:?} is not a page",
                    self.block, self.path
                ))
            })
    }
}

/// The bytes of the object that says what a share is.
#[must_use]
pub fn encode(share: &Share) -> Vec<u8> {
    record::encode(KIND, share)
}

/// Reads it.
///
/// # Errors
/// When it is damaged, of another version, or contradicts itself.
pub fn decode(bytes: &[u8]) -> Result<Share> {
    record::decode_checked(KIND, bytes, Share::check)
}

/// The bytes of the object that says what came of a share.
#[must_use]
pub fn encode_done(done: &ShareDone) -> Vec<u8> {
    record::encode(DONE_KIND, done)
}

/// Reads it.
///
/// # Errors
/// When it is damaged, of another version, or contradicts itself.
pub fn decode_done(bytes: &[u8]) -> Result<ShareDone> {
    record::decode_checked(DONE_KIND, bytes, ShareDone::check)
}

impl Share {
    /// Compression of frames.
    ///
    /// # Errors
    /// When the text is none.
    pub fn parsed_codec(&self) -> Result<Codec> {
        self.codec.parse()
    }

    /// A copy that knows only the changes of the files from `first` to `last`, and has no files.
    #[must_use]
    pub fn of_paths(&self, first: &str, last: &str) -> Self {
        let (label, layer_id) = (self.label.clone(), self.layer_id.clone());
        Self {
            label,
            layer_id,
            parent: self.parent.clone(),
            codec: self.codec.clone(),
            changes: self.changes.of_paths(first, last),
            files: Vec::new(),
            ..*self
        }
    }

    fn check(&self) -> Result<()> {
        let named = Label::parse(&self.label).is_some();
        if !named || from_hex_exact::<16>(&self.layer_id).is_none() || self.number >= self.count {
            return Err(Error::damaged(format!(
                "share {} of {} of layer {:?} cannot be",
                self.number, self.count, self.label
            )));
        }
        self.parsed_codec()?;
        check_paths(self.files.iter().map(|file| &file.path))
    }
}

impl ShareDone {
    fn check(&self) -> Result<()> {
        let complaints = self.complaints.iter().map(|complaint| &complaint.path);
        let suspects = self.suspects.iter().map(|suspect| &suspect.path);
        for path in self.gone.iter().chain(complaints).chain(suspects) {
            check_path(path)?;
        }
        for suspect in &self.suspects {
            suspect.page_bytes()?;
        }
        let digest = |part: &IndexPartRef| from_hex_exact::<32>(&part.index_digest).is_some();
        if from_hex_exact::<16>(&self.layer_id).is_none() || !self.index.iter().all(digest) {
            return Err(Error::damaged("has a digest or id that is none"));
        }
        Ok(())
    }
}

/// What an empty file costs beside its bytes: to be opened, and an entry.
const BYTES_PER_FILE: u64 = 64 << 10;

/// Cuts files, asked for in their order, into at most so many shares of about as many bytes each.
#[derive(Clone, Debug)]
pub struct Cutter {
    per_share: u64,
    begun: u64,
    before: u64,
}

impl Cutter {
    /// For `files` files of `total_bytes` together, which are to become at most `count` shares.
    #[must_use]
    pub fn new(total_bytes: u64, files: u64, count: u32) -> Self {
        let total = total_bytes.saturating_add(files.saturating_mul(BYTES_PER_FILE));
        Self {
            per_share: total.div_ceil(u64::from(count.max(1))).max(1),
            begun: 0,
            before: 0,
        }
    }

    /// Whether a share begins with the next file, which has this size.
    pub fn begins(&mut self, size_bytes: u64) -> bool {
        let begins = self.before >= self.begun.saturating_mul(self.per_share);
        self.begun += u64::from(begins);
        self.before = self
            .before
            .saturating_add(size_bytes.saturating_add(BYTES_PER_FILE));
        begins
    }
}

/// Cuts files of these sizes, in order, into at most `count` shares of about as many bytes each: where each begins.
#[must_use]
pub fn cut(sizes: &[u64], count: u32) -> Vec<usize> {
    let files = crate::bytes::to_u64(sizes.len());
    let mut cutter = Cutter::new(sizes.iter().sum(), files, count);
    let begins = sizes.iter().map(|&size| cutter.begins(size));
    let numbered = begins.enumerate().filter(|(_, begins)| *begins);
    numbered.map(|(position, _)| position).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;
    use crate::changeset::{ChangedBlocks, FileChanges};
    use crate::record::testing::require_damage_found;

    fn file(path: &str) -> ShareFile {
        ShareFile {
            path: path.to_owned(),
            kind: EntryKind::Relation,
            mode: 0o600,
            modified: -1,
            size_bytes: 81_920,
            identity: u64::MAX,
        }
    }

    fn share() -> Share {
        let mut exact = ChangedBlocks {
            covers_all_forks: true,
            ..ChangedBlocks::default()
        };
        let blocks = [1, 9, 1000].into_iter().collect();
        let changes = FileChanges {
            blocks,
            limit: Some(7),
        };
        exact.files.insert("base/5/16384".to_owned(), changes);
        exact.unknown_forks.insert(ForkKind::Fsm);
        exact.fork_limits.insert("base/5/16384".to_owned(), 4);
        Share {
            label: "20261121-093305F_20261121-103000I".to_owned(),
            layer_id: "0f".repeat(16),
            number: 1,
            count: 3,
            parent: Some(ParentRef {
                label: "20261121-093305F".to_owned(),
                manifest_digest: "0f".repeat(32),
            }),
            system_identifier: u64::MAX - 1,
            start_lsn: Lsn::new(0x16_B374_D848),
            timeline: TimelineId::FIRST,
            from_standby: false,
            version_identity: 7,
            checksums: true,
            check_page_headers: true,
            codec: "zstd:1".to_owned(),
            audit: Some(Sample::new(7, 10_000)),
            changes: Changes::Exact(exact),
            files: vec![file("base/5/16384"), file("base/5/16384_vm")],
        }
    }

    fn done() -> ShareDone {
        ShareDone {
            layer_id: "0f".repeat(16),
            number: 1,
            attempt: 0,
            host: "db2".to_owned(),
            pid: 4711,
            finished_at: Timestamp::UNIX_EPOCH,
            index: vec![IndexPartRef {
                first_path: "base/5/16384".to_owned(),
                entries: 1,
                index_bytes: 100,
                index_digest: "0f".repeat(32),
                digest_bytes: 40,
            }],
            totals: Totals::default(),
            gone: vec!["base/5/16384_vm".to_owned()],
            complaints: vec![ShareComplaint {
                path: "base/5/16384".to_owned(),
                block: 3,
                lsn: Lsn::new(5),
                reason: "checksum".to_owned(),
            }],
            pages_audited: 1,
            suspects: vec![ShareSuspect::new(
                "base/5/16384".to_owned(),
                ForkKind::Main,
                2,
                &[7; 8192],
            )],
            more_suspects: 0,
        }
    }

    #[test]
    fn a_share_reads_back_and_survives_no_flip_or_cut() {
        for changes in [
            share().changes,
            Changes::Lsn {
                threshold: Lsn::new(77),
            },
            Changes::Unknown {
                reason: "a full backup".to_owned(),
            },
        ] {
            let share = Share { changes, ..share() };
            assert_eq!(decode(&encode(&share)).unwrap(), share);
            require_damage_found(&encode(&share), decode);
        }
    }

    #[test]
    fn an_outcome_reads_back_and_survives_no_flip_or_cut() {
        assert_eq!(decode_done(&encode_done(&done())).unwrap(), done());
        let mut short = done();
        short.suspects.clear();
        require_damage_found(&encode_done(&short), decode_done);
    }

    /// The first line names length and digest of all the rest, so it stands for the object's bytes.
    #[test]
    fn the_bytes_of_version_1_stay() {
        let first_line = |bytes: &[u8]| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            text.lines().next().unwrap().to_owned()
        };
        assert_eq!(
            first_line(&encode(&share())),
            "pgstrata share 1 1510 33c98386b2738d167195b401dedf962bf15f1f4ac51b1051aeffd589dbbd7772"
        );
        let mut short = done();
        short.suspects.clear();
        assert_eq!(
            first_line(&encode_done(&short)),
            "pgstrata share-done 1 787 c2dd1fd93b01362b5633a5066f7e7faf27abb65349cbdac3aa33255fe7b9507a"
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |change: fn(&mut Share)| {
            let mut share = share();
            change(&mut share);
            assert!(decode(&encode(&share)).is_err());
        };
        refused(|share| share.label = "../20261121-093305F".to_owned());
        refused(|share| share.number = 3);
        refused(|share| share.codec = "none at all".to_owned());
        refused(|share| share.files.clear());
        refused(|share| share.files.swap(0, 1));
        refused(|share| share.files[1].path = "/etc/passwd".to_owned());
        let mut wrong = done();
        wrong.gone = vec!["../../etc/passwd".to_owned()];
        assert!(decode_done(&encode_done(&wrong)).is_err());
        let mut wrong = done();
        wrong.suspects[0].page.pop();
        assert!(decode_done(&encode_done(&wrong)).is_err());
    }

    #[test]
    fn changes_of_other_files_stay_away() {
        let Changes::Exact(exact) = share().changes.of_paths("base/5/2", "base/5/3") else {
            unreachable!("exact changes stay exact");
        };
        assert!(exact.files.is_empty());
        assert_eq!(
            exact.fork_limits.len(),
            1,
            "it may be of a segment after its first"
        );
        let same = share().changes.of_paths("base/5/16384", "base/5/16384");
        assert_eq!(same, share().changes);
    }

    #[test]
    fn shares_are_about_equal_and_none_is_empty() {
        let gib = 1 << 30;
        assert_eq!(cut(&[gib; 8], 4), [0, 2, 4, 6]);
        assert_eq!(cut(&[gib; 2], 5), [0, 1]);
        assert_eq!(cut(&[gib, 0, 0, 0], 2), [0, 1]);
        assert_eq!(cut(&[0; 100], 4), [0, 25, 50, 75]);
        assert_eq!(cut(&[], 4), [0_usize; 0]);
        assert_eq!(cut(&[5], 1), [0]);
    }
}
