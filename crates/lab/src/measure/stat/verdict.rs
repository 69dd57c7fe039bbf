//! From an interval to a word.

use serde::{Deserialize, Serialize};

use super::Interval;
use super::plan::{FEWEST_BLOCKS, blocks_needed};

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Transactions per second.
    Higher,
    /// Times, sizes.
    Lower,
    /// Neither: described, not judged.
    Neither,
}

/// What a comparison says. Better and worse are the arm's against the base.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Verdict {
    /// The interval lies on the better side of 1.
    Better,
    /// The interval lies on the worse side of 1.
    Worse,
    /// The interval lies within the margin and contains 1.
    Same,
    /// The interval lies within the margin and excludes 1.
    DifferentWithinMargin,
    /// None of these; so many more blocks would probably decide.
    Unclear {
        /// Estimated blocks still missing.
        more_blocks: usize,
    },
    /// Too few blocks for any verdict.
    TooFew {
        /// Blocks at hand.
        blocks: usize,
    },
    /// An unpaired comparison: an effect or drift, nobody can tell.
    Possible,
    /// The interval excludes 1, but no direction is better.
    Different,
    /// A condition that makes the comparison invalid stands.
    Withheld,
    /// In some blocks an arm has no value, as where it did not keep the rate: what is left are its good ones.
    Partial {
        /// Blocks without one.
        missing: usize,
    },
}

/// What the judgement rests on.
#[derive(Debug, Clone, Copy)]
pub struct Evidence {
    /// Interval of the ratio, arm by base.
    pub interval: Option<Interval>,
    /// Blocks it rests on.
    pub blocks: usize,
    /// Standard deviation of the blocks' log-ratios.
    pub deviation: f64,
}

/// Judges a ratio with margin `margin` (0.01: within one per cent is the same).
#[must_use]
pub fn judge(evidence: Evidence, better: Better, margin: f64) -> Verdict {
    if evidence.blocks < FEWEST_BLOCKS {
        return Verdict::TooFew {
            blocks: evidence.blocks,
        };
    }
    let Some(interval) = evidence.interval else {
        return Verdict::TooFew {
            blocks: evidence.blocks,
        };
    };
    let within = interval.low >= 1.0 / (1.0 + margin) && interval.high <= 1.0 + margin;
    let excludes_one = interval.low > 1.0 || interval.high < 1.0;
    match (within, excludes_one, better) {
        (true, false, _) => Verdict::Same,
        (true, true, _) => Verdict::DifferentWithinMargin,
        (false, true, Better::Neither) => Verdict::Different,
        (false, true, _) if (interval.low > 1.0) == (better == Better::Higher) => Verdict::Better,
        (false, true, _) => Verdict::Worse,
        (false, false, _) => Verdict::Unclear {
            more_blocks: blocks_needed(evidence.deviation, margin)
                .saturating_sub(evidence.blocks)
                .max(1),
        },
    }
}

impl Verdict {
    /// Whether anything can be proven by the interval that it was made of.
    #[must_use]
    pub fn is_founded(&self) -> bool {
        !matches!(
            self,
            Self::TooFew { .. } | Self::Withheld | Self::Partial { .. } | Self::Possible
        )
    }

    /// The words for a reader. `time` says "faster" and "slower" of what is a speed or a time.
    #[must_use]
    pub fn words(&self, margin: f64) -> String {
        let percent = crate::format::percent(margin);
        match self {
            Self::Better => "▲ better".to_owned(),
            Self::Worse => "▼ worse".to_owned(),
            Self::Same => format!("= same within ±{percent}"),
            Self::DifferentWithinMargin => format!("≈ different, but less than {percent}"),
            Self::Unclear { more_blocks } if *more_blocks >= 100_000 => {
                format!("? unclear (out of reach for ±{percent})")
            }
            Self::Unclear { more_blocks } => {
                format!("? unclear (≈ {more_blocks} more blocks for ±{percent})")
            }
            Self::TooFew { blocks } => {
                format!("– no verdict: needs at least {FEWEST_BLOCKS} blocks, has {blocks}")
            }
            Self::Possible => "? possible (not interleaved)".to_owned(),
            Self::Different => "≠ different".to_owned(),
            Self::Withheld => "✗ withheld: the comparison is invalid".to_owned(),
            Self::Partial { missing } => {
                format!("✗ withheld: no value of an arm in {missing} blocks")
            }
        }
    }
}
