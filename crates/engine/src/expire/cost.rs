//! What is stored, by layer and by day of WAL, and what each rule of retention costs.
//!
//! A rule costs what would go if it was not there and all others were. Two rules that want the same layer cost nothing
//! each for that layer, so the costs of all rules need not add up to what is stored.

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::retention::Policy;
use pgstrata_store::catalog::{Catalog, OldWal};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;
use pgstrata_store::repository::ObjectInfo;
use serde::Serialize;

use super::clocks::Clocks;
use super::scene::{ExpireDecision, Scene};

/// What is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StorageReport {
    /// The cluster's name.
    pub cluster: String,
    /// Bytes of all its objects.
    pub stored_bytes: u64,
    /// Bytes of what belongs neither to a layer nor to the archive: records, and what interrupted acts have left.
    pub other_bytes: u64,
    /// Each layer, oldest first.
    pub layers: Vec<LayerCost>,
    /// The archive by the days, in UTC, on which its files were stored.
    pub wal: Vec<WalDay>,
    /// Each rule that was given, and the pins and locks.
    pub rules: Vec<RuleCost>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerCost {
    /// Its label.
    pub label: String,
    /// Bytes of its objects.
    pub stored_bytes: u64,
    /// Why it stays by the rules that were given; `None` when it would go.
    pub why: Option<String>,
}

/// The WAL that was stored on one day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WalDay {
    /// The day, in UTC.
    pub day: String,
    /// Number of files.
    pub files: u64,
    /// Their bytes.
    pub stored_bytes: u64,
}

/// What would go without a rule, all others being there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleCost {
    /// The option; or `pins`, `locks`, `pins and locks`; or `WAL between layers`.
    pub rule: String,
    /// Layers that stay for it alone, oldest first.
    pub layers: Vec<String>,
    /// Their bytes.
    pub layer_bytes: u64,
    /// Bytes of WAL that stay for it alone.
    pub wal_bytes: u64,
}

/// Bytes of what is stored.
struct Sizes {
    by_layer: BTreeMap<String, u64>,
    all: u64,
}

/// Collects what is stored, and says what the rules of `policy` cost. Changes nothing.
///
/// # Errors
/// When the repository cannot be read.
pub async fn storage(cluster: &ClusterRepository, policy: &Policy) -> Result<StorageReport> {
    let scene = Scene::read(cluster, false, Clocks::by_this_host()).await?;
    let objects = cluster.repository.list(cluster.name.as_str()).await?;
    let sizes = sizes(&cluster.name, &objects);
    let days = wal_days(&cluster.name, &objects);
    let size = scene.archived.segment_size();
    let files = objects.into_iter();
    let files = files.filter_map(|object| OldWal::of(&cluster.name, size, object));
    let files: Vec<OldWal> = files.collect();
    let wal_that_goes = |decision: &ExpireDecision| -> u64 {
        let limit = decision.limit.as_ref();
        let goes = |file: &&OldWal| limit.is_some_and(|limit| limit.takes(file.segment, size));
        files.iter().filter(goes).map(|file| file.size_bytes).sum()
    };
    let decision = scene.decide(policy);
    let kept = scene.kept(&decision);
    let why = |label: &str| {
        let found = kept.iter().find(|kept| kept.label == label);
        found.map(|kept| kept.why.clone())
    };
    let layers = scene.catalog.layers.iter().map(|layer| {
        let label = layer.label.to_string();
        LayerCost {
            stored_bytes: sizes.by_layer.get(&label).copied().unwrap_or(0),
            why: why(&label),
            label,
        }
    });
    let layers: Vec<LayerCost> = layers.collect();
    let mut rules = Vec::new();
    let now = wal_that_goes(&decision);
    for (rule, without) in without_each(&scene, policy) {
        let goes = without.remove.iter();
        let goes: BTreeSet<String> = goes
            .filter(|label| !decision.remove.contains(label))
            .map(ToString::to_string)
            .collect();
        let bytes = goes.iter().filter_map(|label| sizes.by_layer.get(label));
        rules.push(RuleCost {
            rule,
            layer_bytes: bytes.sum(),
            wal_bytes: wal_that_goes(&without).saturating_sub(now),
            layers: in_order(&scene.catalog, &goes),
        });
    }
    let of_layers: u64 = layers.iter().map(|layer| layer.stored_bytes).sum();
    let of_wal: u64 = days.iter().map(|day| day.stored_bytes).sum();
    Ok(StorageReport {
        cluster: cluster.name.as_str().to_owned(),
        stored_bytes: sizes.all,
        other_bytes: sizes.all.saturating_sub(of_layers + of_wal),
        layers,
        wal: days,
        rules,
    })
}

