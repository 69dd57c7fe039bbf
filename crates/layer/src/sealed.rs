//! The manifest of a sealed layer: what everybody may know, and the rest as bytes that need the catalog key.
//!
//! The public part has what retention and a check without keys need: names, times, sizes, what stands on what. The whole
//! manifest, as it would be without sealing, is sealed beside it; the key for that depends on the public part, so neither
//! can be altered or exchanged without the other.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bytes::{from_hex, from_hex_exact, to_hex, to_u64};
use crate::digest::contents_hex;
use crate::error::{Error, Result};
use crate::label::Label;
use crate::manifest::{self, Encryption, Manifest, ParentRef};
use crate::record;
use crate::seal::{self, Class, Header, Key, ObjectKey, SealedPlace};

const KIND: &str = "manifest";

/// Of the manifests of sealed layers.
const VERSION: u32 = 4;

/// The version of everything that [`Encryption`] says.
pub const SCHEME: u32 = 1;

/// What a manifest says without a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicManifest {
    /// The layer's own label.
    pub label: String,
    /// As in the claim.
    pub layer_id: String,
    /// The layer this one stands on; `None` for a full layer.
    pub parent: Option<ParentRef>,
    /// As in [`Manifest`].
    pub replaces: Vec<ParentRef>,
    /// As in [`Manifest`].
    pub inputs: Vec<ParentRef>,
    /// Program and version that wrote the layer.
    pub written_by: String,
    /// When the backup started.
    pub started_at: Timestamp,
    /// When its manifest was written.
    pub finished_at: Timestamp,
    /// Lengths of the objects of each index part, as they are stored.
    pub index: Vec<PublicPart>,
    /// Number of packs.
    pub pack_count: u32,
    /// Total bytes of all packs, as they are stored.
    pub pack_bytes: u64,
    /// How the layer is sealed.
    pub encryption: Encryption,
    /// The manifest, sealed; hexadecimal.
    pub sealed: String,
}

/// One part of the index, as everybody may know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicPart {
    /// Length in bytes of the object `index-n`.
    pub index_bytes: u64,
    /// Length in bytes of the object `digest-n`.
    pub digest_bytes: u64,
}

impl PublicManifest {
    fn of(manifest: &Manifest, encryption: &Encryption) -> Self {
        let parts = manifest.index.iter().map(|part| PublicPart {
            index_bytes: seal::stored_bytes(part.index_bytes),
            digest_bytes: seal::stored_bytes(part.digest_bytes),
        });
        Self {
            label: manifest.label.clone(),
            layer_id: manifest.layer_id.clone(),
            parent: manifest.parent.clone(),
            replaces: manifest.replaces.clone(),
            inputs: manifest.inputs.clone(),
            written_by: manifest.written_by.clone(),
            started_at: manifest.started_at,
            finished_at: manifest.finished_at,
            index: parts.collect(),
            pack_count: manifest.pack_count,
            pack_bytes: manifest.pack_bytes,
            encryption: encryption.clone(),
            sealed: String::new(),
        }
    }

    /// The key that opens the rest.
    fn key(&self, catalog: &Key, seal_id: [u8; 16]) -> Result<ObjectKey> {
        let open_part = Self {
            sealed: String::new(),
            ..self.clone()
        };
        let digest = contents_hex(&record::encode_version(KIND, VERSION, &open_part));
        let name = format!("layer/{}/manifest {digest}", self.label);
        let salt = self.encryption.salt_bytes()?;
        let place = SealedPlace {
            seal_id,
            name: &name,
        };
        Ok(ObjectKey::derive(catalog, Class::Catalog, &salt, place))
    }

    fn header(&self) -> Result<Header> {
        Ok(Header {
            class: Class::Catalog,
            epoch: self.encryption.epoch,
            salt: self.encryption.salt_bytes()?,
        })
    }

