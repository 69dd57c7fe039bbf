//! What there is, as retention sees it, and what retention decides about it. Nothing here touches the repository but to
//! read it.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::retention::{self, ExpirePlan, Held, Hold, LastOf, MergeStep, Policy, Why};
use pgstrata_store::archive::ArchivedWal;
use pgstrata_store::catalog::mark::AllMarks;
use pgstrata_store::catalog::{
    self, CLOCKS_DIFFER, Catalog, InUse, Layer, PendingRemoval, StoreTime, WalLimit, WhenLooked,
};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;

use super::Kept;
use super::clocks::Clocks;
use crate::health;
use crate::health::beside::witnesses;
use crate::lines::{self, Lines, Placed, SILENCE, archived};
use crate::merge;

/// What a merged layer is called before it is made: nobody knows its label.
const MERGED: &str = "the merged layer";

/// Clocks of hosts and stores differ by less.
const MOST_AHEAD: SignedDuration = SignedDuration::from_hours(24);

/// What there is.
pub(super) struct Scene {
    pub(super) catalog: Catalog,
    pub(super) archived: ArchivedWal,
    restores: Vec<InUse>,
    /// What others have decided to remove, and not completed.
    pub(super) pending: Vec<PendingRemoval>,
    marks: AllMarks,
    /// Layers that nobody can remove yet, and until when.
    locked: HashMap<ParentRef, Timestamp>,
    /// Layers of which no identity at hand opens the pages: whoever compares or merges them must.
    closed: HashSet<ParentRef>,
    /// Attempts whose objects nobody can remove yet.
    locked_attempts: HashSet<Label>,
    /// What is wrong with each layer.
    pub(super) problems: Vec<Option<String>>,
    pub(super) layers: Vec<Held>,
    /// Why nothing may be removed.
    pub(super) notes: Vec<String>,
    /// A merged layer that is not there yet.
    to_come: Option<ParentRef>,
    clocks: Clocks,
    /// The store's time.
    now: StoreTime,
    /// By which leases go.
    looked: WhenLooked,
    /// By which rules and pins go.
    rules_at: Timestamp,
}

/// The layers of which no identity at hand opens the pages.
async fn closed(cluster: &ClusterRepository, catalog: &Catalog) -> Result<HashSet<ParentRef>> {
    let sealing = cluster.sealing().await?;
    let opens = |layer: &Layer| {
        let seal = sealing.layer(&layer.manifest);
        seal.is_ok_and(|seal| seal.opens_data())
    };
    let closed = catalog.layers.iter().filter(|layer| !opens(layer));
    Ok(closed.map(Layer::reference).collect())
}

/// Why a layer stays that was to be compared with the merged one `merged`.
fn describe_closed(merged: &Label) -> String {
    format!(
        "it was merged into {merged}, and goes when both have been compared, for which a reader's identity is needed"
    )
}

/// Why a layer stays that no rule may count.
fn describe_doubtful(found: &str) -> String {
    format!("{found}, and it may be in order again")
}

/// A span as people write it: `14d`, `36h`.
fn spelled(span: SignedDuration) -> String {
    let hours = span.as_hours();
    match SignedDuration::from_hours(hours) == span && hours % 24 == 0 {
        true => format!("{}d", hours / 24),
        false => format!("{span:#}"),
    }
}

/// What is to be said when WAL goes without which moments cannot be reached that `--keep-within` wants.
pub(super) fn about_within(
    decision: &ExpireDecision,
    policy: &Policy,
    goes: bool,
) -> Option<String> {
    let (within, wal) = (policy.keep_within?, policy.keep_wal?);
    let plan = decision.plan.keep.iter().zip(&decision.plan.goes_on);
    let cut_off = plan.filter(|(why, goes_on)| why.contains(&Why::KeepWithin) && !**goes_on);
    let cut_off = cut_off.count();
    if !goes || wal >= within || cut_off == 0 {
        return None;
    }
    let (within, wal) = (spelled(within), spelled(wal));
    Some(format!(
        "not every moment of --keep-within {within} can be reached any more: --keep-wal {wal} is shorter, limits it, and \
         gives up older WAL between layers for good; of the layers that --keep-within keeps, {cut_off} can be restored to \
         their own ends alone; to keep every moment, give --keep-wal {within}, or leave --keep-wal out, in the \
         configuration file, too"
    ))
}

