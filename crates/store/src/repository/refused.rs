//! Why a create was refused or a range could not be read, in words; and a failure for the log.

use bytes::Bytes;

use super::Repository;
use super::reason::{CREDENTIALS, DENIED, Reason};
use crate::error::{Error, Kind};

impl Reason {
    /// Whether the store did not take the key, or may not have taken it: the answer to a HEAD has no body, and says no more than
    /// that it is denied.
    pub(super) fn may_be_of_key(&self) -> bool {
        self.hint == Some(CREDENTIALS) || (self.is_denial() && self.text == DENIED)
    }

    /// Whether the store would say the same again, now and later.
    fn is_final(&self) -> bool {
        !self.may_pass && !self.token_has_expired
    }

    /// The error with what others have to know of it; `asks` says that it is about an object that was asked for.
    pub(super) fn noted_in(&self, error: Error, asks: bool) -> Error {
        let is_withheld = asks && error.kind() == Kind::Repository && self.is_final();
        let error = match is_withheld {
            true => error.for_withholding(),
            false if self.may_pass => error.for_outage(),
            false => error,
        };
        match self.is_lack_of_space() {
            true => error.for_lack_of_space(),
            false if self.is_denial() => error.for_denial(),
            false => error,
        }
    }
}

impl Repository {
    /// Why a request failed, without what is secret: an answer may repeat the URL or the headers that were signed.
    pub(super) fn why(&self, error: &object_store::Error) -> String {
        self.0.secrets.hidden_in(&Reason::of(error).text)
    }

    /// It is there, and is another.
    pub(super) fn exists_with_other_contents(&self, key: &str) -> Error {
        let object = self.object(key);
        Error::new(
            Kind::AlreadyExists,
            format!("could not write {object}: it exists with other contents"),
        )
    }

    /// The object has so many bytes, if that is known, and more were asked for.
    pub(super) fn too_short(&self, key: &str, end: u64, size: Option<u64>) -> Error {
        let object = self.object(key);
        let size = size.map_or("shorter".to_owned(), |s| format!("{s} bytes long"));
        Error::new(
            Kind::Damaged,
            format!("could not read {object}: it is {size}, expected at least {end} bytes"),
        )
    }

    /// As a store with versions may do where an object was deleted.
    pub(super) fn hidden(&self, key: &str) -> Error {
        let object = self.object(key);
        Error::new(
            Kind::Repository,
            format!("could not write {object}: the store refuses the name because it exists, and shows no such object"),
        )
        .for_withholding()
        .hint(match self.directory() {
            Some(_) => "a directory, or something else that is no file, has its place, and nobody of ours has made it: look at it, and delete it",
            None => "in a bucket with versions the marker of a deletion may hide it: \"pgstrata rescue\" brings back what was deleted, and removing the marker frees the name",
        })
    }

    /// Nobody can know whose request that was, so nothing is replaced.
    pub(super) fn cut_off(&self, key: &str, size: u64, body: &Bytes) -> Error {
        let (object, length) = (self.object(key), body.len());
        Error::new(
            Kind::AlreadyExists,
            format!(
                "could not write {object}: it exists with the first {size} of {length} bytes and no more, as of a request that was cut off"
            ),
        )
        .hint("the store keeps what it should refuse: do not set checksum_algorithm to none, or use another version of the store")
    }
}