fn in_order(catalog: &Catalog, labels: &BTreeSet<String>) -> Vec<String> {
    let all = catalog.layers.iter().map(|layer| layer.label.to_string());
    all.filter(|label| labels.contains(label)).collect()
}

/// An option, whether it was given, and how it is left out.
type Rule = (&'static str, fn(&Policy) -> bool, fn(&mut Policy));

const RULES: [Rule; 6] = [
    (
        "--keep-full",
        |policy| policy.keep_full.is_some(),
        |policy| policy.keep_full = None,
    ),
    (
        "--keep-within",
        |policy| policy.keep_within.is_some(),
        |policy| policy.keep_within = None,
    ),
    (
        "--keep-daily",
        |policy| policy.keep_last_of.daily.is_some(),
        |policy| policy.keep_last_of.daily = None,
    ),
    (
        "--keep-weekly",
        |policy| policy.keep_last_of.weekly.is_some(),
        |policy| policy.keep_last_of.weekly = None,
    ),
    (
        "--keep-monthly",
        |policy| policy.keep_last_of.monthly.is_some(),
        |policy| policy.keep_last_of.monthly = None,
    ),
    (
        "--keep-yearly",
        |policy| policy.keep_last_of.yearly.is_some(),
        |policy| policy.keep_last_of.yearly = None,
    ),
];

/// What is decided without each rule of the policy.
fn without_each(scene: &Scene, policy: &Policy) -> Vec<(String, ExpireDecision)> {
    let given = RULES.iter().filter(|(_, is_given, _)| is_given(policy));
    let without = given.map(|(name, _, leave_out)| {
        let mut without = *policy;
        leave_out(&mut without);
        let decision = scene.decide(&wanting_nothing_else(without));
        ((*name).to_owned(), decision)
    });
    let mut without: Vec<(String, ExpireDecision)> = without.collect();
    if let Some(holds) = scene.what_holds() {
        without.push((holds.to_owned(), scene.decide_without_pins(policy)));
    }
    let at_once = Policy {
        keep_wal: Some(SignedDuration::ZERO),
        ..*policy
    };
    let name = match policy.keep_wal {
        Some(_) => "--keep-wal",
        None => "WAL between layers",
    };
    without.push((name.to_owned(), scene.decide(&at_once)));
    without
}

/// Without its last rule a policy keeps every layer. Here it wants none: what the rule costs is to be seen.
fn wanting_nothing_else(mut policy: Policy) -> Policy {
    if policy.keeps_every_layer() {
        policy.keep_last_of.daily = Some(0);
    }
    policy
}

fn sizes(name: &ClusterName, objects: &[ObjectInfo]) -> Sizes {
    let prefix = name.layers_prefix();
    let mut sizes = Sizes {
        by_layer: BTreeMap::new(),
        all: 0,
    };
    for object in objects {
        sizes.all += object.size_bytes;
        let below = object.key.strip_prefix(&prefix);
        let label = below.and_then(|below| below.trim_start_matches('/').split('/').next());
        if let Some(label) = label {
            *sizes.by_layer.entry(label.to_owned()).or_default() += object.size_bytes;
        }
    }
    sizes
}

fn wal_days(name: &ClusterName, objects: &[ObjectInfo]) -> Vec<WalDay> {
    let prefixes = [name.wal_prefix(), name.mended_wal_prefix()].map(|prefix| prefix + "/");
    let of_wal = |object: &&ObjectInfo| prefixes.iter().any(|p| object.key.starts_with(p));
    let mut days: BTreeMap<String, WalDay> = BTreeMap::new();
    for object in objects.iter().filter(of_wal) {
        let day = day(object.modified);
        let found = days.entry(day.clone()).or_insert(WalDay {
            day,
            files: 0,
            stored_bytes: 0,
        });
        found.files += 1;
        found.stored_bytes += object.size_bytes;
    }
    days.into_values().collect()
}

fn day(time: Timestamp) -> String {
    time.to_zoned(TimeZone::UTC).date().to_string()
}
