//! What can go wrong, as a kind to act on and a message to read.

use std::fmt;

/// The result of everything the engine does.
pub type Result<T> = std::result::Result<T, Error>;

/// Classes of failure. `docs/OPERATIONS.md` lists the exit code of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Arguments or configuration make no sense.
    Usage,
    /// The object, layer, file or database does not exist.
    NotFound,
    /// Something of that name exists with other contents.
    AlreadyExists,
    /// Another command is at work on the same thing.
    Busy,
    /// Doing it would be wrong: other cluster, other version, not empty, running.
    Refused,
    /// Bytes read back are not what was written.
    Damaged,
    /// The repository cannot be reached, read or written.
    Repository,
    /// The server cannot be reached or said no.
    Server,
    /// A file of this machine cannot be read or written.
    File,
    /// WAL that is needed is not in the archive.
    WalMissing,
    /// The recovery target cannot be reached.
    Target,
    /// Pages with bad checksums, and the policy says fail.
    CorruptPages,
    /// A change source called a page unchanged that had changed.
    Audit,
    /// Stopped by a signal.
    Interrupted,
    /// Not built yet, or not possible here.
    Unsupported,
}

/// A failure: names the act and the object, as PostgreSQL does.
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    hint: Option<String>,
    no_space: bool,
    passing: bool,
    denied: bool,
    withheld: bool,
    without_key: bool,
    other_cluster: bool,
    lost_epoch: bool,
}

impl Error {
    /// A failure of `kind`; `message` is lower case and has no full stop.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
            no_space: false,
            passing: false,
            denied: false,
            withheld: false,
            without_key: false,
            other_cluster: false,
            lost_epoch: false,
        }
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Notes that there was no room where something was to be written.
    #[must_use]
    pub(crate) fn for_lack_of_space(mut self) -> Self {
        self.no_space = true;
        self
    }

    /// Whether there was no room where something was to be written.
    #[must_use]
    pub fn is_lack_of_space(&self) -> bool {
        self.no_space
    }

    /// Notes that the same request may succeed later.
    #[must_use]
    pub(crate) fn for_outage(mut self) -> Self {
        self.passing = true;
        self
    }

    /// Whether the same request may succeed later, though it was repeated for as long as patience lasts.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        self.passing
    }

    /// Notes that the credentials do not allow it.
    #[must_use]
    pub(crate) fn for_denial(mut self) -> Self {
        self.denied = true;
        self
    }

    /// Whether the repository's credentials do not allow it.
    #[must_use]
    pub fn is_denial(&self) -> bool {
        self.denied
    }

    /// Notes that the store does not give out the object, however often it is asked.
    #[must_use]
    pub(crate) fn for_withholding(mut self) -> Self {
        self.withheld = true;
        self
    }

    /// Whether it is about one object, and others may be as they should be: it is not what was written, or the store does not
    /// give it out.
    #[must_use]
    pub fn is_of_one_object(&self) -> bool {
        self.withheld || matches!(self.kind, Kind::Damaged | Kind::Unsupported)
    }

    /// Notes that no identity at hand opens what is asked for.
    #[must_use]
    pub(crate) fn for_lack_of_key(mut self) -> Self {
        self.without_key = true;
        self
    }

    /// Whether no identity at hand opens what is asked for.
    #[must_use]
    pub fn is_lack_of_key(&self) -> bool {
        self.without_key
    }

    /// Notes that the record of an epoch is not there.
    #[must_use]
    pub(crate) fn for_lost_epoch(mut self) -> Self {
        self.lost_epoch = true;
        self
    }

    /// Whether the record of an epoch is not there, without which nothing of it can be opened.
    #[must_use]
    pub fn is_lost_epoch(&self) -> bool {
        self.lost_epoch
    }

    /// Notes that the server, or the file, is of another cluster than the repository's.
    #[must_use]
    pub fn for_other_cluster(mut self) -> Self {
        self.other_cluster = true;
        self
    }

    /// Whether the server, or the file, is of another cluster than the repository's.
    #[must_use]
    pub fn is_of_other_cluster(&self) -> bool {
        self.other_cluster
    }

    /// Puts the act in front: `could not take a backup: ...`.
    #[must_use]
    pub fn while_doing(mut self, act: impl fmt::Display) -> Self {
        self.message = format!("{act}: {}", self.message);
        self
    }

    /// Puts what else there is to say behind it.
    #[must_use]
    pub fn followed_by(mut self, more: impl fmt::Display) -> Self {
        self.message = format!("{}{more}", self.message);
        self
    }

    /// The class of failure.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What to do about it, when there is something to say.
    #[must_use]
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<pgstrata_layer::Error> for Error {
    fn from(error: pgstrata_layer::Error) -> Self {
        let kind = match error.kind() {
            pgstrata_layer::Kind::Damaged => Kind::Damaged,
            pgstrata_layer::Kind::Unsupported => Kind::Unsupported,
            pgstrata_layer::Kind::Invalid => Kind::Usage,
            pgstrata_layer::Kind::Memory => Kind::File,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<pgstrata_pgdata::Error> for Error {
    fn from(error: pgstrata_pgdata::Error) -> Self {
        let kind = match error.kind() {
            pgstrata_pgdata::Kind::Malformed | pgstrata_pgdata::Kind::Damaged => Kind::Damaged,
            pgstrata_pgdata::Kind::Unsupported => Kind::Unsupported,
        };
        Self::new(kind, error.to_string())
    }
}

/// Turns an I/O error on a file of this machine into [`Kind::File`].
pub trait FileContext<T> {
    /// `act` reads like `could not open "/some/path"`.
    ///
    /// # Errors
    /// The same failure, named.
    fn context(self, act: impl FnOnce() -> String) -> Result<T>;
}

impl<T> FileContext<T> for std::io::Result<T> {
    fn context(self, act: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::new(Kind::File, format!("{}: {e}", act())))
    }
}
