//! What is said of a store: by the environment, by the credentials file, by options. Each beats those before it.
//!
//! Names become keys of the store's client here, so that two names of one key are one. What the environment says of an
//! address or of a credential counts only while file and options are silent about it: the client knows several keys for
//! either, and would prefer a key of the environment to another one that somebody chose for this repository.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use object_store::ClientConfigKey;
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use super::sendable::{require_address, require_header, require_part, require_part_of_host};
use crate::error::{Error, Kind, Result};

/// Whether both names are of one option, so that what is said of one is said of the other.
#[must_use]
pub fn is_same_option(one: &str, other: &str) -> bool {
    fn key<K: FromStr>(name: &str) -> Option<K> {
        name.parse().ok()
    }
    let both = [one, other].map(str::to_ascii_lowercase);
    let s3 = both.each_ref().map(|name| key(name).map(address_of_s3));
    let azure = both.each_ref().map(|name| key::<AzureConfigKey>(name));
    let google = both.each_ref().map(|name| key::<GoogleConfigKey>(name));
    both[0] == both[1]
        || (s3[0].is_some() && s3[0] == s3[1])
        || (azure[0].is_some() && azure[0] == azure[1])
        || (google[0].is_some() && google[0] == google[1])
}

/// The client prefers one of its two keys for the address of S3, whoever says it. Here they are one.
fn address_of_s3(key: AmazonS3ConfigKey) -> AmazonS3ConfigKey {
    match key {
        AmazonS3ConfigKey::S3Endpoint => AmazonS3ConfigKey::Endpoint,
        key => key,
    }
}

/// See the module; of keys of one store.
#[derive(Debug)]
pub(super) struct Said<K> {
    pub(super) environment: Vec<(K, String)>,
    /// Of the credentials file, then of the options.
    pub(super) options: Vec<(K, String)>,
}

impl<K: Copy + PartialEq> Said<K> {
    /// What counts.
    pub(super) fn value(&self, key: K) -> Option<&str> {
        self.option(key).or_else(|| last(&self.environment, key))
    }

    /// What the file or an option says.
    fn option(&self, key: K) -> Option<&str> {
        last(&self.options, key)
    }

    /// Whether the file or an option says one of these.
    fn names(&self, keys: &[K]) -> bool {
        keys.iter().any(|key| self.option(*key).is_some())
    }

    /// Says it as an option.
    fn say(&mut self, key: K, value: &str) {
        self.options.push((key, value.to_owned()));
    }

    /// Leaves out what the environment says of these.
    fn ignore(&mut self, keys: &[K]) {
        self.environment.retain(|(key, _)| !keys.contains(key));
    }

    /// As if nobody had said it.
    pub(super) fn leave_out(&mut self, key: K) {
        self.ignore(&[key]);
        self.options.retain(|(known, _)| *known != key);
    }

    /// Refuses those of these that no header can hold, each with its name.
    fn require_headers(&self, named: &[(&str, K)]) -> Result<()> {
        let mut named = named.iter();
        named.try_for_each(|(what, key)| require_header(what, self.value(*key)))
    }

    /// Refuses those of these to which no request can go, each with its name.
    fn require_addresses(&self, named: &[(&str, K)]) -> Result<()> {
        let mut named = named.iter();
        named.try_for_each(|(what, key)| require_address(what, self.value(*key)))
    }

    /// Who does not say that the network may see everything gets no plain HTTP, but to this machine. These are all addresses
    /// to which requests go.
    fn judge_plain_http(&mut self, addresses: &[Option<String>], allow: K) -> Result<()> {
        let plain = addresses.iter().flatten();
        let mut plain = plain.filter_map(|address| behind_plain_http(address));
        let allowed = self.value(allow);
        if allowed.is_some_and(is_true) {
            return Ok(());
        }
        match (plain.clone().next(), allowed) {
            (None, _) => Ok(()),
            (Some(_), None) if plain.all(is_this_machine) => {
                self.say(allow, "true");
                Ok(())
            }
            _ => Err(
                usage("the repository's endpoint is not encrypted (http://): the network would see every page and could change it")
                    .hint("use https://, with ca_file for a certificate authority of your own; where the network is trusted, say so with --storage allow_http=true"),
            ),
        }
    }
}

