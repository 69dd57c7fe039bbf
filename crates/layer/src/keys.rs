//! Names of objects in a repository. `docs/FORMAT.md`, section "Keys".

use crate::label::Label;

/// A cluster's name in the repository: `[a-z0-9][a-z0-9._-]{0,62}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterName(String);

impl ClusterName {
    /// Checks `name`; `None` when it is not a valid cluster name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = name.as_bytes();
        let first = bytes.first().is_some_and(|&c| fits(c));
        let rest = bytes.iter().all(|&c| fits(c) || b"._-".contains(&c));
        (first && rest && bytes.len() <= 63).then(|| Self(name.to_owned()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The cluster's identity record, created by `init`.
    #[must_use]
    pub fn cluster_key(&self) -> String {
        format!("{}/cluster", self.0)
    }

    /// Prefix of all layers.
    #[must_use]
    pub fn layers_prefix(&self) -> String {
        format!("{}/layer", self.0)
    }

    /// Prefix of all objects of one layer.
    #[must_use]
    pub fn layer_prefix(&self, label: &Label) -> String {
        format!("{}/layer/{label}", self.0)
    }

    /// The claim on a label: the first object of a layer, created before any pack.
    #[must_use]
    pub fn claim_key(&self, label: &Label) -> String {
        format!("{}/claim", self.layer_prefix(label))
    }

    /// The manifest, the layer's commit record: created last.
    #[must_use]
    pub fn manifest_key(&self, label: &Label) -> String {
        format!("{}/manifest", self.layer_prefix(label))
    }

    /// Index part `number`.
    #[must_use]
    pub fn index_key(&self, label: &Label, number: u32) -> String {
        format!("{}/index-{number:06}", self.layer_prefix(label))
    }

    /// Digest part `number`: the page digests for index part `number`.
    #[must_use]
    pub fn digest_key(&self, label: &Label, number: u32) -> String {
        format!("{}/digest-{number:06}", self.layer_prefix(label))
    }

    /// Pack `number`.
    #[must_use]
    pub fn pack_key(&self, label: &Label, number: u32) -> String {
        format!("{}/pack-{number:06}", self.layer_prefix(label))
    }

    /// Prefix of what processes that share a backup tell each other. Empty when the layer is finished.
    #[must_use]
    pub fn shares_prefix(&self, label: &Label) -> String {
        format!("{}/share", self.layer_prefix(label))
    }

    /// What share `number` is.
    #[must_use]
    pub fn share_key(&self, label: &Label, number: u32) -> String {
        format!("{}/work-{number:06}", self.shares_prefix(label))
    }

    /// Who makes share `number`: for the first time, or again.
    #[must_use]
    pub fn share_claim_key(&self, label: &Label, (number, attempt): (u32, u32)) -> String {
        format!("{}/claim-{number:06}-{attempt}", self.shares_prefix(label))
    }

    /// Who may use the numbers of packs from eight times `batch` on, eight of them.
    #[must_use]
    pub fn share_packs_key(&self, label: &Label, batch: u32) -> String {
        format!("{}/packs-{batch:06}", self.shares_prefix(label))
    }

    /// Part `part` of the index that an attempt at share `number` made.
    #[must_use]
    pub fn share_index_key(&self, label: &Label, share: (u32, u32), part: u32) -> String {
        let (number, attempt) = share;
        format!(
            "{}/index-{number:06}-{attempt}-{part:06}",
            self.shares_prefix(label)
        )
    }

    /// The page digests for that part.
    #[must_use]
    pub fn share_digest_key(&self, label: &Label, share: (u32, u32), part: u32) -> String {
        let (number, attempt) = share;
        format!(
            "{}/digest-{number:06}-{attempt}-{part:06}",
            self.shares_prefix(label)
        )
    }

    /// What came of share `number`.
    #[must_use]
    pub fn share_done_key(&self, label: &Label, number: u32) -> String {
        format!("{}/done-{number:06}", self.shares_prefix(label))
    }

    /// Prefix of the records of audits that found a change source wrong.
    #[must_use]
    pub fn distrust_prefix(&self) -> String {
        format!("{}/distrust", self.0)
    }

    /// What the audit of the backup with that label found.
    #[must_use]
    pub fn distrust_key(&self, label: &Label) -> String {
        format!("{}/{label}", self.distrust_prefix())
    }

    /// The removal that is going on.
    #[must_use]
    pub fn removal_key(&self) -> String {
        format!("{}/removal", self.0)
    }

    /// Prefix of all WAL.
    #[must_use]
    pub fn wal_prefix(&self) -> String {
        format!("{}/wal", self.0)
    }

    /// A file of the WAL archive (segment, partial, backup label, history),
    /// grouped by the timeline its name starts with.
    #[must_use]
    pub fn wal_key(&self, timeline_hex8: &str, file_name: &str) -> String {
        format!("{}/wal/{timeline_hex8}/{file_name}", self.0)
    }
}
