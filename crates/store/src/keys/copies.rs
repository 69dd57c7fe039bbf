//! Keys of a cluster of which several repositories have a copy: the same epochs, for the same recipients or for others.
//!
//! Layers are the same bytes in every copy, so their epochs are the same too. What may differ is who opens them: the key
//! boxes. A copy has either boxes of the repository out of which it was made, or boxes of its own, which no copy mixes. A box
//! is sealed with randomness, so that one that was made for a copy differs from every other: that is how it is told.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pgstrata_layer::epoch::KeyRole;

use super::ring::{Ring, read_box_by};
use super::unread::{BRING_BACK, nobody_opens};
use super::{Home, Recipients, change};
use crate::error::{Error, Kind, Result};

/// What to do when keys were changed in a copy, too.
pub const CHANGED_APART: &str = "keys were changed in each of the two repositories, and nobody can merge two chains of epochs: make \
    the copy anew, with \"pgstrata copy --to\" an empty repository or prefix, and keep the old one for as long as you want what it \
    alone has; from then on change keys in the source alone, and copy";

/// The keys of a cluster as one repository has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysFound {
    /// Records of epochs, by their keys.
    pub epochs: BTreeMap<String, Bytes>,
    /// Key boxes, by their keys.
    pub boxes: BTreeMap<String, BoxFound>,
}

/// A key box that its epoch has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxFound {
    /// Of which epoch.
    pub epoch: u32,
    /// What it allows.
    pub role: KeyRole,
    /// Who opens it.
    pub recipient: String,
    /// As it is stored.
    pub object: Bytes,
}

/// What is to be done to the keys of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPlan {
    /// Boxes to copy as they are, by their keys.
    pub boxes: Vec<String>,
    /// Boxes to make: the epoch, what it allows, for whom.
    pub give: Vec<(u32, KeyRole, String)>,
    /// Records of epochs to copy, in their order. They come last.
    pub epochs: Vec<String>,
}

/// Pure: what a copy does to the keys of the target. `recipients`: who shall open it; `None`: who opens the source.
/// `ring` is that of the source.
///
/// # Errors
/// `AlreadyExists` when an epoch was begun in each of them apart from the other; `Refused` when the target has recipients of
/// its own, and nobody has said who shall open an epoch that is new to it, and when recipients are named for a target that has
/// those of the source; `Usage` when nobody could read it.
pub fn plan(
    ring: &Ring,
    source: &KeysFound,
    target: &KeysFound,
    recipients: Option<&Recipients>,
) -> Result<KeyPlan> {
    let name = ring.name().as_str();
    require_same_epochs(source, target)?;
    let absent = source
        .epochs
        .keys()
        .filter(|key| !target.epochs.contains_key(*key));
    let epochs: Vec<String> = absent.cloned().collect();
    let is_copied = |(key, there): (&String, &BoxFound)| source.boxes.get(key) == Some(there);
    let is_own = !target.boxes.iter().all(is_copied);
    match recipients {
        None if is_own => match epochs.first() {
            None => Ok(KeyPlan::default()),
            Some(first) => Err(unsaid(name, first, target)),
        },
        None => {
            let absent = source.boxes.keys();
            let absent = absent.filter(|key| !target.boxes.contains_key(*key));
            Ok(KeyPlan {
                boxes: absent.cloned().collect(),
                give: Vec::new(),
                epochs,
            })
        }
        Some(_) if !is_own && !target.boxes.is_empty() => {
            let what = format!(
                "the keys of cluster \"{name}\" in the target are sealed for the recipients of the source already"
            );
            Err(Error::new(Kind::Refused, what).hint(
                "who opens a copy is said when it is begun: copy into another repository or prefix, or leave out --recipient, --writer and --keeper",
            ))
        }
        Some(recipients) => {
            recipients.check()?;
            let give = |epoch: u32| {
                let all = recipients.all.iter();
                all.map(move |(role, recipient)| (epoch, *role, recipient.clone()))
            };
            let all = ring.records().map(|epoch| epoch.number).flat_map(give);
            let is_there = |epoch: u32, role: KeyRole, recipient: &str| {
                let mut boxes = target.boxes.values();
                boxes.any(|one| {
                    (one.epoch, one.role, one.recipient.as_str()) == (epoch, role, recipient)
                })
            };
            let give = all.filter(|(epoch, role, recipient)| !is_there(*epoch, *role, recipient));
            Ok(KeyPlan {
                boxes: Vec::new(),
                give: give.collect(),
                epochs,
            })
        }
    }
}

/// Refuses when an epoch was begun in each of the two repositories apart from the other.
fn require_same_epochs(source: &KeysFound, target: &KeysFound) -> Result<()> {
    let differs = |(key, object): &(&String, &Bytes)| {
        let there = target.epochs.get(*key);
        there.is_some_and(|there| there != *object)
    };
    let Some((key, _)) = source.epochs.iter().find(differs) else {
        return Ok(());
    };
    let what = format!("\"{key}\" is another epoch in the target than in the source");
    Err(Error::new(Kind::AlreadyExists, what).hint(CHANGED_APART))
}

/// Pure: the epochs of which no reader has a key box in the target when the plan is done.
#[must_use]
pub fn unread(ring: &Ring, source: &KeysFound, target: &KeysFound, plan: &KeyPlan) -> Vec<u32> {
    let brought = plan.boxes.iter().filter_map(|key| source.boxes.get(key));
    let stored = target.boxes.values().chain(brought);
    let stored = stored.map(|one| (one.epoch, one.role));
    let made = plan.give.iter().map(|(epoch, role, _)| (*epoch, *role));
    let all = stored.chain(made);
    let readers = all.filter(|(_, role)| *role == KeyRole::Reader);
    let read: BTreeSet<u32> = readers.map(|(epoch, _)| epoch).collect();
    let epochs = ring.records().map(|epoch| epoch.number);
    epochs.filter(|epoch| !read.contains(epoch)).collect()
}

