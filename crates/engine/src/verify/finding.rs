//! What a verification found wrong.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use pgstrata_store::error::{Error, Kind};
use serde::Serialize;

use crate::health::Severity;

/// More warnings than this nobody reads.
const MOST_WARNINGS: usize = 10_000;

/// Of more errors than this the first one of each layer is kept: by it the layer is judged.
const MOST_ERRORS: usize = 100_000;

/// What to do when the record of an epoch is lost.
const LOST_EPOCH: &str = "bring the record of the epoch back from a copy of the repository or from an older version of it, before you take backups; \
     when it is lost for good, begin a new epoch with \"pgstrata key rotate\", take out again with \"key remove\" who was taken out in the lost one, and take a full backup";

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// An object that must be there is not.
    Missing,
    /// An object is not what was written.
    Damaged,
    /// The repository does not give an object out.
    Unreadable,
    /// An object is of a version this program does not know.
    Unsupported,
    /// The layer does not fit those it stands on.
    BrokenChain,
    /// WAL that a restore needs is not in the archive, or was never written (`wal_level = minimal`).
    WalMissing,
    /// WAL that a restore needs is damaged in the archive.
    WalDamaged,
    /// Pages that were corrupt in the cluster when they were read.
    CorruptPages,
    /// An object that no manifest names.
    Stray,
    /// A layer that was never finished.
    Unfinished,
    /// A record that no restore needs, such as a pin, cannot be read.
    Record,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub kind: FindingKind,
    /// The layer it was found in.
    pub layer: String,
    /// Key of the object.
    pub object: String,
    /// What was found, for people.
    pub message: String,
    /// What to do.
    pub hint: Cow<'static, str>,
}

impl FindingKind {
    /// The kind that stands for an error of reading an object; `None` when
    /// verification cannot go on after it. An outage says nothing of the object ([`super::outage`]).
    pub(super) fn of(error: &Error) -> Option<Self> {
        match error.kind() {
            _ if error.is_outage() => None,
            Kind::NotFound => Some(Self::Missing),
            Kind::Damaged => Some(Self::Damaged),
            Kind::Unsupported => Some(Self::Unsupported),
            Kind::Repository => Some(Self::Unreadable),
            _ => None,
        }
    }

    pub(super) fn severity(self) -> Severity {
        match self {
            Self::CorruptPages | Self::Stray | Self::Unfinished | Self::Record => Severity::Warning,
            _ => Severity::Error,
        }
    }

    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::Missing | Self::Damaged => {
                "bring the object back from a copy of the repository, or take a full backup now: \
                 this layer and those that stand on it cannot be relied on"
            }
            Self::Unreadable => "look at the store: its permissions, its disk, its log",
            Self::Unsupported => "use the version of pgstrata that wrote it",
            Self::BrokenChain => "take a full backup now: the layer cannot be restored",
            Self::WalMissing | Self::WalDamaged => {
                "if the segment is still in the server's pg_wal or in another archive, run \
                 archive-push for it; otherwise take a full backup, which does not need it"
            }
            Self::CorruptPages => {
                "find out what damaged them, and restore these relations from an older backup"
            }
            Self::Stray => "harmless; it was not written by a finished backup",
            Self::Record => "find out who changed it",
            Self::Unfinished => "harmless when a backup is running or was interrupted",
        }
    }
}

/// Collects findings from all workers, each once.
#[derive(Debug, Default)]
pub(super) struct Findings(Mutex<Collected>);

#[derive(Debug, Default)]
struct Collected {
    findings: Vec<Finding>,
    seen: HashSet<(String, String)>,
    warnings: usize,
    errors: usize,
    /// The layers that have an error.
    wrong: HashSet<String>,
}

impl Findings {
    pub(super) fn add(
        &self,
        kind: FindingKind,
        layer: impl ToString,
        object: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.add_hinted(kind, layer, (object, message), kind.hint());
    }

    /// An object that cannot be read.
    pub(super) fn add_error(
        &self,
        kind: FindingKind,
        layer: impl ToString,
        (object, error): (impl Into<String>, &Error),
    ) {
        let hint = match error.is_lost_epoch() {
            true => LOST_EPOCH,
            false => kind.hint(),
        };
        self.add_hinted(kind, layer, (object, error.to_string()), hint);
    }

    /// A finding about which something else is to be done than about others of its kind.
    pub(super) fn add_hinted(
        &self,
        kind: FindingKind,
        layer: impl ToString,
        (object, message): (impl Into<String>, impl Into<String>),
        hint: impl Into<Cow<'static, str>>,
    ) {
        self.push(Finding {
            severity: kind.severity(),
            kind,
            layer: layer.to_string(),
            object: object.into(),
            message: message.into(),
            hint: hint.into(),
        });
    }

    /// WAL that is missing if it was ever promised.
    pub(super) fn add_doubt(
        &self,
        layer: impl ToString,
        object: impl Into<String>,
        message: impl Into<String>,
    ) {
        let kind = FindingKind::WalMissing;
        self.warn(kind, layer, (object, message), kind.hint());
    }

    /// The claim of a finished layer, of which nothing is needed any more.
    pub(super) fn add_claim(
        &self,
        kind: FindingKind,
        layer: impl ToString,
        object: impl Into<String>,
        message: impl Into<String>,
    ) {
        let hint = "a finished layer is restored without its claim; find out who changed it";
        self.warn(kind, layer, (object, message), hint);
    }

    /// A finding that is a warning here, whatever it is elsewhere.
    fn warn(
        &self,
        kind: FindingKind,
        layer: impl ToString,
        (object, message): (impl Into<String>, impl Into<String>),
        hint: &'static str,
    ) {
        self.push(Finding {
            severity: Severity::Warning,
            kind,
            layer: layer.to_string(),
            object: object.into(),
            message: message.into(),
            hint: hint.into(),
        });
    }

    fn push(&self, finding: Finding) {
        let (object, message) = (finding.object.clone(), finding.message.clone());
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new_layer =
            finding.severity == Severity::Error && !collected.wrong.contains(&finding.layer);
        let (count, most) = match finding.severity {
            Severity::Warning => (&mut collected.warnings, MOST_WARNINGS),
            Severity::Error => (&mut collected.errors, MOST_ERRORS),
        };
        if *count >= most && !is_new_layer {
            return;
        }
        *count += 1;
        if is_new_layer {
            collected.wrong.insert(finding.layer.clone());
        }
        if collected.seen.insert((object, message)) {
            collected.findings.push(finding);
        }
    }

    /// Whether there is any.
    pub(super) fn any(&self) -> bool {
        let collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !collected.findings.is_empty()
    }

    pub(super) fn into_vec(self) -> Vec<Finding> {
        let collected = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        collected.findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_is_dropped_because_of_warnings() {
        let findings = Findings::default();
        for number in 0..=MOST_WARNINGS {
            let stray = (format!("stray-{number}"), "nobody knows it");
            findings.warn(FindingKind::Missing, "one", stray, "look");
        }
        let lost = ("pack-000000", "it is not there");
        findings.push(Finding {
            severity: Severity::Error,
            kind: FindingKind::Missing,
            layer: "one".to_owned(),
            object: lost.0.to_owned(),
            message: lost.1.to_owned(),
            hint: "look".into(),
        });
        let kept = findings.into_vec();
        assert_eq!(kept.len(), MOST_WARNINGS + 1);
        assert_eq!(kept[MOST_WARNINGS].severity, Severity::Error);
    }
}
