//! From a URL and options to a store.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use super::client;
use super::credentials::{
    CredentialSource, Renewal, Renewed, Secrets, is_secret_option, read_credentials, read_option,
};
use super::local::LocalStore;
use super::retries::Patience;
use super::versions::Bucket;
use crate::error::{Error, Kind, Result};
use crate::limits;

/// Where a repository is and how to reach it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RepositoryOptions {
    /// `file:///directory`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
    /// or `memory:///` for tests.
    pub url: String,
    /// `endpoint`, `region`, `path_style`, `allow_http`, `ca_file`, `unsigned_payload`, `retry_seconds`,
    /// `connect_timeout`, `read_timeout`, `timeout`, and every key of the `object_store` crate
    /// for the scheme (`access_key_id`, `secret_access_key`, `service_account_path`, ...).
    /// `KEY_file` takes the value of `KEY` from a file. Options beat the environment
    /// (`AWS_*`, `GOOGLE_*`, `AZURE_*`), which beats the instance's role.
    pub options: BTreeMap<String, String>,
    /// A file with more options, which beats the environment and not the options. Keys and session
    /// tokens are read from it again when it changes.
    pub credentials: Option<PathBuf>,
}

impl std::fmt::Debug for RepositoryOptions {
    /// Values may be secrets; only keys are shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RepositoryOptions")
            .field("url", &self.url)
            .field("options", &self.options.keys())
            .field("credentials", &self.credentials)
            .finish()
    }
}

impl RepositoryOptions {
    /// The repository at `url`, with credentials and settings from the environment.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            options: BTreeMap::new(),
            credentials: None,
        }
    }

    /// Adds or replaces an option.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.insert(key.into(), value.into());
        self
    }
}

pub(super) struct Opened {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) local: Option<LocalStore>,
    pub(super) bucket: Option<Bucket>,
    pub(super) root: Path,
    pub(super) url: String,
    pub(super) patience: Patience,
    pub(super) secrets: Secrets,
    /// Whether credentials that have expired may be followed by others.
    pub(super) renewal: Renewal,
}

/// Set before the environment and the options, which override them.
///
/// A request that moves all the time is not cut off before a quarter of an hour.
const DEFAULTS: &[(&str, &str)] = &[("connect_timeout", "5s"), ("timeout", "900s")];

/// The second is longer than several tries over connections that stall; `client` says how long one is believed.
pub(super) const PATIENCE: Patience = Patience {
    first: Duration::from_secs(10),
    later: Duration::from_secs(300),
};

pub(super) fn open(options: &RepositoryOptions) -> Result<Opened> {
    let url = options.url.trim_end_matches('/');
    let (scheme, rest) = split_scheme(url)?;
    if !["file", "memory"].contains(&scheme) {
        // From now on this process's memory holds the keys of the store.
        limits::leave_no_core_dump();
    }
    let mut settings = Settings::new(options)?;
    let patience = settings.patience()?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.contains('@') {
        return Err(usage("the repository's URL may not contain credentials")
            .hint("set them as options of the repository or in the environment"));
    }
    if !["file", "memory"].contains(&scheme) && bucket.is_empty() {
        return Err(usage(format!(
            "the repository's URL \"{url}\" names no bucket"
        )));
    }
    let (mut local, mut s3) = (None, None);
    let (store, prefix): (Arc<dyn ObjectStore>, &str) = match scheme {
        "file" => {
            settings.refuse_rest("file")?;
            let store = LocalStore::new(directory(rest)?);
            local = Some(store.clone());
            (Arc::new(store), "")
        }
        "memory" => (Arc::new(object_store::memory::InMemory::new()), ""),
        "s3" => {
            let opened = settings.s3(bucket)?;
            let store = shared(opened.s3.clone());
            s3 = Some(opened);
            (store, prefix)
        }
        "gs" => (settings.gs(bucket)?, prefix),
        "az" => (settings.az(bucket)?, prefix),
        other => {
            return Err(usage(format!("unknown kind of repository \"{other}://\""))
                .hint("use file:///, s3://, gs:// or az://"));
        }
    };
    let root = Path::parse(prefix)
        .map_err(|e| usage(format!("bad prefix in the repository's URL \"{url}\": {e}")))?;
    Ok(Opened {
        store,
        local,
        bucket: s3,
        root,
        url: format!("{scheme}://{rest}"),
        patience,
        secrets: settings.secrets,
        renewal: settings.renewal,
    })
}

