//! Names of objects in a repository. `docs/FORMAT.md`, section "Keys".

use pgstrata_pgdata::lsn::Lsn;

use crate::label::Label;

/// Whether the object `key`, which begins with a cluster's name, is of backups: it is not made to be deleted soon. Records
/// of removals, restores and verifications are not, nor what serves for a moment.
#[must_use]
pub fn is_lasting(key: &str) -> bool {
    let Some((_, rest)) = key.split_once('/') else {
        return false;
    };
    let name = rest.rsplit('/').next().unwrap_or(rest);
    let passing = ["clock/", "probe-", "restore/", "removal/", "verified/"];
    !passing.iter().any(|begin| rest.starts_with(begin)) && !name.starts_with("beat-")
}

/// What the key of a key box ends in: the beginning of the verifying key of the epoch that made it.
#[must_use]
pub fn box_maker(verifying_key: &str) -> &str {
    verifying_key.get(..8).unwrap_or(verifying_key)
}

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

    /// A key without the cluster's name, as keys for sealing depend on it; the whole key when it is of another cluster.
    #[must_use]
    pub fn within<'k>(&self, key: &'k str) -> &'k str {
        let own = key.strip_prefix(&self.0);
        own.and_then(|rest| rest.strip_prefix('/')).unwrap_or(key)
    }

    /// Whether the object `key` serves for a while and is then deleted, so that nobody misses it: probes, times, signs of
    /// life, records of restores.
    #[must_use]
    pub fn is_passing(&self, key: &str) -> bool {
        let key = self.within(key);
        let name = key.rsplit('/').next().unwrap_or(key);
        let whole = ["clock/", "probe-", "restore/"];
        whole.iter().any(|begin| key.starts_with(begin)) || name.starts_with("beat-")
    }

    /// Whether this version of the program knows what an object of that key is for. Which objects a layer has is for its
    /// manifest to say, and what a file of the WAL archive is called for who knows the length of its segments.
    #[must_use]
    pub fn has_place_for(&self, key: &str) -> bool {
        let parts: Vec<&str> = self.within(key).split('/').collect();
        let is_label = |text: &str| Label::parse(text).is_some();
        let is_hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|c| c.is_ascii_hexdigit())
        };
        match parts[..] {
            ["cluster"] | ["clock" | "verified", _] | ["restore", _, _] => true,
            ["removal", _, what] => matches!(what, "wanted" | "verdict"),
            ["layer", label, _] | ["distrust", label] => is_label(label),
            ["mark", label, number] => is_label(label) && is_hex(number, 6),
            ["wal" | "wal-mended", timeline, _] => is_hex(timeline, 8),
            ["wal-released", before] => is_hex(before, 16),
            ["key", _, _, _] => true,
            [first, ..] => first.starts_with("probe-"),
            [] => false,
        }
    }

    /// Prefix of all epochs and key boxes.
    #[must_use]
    pub fn keys_prefix(&self) -> String {
        format!("{}/key", self.0)
    }

    /// Prefix of all epochs and key boxes of that seal id.
    #[must_use]
    pub fn seals_prefix(&self, seal_id: &str) -> String {
        format!("{}/{seal_id}", self.keys_prefix())
    }

    /// Prefix of an epoch's record and key boxes.
    #[must_use]
    pub fn epoch_prefix(&self, seal_id: &str, epoch: u32) -> String {
        format!("{}/{epoch:06}", self.seals_prefix(seal_id))
    }

    /// The record of an epoch.
    #[must_use]
    pub fn epoch_key(&self, seal_id: &str, epoch: u32) -> String {
        format!("{}/epoch", self.epoch_prefix(seal_id, epoch))
    }

    /// A key box. `verifying_key` is the epoch's, so that what an attempt left that began none stands beside.
    #[must_use]
    pub fn key_box_key(
        &self,
        seal_id: &str,
        epoch: u32,
        (role, fingerprint, verifying_key): (&str, &str, &str),
    ) -> String {
        let prefix = self.epoch_prefix(seal_id, epoch);
        let maker = box_maker(verifying_key);
        format!("{prefix}/{role}-{fingerprint}-{maker}")
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

    /// Sign of life `number` of who makes the layer.
    #[must_use]
    pub fn beat_key(&self, label: &Label, number: u32) -> String {
        format!("{}/beat-{number:06}", self.layer_prefix(label))
    }

    /// Created by who made the layer, once it knows that the manifest is there: nobody will ever create that again.
    #[must_use]
    pub fn committed_key(&self, label: &Label) -> String {
        format!("{}/committed", self.layer_prefix(label))
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

    /// Prefix of all removals.
    #[must_use]
    pub fn removals_prefix(&self) -> String {
        format!("{}/removal", self.0)
    }

    /// What the removal `id` is to remove.
    #[must_use]
    pub fn removal_key(&self, id: &str) -> String {
        format!("{}/{id}/wanted", self.removals_prefix())
    }

    /// What became of the removal `id`: created once.
    #[must_use]
    pub fn verdict_key(&self, id: &str) -> String {
        format!("{}/{id}/verdict", self.removals_prefix())
    }

    /// Prefix of all restores that are going on.
    #[must_use]
    pub fn restores_prefix(&self) -> String {
        format!("{}/restore", self.0)
    }

    /// What the restore `id` needs.
    #[must_use]
    pub fn restore_key(&self, id: &str) -> String {
        format!("{}/{id}/needs", self.restores_prefix())
    }

    /// Sign of life `number` of the restore `id`.
    #[must_use]
    pub fn restore_beat_key(&self, id: &str, number: u32) -> String {
        format!("{}/{id}/beat-{number:06}", self.restores_prefix())
    }

    /// Prefix of the marks on layers.
    #[must_use]
    pub fn marks_prefix(&self) -> String {
        format!("{}/mark", self.0)
    }

    /// Prefix of the marks on the layer of that label.
    #[must_use]
    pub fn marks_of(&self, label: &Label) -> String {
        format!("{}/{label}", self.marks_prefix())
    }

    /// Mark `number` on the layer of that label.
    #[must_use]
    pub fn mark_key(&self, label: &Label, number: u32) -> String {
        format!("{}/{number:06}", self.marks_of(label))
    }

    /// Prefix of the records of WAL that was given up.
    #[must_use]
    pub fn released_prefix(&self) -> String {
        format!("{}/wal-released", self.0)
    }

    /// The record that WAL before `before` was given up.
    #[must_use]
    pub fn released_key(&self, before: Lsn) -> String {
        format!("{}/{:016X}", self.released_prefix(), before.get())
    }

    /// Prefix of the records of verifications.
    #[must_use]
    pub fn verified_prefix(&self) -> String {
        format!("{}/verified", self.0)
    }

    /// What the verification `id` found.
    #[must_use]
    pub fn verified_key(&self, id: &str) -> String {
        format!("{}/{id}", self.verified_prefix())
    }

    /// Prefix of empty objects that are created to learn the store's time.
    #[must_use]
    pub fn clock_prefix(&self) -> String {
        format!("{}/clock", self.0)
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

    /// Prefix of what stands in for damaged WAL objects.
    #[must_use]
    pub fn mended_wal_prefix(&self) -> String {
        format!("{}/wal-mended", self.0)
    }

    /// The `number`th object, from 1, that stands in for the damaged one of [`ClusterName::wal_key`].
    #[must_use]
    pub fn mended_wal_key(&self, timeline_hex8: &str, file_name: &str, number: u32) -> String {
        format!("{}/wal-mended/{timeline_hex8}/{file_name}-{number}", self.0)
    }

    /// The file for which the object of that name, without what is above it, stands in.
    #[must_use]
    pub fn mended_file(name: &str) -> &str {
        name.rsplit_once('-').map_or(name, |(file, _)| file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_that_is_made_has_a_place_and_no_other() {
        let cluster = ClusterName::parse("main").expect("it is one");
        let label = Label::parse("20261124-120000F").expect("it is one");
        let file = "000000010000000000000001";
        for key in [
            cluster.cluster_key(),
            cluster.epoch_key("0a", 1),
            cluster.key_box_key("0a", 1, ("reader", "f", "0123456789")),
            cluster.claim_key(&label),
            cluster.pack_key(&label, 0),
            cluster.distrust_key(&label),
            cluster.removal_key("a"),
            cluster.verdict_key("a"),
            cluster.restore_key("a"),
            cluster.restore_beat_key("a", 1),
            cluster.mark_key(&label, 1),
            cluster.released_key(Lsn::new(1)),
            cluster.verified_key("a"),
            format!("{}/a", cluster.clock_prefix()),
            cluster.wal_key("00000001", file),
            cluster.mended_wal_key("00000001", file, 1),
            "main/probe-0a".to_owned(),
        ] {
            assert!(cluster.has_place_for(&key), "{key}");
        }
        for key in [
            "zzz",
            "layer/nonsense",
            "layer/foo/bar",
            "layer/20261124-120000F",
            "junk/bar",
            "mark/x",
            "mark/20261124-120000F/x",
            "wal/junk",
            "wal/1/junk",
            "removal/a/b",
            "cluster/x",
        ] {
            assert!(!cluster.has_place_for(&format!("main/{key}")), "{key}");
        }
    }
}
