//! Verification of a sealed cluster by who holds no key: that every object is there and is what was stored.
//!
//! That finds rot and loss. Whether an object was forged, and whether it holds what a restore needs, is for who has a key.

use std::collections::BTreeSet;
use std::iter;
use std::time::Instant;

use jiff::Timestamp;
use pgstrata_layer::abandoned;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{self, ParentRef};
use pgstrata_layer::pack;
use pgstrata_layer::seal::{self, Class, Header};
use pgstrata_layer::sealed::{self, PublicManifest};
use pgstrata_pgdata::{ArchiveFile, WalSegment};
use pgstrata_store::archive::{Archive, ArchivedWal};
use pgstrata_store::blocking::blocking;
use pgstrata_store::catalog::{self, wal_given_up};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;

use super::finding::Findings;
use super::layer::{check_claims, claims};
use super::outage::{kind_of, outlast};
use super::{
    FindingKind, LOOK_AGAIN, MAY_HAVE_COME, Scope, VerifiedLayer, VerifyOptions, VerifyReport,
    keys, records, strays,
};
use crate::health::{LostHistory, ON_ITS_WAY, histories_lost_to_any};

/// Reads every object of every layer, and of the WAL archive.
pub(super) async fn run(
    cluster: &ClusterRepository,
    options: &VerifyOptions,
    progress: Progress,
) -> Result<VerifyReport> {
    if options.deep || options.scope != Scope::All {
        return Err(Error::new(
            Kind::Refused,
            "without a key a sealed cluster is verified as a whole, and no page of it",
        )
        .hint("give --identity FILE, or leave out --deep and the label"));
    }
    tracing::info!(
        "no identity was given: what is stored is compared with its checksums, and not opened"
    );
    let check = Keyless {
        cluster,
        options,
        progress,
        findings: Findings::default(),
    };
    let mut report = VerifyReport::default();
    let layers = check.layers().await?;
    for (label, layer, _) in &layers {
        let mut verified = check.layer(label, layer).await?;
        verified.label = label.to_string();
        report.layers.push(verified);
    }
    check.chains(&layers);
    keys::check(cluster, &check.findings, |_| true).await?;
    let archive = Archive::load(cluster).await?;
    report.wal_files = check.wal(&archive).await?;
    check.missing_wal(&archive).await?;
    strays::find(cluster, Some(&archive), &check.findings).await?;
    records::check(cluster, &check.findings).await?;
    // Now that it is known in which epochs something is sealed.
    keys::lost(cluster, &check.findings, |_| true).await?;
    let listed = layers.iter();
    let listed = listed.map(|(label, _, digest)| (label, digest.as_str()));
    let gone = match check.findings.any() {
        true => catalog::removed_since(cluster, listed).await?,
        false => Vec::new(),
    };
    report.findings = check.findings.into_vec();
    report.forget(&cluster.name, gone.iter());
    report.require_layers(report.layers.is_empty())?;
    report
        .findings
        .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    report.judge_layers();
    match report.layers.is_empty() && report.findings.is_empty() {
        false => Ok(report),
        true => {
            let what = format!(
                "cluster \"{}\" has no finished layer to verify",
                cluster.name.as_str()
            );
            Err(Error::new(Kind::NotFound, what).hint("take one with \"pgstrata backup\""))
        }
    }
}

struct Keyless<'a> {
    cluster: &'a ClusterRepository,
    options: &'a VerifyOptions,
    progress: Progress,
    findings: Findings,
}

