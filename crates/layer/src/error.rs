//! The one error of this crate: what kind of trouble, and a message that names the object.

use std::fmt;

/// The result of everything this crate decodes, encodes or decides.
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bytes read back are not what was written, or contradict one another.
    Damaged,
    /// Written by a version, or with a feature, that this version does not know.
    Unsupported,
    /// A value handed in for writing breaks a rule of the format.
    Invalid,
    /// The system gives no more memory.
    Memory,
}

/// Why something could not be decoded, encoded or planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
}

impl Error {
    /// What a caller may want to tell apart.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Puts the object in front: `frame at 12345 of pack 7: ...`.
    #[must_use]
    pub fn within(mut self, object: impl fmt::Display) -> Self {
        self.message = format!("{object}: {}", self.message);
        self
    }

    pub(crate) fn damaged(message: impl Into<String>) -> Self {
        Self {
            kind: Kind::Damaged,
            message: message.into(),
        }
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self {
            kind: Kind::Unsupported,
            message: message.into(),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self {
            kind: Kind::Invalid,
            message: message.into(),
        }
    }

    /// `purpose` reads like `to compress`.
    pub(crate) fn no_memory(purpose: impl fmt::Display) -> Self {
        Self {
            kind: Kind::Memory,
            message: format!("the system gives no more memory {purpose}"),
        }
    }

    /// The same rule broken by bytes read back instead of by a caller.
    pub(crate) fn into_damage(mut self) -> Self {
        self.kind = Kind::Damaged;
        self
    }
}
