//! The one error of this crate: what kind of trouble, and a message that names the object.

/// Result of reading something PostgreSQL wrote.
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The bytes or the text do not have the form PostgreSQL gives them.
    Malformed,
    /// The form is right and the contents are not: a checksum does not match.
    Damaged,
    /// Written by a PostgreSQL, or for a machine, that this version does not support.
    Unsupported,
}

/// Why a value could not be read.
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

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self {
            kind: Kind::Malformed,
            message: message.into(),
        }
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
}