impl Said<AmazonS3ConfigKey> {
    /// Lets what is said of the address and of keys count as the module says. Refuses what the client would send and cannot.
    pub(super) fn settle_s3(&mut self, bucket: &str) -> Result<()> {
        use AmazonS3ConfigKey as Key;
        for (key, _) in self.environment.iter_mut().chain(&mut self.options) {
            *key = address_of_s3(*key);
        }
        if self.names(&[Key::Endpoint]) {
            self.ignore(&[Key::Endpoint]);
        }
        let roles = [
            Key::WebIdentityTokenFile,
            Key::ContainerCredentialsRelativeUri,
            Key::ContainerCredentialsFullUri,
        ];
        let keys = [Key::AccessKeyId, Key::SecretAccessKey, Key::Token];
        for key in keys {
            // Options would beat it in the client. Here it must not count either while a file that says it is being written.
            if self.names(&[key]) {
                self.ignore(&[key]);
            }
        }
        if self.names(&[Key::AccessKeyId]) {
            // A token belongs to its key.
            self.ignore(&[Key::Token]);
        } else if self.names(&roles) && !self.names(&keys) {
            self.ignore(&keys);
        }
        self.require_sendable(bucket)?;
        let address = self.value(Key::Endpoint).map(str::to_owned);
        self.judge_plain_http(&[address], Key::Client(ClientConfigKey::AllowHttp))
    }

    fn require_sendable(&self, bucket: &str) -> Result<()> {
        use AmazonS3ConfigKey as Key;
        self.require_headers(&[
            ("access_key_id", Key::AccessKeyId),
            ("session_token", Key::Token),
            ("region", Key::Region),
            ("region", Key::DefaultRegion),
            (
                "default_content_type",
                Key::Client(ClientConfigKey::DefaultContentType),
            ),
        ])?;
        self.require_addresses(&[("endpoint", Key::Endpoint)])?;
        if self.value(Key::AccessKeyId).is_none() {
            // Who has keys asks nobody for them.
            self.require_addresses(&[
                ("metadata_endpoint", Key::MetadataEndpoint),
                ("endpoint_url_sts", Key::StsEndpoint),
                (
                    "container_credentials_full_uri",
                    Key::ContainerCredentialsFullUri,
                ),
            ])?;
        }
        let is_on = |key| self.value(key).is_some_and(is_true);
        let is_express = is_on(Key::S3Express);
        if self.value(Key::Endpoint).is_some() && !is_express {
            return Ok(());
        }
        // The client puts an address together out of these.
        let region = self.value(Key::Region).or(self.value(Key::DefaultRegion));
        if let Some(region) = region {
            require_part_of_host("region", region)?;
        }
        match is_express || is_on(Key::VirtualHostedStyleRequest) {
            true => require_part_of_host("bucket", bucket),
            false => Ok(()),
        }
    }
}

/// The address of the emulator, as the client has it.
const EMULATOR: &str = "http://127.0.0.1:10000";

impl Said<AzureConfigKey> {
    /// As for S3; `emulator` is what the environment says of the emulator's address, which the client reads by itself.
    pub(super) fn settle_azure(&mut self, emulator: Option<&str>) -> Result<()> {
        use AzureConfigKey as Key;
        if self.names(&[Key::Endpoint]) {
            self.ignore(&[Key::Endpoint, Key::UseEmulator]);
        }
        if !self.names(&[Key::CredentialType])
            && let Some(way) = self.way_in()
        {
            self.say(Key::CredentialType, way);
        }
        let address = match self.value(Key::UseEmulator).is_some_and(is_true) {
            true => Some(emulator.unwrap_or(EMULATOR)),
            false => self.value(Key::Endpoint),
        };
        require_address("endpoint", address)?;
        self.require_sendable()?;
        let of_tokens = self.value(Key::AuthorityHost);
        let addresses = [address, of_tokens].map(|address| address.map(str::to_owned));
        self.judge_plain_http(&addresses, Key::Client(ClientConfigKey::AllowHttp))
    }

