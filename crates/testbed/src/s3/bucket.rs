//! What a bucket does beside keeping objects, and what accounts may do with it.

use std::fs;

use anyhow::{Context, Result};
use aws_lc_rs::digest::{self, SHA256};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Request;
use http::request::Builder;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{HttpRequest, HttpRequestBody};

use super::{BUCKET, REGION, S3Server};
use crate::request::{self, Answer};

/// Accounts of the honest server that may do nothing until a policy of the bucket allows it. Access keys are the names.
pub const ROLES: [&str; 3] = ["writer", "reader", "keeper"];

/// Kinds of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bucket {
    /// What is overwritten or deleted is gone.
    Plain,
    /// It stays as an older version.
    Versioned,
    /// So, and objects can have a date before which their versions cannot be deleted.
    Locked,
}

impl S3Server {
    /// The secret of the account of a role.
    ///
    /// # Errors
    /// When there is no such role.
    pub fn role_secret(&self, role: &str) -> Result<&str> {
        let at = ROLES.iter().position(|name| *name == role);
        let at = at.with_context(|| format!("there is no account \"{role}\""))?;
        Ok(&self.role_secrets[at])
    }

    /// Lets accounts do what the policy allows, and nothing else.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub fn allow(&self, policy: &str) -> Result<()> {
        self.must("?policy=", policy)
    }

    /// Makes a request to the bucket with the account of a role, or as its owner; `rest` follows the bucket's name in the
    /// URL.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn request(
        &self,
        role: Option<&str>,
        method: &str,
        rest: &str,
        body: &str,
    ) -> Result<Answer> {
        let request = Request::builder().method(method).uri(self.url(rest));
        let answer = self.send(role, request, body);
        answer.with_context(|| format!("no answer to {method} {rest}"))
    }

    /// Sets until when the newest version of an object is locked, in the mode GOVERNANCE; whoever has the right to can shorten
    /// such a lock. `until` is a time such as `2030-01-01T00:00:00Z`.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn lock(&self, role: Option<&str>, key: &str, until: &str) -> Result<Answer> {
        let body = format!(
            "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>GOVERNANCE</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>"
        );
        let sum = digest::digest(&SHA256, body.as_bytes());
        let request = Request::builder()
            .method("PUT")
            .uri(self.url(&format!("/{key}?retention=")))
            .header("x-amz-bypass-governance-retention", "true")
            .header("x-amz-checksum-sha256", BASE64_STANDARD.encode(sum));
        let answer = self.send(role, request, &body);
        answer.with_context(|| format!("no answer to a lock of {key}"))
    }

    fn send(&self, role: Option<&str>, request: Builder, body: &str) -> Result<Answer> {
        let (key_id, secret) = match role {
            None => (self.access_key(), self.secret()),
            Some(role) => (role, self.role_secret(role)?),
        };
        signed_and_sent(request.body(body.to_owned().into())?, key_id, secret)
    }

    fn url(&self, rest: &str) -> String {
        format!("{}/{BUCKET}{rest}", self.endpoint())
    }

    /// Makes the bucket one of that kind.
    pub(super) fn set_up(&self, bucket: Bucket) -> Result<()> {
        if bucket == Bucket::Plain {
            return Ok(());
        }
        // One that was made as a directory has no owner, and neither copies nor locks.
        fs::remove_dir(self.bucket_dir()).context("could not remove the bucket")?;
        let locks = (bucket == Bucket::Locked).to_string();
        let request = Request::builder().method("PUT").uri(self.url(""));
        let request = request.header("x-amz-bucket-object-lock-enabled", locks);
        let request = request.body(HttpRequestBody::empty())?;
        let made = signed_and_sent(request, self.access_key(), self.secret())?;
        made.must_succeed()?;
        match bucket {
            Bucket::Locked | Bucket::Plain => Ok(()),
            Bucket::Versioned => {
                let on =
                    "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
                self.must("?versioning=", on)
            }
        }
    }

    fn must(&self, rest: &str, body: &str) -> Result<()> {
        self.request(None, "PUT", rest, body)?.must_succeed()
    }
}

fn signed_and_sent(mut request: HttpRequest, key_id: &str, secret: &str) -> Result<Answer> {
    let credential = AwsCredential {
        key_id: key_id.to_owned(),
        secret_key: secret.to_owned(),
        token: None,
    };
    AwsAuthorizer::new(&credential, "s3", REGION).try_authorize(&mut request, None)?;
    request::send(request)
}
