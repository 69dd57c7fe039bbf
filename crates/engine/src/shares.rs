//! What backups and restores have in common that several processes make.

use std::time::Duration;

use pgstrata_layer::label::Label;

/// How work is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedOptions {
    /// Into how many shares it is cut.
    pub count: u32,
    /// The leader makes a share itself when nothing was seen of its helpers for so long.
    pub timeout: Duration,
}

/// What a helper did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelpReport {
    /// The layer that is made or restored.
    pub label: Label,
    /// How many shares there are.
    pub share_count: u32,
    /// Shares that this process made.
    pub made: Vec<u32>,
    /// Shares that it made, too late to count.
    pub too_late: Vec<u32>,
}
