//! What a backup is to be: on which layer it stands, how its checkpoint is made, and how changed pages are found.
//!
//! Afterwards [`audit`] judges whether the source of changes told the truth.

pub(super) mod audit;
pub(super) mod backup_type;
pub(super) mod checkpoint;
pub(super) mod harmless;
pub(super) mod past;
pub(super) mod prepare;
pub(super) mod source;

#[cfg(test)]
mod tests;