/// The layers that become one.
fn merged_by(layers: &[Held], step: &MergeStep) -> BTreeSet<usize> {
    let mut all = BTreeSet::from([step.newest]);
    let mut at = step.newest;
    while let Some(below) = layers[at].parent.filter(|_| at != step.oldest) {
        if !all.insert(below) {
            break;
        }
        at = below;
    }
    all
}

/// What is to be done.
pub(super) struct ExpireDecision {
    pub(super) lines: Lines,
    pub(super) plan: ExpirePlan,
    /// Newest first.
    pub(super) remove: Vec<Label>,
    /// Layers that stay, and of which nothing but the WAL that makes them consistent does.
    pub(super) own_alone: HashSet<ParentRef>,
    /// What of the archive stays; nothing is known when there is no layer.
    pub(super) limit: Option<WalLimit>,
    /// Merged layers for which layers go that a removal names: they are read back before.
    pub(super) read_back: Vec<Label>,
    /// Layers that the rules do not keep and that stay all the same, each with what holds it, in words, too.
    waiting: HashMap<Label, (Hold, String)>,
    /// Why a merge is not made that the rules want.
    pub(super) unmerged: Option<String>,
}

impl ExpireDecision {
    /// Whether both have the same done.
    fn does_as(&self, other: &Self) -> bool {
        let merges = self.plan.merge == other.plan.merge;
        merges && self.remove == other.remove && self.limit == other.limit
    }
}

impl Scene {
    /// Reads it.
    pub(super) async fn read(
        cluster: &ClusterRepository,
        ignore_restores: bool,
        clocks: Clocks,
    ) -> Result<Self> {
        let (now, rules_at) = (clocks.store(), clocks.earlier());
        let restores = match ignore_restores {
            true => Vec::new(),
            false => catalog::in_use(cluster, now).await?,
        };
        let marks = catalog::mark::load(cluster).await?;
        // Before the layers: a removal that has ended since shows in them.
        let pending = catalog::pending_removals(cluster).await?;
        let catalog = catalog::examine_as_verified(cluster).await?;
        let looked = clocks.looked(cluster, &catalog).await?;
        let mut notes = catalog::at_work(&catalog, looked);
        notes.extend(catalog::not_known(&catalog, &marks, rules_at));
        let archived = archived(cluster, &catalog, &mut notes).await?;
        let attempts = catalog.unfinished.iter().filter(|left| {
            let modified = left.modified;
            modified.is_some_and(|modified| cluster.repository.still_locks(modified))
        });
        let mut scene = Self {
            locked_attempts: attempts.map(|left| left.label.clone()).collect(),
            archived,
            restores: catalog::still_going(&restores, &catalog),
            pending,
            marks,
            locked: catalog::locked_layers(cluster, &catalog).await?,
            closed: closed(cluster, &catalog).await?,
            catalog,
            problems: Vec::new(),
            layers: Vec::new(),
            notes,
            to_come: None,
            clocks,
            now,
            looked,
            rules_at,
        };
        scene.judge();
        if !scene.problems.is_empty() && scene.problems.iter().all(Option::is_some) {
            scene.notes.push(
                "nothing is removed, because none of the layers can be restored as they are: \"pgstrata verify\" says what they lack"
                    .to_owned(),
            );
        }
        Ok(scene)
    }

    /// What the rules leave by the earlier clock. When the other one is later by much, and would have anything else done, a
    /// note says that nothing is.
    pub(super) fn decide_by_both_clocks(&mut self, policy: &Policy) -> ExpireDecision {
        let decision = self.decide(policy);
        let Some(later) = self.clocks.later() else {
            return decision;
        };
        let earlier = self.by_clock(later);
        let other = self.decide(policy);
        self.by_clock(earlier);
        if !decision.does_as(&other) {
            self.notes.push(format!(
                "nothing is removed, because the clock of this host and that of the repository's store do not agree: at {earlier}, by the \
                 one, the rules want something else than at {later}, by the other; set the clock that is wrong"
            ));
        }
        decision
    }