impl Keyless<'_> {
    /// The layers there are, each with the digest of its manifest.
    async fn layers(&self) -> Result<Vec<(Label, PublicManifest, String)>> {
        let prefix = self.cluster.name.layers_prefix();
        let names = self.cluster.repository.list_names(&prefix).await?;
        let mut found = Vec::new();
        for label in names.iter().filter_map(|name| Label::parse(name)) {
            let key = self.cluster.name.manifest_key(&label);
            let read = || self.cluster.repository.get_record(&key);
            let object = match outlast(self.cluster, read).await {
                Ok(object) if abandoned::is_one(&object) => {
                    self.given_up(&label, &object).await?;
                    continue;
                }
                Ok(object) => object,
                Err(error) if error.kind() == Kind::NotFound => {
                    self.without_manifest(&label).await?;
                    continue;
                }
                Err(error) => {
                    self.add(&label, &key, &error).await?;
                    continue;
                }
            };
            let read = sealed::decode(&object).map_err(Error::from);
            match read {
                Ok(public) if public.label == label.as_str() => {
                    found.push((label, public, manifest::digest(&object)));
                }
                Ok(public) => {
                    let what = format!("manifest is that of layer {}", public.label);
                    self.findings.add(FindingKind::Damaged, &label, key, what);
                }
                Err(error) => self.add(&label, &key, &error).await?,
            }
        }
        Ok(found)
    }

    /// A label that was committed and has no manifest: somebody removes it, or it is lost. Of a layer that is removed the
    /// manifest goes first, and the verdict that names it last.
    async fn without_manifest(&self, label: &Label) -> Result<()> {
        let (name, repository) = (&self.cluster.name, &self.cluster.repository);
        let (key, committed) = (name.manifest_key(label), name.committed_key(label));
        if repository.size(&committed).await?.is_none() {
            return Ok(());
        }
        if catalog::being_removed(self.cluster).await?.contains(label) {
            return Ok(());
        }
        let (now, still) = futures::try_join!(repository.size(&key), repository.size(&committed))?;
        if now.is_none() && still.is_some() {
            let what = "the layer was finished, its manifest is lost, and nobody removes it";
            self.findings.add(FindingKind::Missing, label, key, what);
        }
        Ok(())
    }

    /// A label that was given up before anything came of it. A record that came after a layer was finished has replaced it.
    async fn given_up(&self, label: &Label, object: &[u8]) -> Result<()> {
        let name = &self.cluster.name;
        let (key, committed) = (name.manifest_key(label), name.committed_key(label));
        let complaint = match catalog::wrong_abandonment(label, object) {
            Some(error) => error.to_string(),
            None => {
                let repository = &self.cluster.repository;
                let when =
                    futures::try_join!(repository.modified(&key), repository.modified(&committed))?;
                // Whoever was stopped may note that his layer is finished when that has expired.
                let (Some(given_up), Some(noted)) = when else {
                    return Ok(());
                };
                if given_up <= noted || catalog::being_removed(self.cluster).await?.contains(label)
                {
                    return Ok(());
                }
                "the layer was finished, and a record that it was given up has replaced its manifest".to_owned()
            }
        };
        self.findings
            .add(FindingKind::Damaged, label, key, complaint);
        Ok(())
    }

    async fn add(&self, label: &Label, key: &str, error: &Error) -> Result<()> {
        let kind = kind_of(self.cluster, error).await?;
        self.findings.add(kind, label, key, error.to_string());
        Ok(())
    }

    async fn layer(&self, label: &Label, public: &PublicManifest) -> Result<VerifiedLayer> {
        let name = &self.cluster.name;
        let id = public.layer_id_bytes()?;
        let of = |class| Header {
            class,
            epoch: public.encryption.epoch,
            salt: id,
        };
        self.note(public.encryption.epoch).await?;
        let found = claims(self.cluster, label).await?;
        check_claims(&self.findings, (label, &public.layer_id), found)?;
        let objects = self
            .cluster
            .repository
            .list(&name.layer_prefix(label))
            .await?;
        let counts = (public.index.len(), public.pack_count);
        strays::of_layer((name, label), counts, &objects, &self.findings);
        let mut verified = VerifiedLayer::default();
        for (number, part) in (0..).zip(&public.index) {
            for (key, expected) in [
                (name.index_key(label, number), part.index_bytes),
                (name.digest_key(label, number), part.digest_bytes),
            ] {
                let place = (label, key.as_str(), expected);
                let Some(size) = self.object(place, of(Class::Catalog)).await? else {
                    continue;
                };
                verified.objects += 1;
                verified.bytes += size;
                if size != expected {
                    let what = format!("has {size} bytes, expected {expected}");
                    self.findings.add(FindingKind::Damaged, label, key, what);
                }
            }
        }
        let (mut packs, mut whole) = (0, true);
        for number in 0..public.pack_count {
            let key = name.pack_key(label, number);
            let most = public.pack_bytes.min(pack::MOST_BYTES);
            match self.object((label, &key, most), of(Class::Data)).await? {
                Some(size) => {
                    verified.objects += 1;
                    packs += size;
                }
                None => whole = false,
            }
        }
        verified.bytes += packs;
        if whole && packs != public.pack_bytes {
            let what = format!(
                "the packs have {packs} bytes together, expected {}",
                public.pack_bytes
            );
            self.findings
                .add(FindingKind::Damaged, label, name.manifest_key(label), what);
        }
        Ok(verified)
    }

    /// Checks an object, which has so many bytes at most; answers its length when it can be read.
    async fn object(
        &self,
        (label, key, most): (&Label, &str, u64),
        header: Header,
    ) -> Result<Option<u64>> {
        self.check_interrupted()?;
        let repository = &self.cluster.repository;
        let read = || repository.get_at_most(key, most, "by its manifest it");
        let stored = match outlast(self.cluster, read).await {
            Ok(stored) => stored,
            Err(error) => return self.add(label, key, &error).await.map(|()| None),
        };
        let size = u64::try_from(stored.len()).expect("usize has 64 bits");
        self.progress.add_stored(size);
        let checked = blocking(move || Ok(seal::check(&header, &stored)?)).await;
        match checked {
            Ok(_) => Ok(Some(size)),
            Err(error) => self.add(label, key, &error).await.map(|()| None),
        }
    }

    /// Each layer stands on one that is there, with the very manifest it was made on.
    fn chains(&self, layers: &[(Label, PublicManifest, String)]) {
        let mut there: BTreeSet<ParentRef> = BTreeSet::new();
        for (label, layer, digest) in layers {
            there.insert(ParentRef {
                label: label.to_string(),
                manifest_digest: digest.clone(),
            });
            there.extend(layer.replaces.iter().cloned());
        }
        for (label, layer, _) in layers {
            let Some(parent) = layer
                .parent
                .as_ref()
                .filter(|parent| !there.contains(parent))
            else {
                continue;
            };
            let key = self.cluster.name.manifest_key(label);
            let what = format!(
                "its parent {} is not there, or is not the one it was made on",
                parent.label
            );
            self.findings
                .add(FindingKind::BrokenChain, label, key, what);
        }
    }

    /// Every object of the archive; answers how many are whole.
    async fn wal(&self, archive: &Archive) -> Result<u64> {
        let mut count = 0;
        for (file, object) in archive.files().await? {
            self.check_interrupted()?;
            match self.wal_object(archive, file, &object.key).await {
                Ok(()) => count += 1,
                // Removed since it was listed: whether it is missed is found out behind.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => {
                    let kind = match kind_of(self.cluster, &error).await? {
                        FindingKind::Damaged => FindingKind::WalDamaged,
                        kind => kind,
                    };
                    match self.is_mended(archive, file).await? {
                        true => count += 1,
                        false => self.findings.add(kind, "", object.key, error.to_string()),
                    }
                }
            }
        }
        Ok(count)
    }

    async fn wal_object(&self, archive: &Archive, file: ArchiveFile, key: &str) -> Result<()> {
        let stored = outlast(self.cluster, || archive.object(file, key)).await?;
        let epoch = blocking(move || Ok(seal::check_any(&stored)?.epoch)).await?;
        self.note(epoch).await
    }

    /// Something is sealed in that epoch.
    async fn note(&self, epoch: u32) -> Result<()> {
        if let Some(ring) = self.cluster.sealing().await?.ring() {
            ring.note(epoch);
        }
        Ok(())
    }

    /// Whether a whole object stands in for the damaged one.
    async fn is_mended(&self, archive: &Archive, file: ArchiveFile) -> Result<bool> {
        for number in 1.. {
            let key = archive.place(file, number);
            match self.wal_object(archive, file, &key).await {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == Kind::NotFound => break,
                Err(error) if FindingKind::of(&error).is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Segments that are missing between others. What may be on its way is waited for.
    async fn missing_wal(&self, archive: &Archive) -> Result<()> {
        let deadline = Instant::now() + self.options.patience();
        loop {
            let mut archived = archive.list(iter::empty()).await?;
            archived.set_released(wal_given_up(self.cluster).await?);
            let now = self.options.now();
            let holes = holes(&archived, now);
            let lost = histories_lost_to_any(&archived, now);
            let may_come =
                holes.iter().any(|hole| hole.is_young) || lost.iter().any(LostHistory::is_young);
            if !may_come || Instant::now() >= deadline {
                self.note_missing(archive, &archived, (holes, lost));
                return Ok(());
            }
            self.check_interrupted()?;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    fn note_missing(
        &self,
        archive: &Archive,
        archived: &ArchivedWal,
        (holes, lost): (Vec<WalHole>, Vec<LostHistory>),
    ) {
        let size = archived.segment_size();
        for hole in holes {
            let key = archive.key(ArchiveFile::Segment(hole.first));
            let what = format!(
                "WAL segment {} is missing, and {} is the next one that is there: a restore ends before it",
                hole.first.file_name(size),
                hole.next.file_name(size)
            );
            self.add_missing(key, what, hole.is_young);
        }
        for lost in lost {
            let key = archive.key(ArchiveFile::History(lost.timeline));
            let what = format!("{}: recovery stops when it asks for it", lost.describe());
            self.add_missing(key, what, lost.is_young());
        }
    }

    fn add_missing(&self, key: String, what: String, is_young: bool) {
        match self.options.doubts(is_young) {
            true => self.findings.add_doubt("", key, what + MAY_HAVE_COME),
            false => self.findings.add(FindingKind::WalMissing, "", key, what),
        }
    }

    fn check_interrupted(&self) -> Result<()> {
        match self.progress.is_cancelled() {
            false => Ok(()),
            true => Err(Error::new(
                Kind::Interrupted,
                "the verification was stopped",
            )),
        }
    }
}

/// Segments that are missing, from the first of them up to the next one that is there.
struct WalHole {
    first: WalSegment,
    next: WalSegment,
    /// The next one was stored just now.
    is_young: bool,
}

/// Where layers begin and end nobody knows without a key. So a hole counts where the server's archiver was at work: behind
/// the first backup that it noted. Without an archiver there is a hole between each two backups. What was given up, or was there
/// before the note, may lie in one gap with what is lost behind it: then the hole begins where the promise does.
fn holes(archived: &ArchivedWal, now: Timestamp) -> Vec<WalHole> {
    let mut holes = Vec::new();
    let is_young = |next| {
        let stored_at = archived.stored_from(next);
        stored_at.is_some_and(|at| now.duration_since(at) <= ON_ITS_WAY)
    };
    for (timeline, found) in archived.by_timeline() {
        let Some(noted) = found.backup_labels.first() else {
            continue;
        };
        let of = |number| WalSegment { timeline, number };
        let released = archived.released_until(timeline);
        let kept_from = released.map_or(0, |until| until.segment(archived.segment_size()));
        let promised_from = kept_from.max(*noted);
        for gap in found.gaps() {
            let (first, last) = (promised_from.max(*gap.start()), *gap.end());
            if first > last {
                continue;
            }
            let next = of(last + 1);
            holes.push(WalHole {
                first: of(first),
                next,
                is_young: is_young(next),
            });
        }
    }
    holes
}

#[cfg(test)]
mod tests {
    use pgstrata_pgdata::{Lsn, TimelineId, WalSegmentSize};
    use pgstrata_store::catalog::{GivenUp, Released};

    use super::*;

    /// The holes of an archive that has segments 3, 4, and 9, from the first to the next that is there.
    fn found(noted: u64, given_up_before: Option<u64>) -> Vec<(u64, u64)> {
        let (timeline, size) = (TimelineId::FIRST, WalSegmentSize::DEFAULT);
        let mut archived = ArchivedWal::new(size);
        for number in [3, 4, 9] {
            let segment = WalSegment { timeline, number };
            archived.add_segment(segment, Timestamp::UNIX_EPOCH);
        }
        archived.add_backup_label(WalSegment {
            timeline,
            number: noted,
        });
        let given_up = given_up_before.map(|number| GivenUp {
            before: Lsn::new(number * size.get() + 40),
            at: Timestamp::UNIX_EPOCH,
            timelines: vec![timeline],
        });
        archived.set_released(Released {
            given_up: given_up.into_iter().collect(),
            ..Released::default()
        });
        let holes = holes(&archived, Timestamp::UNIX_EPOCH);
        let ends = holes.iter();
        ends.map(|hole| (hole.first.number, hole.next.number))
            .collect()
    }

    #[test]
    fn a_hole_begins_behind_what_was_given_up_and_not_before_the_first_note() {
        assert_eq!(found(3, None), [(5, 9)]);
        assert_eq!(found(3, Some(4)), [(5, 9)]);
        assert_eq!(found(3, Some(8)), [(8, 9)]);
        assert_eq!(found(3, Some(9)), []);
        assert_eq!(found(7, None), [(7, 9)]);
        assert_eq!(found(7, Some(8)), [(8, 9)]);
        assert_eq!(found(9, None), []);
    }
}
