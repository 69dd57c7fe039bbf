//! What somebody should know of the keys of a sealed cluster, in a few numbers.

use pgstrata_layer::epoch::KeyRole;

use super::ring::EpochSeen;
use super::unread::unread_error;
use crate::error::Error;

/// What to do about an identity that has two roles.
const DOUBLED: &str = "make an identity for that host alone with \"pgstrata key generate\", let it in with \"pgstrata key add\", and keep that of \
    the reader elsewhere";

/// What somebody should know of an identity that has two roles, and what to do about it.
#[must_use]
pub fn doubled_warning(recipient: &str) -> (String, &'static str) {
    let what = format!(
        "{recipient} is a reader, and was let in as writer or keeper too: whoever takes over the host that has that identity \
         reads every backup"
    );
    (what, DOUBLED)
}

/// Who opens a sealed cluster, and what is wrong with that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySummary {
    /// The epoch for whose recipients is sealed what is written.
    pub current: u32,
    /// Recipients of the current epoch who read everything.
    pub readers: usize,
    /// Those who make backups.
    pub writers: usize,
    /// Those who expire.
    pub keepers: usize,
    /// What the identities at hand are in the current epoch; nothing: they open nothing of it.
    pub own: Vec<KeyRole>,
    /// Epochs that only one reader opens, or none.
    pub lone: Vec<u32>,
    /// Epochs that no reader opens.
    pub unread: Vec<u32>,
    /// Recipients of the current epoch who read everything and were let in as writer or keeper, too.
    pub doubled: Vec<String>,
    /// The newest epoch of which the identities at hand open the catalog.
    pub opened: Option<u32>,
}

impl KeySummary {
    /// Of the epochs of a cluster, in their order.
    #[must_use]
    pub fn of(epochs: &[EpochSeen]) -> Self {
        let count = |epoch: &EpochSeen, role: KeyRole| {
            let boxes = epoch.boxes.iter();
            boxes.filter(|own| own.role == role).count()
        };
        let current = epochs.last();
        let of_current = |role| current.map_or(0, |epoch| count(epoch, role));
        let with_fewer = |than: usize| {
            let few = epochs.iter();
            let few = few.filter(|epoch| count(epoch, KeyRole::Reader) < than);
            few.map(|epoch| epoch.number).collect()
        };
        let mut opened = epochs.iter().rev();
        let readers = current.iter().flat_map(|epoch| {
            let boxes = epoch.boxes.iter();
            boxes.filter(|own| own.role == KeyRole::Reader)
        });
        let doubled = readers.filter(|reader| {
            let boxes = current.iter().flat_map(|epoch| &epoch.boxes);
            let mut own = boxes.filter(|own| own.recipient == reader.recipient);
            own.any(|own| own.role != KeyRole::Reader)
        });
        Self {
            doubled: doubled.map(|reader| reader.recipient.clone()).collect(),
            current: current.map_or(0, |epoch| epoch.number),
            readers: of_current(KeyRole::Reader),
            writers: of_current(KeyRole::Writer),
            keepers: of_current(KeyRole::Keeper),
            own: current.map(|epoch| epoch.own.clone()).unwrap_or_default(),
            lone: with_fewer(2),
            unread: with_fewer(1),
            opened: opened
                .find(|epoch| epoch.opens_catalog)
                .map(|epoch| epoch.number),
        }
    }

    /// Whether the identities at hand open nothing of the current epoch.
    #[must_use]
    pub fn is_shut_out(&self) -> bool {
        self.own.is_empty()
    }

    /// What the identities at hand are.
    #[must_use]
    pub fn own_text(&self) -> String {
        let own: Vec<&str> = self.own.iter().map(|role| role.as_str()).collect();
        match (own.is_empty(), self.opened) {
            (false, _) => format!("the identity at hand is a {} of it", own.join(" and a ")),
            (true, _) if self.unread.contains(&self.current) => {
                "the identity at hand opens nothing of it, as nobody does".to_owned()
            }
            (true, Some(epoch)) => format!(
                "the identity at hand opens nothing of it: it opens what was sealed up to epoch {epoch}, and was left out since, by \"key remove\""
            ),
            (true, None) => "the identity at hand opens nothing".to_owned(),
        }
    }

    /// What somebody should change, each with what to do.
    #[must_use]
    pub fn warnings(&self) -> Vec<(String, &'static str)> {
        let lone = self.lone_text().map(|lone| (lone, self.lone_hint()));
        let doubled = self.doubled.iter();
        let doubled = doubled.map(|recipient| doubled_warning(recipient));
        lone.into_iter().chain(doubled).collect()
    }

    /// Why nobody can open what was sealed, if so.
    #[must_use]
    pub fn unread_error(&self) -> Option<Error> {
        unread_error(&self.unread)
    }

    /// Why somebody should let another reader in, if so.
    fn lone_text(&self) -> Option<String> {
        let mut lone = self.lone.iter().filter(|one| !self.unread.contains(one));
        let first = lone.clone().min()?;
        let current = lone.any(|one| *one == self.current);
        Some(match current {
            true => "an epoch has one reader: who loses that identity loses the backups".to_owned(),
            false => format!(
                "epoch {first} has one reader: who loses that identity loses the backups of then"
            ),
        })
    }

    /// What to do about it.
    fn lone_hint(&self) -> &'static str {
        match self.lone.contains(&self.current) {
            true => {
                "let a second one in with \"pgstrata key add --recipient age1...\", and into what was sealed before with \"pgstrata key reseal age1...\""
            }
            false => "let a second one in with \"pgstrata key reseal age1...\"",
        }
    }
}