    /// What is to be said of the store's clock by who has not asked for its time.
    pub(super) fn about_store_clock(&self) -> Option<String> {
        let stored = self.catalog.stored_at.values().copied();
        let seen = stored.fold(self.archived.newest_at(), Timestamp::max);
        let is_ahead = seen.duration_since(self.rules_at) > CLOCKS_DIFFER;
        is_ahead.then(|| {
            format!(
                "the repository's store has noted times up to {seen}, which are still to come by the clock of this host: one of the two is \
                 wrong, or was; an expiry compares them, and removes nothing where they decide"
            )
        })
    }

    /// Looks at pins and rules as they are at that time; answers at which they were.
    fn by_clock(&mut self, time: Timestamp) -> Timestamp {
        let before = std::mem::replace(&mut self.rules_at, time);
        self.layers = self.held();
        before
    }

    /// Finds out what retention needs to know of each layer.
    fn judge(&mut self) {
        let layers = self.catalog.layers.iter();
        self.problems = layers
            .map(|layer| health::problem(&self.catalog, layer, Some(&self.archived)))
            .collect();
        self.layers = self.held();
    }

    /// What is there when that merge has been made, and the layers that it removes, newest first.
    pub(super) fn when_merged(mut self, step: &MergeStep) -> Result<(Self, Vec<Label>)> {
        let now = self.rules_at;
        let before: HashSet<ParentRef> = self.references().collect();
        let catalog = self.catalog.when_merged(step.newest, step.oldest, now)?;
        let merged = catalog.layers.iter().map(Layer::reference);
        let merged = merged.into_iter().find(|layer| !before.contains(layer));
        let made = catalog.layers.iter();
        let made = made
            .filter(|layer| Some(layer.reference()) == merged)
            .flat_map(|layer| &layer.manifest.inputs);
        let inputs: HashSet<ParentRef> = made.cloned().collect();
        let needed = catalog::needed(&self.restores);
        let going = catalog.layers.iter().filter(|layer| {
            let own = layer.reference();
            let pinned = self.marks.pinned(&catalog, layer, now).is_some();
            let pinned = pinned || self.locked.contains_key(&own);
            inputs.contains(&own) && !needed.contains_key(&own) && !pinned
        });
        let going: Vec<Label> = going.map(|layer| layer.label.clone()).collect();
        let (gone, _) = catalog::without_witnesses(
            going,
            |unwanted| catalog.removable(unwanted),
            |going| witnesses(&catalog, &self.archived, going),
        );
        self.catalog = catalog.without(&gone);
        self.to_come = merged;
        self.judge();
        Ok((self, gone))
    }

    fn references(&self) -> impl Iterator<Item = ParentRef> {
        self.catalog.layers.iter().map(Layer::reference)
    }

    /// Pure: what the rules of `policy` leave. What depends on pages that no identity at hand opens is left as it is, and what
    /// tells that WAL may be of two servers.
    pub(super) fn decide(&self, policy: &Policy) -> ExpireDecision {
        let mut waiting = HashMap::new();
        let mut layers = self.layers.clone();
        self.hold_doubtful(&mut layers, policy);
        loop {
            let mut decision = self.decide_among(&layers, policy);
            let known = waiting.len();
            waiting.extend(self.held_back(&decision.remove));
            if waiting.len() == known {
                let step = decision.plan.merge.as_ref();
                decision.unmerged = step.and_then(|step| self.why_not(step));
                if decision.unmerged.is_some() {
                    decision.plan.merge = None;
                }
                return ExpireDecision {
                    waiting,
                    ..decision
                };
            }
            for layer in &mut layers {
                if let Some((hold, _)) = waiting.get(&layer.label) {
                    layer.hold.get_or_insert(*hold);
                }
            }
        }
    }

    /// What must not go of what the rules do not keep.
    fn held_back(&self, remove: &[Label]) -> Vec<(Label, (Hold, String))> {
        let compared = self.not_compared(remove).into_iter();
        let compared =
            compared.map(|(label, merged)| (label, (Hold::Uncompared, describe_closed(&merged))));
        let told = witnesses(&self.catalog, &self.archived, remove);
        let told = told
            .into_iter()
            .map(|(label, why)| (label, (Hold::Witness, why)));
        told.chain(compared).collect()
    }

