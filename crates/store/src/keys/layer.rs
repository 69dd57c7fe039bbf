//! How the objects of one layer are sealed.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::Encryption;
use pgstrata_layer::seal::{self, Class, Header, Key, ObjectKey, SealedPlace};
use pgstrata_layer::sealed::SCHEME;

use super::ring::Ring;
use crate::error::{Error, Result};

/// How the objects of one layer are sealed, or that they are not. Cheap to clone.
#[derive(Clone)]
pub struct LayerSeal(Option<Arc<Sealed>>);

struct Sealed {
    ring: Arc<Ring>,
    encryption: Encryption,
    layer_id: [u8; 16],
    data: OnceLock<Key>,
}

impl fmt::Debug for LayerSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "sealed" } else { "clear" })
    }
}

impl LayerSeal {
    /// Of a layer that is not sealed.
    #[must_use]
    pub fn clear() -> Self {
        Self(None)
    }

    pub(super) fn of(ring: &Arc<Ring>, encryption: &Encryption, layer_id: [u8; 16]) -> Self {
        Self(Some(Arc::new(Sealed {
            ring: Arc::clone(ring),
            encryption: encryption.clone(),
            layer_id,
            data: OnceLock::new(),
        })))
    }

    /// Of a new layer, whose data key nobody can read but the readers of the epoch, and this process while it writes.
    pub(super) fn begin(ring: &Arc<Ring>, layer_id: [u8; 16]) -> Result<Self> {
        let epoch = ring.current();
        ring.require_read()?;
        ring.catalog_key(epoch.number)?;
        let (key, data_key) = ring.new_data_key()?;
        let encryption = Encryption::new(SCHEME, epoch.number, &data_key, rand::random());
        Ok(Self(Some(Arc::new(Sealed {
            ring: Arc::clone(ring),
            encryption,
            layer_id,
            data: OnceLock::from(key),
        }))))
    }

    /// What the manifest is to say of it.
    #[must_use]
    pub fn encryption(&self) -> Option<Encryption> {
        self.0.as_ref().map(|sealed| sealed.encryption.clone())
    }

    /// Bytes that an object of the layer with `raw_bytes` has in the repository.
    #[must_use]
    pub fn stored_bytes(&self, raw_bytes: u64) -> u64 {
        match self.0 {
            None => raw_bytes,
            Some(_) => seal::stored_bytes(raw_bytes),
        }
    }

    /// The object `key` with these contents, as it is stored. To be called once for each object of a layer.
    ///
    /// # Errors
    /// `Refused` when no key for it is there.
    pub fn seal(&self, name: &ClusterName, key: &str, raw: Vec<u8>) -> Result<Vec<u8>> {
        let Some(sealed) = &self.0 else {
            return Ok(raw);
        };
        let own = sealed.key(name, key)?;
        Ok(seal::seal(own, &sealed.header(key), raw))
    }

    /// What the object `key` holds that is stored as `stored`.
    ///
    /// # Errors
    /// `Damaged` when it is not what was sealed there; `Refused` when no key for it is there.
    pub fn open(&self, name: &ClusterName, key: &str, stored: Bytes) -> Result<Bytes> {
        let Some(sealed) = &self.0 else {
            return Ok(stored);
        };
        let own = sealed.key(name, key)?;
        seal::open(&own, &sealed.header(key), stored).map_err(|error| named(error, key))
    }

    /// Where in the repository the bytes `raw` of an object are, as far as there are; see [`LayerSeal::open_range`].
    #[must_use]
    pub fn stored_range(&self, raw: &Range<u64>) -> Range<u64> {
        match self.0 {
            None => raw.clone(),
            Some(_) => seal::stored_range(raw),
        }
    }

    /// Whether a part of an object is stored as it is.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.0.is_none()
    }

    /// Bytes `raw` of what the object `key` holds, of which `stored` was read as [`LayerSeal::stored_range`] says.
    ///
    /// # Errors
    /// As for [`LayerSeal::open`].
    pub fn open_range(
        &self,
        name: &ClusterName,
        key: &str,
        raw: &Range<u64>,
        stored: Bytes,
    ) -> Result<Bytes> {
        let Some(sealed) = &self.0 else {
            return Ok(stored);
        };
        let own = sealed.key(name, key)?;
        seal::open_range(&own, raw, stored).map_err(|error| named(error, key))
    }

    /// Whether this process can read pages.
    #[must_use]
    pub fn opens_data(&self) -> bool {
        let Some(sealed) = &self.0 else { return true };
        sealed.data.get().is_some() || sealed.ring.opens_data(sealed.encryption.epoch)
    }

    /// Checks the stored object `key` as far as that needs no key; nothing when the layer is not sealed.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn check(&self, key: &str, stored: &[u8]) -> Result<()> {
        match &self.0 {
            None => Ok(()),
            Some(sealed) => match seal::check(&sealed.header(key), stored) {
                Ok(_) => Ok(()),
                Err(error) => Err(named(error, key)),
            },
        }
    }
}

/// Whose key opens the object of a layer.
fn class_of(key: &str) -> Class {
    let name = key.rsplit('/').next().unwrap_or(key);
    match name.starts_with("pack-") {
        true => Class::Data,
        false => Class::Catalog,
    }
}

fn named(error: pgstrata_layer::Error, key: &str) -> Error {
    Error::from(error).while_doing(format!("could not read \"{key}\""))
}

impl Sealed {
    fn header(&self, key: &str) -> Header {
        Header {
            class: class_of(key),
            epoch: self.encryption.epoch,
            salt: self.layer_id,
        }
    }

    fn key(&self, name: &ClusterName, key: &str) -> Result<ObjectKey> {
        let class = class_of(key);
        let shared = match class {
            Class::Catalog => self.ring.catalog_key(self.encryption.epoch)?,
            Class::Data => match self.data.get() {
                Some(known) => known,
                None => {
                    let opened = self.ring.open_data_key(&self.encryption)?;
                    self.data.get_or_init(|| opened)
                }
            },
        };
        let place = SealedPlace {
            seal_id: self.ring.seal_id(),
            name: name.within(key),
        };
        Ok(ObjectKey::derive(shared, class, &self.layer_id, place))
    }
}