/// Refuses a copy in which nobody could open what is copied from now on; says so of what is older.
///
/// # Errors
/// `Damaged` then.
pub fn require_read(
    ring: &Ring,
    source: &KeysFound,
    target: &KeysFound,
    plan: &KeyPlan,
) -> Result<()> {
    let unread = unread(ring, source, target, plan);
    if unread.is_empty() {
        return Ok(());
    }
    let what = format!("in the copy {}", nobody_opens(&unread));
    match unread.contains(&ring.current().number) {
        true => Err(Error::new(Kind::Damaged, what).hint(BRING_BACK)),
        false => {
            // What is newer is worth a copy.
            tracing::warn!("{what}; {BRING_BACK}");
            Ok(())
        }
    }
}

/// Refuses when a target that had boxes of one kind, or none, has both kinds now: two copies were begun at once, one of them
/// for recipients of its own.
///
/// # Errors
/// `Refused` then.
pub fn require_unmixed(source: &KeysFound, before: &KeysFound, now: &KeysFound) -> Result<()> {
    let kinds = |found: &KeysFound| {
        let is_copied = |(key, there): (&String, &BoxFound)| source.boxes.get(key) == Some(there);
        let copied = found.boxes.iter().filter(|one| is_copied(*one)).count();
        (copied > 0, copied < found.boxes.len())
    };
    if kinds(before) == (true, true) || kinds(now) != (true, true) {
        return Ok(());
    }
    let what = "another copy was begun at the same time into the target, for other recipients: it has key boxes for both";
    Err(Error::new(Kind::Refused, what).hint(
        "if these must stay apart, let both copies end, take the target away, and begin one copy; otherwise copy again",
    ))
}

/// Nobody has said who shall open an epoch.
fn unsaid(name: &str, epoch: &str, target: &KeysFound) -> Error {
    let newest = target.boxes.values().map(|one| one.epoch).max();
    let known = target.boxes.values();
    let known = known.filter(|one| Some(one.epoch) == newest).map(|one| {
        let option = match one.role {
            KeyRole::Reader => "recipient",
            KeyRole::Writer => "writer",
            KeyRole::Keeper => "keeper",
        };
        format!(" --{option} {}", one.recipient)
    });
    let what = format!(
        "cluster \"{name}\" has recipients of its own in the target, and nobody has said which of them shall open \"{epoch}\", which is new there"
    );
    Error::new(Kind::Refused, what).hint(format!(
        "run \"pgstrata copy\" once with the identity of a reader of the source and with those who shall read what comes, out of{}",
        known.collect::<String>()
    ))
}

/// Makes the key boxes of a plan in the copy at `home`, with the secrets in the ring of the source; answers how many are new.
///
/// # Errors
/// `Refused` when no identity at hand reads an epoch; when the repository cannot be written.
pub async fn give(home: Home<'_>, ring: &Ring, boxes: &[(u32, KeyRole, String)]) -> Result<u64> {
    let mut count = 0;
    for (epoch, role, recipient) in boxes {
        count += u64::from(change::give(home, ring, (*epoch, *role), recipient).await?);
    }
    Ok(count)
}

impl Ring {
    /// The keys of this cluster in a repository, which may be another one than that out of which the ring was read. Boxes
    /// that belong to none of the ring's epochs are left out.
    ///
    /// # Errors
    /// `Damaged` when a box is forged; when the repository cannot be read.
    pub async fn find_in(&self, home: Home<'_>) -> Result<KeysFound> {
        let mut found = KeysFound::default();
        for epoch in self.records() {
            let prefix = home.name.epoch_prefix(&epoch.seal_id, epoch.number);
            let own = home.name.epoch_key(&epoch.seal_id, epoch.number);
            for object in home.repository.list(&prefix).await? {
                let key = object.key;
                if key == own {
                    let object = home.repository.get_record(&key).await?;
                    found.epochs.insert(key, object);
                } else if let Some(maker) = self.maker_of(epoch, &key) {
                    let (one, object) = read_box_by(home, &key, (epoch, maker)).await?;
                    found.boxes.insert(
                        key,
                        BoxFound {
                            epoch: one.epoch,
                            role: one.role,
                            recipient: one.recipient,
                            object,
                        },
                    );
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_epochs(epochs: &[(&str, &'static str)]) -> KeysFound {
        let epochs = epochs.iter();
        let epochs = epochs.map(|(key, object)| ((*key).to_owned(), Bytes::from(*object)));
        KeysFound {
            epochs: epochs.collect(),
            ..KeysFound::default()
        }
    }

    #[test]
    fn where_keys_were_changed_in_both_the_way_out_is_a_new_copy() {
        let source = with_epochs(&[("epoch/1", "the same"), ("epoch/2", "of the source")]);
        for behind in [&[][..], &[("epoch/1", "the same")]] {
            require_same_epochs(&source, &with_epochs(behind)).unwrap();
        }
        require_same_epochs(&source, &source).unwrap();
        let target = with_epochs(&[("epoch/1", "the same"), ("epoch/2", "of the target")]);
        let error = require_same_epochs(&source, &target).unwrap_err();
        assert_eq!(error.kind(), Kind::AlreadyExists);
        assert!(error.to_string().contains("\"epoch/2\""), "{error}");
        let hint = error.hint_text().unwrap();
        for words in ["copy --to", "empty repository", "source alone"] {
            assert!(hint.contains(words), "{words}: {hint}");
        }
    }
}