    /// A layer that a verification has found damaged counts for no rule, and goes no earlier than if it had found nothing: it
    /// may be in order again. No more goes of the WAL from which the way through it, or past it, would go on.
    fn hold_doubtful(&self, layers: &mut [Held], policy: &Policy) {
        let doubtful = |at: &usize| {
            let label = &self.catalog.layers[*at].label;
            health::found_damaged(&self.catalog, label).is_some()
        };
        let doubtful: Vec<usize> = (0..layers.len()).filter(doubtful).collect();
        if doubtful.is_empty() {
            return;
        }
        let mut trusted = layers.to_vec();
        for at in &doubtful {
            trusted[*at].broken = false;
        }
        let trusting = self.decide_among(&trusted, policy);
        for at in doubtful {
            if !trusting.remove.contains(&layers[at].label) {
                layers[at].hold.get_or_insert(Hold::Doubt);
            }
        }
        for (layer, goes_on) in layers.iter_mut().zip(trusting.plan.goes_on) {
            layer.goes_on = goes_on;
        }
    }

    /// Those of `remove` that would have to be compared with a merged layer before, and cannot be, each with that.
    fn not_compared(&self, remove: &[Label]) -> Vec<(Label, Label)> {
        let pairs = merge::comparisons(&self.catalog, remove).into_iter();
        let closed = pairs.filter(|(merged, _)| self.closed.contains(&merged.reference()));
        closed
            .map(|(merged, replaced)| (replaced.label.clone(), merged.label.clone()))
            .collect()
    }

    /// Why a merge cannot be made, if so.
    fn why_not(&self, step: &MergeStep) -> Option<String> {
        let own: Vec<ParentRef> = self.references().collect();
        let mut inputs = merged_by(&self.layers, step).into_iter();
        inputs.find(|at| self.closed.contains(&own[*at]))?;
        let (newest, oldest) = (&self.layers[step.newest], &self.layers[step.oldest]);
        Some(format!(
            "layers {} to {} are not merged, because no identity at hand opens their pages: run \"pgstrata merge {} --from {} \
             --remove-inputs\", or the expiry, with a reader's identity",
            oldest.label, newest.label, newest.label, oldest.label
        ))
    }

    /// A merge that was killed while it removed what it had merged goes on.
    fn decide_among(&self, layers: &[Held], policy: &Policy) -> ExpireDecision {
        let mut decision = self.decide_on(layers, policy);
        let away = self.merged_away(layers, &decision, policy);
        if away.is_empty() {
            return decision;
        }
        for (_, at) in &away {
            decision.plan.keep[*at].clear();
            decision.plan.goes_on[*at] = false;
        }
        let read_back: BTreeSet<usize> = away.into_iter().map(|(merged, _)| merged).collect();
        let layers = self.catalog.layers.iter().enumerate();
        let read_back = layers.filter(|(at, _)| read_back.contains(at));
        ExpireDecision {
            read_back: read_back.map(|(_, layer)| layer.label.clone()).collect(),
            ..self.settle(decision.lines, decision.plan)
        }
    }