    fn require_sendable(&self) -> Result<()> {
        use AzureConfigKey as Key;
        self.require_headers(&[
            ("account_name", Key::AccountName),
            ("token", Key::Token),
            (
                "default_content_type",
                Key::Client(ClientConfigKey::DefaultContentType),
            ),
        ])?;
        let has = |key| self.value(key).is_some();
        if has(Key::Token) || has(Key::AccessKey) || self.names(&[Key::SasKey]) {
            // Who has keys asks nobody for them.
            return Ok(());
        }
        self.require_addresses(&[
            ("authority_host", Key::AuthorityHost),
            ("msi_endpoint", Key::MsiEndpoint),
        ])?;
        require_part("tenant_id", self.value(Key::AuthorityId))
    }

    /// The way in that file and options name, in the client's own order; nothing when they name none.
    fn way_in(&self) -> Option<&'static str> {
        use AzureConfigKey as Key;
        const WAYS: &[(&[Key], &str)] = &[
            // Fabric, which has no name, but is the first that the client itself looks for.
            (&[Key::FabricSessionToken], "auto"),
            (&[Key::Token], "bearer_token"),
            (&[Key::AccessKey], "access_key"),
            (&[Key::FederatedTokenFile], "workload_identity"),
            (&[Key::ClientSecret], "client_secret"),
            (&[Key::SasKey], "sas_token"),
        ];
        let named = WAYS.iter().find(|(keys, _)| self.names(keys));
        if let Some((_, way)) = named {
            return Some(way);
        }
        if self.option(Key::UseAzureCli).is_some_and(is_true) {
            return Some("azure_cli");
        }
        if self.names(&[Key::ObjectId, Key::MsiResourceId, Key::MsiEndpoint]) {
            return Some("managed_identity");
        }
        // Who somebody is does not say how that is proved: the environment may.
        let has = |key| self.value(key).is_some();
        let told = self.value(Key::CredentialType);
        match self.names(&[Key::ClientId]) {
            false => None,
            true if told.is_some_and(|way| way.contains("identity") || way == "client_secret") => {
                None
            }
            true if has(Key::AuthorityId) && has(Key::FederatedTokenFile) => {
                Some("workload_identity")
            }
            true if has(Key::AuthorityId) && has(Key::ClientSecret) => Some("client_secret"),
            true => Some("managed_identity"),
        }
    }
}

impl Said<GoogleConfigKey> {
    /// As for S3.
    pub(super) fn settle_google(&mut self) -> Result<()> {
        use GoogleConfigKey as Key;
        let credentials = [
            Key::ServiceAccount,
            Key::ServiceAccountKey,
            Key::ApplicationCredentials,
            Key::BearerToken,
        ];
        if self.names(&credentials) {
            self.ignore(&credentials);
        }
        self.require_headers(&[
            ("bearer_token", Key::BearerToken),
            (
                "default_content_type",
                Key::Client(ClientConfigKey::DefaultContentType),
            ),
        ])?;
        self.require_addresses(&[("base_url", Key::BaseUrl)])?;
        let address = self.value(Key::BaseUrl).map(str::to_owned);
        self.judge_plain_http(&[address], Key::Client(ClientConfigKey::AllowHttp))
    }
}

fn last<K: PartialEq>(said: &[(K, String)], key: K) -> Option<&str> {
    let found = said.iter().rev().find(|(known, _)| *known == key);
    found.map(|(_, value)| value.as_str())
}

/// As the client reads it.
pub(super) fn is_true(value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    ["1", "true", "on", "yes", "y"].contains(&value.as_str())
}

/// What follows `http://`, in whatever case that is written (RFC 3986, 3.1).
fn behind_plain_http(address: &str) -> Option<&str> {
    let (scheme, place) = address.split_once("://")?;
    scheme.eq_ignore_ascii_case("http").then_some(place)
}

