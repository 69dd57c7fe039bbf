//! Labels: `20261121-093305F`, `20261121-093305F_20261121-103000I`.
//!
//! A label starts with the time (UTC) of the full backup its chain stands on, so
//! labels sort by chain and then by time, and says what the layer is: `F` full,
//! `D` differential (stands on the full), `I` incremental (stands on any layer).

use std::fmt;

use jiff::civil::DateTime;

/// What a layer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Every page of the cluster.
    Full,
    /// What changed since the chain's full layer.
    Differential,
    /// What changed since the parent, whatever kind it is.
    Incremental,
}

impl LayerKind {
    /// The word for it: `full`, `differential`, `incremental`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Differential => "differential",
            Self::Incremental => "incremental",
        }
    }
}

/// The name of a layer, unique within its cluster. Times have whole seconds, in UTC.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(String);

impl Label {
    /// The label of a full layer made at `time`.
    #[must_use]
    pub fn full(time: DateTime) -> Self {
        Self(format!("{}F", stamp(time)))
    }

    /// The label of a layer of `kind` made at `time` on the chain of `self`;
    /// for [`LayerKind::Full`] the start of a new chain.
    #[must_use]
    pub fn successor(&self, kind: LayerKind, time: DateTime) -> Self {
        let letter = match kind {
            LayerKind::Full => return Self::full(time),
            LayerKind::Differential => 'D',
            LayerKind::Incremental => 'I',
        };
        Self(format!("{}_{}{letter}", self.root(), stamp(time)))
    }

    /// Reads a label; `None` when `text` is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let valid = match text.split_once('_') {
            None => is_part(text, &['F']),
            Some((root, own)) => is_part(root, &['F']) && is_part(own, &['D', 'I']),
        };
        valid.then(|| Self(text.to_owned()))
    }

    /// The label of the chain's full layer, as text.
    #[must_use]
    pub fn root(&self) -> &str {
        self.0.split('_').next().unwrap_or(&self.0)
    }

    /// What the layer holds.
    #[must_use]
    pub fn kind(&self) -> LayerKind {
        match self.0.chars().last() {
            Some('D') => LayerKind::Differential,
            Some('I') => LayerKind::Incremental,
            _ => LayerKind::Full,
        }
    }

    /// The time in the label's own part (UTC), as `20261121-103000`: compares as time does.
    #[must_use]
    pub fn own_stamp(&self) -> &str {
        let own = self.0.rsplit('_').next().unwrap_or(&self.0);
        own.get(..15).unwrap_or(own)
    }

    /// The label as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn stamp(time: DateTime) -> String {
    time.strftime("%Y%m%d-%H%M%S").to_string()
}

fn is_part(part: &str, letters: &[char]) -> bool {
    let Some(time) = part.strip_suffix(letters) else {
        return false;
    };
    time.len() == 15 && time.is_ascii() && DateTime::strptime("%Y%m%d-%H%M%S", time).is_ok()
}