fn split_scheme(url: &str) -> Result<(&str, &str)> {
    if url.starts_with('/') {
        return Ok(("file", url));
    }
    // "memory:///" and "file:///" lost their slashes to trimming.
    let parts = url.split_once("://").or_else(|| url.split_once(':'));
    parts.ok_or_else(|| {
        usage(format!("\"{url}\" is not the URL of a repository"))
            .hint("use file:///directory or s3://bucket/prefix")
    })
}

fn directory(rest: &str) -> Result<&str> {
    let bad = || usage(format!("\"file://{rest}\" is not the URL of a directory"));
    if !rest.starts_with('/') || rest.split('/').any(|part| part == "..") {
        return Err(
            bad().hint("write three slashes and an absolute path: file:///var/lib/pgstrata")
        );
    }
    Ok(rest)
}

/// Options not used yet, and what the environment says.
struct Settings {
    options: BTreeMap<String, String>,
    /// Where keys come from that may change.
    source: CredentialSource,
    secrets: Secrets,
    renewal: Renewal,
}

impl Settings {
    fn new(given: &RepositoryOptions) -> Result<Self> {
        let lower = |options: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            let pairs = options.iter();
            pairs
                .map(|(key, value)| (key.to_ascii_lowercase(), value.clone()))
                .collect()
        };
        let own = lower(&given.options);
        let mut options = match &given.credentials {
            Some(file) => lower(&read_credentials(file)?),
            None => BTreeMap::new(),
        };
        options.extend(own.clone());
        let secrets = Secrets::default();
        for (key, value) in &options {
            if is_secret_option(key, value) {
                secrets.add(value);
            }
        }
        Ok(Self {
            options,
            source: CredentialSource {
                environment: BTreeMap::new(),
                file: given.credentials.clone(),
                options: own,
            },
            secrets,
            renewal: Renewal::None,
        })
    }

    fn patience(&mut self) -> Result<Patience> {
        let Some(text) = self.options.remove("retry_seconds") else {
            return Ok(PATIENCE);
        };
        let seconds: u64 = text.parse().map_err(|_| {
            usage(format!(
                "retry_seconds is \"{text}\", not a number of seconds"
            ))
        })?;
        let limit = Duration::from_secs(seconds);
        Ok(Patience {
            first: limit,
            later: limit,
        })
    }

    fn refuse_rest(&self, scheme: &str) -> Result<()> {
        match self.options.keys().next() {
            Some(key) => Err(unknown(key, scheme)),
            None => Ok(()),
        }
    }

    /// Hands every setting to `set`: defaults, then the environment, then the options.
    fn apply<B, K: FromStr>(
        &mut self,
        scheme: &str,
        environment: &[&str],
        mut builder: B,
        set: impl Fn(B, K, String) -> B,
    ) -> Result<B> {
        for (key, value) in DEFAULTS {
            if let Ok(key) = key.parse() {
                builder = set(builder, key, (*value).to_owned());
            }
        }
        for (name, value) in std::env::vars() {
            let name = name.to_ascii_lowercase();
            if !environment.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            if let Ok(key) = name.parse() {
                if is_secret_option(&name, &value) {
                    self.secrets.add(&value);
                }
                self.source.environment.insert(name, value.clone());
                builder = set(builder, key, value);
            }
        }
        for (name, value) in std::mem::take(&mut self.options) {
            let (key, value) = if let Ok(key) = name.parse() {
                (key, value)
            } else {
                let key = name.strip_suffix("_file").and_then(|k| k.parse().ok());
                let key = key.ok_or_else(|| unknown(&name, scheme))?;
                let value = read_option(&name, &value)?;
                if is_secret_option(name.trim_end_matches("_file"), &value) {
                    self.secrets.add(&value);
                }
                (key, value)
            };
            builder = set(builder, key, value);
        }
        Ok(builder)
    }

    fn s3(&mut self, bucket: &str) -> Result<Bucket> {
        if let Some(style) = self.options.remove("path_style") {
            let virtual_host = match style.as_str() {
                "true" | "yes" | "on" | "1" => "false",
                "false" | "no" | "off" | "0" => "true",
                _ => {
                    return Err(usage(format!(
                        "path_style is \"{style}\", not true or false"
                    )));
                }
            };
            let key = "virtual_hosted_style_request".to_owned();
            self.options.insert(key, virtual_host.to_owned());
        }
        self.judge_plain_http(&S3_HTTP)?;
        // Signing the payload costs more than all compression; frames and manifests carry
        // checksums of their own, and TLS protects the transport. Without a checksum, which costs nothing that can be
        // measured, some stores keep what came of an upload when its connection breaks, and call it the object.
        let is_checked = self.has_checksums();
        let dialer = client::Dialer::default();
        let mut builder = AmazonS3Builder::new()
            .with_client_options(self.client_options(Some("AWS_CA_BUNDLE"))?)
            .with_http_connector(dialer.clone())
            .with_unsigned_payload(true)
            .with_retry(request_retries());
        if is_checked {
            builder = builder.with_checksum_algorithm(Checksum::CRC64NVME);
        }
        let mut builder = self
            .apply("s3", &["aws_"], builder, AmazonS3Builder::with_config)?
            .with_bucket_name(bucket);
        let source = std::mem::take(&mut self.source);
        if !source.names_keys()? {
            self.renewal = Renewal::ByMachine;
        }
        if let Some(renewed) = Renewed::of(source, &self.secrets)? {
            let renewed = Arc::new(renewed);
            self.renewal = Renewal::OfFiles(Arc::clone(&renewed));
            builder = builder.with_credentials(renewed);
        }
        let s3 = builder.build().map_err(|e| self.bad_settings("s3", &e))?;
        let http = dialer
            .made()
            .expect("whoever builds a store makes a client");
        let name = bucket.to_owned();
        Ok(Bucket { s3, http, name })
    }

    /// Whether objects go to S3 with checksums. The store's client knows no word for "none", so that option ends here.
    fn has_checksums(&mut self) -> bool {
        let names = ["checksum_algorithm", "aws_checksum_algorithm"];
        let is_none = |name: &&str| self.options.get(*name).is_some_and(|told| told == "none");
        let Some(name) = names.into_iter().find(is_none) else {
            return true;
        };
        self.options.remove(name);
        false
    }

    /// What the store's client is before all other options; `variable` may name certificates too.
    fn client_options(&mut self, variable: Option<&str>) -> Result<ClientOptions> {
        let told = self.options.remove("ca_file");
        let told = told.or_else(|| std::env::var(variable?).ok());
        client::options(told.as_deref().filter(|path| !path.is_empty()))
    }

    fn gs(&mut self, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
        self.judge_plain_http(&GS_HTTP)?;
        let builder = GoogleCloudStorageBuilder::new()
            .with_client_options(self.client_options(None)?)
            .with_http_connector(client::Dialer::default())
            .with_retry(request_retries());
        let set = GoogleCloudStorageBuilder::with_config;
        self.apply("gs", &["google_"], builder, set)?
            .with_bucket_name(bucket)
            .build()
            .map(shared)
            .map_err(|e| self.bad_settings("gs", &e))
    }

    fn az(&mut self, container: &str) -> Result<Arc<dyn ObjectStore>> {
        self.judge_plain_http(&AZ_HTTP)?;
        let builder = MicrosoftAzureBuilder::new()
            .with_client_options(self.client_options(None)?)
            .with_http_connector(client::Dialer::default())
            .with_retry(request_retries());
        let set = MicrosoftAzureBuilder::with_config;
        self.apply("az", &["azure_", "msi_", "identity_"], builder, set)?
            .with_container_name(container)
            .build()
            .map(shared)
            .map_err(|e| self.bad_settings("az", &e))
    }

    /// Who does not say that the network may see everything gets no plain HTTP, but to this machine.
    fn judge_plain_http(&mut self, keys: &HttpKeys) -> Result<()> {
        let option = |names: &[&str]| {
            let given = names.iter().find_map(|n| self.options.get(*n).cloned());
            given.or_else(|| {
                let of_environment = |n: &&str| std::env::var(n.to_ascii_uppercase()).ok();
                names.iter().find_map(of_environment)
            })
        };
        let endpoint = option(keys.endpoint).unwrap_or_default();
        let Some(place) = endpoint.strip_prefix("http://") else {
            return Ok(());
        };
        match option(keys.allow) {
            Some(told) if ["true", "1", "yes", "on"].contains(&told.as_str()) => Ok(()),
            None if is_this_machine(place) => {
                self.options.insert("allow_http".to_owned(), "true".to_owned());
                Ok(())
            }
            _ => Err(
                usage("the repository's endpoint is not encrypted (http://): the network would see every page and could change it")
                    .hint("use https://, with ca_file for a certificate authority of your own; where the network is trusted, say so with --storage allow_http=true"),
            ),
        }
    }

    fn bad_settings(&self, scheme: &str, error: &object_store::Error) -> Error {
        let text = error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string);
        let text = self.secrets.hidden_in(&text);
        let name = name_of(scheme);
        let made = usage(format!("the settings of {name} are not usable: {text}"));
        match scheme {
            "az" if text.contains("Account must be specified") => made.hint(
                "set account_name in the file that --credentials names, or AZURE_STORAGE_ACCOUNT_NAME in the environment",
            ),
            _ => made,
        }
    }
}