/// Whether what follows `http://` leads no further than this machine.
fn is_this_machine(place: &str) -> bool {
    let authority = place.split(['/', '?', '#']).next().unwrap_or_default();
    // What stands before it names a user, and may look like this machine.
    if authority.contains('@') {
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => authority.split(':').next(),
    };
    let host = host.unwrap_or_default();
    let is_loopback = host
        .parse::<IpAddr>()
        .is_ok_and(|address| address.is_loopback());
    host.eq_ignore_ascii_case("localhost") || is_loopback
}

/// The variables of the environment by their names in lower case. One that is not UTF-8 says nothing to a store.
pub(super) fn environment() -> BTreeMap<String, String> {
    let variables = std::env::vars_os();
    let variables = variables.filter_map(|(name, value)| {
        let name = name.to_str()?.to_ascii_lowercase();
        Some((name, value.into_string().ok()?))
    });
    variables.collect()
}

pub(super) fn usage(message: impl Into<String>) -> Error {
    Error::new(Kind::Usage, message)
}

/// Options that people set, by scheme; the `object_store` crate knows some more.
pub(super) const KNOWN: &[(&str, &[&str])] = &[
    ("file", &["retry_seconds"]),
    (
        "s3",
        &[
            "access_key_id",
            "secret_access_key",
            "session_token",
            "endpoint",
            "region",
            "path_style",
            "allow_http",
            "ca_file",
            "checksum_algorithm",
            "conditional_put",
            "unsigned_payload",
            "skip_signature",
            "connect_timeout",
            "read_timeout",
            "timeout",
            "retry_seconds",
        ],
    ),
    (
        "gs",
        &[
            "service_account",
            "service_account_key",
            "application_credentials",
            "base_url",
            "allow_http",
            "ca_file",
            "connect_timeout",
            "read_timeout",
            "timeout",
            "retry_seconds",
        ],
    ),
    (
        "az",
        &[
            "account_name",
            "access_key",
            "sas_key",
            "client_id",
            "client_secret",
            "tenant_id",
            "federated_token_file",
            "credential_type",
            "endpoint",
            "allow_http",
            "ca_file",
            "connect_timeout",
            "read_timeout",
            "timeout",
            "retry_seconds",
        ],
    ),
];

/// What people call a repository of that scheme.
pub(super) fn name_of(scheme: &str) -> &str {
    match scheme {
        "file" => "a repository in a directory",
        "s3" => "an S3 repository",
        "gs" => "a repository on Google Cloud Storage",
        "az" => "a repository on Azure Blob Storage",
        other => other,
    }
}

pub(super) fn unknown(key: &str, scheme: &str) -> Error {
    let error = usage(format!("{} has no option \"{key}\"", name_of(scheme)));
    match KNOWN.iter().find(|(known, _)| *known == scheme) {
        Some((_, keys)) => error.hint(format!(
            "it has {}; KEY_file takes the value of KEY from a file",
            keys.join(", ")
        )),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_reached_without_tls_by_itself() {
        for near in [
            "localhost",
            "localhost:9000/x",
            "LocalHost",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:9000",
        ] {
            assert!(is_this_machine(near), "{near}");
        }
        for far in [
            "s3.example.com",
            "10.0.0.1:9000",
            "localhost.example.com",
            "[::2]",
            "",
            "x@localhost",
            "localhost:x@192.0.2.2:9000",
        ] {
            assert!(!is_this_machine(far), "{far}");
        }
    }

    #[test]
    fn one_option_has_several_names() {
        for (one, other) in [
            ("endpoint", "aws_endpoint"),
            ("AWS_ENDPOINT_URL_S3", "endpoint_url"),
            ("azure_endpoint", "azure_storage_endpoint"),
            ("google_base_url", "base_url"),
            ("ca_file", "ca_file"),
        ] {
            assert!(is_same_option(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("endpoint", "region"),
            ("ca_file", "path_style"),
            ("secret_access_key", "access_key_id"),
        ] {
            assert!(!is_same_option(one, other), "{one} {other}");
        }
    }
}