    /// What holds layers whatever the rules say, in words.
    pub(super) fn what_holds(&self) -> Option<&'static str> {
        let layers = self.catalog.layers.iter();
        let now = self.rules_at;
        let mut pinned = layers.map(|layer| self.marks.pinned(&self.catalog, layer, now));
        match (pinned.any(|mark| mark.is_some()), self.locked.is_empty()) {
            (true, true) => Some("pins"),
            (true, false) => Some("pins and locks"),
            (false, false) => Some("locks"),
            (false, true) => None,
        }
    }

    /// The same, as if nothing was pinned.
    pub(super) fn decide_without_pins(&self, policy: &Policy) -> ExpireDecision {
        let mut layers = self.layers.clone();
        for layer in &mut layers {
            layer.hold = None;
        }
        self.decide_on(&layers, policy)
    }

    fn decide_on(&self, layers: &[Held], policy: &Policy) -> ExpireDecision {
        let now = self.rules_at;
        let patience = SILENCE.max(policy.keep_within.unwrap_or(SignedDuration::ZERO));
        let placed = self.catalog.layers.iter().zip(layers);
        let placed: Vec<Placed> = placed
            .map(|(layer, held)| Placed::of(layer, !held.broken && !held.replaced))
            .collect();
        let lines = lines::lines(&placed, &self.archived, now, patience);
        let plan = retention::plan(layers, &lines.lines, policy, now);
        self.settle(lines, plan)
    }

    /// What goes when that stays.
    fn settle(&self, lines: Lines, plan: ExpirePlan) -> ExpireDecision {
        let unwanted = self.layers.iter().zip(&plan.keep);
        let unwanted: Vec<Label> = unwanted
            .filter(|(_, why)| why.is_empty())
            .map(|(layer, _)| layer.label.clone())
            .collect();
        let own_alone = self.references().zip(&plan.keep).zip(&plan.goes_on);
        let own_alone = own_alone
            .filter(|((_, why), goes_on)| !why.is_empty() && !**goes_on)
            .map(|((layer, _), _)| layer)
            .collect();
        let remove = self.catalog.removable(&unwanted);
        ExpireDecision {
            limit: WalLimit::of(&self.catalog, &remove, &own_alone, &self.restores),
            lines,
            plan,
            remove,
            own_alone,
            read_back: Vec::new(),
            waiting: HashMap::new(),
            unmerged: None,
        }
    }

    /// Layers that rules by number alone keep, that a removal names and a merged layer claims: each with that one. They go
    /// when this run would merge them itself, if the merged layer was an increment on them. So neither the removal nor
    /// the claim is believed: whoever made both could have made that increment, and would have got as much.
    fn merged_away(
        &self,
        held: &[Held],
        decision: &ExpireDecision,
        policy: &Policy,
    ) -> Vec<(usize, usize)> {
        let named: HashSet<&ParentRef> = self.pending.iter().flat_map(|p| &p.layers).collect();
        let own: Vec<ParentRef> = self.references().collect();
        let by_number = |at: &usize| {
            let (why, layer) = (&decision.plan.keep[*at], &held[*at]);
            let mut rules = why.iter();
            let by_number = rules.all(|why| matches!(why, Why::KeepFull | Why::StoodUpon));
            by_number && !why.is_empty() && !layer.in_use && layer.hold.is_none()
        };
        let mut away = Vec::new();
        for (at, layer) in self.catalog.layers.iter().enumerate() {
            let manifest = &layer.manifest;
            let stays = !decision.plan.keep[at].is_empty() && !named.contains(&own[at]);
            if !stays || self.problems[at].is_some() || self.closed.contains(&own[at]) {
                continue;
            }
            let is_below = |one: &usize| {
                manifest.inputs.contains(&own[*one]) && !manifest.replaces.contains(&own[*one])
            };
            let inputs: Vec<usize> = (0..at).filter(is_below).collect();
            let claimed: Vec<usize> = inputs
                .iter()
                .copied()
                .filter(|one| named.contains(&own[*one]) && by_number(one))
                .collect();
            if claimed.is_empty() {
                continue;
            }
            let mut layers = held.to_vec();
            layers[at].parent = inputs.last().copied();
            let now = self.rules_at;
            let plan = retention::plan(&layers, &decision.lines.lines, policy, now);
            let merges = plan
                .merge
                .map_or_else(BTreeSet::new, |step| merged_by(&layers, &step));
            if merges.contains(&at) {
                let goes = claimed.into_iter().filter(|one| merges.contains(one));
                away.extend(goes.map(|one| (at, one)));
            }
        }
        away
    }

    /// Attempts and removals that were interrupted, and are at work no more.
    pub(super) fn leftovers(&self) -> Vec<Label> {
        let condemned: HashSet<Label> = self.pending.iter().flat_map(|p| p.labels()).collect();
        let pinned = self.marks.pins_of_gone(&self.catalog, self.rules_at);
        let pinned: HashSet<&Label> = pinned.collect();
        let unfinished = self.catalog.unfinished.iter();
        unfinished
            .filter(|left| !left.is_at_work(self.looked))
            // Somebody has deleted a part of it who asked no pin, and may bring it back.
            .filter(|left| !pinned.contains(&left.label))
            // One that was committed, and that nobody has begun to remove, has lost its manifest.
            .filter(|left| {
                !left.was_committed || left.was_merged || condemned.contains(&left.label)
            })
            .filter(|left| !self.locked_attempts.contains(&left.label))
            // Its record that it was given up would stay, and no backup could be dated after it.
            .filter(|left| !self.is_far_ahead(&left.label))
            .filter(|left| catalog::copied_by(left, &self.restores).is_none())
            .map(|unfinished| unfinished.label.clone())
            .collect()
    }

    /// Whether a label has a date that no clock has shown.
    fn is_far_ahead(&self, label: &Label) -> bool {
        let latest = self.now.timestamp().checked_add(MOST_AHEAD);
        latest.is_ok_and(|latest| {
            label.own_stamp() > latest.strftime("%Y%m%d-%H%M%S").to_string().as_str()
        })
    }

    /// What is to be said about attempts that nobody of us can have begun.
    pub(super) fn about_far_ahead(&self) -> Vec<String> {
        let unfinished = self.catalog.unfinished.iter();
        let far = unfinished.filter(|left| self.is_far_ahead(&left.label));
        let said = far.map(|left| {
            format!(
                "what lies below the label {} stays, which has a date that is still to come: find out who has added it, and delete it with \
                 the tools of the store; no backup can be dated before it",
                left.label
            )
        });
        said.collect()
    }

    /// What is to be said about copies that were interrupted, and that somebody may complete.
    pub(super) fn about_copies(&self) -> Vec<String> {
        let unfinished = self.catalog.unfinished.iter();
        let idle = unfinished.filter(|left| !left.is_at_work(self.looked));
        let kept = idle.filter_map(|left| {
            let copy = catalog::copied_by(left, &self.restores)?;
            let hours = (catalog::lease_of(&copy.record) - copy.age).as_hours().max(0);
            Some(format!(
                "layer {} stays ({} objects, {} bytes), of which the {} by \"{}\" is not complete: repeat the copy to complete it; it is \
                 given up in {} days {} hours, and with --ignore-restores now",
                left.label,
                left.object_count,
                left.size_bytes,
                copy.record.directory,
                copy.record.host,
                hours / 24,
                hours % 24
            ))
        });
        kept.collect()
    }

    /// The layers that stay, and why.
    pub(super) fn kept(&self, decision: &ExpireDecision) -> Vec<Kept> {
        let needed = catalog::needed(&self.restores);
        let plan = decision.plan.keep.iter().zip(&decision.plan.goes_on);
        let keep = self.catalog.layers.iter().zip(plan);
        let keep = keep.filter(|(_, (why, _))| !why.is_empty());
        let keep = keep.map(|(layer, (why, goes_on))| {
            let own = layer.reference();
            let words = why.iter().map(|why| match why {
                Why::InUse => needed
                    .get(&own)
                    .map_or_else(|| why.as_str().to_owned(), |restore| restore.describe()),
                Why::Held(_) => self
                    .what_holds_layer(decision, layer)
                    .unwrap_or_else(|| why.as_str().to_owned()),
                _ => why.as_str().to_owned(),
            });
            let words: Vec<String> = words.collect();
            Kept {
                label: match self.to_come.as_ref() == Some(&own) {
                    true => MERGED.to_owned(),
                    false => layer.label.to_string(),
                },
                why: words.join(", "),
                // What was given up before does not come back.
                goes_on: *goes_on && self.archived.goes_on_from(&layer.manifest),
            }
        });
        keep.collect()
    }

    /// What holds a layer, in words. A pin counts most: somebody has said it.
    fn what_holds_layer(&self, decision: &ExpireDecision, layer: &Layer) -> Option<String> {
        let mark = self.marks.pinned(&self.catalog, layer, self.rules_at);
        let mark = mark.map(|mark| mark.describe());
        let own = layer.reference();
        let locked = || self.locked.get(&own).copied().map(catalog::describe_lock);
        let waiting = || decision.waiting.get(&layer.label);
        let waiting = || waiting().map(|(_, why)| why.clone());
        let doubtful = || health::found_damaged(&self.catalog, &layer.label);
        let doubtful = || doubtful().as_deref().map(describe_doubtful);
        mark.or_else(locked).or_else(waiting).or_else(doubtful)
    }

    /// What is to be said about layers that rules by periods do not count yet.
    pub(super) fn about_to_come(&self, policy: &Policy) -> Vec<String> {
        if policy.keep_last_of == LastOf::default() {
            return Vec::new();
        }
        let ahead = |layer: &&Held| layer.finished_at.duration_since(self.rules_at) > CLOCKS_DIFFER;
        let layers = self.layers.iter().filter(ahead);
        let said = layers.map(|layer| {
            format!(
                "the time of layer {}, {}, is still to come, because a clock was wrong: until then it is the last of no day, week, month \
                 or year, and stays",
                layer.label, layer.finished_at
            )
        });
        said.collect()
    }

    /// The newest and the oldest of the layers with which that one was merged.
    pub(super) fn merged_into(&self, label: &str) -> Option<(&str, &str)> {
        let mut merged = self.catalog.layers.iter().rev();
        merged.find_map(|merged| {
            let mut inputs = merged.manifest.inputs.iter();
            let ends = (
                merged.manifest.inputs.first()?,
                merged.manifest.inputs.last()?,
            );
            let of_it = inputs.any(|input| input.label == label);
            of_it.then_some((ends.0.label.as_str(), ends.1.label.as_str()))
        })
    }

    /// What is to be said about the WAL that stays.
    pub(super) fn about_wal(&self, decision: &ExpireDecision, goes: bool) -> Vec<String> {
        let Some(limit) = &decision.limit else {
            return Vec::new();
        };
        let mut remarks = Vec::new();
        let unheld = WalLimit::of(&self.catalog, &decision.remove, &decision.own_alone, &[]);
        if unheld.is_some_and(|unheld| unheld.before != limit.before) {
            let holds = |found: &&InUse| found.record.start_lsn == limit.before;
            let held = self.restores.iter().filter(holds);
            remarks.extend(held.map(|found| {
                let (from, why) = (limit.before, found.describe());
                format!("WAL from {from} on stays: {why}")
            }));
        }
        if goes && !limit.kept.is_empty() {
            remarks.push(format!(
                "of {} layers before {} only the WAL stays that makes them consistent: each can be restored to its own \
                 end, and no moment between them",
                limit.kept.len(),
                limit.before
            ));
        }
        remarks
    }

    /// The catalog's layers as retention sees them.
    fn held(&self) -> Vec<Held> {
        // A merged layer that cannot be restored replaces nothing.
        let manifests = self.catalog.layers.iter().map(|layer| &layer.manifest);
        let numbered: Vec<_> = manifests.enumerate().collect();
        let usable = || {
            let numbered = numbered.iter().copied();
            numbered.filter(|(at, _)| self.problems[*at].is_none())
        };
        let replaced: HashSet<&ParentRef> = usable().flat_map(|(_, m)| &m.replaces).collect();
        let merged: HashSet<&ParentRef> = usable().flat_map(|(_, m)| &m.inputs).collect();
        // Two merges at the same time make the same twice; the later one is that on which others stand.
        let mut latest: HashMap<&ParentRef, usize> = HashMap::new();
        for (at, manifest) in usable() {
            latest.extend(manifest.replaces.last().map(|state| (state, at)));
        }
        let needed = catalog::needed(&self.restores);
        let now = self.rules_at;
        let held = |(at, layer): (usize, &Layer)| {
            let own = layer.reference();
            let state = layer.manifest.replaces.last();
            let twice = state.is_some_and(|state| latest.get(state).is_some_and(|last| *last > at));
            Held {
                label: layer.label.clone(),
                parent: self.catalog.layers.below(at),
                finished_at: self.finished_at(layer),
                replaced: twice || replaced.contains(&own),
                merged: merged.contains(&own),
                in_use: needed.contains_key(&own),
                broken: self.problems[at].is_some(),
                hold: match self.marks.pinned(&self.catalog, layer, now) {
                    Some(_) => Some(Hold::Pin),
                    None => self.locked.get(&own).map(|_| Hold::Lock),
                },
                goes_on: false,
            }
        };
        self.catalog.layers.iter().enumerate().map(held).collect()
    }

    /// When the backup ended. The clock of its host may have been ahead, so it is no later than the store has noted.
    fn finished_at(&self, layer: &Layer) -> Timestamp {
        let told = layer.manifest.finished_at;
        let stored_at = self.catalog.stored_at.get(&layer.label);
        stored_at.map_or(told, |stored_at| told.min(*stored_at))
    }
}