/// What a store calls its address, and the word that it may be plain.
struct HttpKeys {
    endpoint: &'static [&'static str],
    allow: &'static [&'static str],
}

const S3_HTTP: HttpKeys = HttpKeys {
    endpoint: &[
        "endpoint",
        "endpoint_url",
        "aws_endpoint",
        "aws_endpoint_url",
        "aws_endpoint_url_s3",
    ],
    allow: &["allow_http", "aws_allow_http"],
};

const AZ_HTTP: HttpKeys = HttpKeys {
    endpoint: &["endpoint", "azure_endpoint", "azure_storage_endpoint"],
    allow: &["allow_http", "azure_allow_http"],
};

const GS_HTTP: HttpKeys = HttpKeys {
    endpoint: &["base_url", "google_base_url"],
    allow: &["allow_http"],
};

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
    host == "localhost" || is_loopback
}

fn shared(store: impl ObjectStore) -> Arc<dyn ObjectStore> {
    Arc::new(store)
}

/// Retries of one request inside the store's client; the repository's own go on from there.
fn request_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.,
        },
        max_retries: 2,
        retry_timeout: Duration::from_secs(30),
    }
}

fn usage(message: impl Into<String>) -> Error {
    Error::new(Kind::Usage, message)
}

/// Options that people set, by scheme; the `object_store` crate knows some more.
const KNOWN: &[(&str, &[&str])] = &[
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
fn name_of(scheme: &str) -> &str {
    match scheme {
        "file" => "a repository in a directory",
        "s3" => "an S3 repository",
        "gs" => "a repository on Google Cloud Storage",
        "az" => "a repository on Azure Blob Storage",
        other => other,
    }
}

fn unknown(key: &str, scheme: &str) -> Error {
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
    fn every_option_that_a_hint_names_is_taken() {
        for (scheme, keys) in KNOWN {
            let root = if *scheme == "file" { "/" } else { "" };
            let url = format!("{scheme}://{root}x/y");
            for key in *keys {
                let value = match *key {
                    "retry_seconds" => "1",
                    "path_style" | "allow_http" | "unsigned_payload" | "skip_signature" => "true",
                    "conditional_put" => "etag",
                    "checksum_algorithm" => "sha256",
                    "ca_file" => "/dev/null",
                    "endpoint" | "base_url" => "https://localhost",
                    key if key.ends_with("timeout") => "1s",
                    _ => "x",
                };
                let options = RepositoryOptions::new(url.as_str()).with(*key, value);
                if let Err(error) = super::open(&options) {
                    assert!(
                        !error.to_string().contains("has no option"),
                        "{scheme} {key}: {error}"
                    );
                }
            }
        }
        let error = super::open(&RepositoryOptions::new("s3://x/y").with("acess_key_id", "x"));
        let error = error.map(|_| ()).unwrap_err();
        assert!(
            error
                .hint_text()
                .is_some_and(|hint| hint.contains("access_key_id")),
            "{error}"
        );
        assert_eq!(
            error.to_string(),
            "an S3 repository has no option \"acess_key_id\""
        );
    }
}
