//! Encryption that the store is asked for with each object (server-side encryption of S3).
//!
//! The store's client asks for it in its own requests alone. The requests that are made here must ask for the same: what is
//! locked cannot be stored again.

use http::HeaderValue;
use object_store::aws::AmazonS3ConfigKey as Key;

use crate::error::{Error, Kind, Result};
use crate::repository::settings::{Said, is_true, usage};

const KIND: &str = "aws_server_side_encryption";
const KMS_KEY: &str = "aws_sse_kms_key_id";
const BUCKET_KEY: &str = "aws_sse_bucket_key_enabled";
const CUSTOMER_KEY: &str = "aws_sse_customer_key_base64";

/// See the module.
#[derive(Clone, Debug)]
pub(in crate::repository) enum ServerSide {
    /// Headers of each request that stores an object.
    Headers(Vec<(&'static str, String)>),
    /// With a key of the customer (SSE-C), which every request about an object would have to bring.
    KeyOfCustomer,
}

impl ServerSide {
    /// As the client understands these settings.
    ///
    /// # Errors
    /// `Usage` for a key that would be used for nothing, and for a value that is no header.
    pub(in crate::repository) fn of(said: &Said<Key>) -> Result<Self> {
        // The client does not show these keys by other names.
        let value = |name: &str| said.value(name.parse::<Key>().ok()?);
        let Some(kind) = value(KIND) else {
            let alone = [KMS_KEY, BUCKET_KEY, CUSTOMER_KEY];
            return match alone.into_iter().find(|name| value(name).is_some()) {
                None => Ok(Self::Headers(Vec::new())),
                Some(name) => Err(usage(format!(
                    "{name} is set, and {KIND} is not: nothing would be encrypted with it"
                ))
                .hint("set that to aws:kms, aws:kms:dsse or sse-c, or leave the key out")),
            };
        };
        if kind == "sse-c" {
            return Ok(Self::KeyOfCustomer);
        }
        let key = value(KMS_KEY).map(str::to_owned);
        let of_bucket = value(BUCKET_KEY).map(|told| is_true(told).to_string());
        let all = [
            ("x-amz-server-side-encryption", Some(kind.to_owned())),
            ("x-amz-server-side-encryption-aws-kms-key-id", key),
            ("x-amz-server-side-encryption-bucket-key-enabled", of_bucket),
        ];
        let said = all.into_iter();
        let said: Vec<_> = said
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        match said
            .iter()
            .find(|(_, value)| HeaderValue::from_str(value).is_err())
        {
            None => Ok(Self::Headers(said)),
            Some((name, _)) => Err(usage(format!("the value of {name} is no header"))),
        }
    }

    /// What a request that stores an object says of it.
    pub(super) fn headers(&self) -> &[(&'static str, String)] {
        match self {
            Self::Headers(headers) => headers,
            Self::KeyOfCustomer => &[],
        }
    }

    /// Refuses what is not done with a key of the customer; `done` names it.
    ///
    /// # Errors
    /// `Unsupported` then.
    pub(super) fn require_key_of_store(&self, done: &str) -> Result<()> {
        match self {
            Self::Headers(_) => Ok(()),
            Self::KeyOfCustomer => Err(Error::new(
                Kind::Unsupported,
                format!("objects that are encrypted with a key of the customer (server_side_encryption = sse-c) cannot be {done}"),
            )
            .hint("use a key of the store (aws:kms), or init --encrypt, with which the store never sees a page")),
        }
    }
}
