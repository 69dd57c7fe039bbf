//! Records that tell a path or a position, and are for people and for who removes: sealed as a whole with the catalog key.

use bytes::Bytes;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::seal::{self, Class, Header, ObjectKey, SealedPlace};

use super::Sealing;
use super::ring::Ring;
use crate::error::{Error, Kind, Result};

impl Sealing {
    /// The record `key` with these contents, as it is stored. Each call draws a salt, so that the same record may be made
    /// twice with different contents.
    ///
    /// # Errors
    /// `Refused` when no key for it is there.
    pub fn seal_record(&self, name: &ClusterName, key: &str, raw: Vec<u8>) -> Result<Bytes> {
        let Self::Sealed(ring) = self else {
            return Ok(Bytes::from(raw));
        };
        let header = Header {
            class: Class::Catalog,
            epoch: ring.current().number,
            salt: rand::random(),
        };
        let own = record_key(ring, &header, name.within(key))?;
        Ok(Bytes::from(seal::seal(own, &header, raw)))
    }

    /// What the record `key` holds that is stored as `stored`. One that is not sealed is from an older program, and is what it is.
    ///
    /// # Errors
    /// `Damaged` when it is not what was sealed there, or the cluster is not sealed; `Refused` when no key for it is there.
    pub fn open_record(&self, name: &ClusterName, key: &str, stored: Bytes) -> Result<Bytes> {
        let doing = |error: Error| error.while_doing(format!("could not read \"{key}\""));
        if !seal::is_sealed(&stored) {
            return Ok(stored);
        }
        let Self::Sealed(ring) = self else {
            let what = "it is sealed, and the cluster is not";
            return Err(doing(Error::new(Kind::Damaged, what)));
        };
        let front = Header::split(&stored).map_err(|error| doing(error.into()))?;
        let header = front.map(|(header, ..)| header);
        let header = header.filter(|header| header.class == Class::Catalog);
        let Some(header) = header else {
            let what = "it is not sealed as a record is";
            return Err(doing(Error::new(Kind::Damaged, what)));
        };
        let own = record_key(ring, &header, name.within(key))?;
        seal::open(&own, &header, stored).map_err(|error| doing(error.into()))
    }
}

fn record_key(ring: &Ring, header: &Header, name: &str) -> Result<ObjectKey> {
    let shared = ring.catalog_key(header.epoch)?;
    let place = SealedPlace {
        seal_id: ring.seal_id(),
        name,
    };
    Ok(ObjectKey::derive(shared, header.class, &header.salt, place))
}
