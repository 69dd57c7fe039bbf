//! Keys of sealed clusters: who is asking, what that opens, and who may open what.
//!
//! A cluster is sealed from its first object to its last, or not at all: its record says which. Whoever gives an
//! identity, or names a seal id, expects a sealed cluster, and gets an error from one that is not. Keys are wiped when they are
//! dropped, and shown nowhere.

mod change;
pub mod copies;
mod genuine;
mod guard;
mod identity;
mod late;
mod layer;
mod lost;
mod obtain;
mod record;
mod ring;
mod summary;
mod unread;

pub use change::{Admission, Recipients, add, begin, reseal, rotate};
pub use guard::{guard, guarded};
pub use identity::{Identities, holds_secret, is_recipient, mask, new_identity, recipient};
pub use layer::LayerSeal;
pub use lost::EpochsNow;
pub use obtain::{KEY_COMMAND_TIMEOUT, from_command, from_file, generate, keep_out_of_dumps};
pub use ring::{BoxSeen, EpochSeen, Ring};
pub use summary::{KeySummary, doubled_warning};

use std::sync::Arc;

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::{self, Manifest};
use pgstrata_layer::sealed;
use tokio::sync::OnceCell;

use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// What somebody has who opens a cluster, and what was found with it.
#[derive(Debug, Default)]
pub struct Keys {
    identities: Identities,
    /// The seal id that the cluster must have.
    expected: Option<String>,
    /// Keys of the same cluster in another repository.
    lent: Option<Arc<Ring>>,
    sealing: OnceCell<Sealing>,
}

impl Keys {
    /// Opens what these identities open, and nothing of a cluster with another seal id than the one expected.
    #[must_use]
    pub fn new(identities: Identities, expected: Option<String>) -> Self {
        Self {
            identities,
            expected,
            lent: None,
            sealing: OnceCell::new(),
        }
    }

    /// The same, with what another repository of the cluster opens of the same epochs, and nothing found out.
    pub(crate) fn lent(&self, lent: Option<Arc<Ring>>) -> Self {
        Self {
            lent,
            ..Self::new(self.identities.clone(), self.expected.clone())
        }
    }

    /// The same, with nothing found out.
    pub(crate) fn anew(&self) -> Self {
        self.lent(self.lent.clone())
    }

    /// How the objects of the cluster are whose record `read` gives. Found out once.
    pub(crate) async fn sealing(
        &self,
        home: Home<'_>,
        read: impl Future<Output = Result<ClusterRecord>>,
    ) -> Result<&Sealing> {
        let find = || async {
            match read.await {
                Ok(record) => self.sealing_of(home, &record).await,
                // Nobody expects it to be sealed: what is there says what it is.
                Err(error) if self.expects_clear() && is_lost(&error) => Ok(Sealing::Clear),
                Err(error) => Err(error),
            }
        };
        self.sealing.get_or_try_init(find).await
    }

    /// Who expects a clear cluster, and has read the record of one, need not read it again.
    pub(crate) fn note(&self, record: &ClusterRecord) {
        if record.sealing.is_none() && self.expects_clear() {
            // It may be known already.
            let _ = self.sealing.set(Sealing::Clear);
        }
    }

    pub(crate) fn expects_clear(&self) -> bool {
        self.identities.is_empty() && self.expected.is_none()
    }

    /// Whether it is said which sealed cluster is meant.
    pub(crate) fn names_seal_id(&self) -> bool {
        self.expected.is_some()
    }

    async fn sealing_of(&self, home: Home<'_>, record: &ClusterRecord) -> Result<Sealing> {
        let name = home.name.as_str();
        match (&record.sealing, &self.expected) {
            (None, _) if self.expects_clear() => Ok(Sealing::Clear),
            (None, _) => Err(Error::new(
                Kind::Refused,
                format!("cluster \"{name}\" is not sealed, and an identity or a seal id was given for it"),
            )
            .hint(
                "leave out --identity, --key-command and --seal-id if it was never sealed; if it was, somebody has replaced \
                 its record in the repository",
            )),
            (Some(sealing), Some(expected)) if sealing.seal_id != *expected => Err(Error::new(
                Kind::Refused,
                format!("cluster \"{name}\" has seal id {}, expected {expected}", sealing.seal_id),
            )
            .hint("it is another cluster than the one that init made, or somebody has replaced its record in the repository")),
            (Some(sealing), _) => {
                // Done once, and long: every future that may come to it would be as long.
                let load = Ring::load(home, &sealing.seal_id, &self.identities);
                let mut ring = Box::pin(load).await?;
                if let Some(lent) = &self.lent {
                    ring.borrow(lent);
                }
                Ok(Sealing::Sealed(Arc::new(ring)))
            }
        }
    }
}