    /// The layer's id as its objects carry it.
    ///
    /// # Errors
    /// When it is not 128 bits of hexadecimal.
    pub fn layer_id_bytes(&self) -> Result<[u8; 16]> {
        from_hex_exact(&self.layer_id).ok_or_else(|| {
            Error::damaged("manifest has a layer id that is not 32 hexadecimal digits")
        })
    }

    /// The manifest. Pages, and what else is sealed with the data key, are another matter.
    ///
    /// # Errors
    /// When the key is not the one, or anything was altered.
    pub fn open(&self, catalog: &Key, seal_id: [u8; 16]) -> Result<Manifest> {
        let within = |error: Error| error.within("sealed part of the manifest");
        let stored =
            from_hex(&self.sealed).ok_or_else(|| within(Error::damaged("is not hexadecimal")))?;
        let key = self.key(catalog, seal_id)?;
        let raw = seal::open(&key, &self.header()?, stored.into()).map_err(within)?;
        let mut manifest = manifest::decode(&raw)?;
        if Self::of(&manifest, &self.encryption)
            != (Self {
                sealed: String::new(),
                ..self.clone()
            })
        {
            return Err(within(Error::damaged("contradicts the public part")));
        }
        manifest.encryption = Some(self.encryption.clone());
        Ok(manifest)
    }
}

/// The object's bytes. `manifest.encryption` must be there, with a salt that was never used before.
///
/// # Errors
/// When it is not.
pub fn encode(manifest: &Manifest, catalog: &Key, seal_id: [u8; 16]) -> Result<Vec<u8>> {
    let encryption = manifest.encryption.as_ref();
    let encryption =
        encryption.ok_or_else(|| Error::invalid("the manifest does not say how it is sealed"))?;
    let mut public = PublicManifest::of(manifest, encryption);
    let inner = Manifest {
        encryption: None,
        ..manifest.clone()
    };
    let stored = seal::seal(
        public.key(catalog, seal_id)?,
        &public.header()?,
        manifest::encode(&inner),
    );
    public.sealed = to_hex(&stored);
    Ok(record::encode_version(KIND, VERSION, &public))
}

/// Whether an object says that it is the manifest of a sealed layer.
#[must_use]
pub fn is_one(object: &[u8]) -> bool {
    let begin = format!("pgstrata {KIND} {VERSION} ");
    object.starts_with(begin.as_bytes())
}

/// Reads the public part, and checks of the rest what can be checked without a key.
///
/// # Errors
/// When it is damaged, of another version, or no manifest of a sealed layer.
pub fn decode(object: &[u8]) -> Result<PublicManifest> {
    if !is_one(object) {
        return Err(Error::damaged(
            "manifest is not sealed, and everything in this cluster is",
        ));
    }
    let (_, public): (u32, PublicManifest) = record::decode_versions(KIND, VERSION, object)?;
    public.check().map_err(|error| error.within(KIND))?;
    Ok(public)
}

impl PublicManifest {
    fn check(&self) -> Result<()> {
        let scheme = self.encryption.version;
        if scheme != SCHEME {
            return Err(Error::unsupported(format!(
                "layer is sealed by scheme {scheme}, which this version does not know"
            )));
        }
        if Label::parse(&self.label).is_none() {
            return Err(Error::damaged(format!(
                "{:?} is not the label of a layer",
                self.label
            )));
        }
        self.layer_id_bytes()?;
        self.encryption.data_key_bytes()?;
        ParentRef::check(self.parent.iter().chain(&self.replaces).chain(&self.inputs))?;
        let stored = from_hex(&self.sealed)
            .ok_or_else(|| Error::damaged("sealed part is not hexadecimal"))?;
        seal::check(&self.header()?, &stored).map_err(|error| error.within("sealed part"))?;
        Ok(())
    }

    /// Bytes that retention and `verify` may count without a key.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        let parts = self.index.iter();
        let parts: u64 = parts.map(|part| part.index_bytes + part.digest_bytes).sum();
        parts + self.pack_bytes + to_u64(self.sealed.len())
    }
}