/// Where a cluster's objects are.
#[derive(Clone, Copy, Debug)]
pub struct Home<'a> {
    /// The repository.
    pub repository: &'a Repository,
    /// The cluster's name there.
    pub name: &'a ClusterName,
}

/// How the objects of a cluster are.
#[derive(Clone, Debug)]
pub enum Sealing {
    /// As they are.
    Clear,
    /// Sealed; what of it can be opened is in the ring.
    Sealed(Arc<Ring>),
}

/// What is said of a sealed layer in a cluster that is not.
fn of_sealed_cluster() -> Error {
    let what = "it is the manifest of a sealed layer, and this cluster is not sealed";
    Error::new(Kind::Damaged, what).hint(
        "somebody has put the layer there, and nothing opens it here: move all of its objects away; \"pgstrata rescue --since TIME \
         --dry-run\" lists what was added since a moment",
    )
}

impl Sealing {
    /// The manifest in `object`.
    ///
    /// # Errors
    /// `Damaged` and `Unsupported`; `Refused` when no key for it is there.
    pub fn manifest(&self, object: &[u8]) -> Result<Manifest> {
        match self {
            Self::Clear => manifest::decode(object).map_err(|error| match sealed::decode(object) {
                Ok(_) => of_sealed_cluster(),
                Err(_) => error.into(),
            }),
            Self::Sealed(ring) => {
                let public = sealed::decode(object)?;
                let catalog = ring.catalog_key(public.encryption.epoch)?;
                Ok(public.open(catalog, ring.seal_id())?)
            }
        }
    }

    /// The object of a manifest; the layer's [`LayerSeal`] has noted in it how the layer is sealed.
    ///
    /// # Errors
    /// `Refused` when no key for it is there.
    pub fn encode(&self, manifest: &Manifest) -> Result<Vec<u8>> {
        match (self, &manifest.encryption) {
            (Self::Clear, None) => Ok(manifest::encode(manifest)),
            (Self::Sealed(ring), Some(encryption)) => {
                let catalog = ring.catalog_key(encryption.epoch)?;
                Ok(sealed::encode(manifest, catalog, ring.seal_id())?)
            }
            _ => Err(Error::new(
                Kind::Damaged,
                "the manifest and the cluster do not agree whether the layer is sealed",
            )),
        }
    }

    /// How the objects of the layer with that manifest are sealed.
    ///
    /// # Errors
    /// `Damaged` when the manifest does not say what the cluster's record says.
    pub fn layer(&self, manifest: &Manifest) -> Result<LayerSeal> {
        match (self, &manifest.encryption) {
            (Self::Clear, None) => Ok(LayerSeal::clear()),
            (Self::Sealed(ring), Some(encryption)) => {
                let id = manifest.layer_id_bytes()?;
                Ok(LayerSeal::of(ring, encryption, id))
            }
            _ => Err(Error::new(
                Kind::Damaged,
                format!(
                    "layer {} and its cluster do not agree whether it is sealed",
                    manifest.label
                ),
            )),
        }
    }

    /// How the objects of a new layer with that id are sealed.
    ///
    /// # Errors
    /// `Refused` when nothing is there to read it again for who makes the next.
    pub fn new_layer(&self, id: [u8; 16]) -> Result<LayerSeal> {
        match self {
            Self::Clear => Ok(LayerSeal::clear()),
            Self::Sealed(ring) => LayerSeal::begin(ring, id),
        }
    }

    /// The keys, when the cluster is sealed.
    #[must_use]
    pub fn ring(&self) -> Option<&Arc<Ring>> {
        match self {
            Self::Clear => None,
            Self::Sealed(ring) => Some(ring),
        }
    }

    /// Refuses when the catalog of a sealed cluster cannot be read.
    ///
    /// # Errors
    /// `Refused` then.
    pub fn require_catalog(&self) -> Result<()> {
        match self {
            Self::Clear => Ok(()),
            Self::Sealed(ring) => ring.catalog_key(ring.current().number).map(|_| ()),
        }
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(
        error.kind(),
        Kind::NotFound | Kind::Damaged | Kind::Unsupported
    )
}
