//! From a URL and options to a store.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use super::client;
use super::credentials::{
    CredentialSource, Renewal, Renewed, Secrets, credentials_in, is_secret_option, once_written,
    read_option, require_private_keys,
};
use super::local::LocalStore;
use super::retries::Patience;
use super::sendable::require_part;
use super::settings::{Said, environment, name_of, unknown, usage};
use super::versions::{Bucket, ServerSide};
use crate::error::{Error, Result};
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
    /// (`AWS_*`, `GOOGLE_*`, `AZURE_*`), which beats the instance's role; an address or a credential among them beats all
    /// others of the environment.
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
/// `client` ends what stands still, by the length of what is sent. The largest object, a WAL segment of 1 GB, has two hours
/// then. What is still on its way after three does not move, whatever it seems.
const DEFAULTS: &[(&str, &str)] = &[("connect_timeout", "5s"), ("timeout", "3h")];

/// The second is longer than several tries over connections that stall; `client` says how long one is believed.
pub(super) const PATIENCE: Patience = Patience {
    first: Duration::from_secs(10),
    later: Duration::from_secs(300),
};

/// Waits for a file that is empty because it is being written.
pub(super) fn open(options: &RepositoryOptions) -> Result<Opened> {
    let named = options.options.iter();
    let named = named.filter(|(key, _)| key.to_ascii_lowercase().ends_with("_file"));
    let named = named.map(|(_, path)| std::path::Path::new(path));
    let files: Vec<_> = named.chain(options.credentials.as_deref()).collect();
    once_written(&files, || open_in(environment(), options))
}

/// In that environment: its variables by their names in lower case.
fn open_in(environment: BTreeMap<String, String>, options: &RepositoryOptions) -> Result<Opened> {
    let url = options.url.trim_end_matches('/');
    let (scheme, rest) = split_scheme(url)?;
    if !["file", "memory"].contains(&scheme) {
        // From now on this process's memory holds the keys of the store.
        limits::leave_no_core_dump();
    }
    let mut settings = Settings::new(options, environment)?;
    let patience = settings.patience()?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.contains('@') {
        return Err(usage("the repository's URL may not contain credentials")
            .hint("set them as options of the repository or in the environment"));
    }
    if !["file", "memory"].contains(&scheme) {
        if bucket.is_empty() {
            return Err(usage(format!(
                "the repository's URL \"{url}\" names no bucket"
            )));
        }
        require_part("bucket", Some(bucket))?;
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

/// What is said and not used yet.
struct Settings {
    environment: BTreeMap<String, String>,
    /// The credentials file says it.
    file: BTreeMap<String, String>,
    options: BTreeMap<String, String>,
    /// Where keys come from that may change.
    source: CredentialSource,
    secrets: Secrets,
    renewal: Renewal,
}

impl Settings {
    fn new(given: &RepositoryOptions, environment: BTreeMap<String, String>) -> Result<Self> {
        let lower = |options: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            let pairs = options.iter();
            pairs
                .map(|(key, value)| (key.to_ascii_lowercase(), value.clone()))
                .collect()
        };
        let options = lower(&given.options);
        let file = match &given.credentials {
            Some(file) => lower(&credentials_in(file)?),
            None => BTreeMap::new(),
        };
        if let Some(path) = given.credentials.as_ref().filter(|_| file.is_empty()) {
            tracing::warn!("credentials file \"{}\" holds no options", path.display());
        }
        let secrets = Secrets::default();
        for (key, value) in file.iter().chain(&options) {
            if is_secret_option(key, value) {
                secrets.add(value);
            }
        }
        Ok(Self {
            environment,
            file,
            source: CredentialSource {
                environment: BTreeMap::new(),
                file: given.credentials.clone(),
                options: options.clone(),
            },
            options,
            secrets,
            renewal: Renewal::None,
        })
    }

    /// An option that is none of the store's client.
    fn take(&mut self, name: &str) -> Option<String> {
        let of_file = self.file.remove(name);
        self.options.remove(name).or(of_file)
    }

    fn patience(&mut self) -> Result<Patience> {
        let Some(text) = self.take("retry_seconds") else {
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
        match self.file.keys().chain(self.options.keys()).next() {
            Some(key) => Err(unknown(key, scheme)),
            None => Ok(()),
        }
    }

    /// All that is said, in the words of a store; `prefixes` are those of its variables.
    fn said<K: FromStr>(&mut self, scheme: &str, prefixes: &[&str]) -> Result<Said<K>> {
        let mut said = Said {
            environment: Vec::new(),
            options: Vec::new(),
        };
        for (name, value) in &self.environment {
            if !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            if let Ok(key) = name.parse() {
                if is_secret_option(name, value) {
                    self.secrets.add(value);
                }
                said.environment.push((key, value.clone()));
            }
        }
        let file = std::mem::take(&mut self.file);
        for (name, value) in file.into_iter().chain(std::mem::take(&mut self.options)) {
            if let Ok(key) = name.parse() {
                said.options.push((key, value));
                continue;
            }
            let key = name.strip_suffix("_file").and_then(|key| key.parse().ok());
            let key = key.ok_or_else(|| unknown(&name, scheme))?;
            let value = read_option(&name, &value)?;
            if is_secret_option(name.trim_end_matches("_file"), &value) {
                self.secrets.add(&value);
            }
            said.options.push((key, value));
        }
        Ok(said)
    }

    fn s3(&mut self, bucket: &str) -> Result<Bucket> {
        for options in [&mut self.file, &mut self.options] {
            if let Some(style) = options.remove("path_style") {
                let key = "virtual_hosted_style_request".to_owned();
                options.insert(key, virtual_host(&style)?.to_owned());
            }
        }
        let dialer = client::Dialer::default();
        // Signing the payload costs more than all compression; frames and manifests carry
        // checksums of their own, and TLS protects the transport. Without a checksum, which costs nothing that can be
        // measured, some stores keep what came of an upload when its connection breaks, and call it the object.
        let mut builder = AmazonS3Builder::new()
            .with_client_options(self.client_options(Some("aws_ca_bundle"))?)
            .with_http_connector(dialer.clone())
            .with_unsigned_payload(true)
            .with_retry(request_retries());
        let mut said = self.said("s3", &["aws_"])?;
        said.settle_s3(bucket)?;
        match said.value(AmazonS3ConfigKey::Checksum) {
            // The store's client knows no word for that.
            Some("none") => said.leave_out(AmazonS3ConfigKey::Checksum),
            _ => builder = builder.with_checksum_algorithm(Checksum::CRC64NVME),
        }
        let server_side = ServerSide::of(&said)?;
        let mut source = std::mem::take(&mut self.source);
        let of_environment = said.environment.iter();
        source.environment = of_environment
            .map(|(key, value)| (key.as_ref().to_owned(), value.clone()))
            .collect();
        if !source.names_keys()? {
            self.renewal = Renewal::ByMachine;
        }
        let mut builder =
            handed(said, builder, AmazonS3Builder::with_config).with_bucket_name(bucket);
        if let Some(renewed) = Renewed::of(source, &self.secrets)? {
            let renewed = Arc::new(renewed);
            self.renewal = Renewal::OfFiles(Arc::clone(&renewed));
            builder = builder.with_credentials(renewed);
        }
        let s3 = builder.build().map_err(|e| self.bad_settings("s3", &e))?;
        let http = dialer
            .made()
            .expect("whoever builds a store makes a client");
        Ok(Bucket {
            s3,
            http,
            name: bucket.to_owned(),
            server_side,
        })
    }

    /// What the store's client is before all other options; `variable` may name certificates too.
    fn client_options(&mut self, variable: Option<&str>) -> Result<ClientOptions> {
        let told = self.take("ca_file");
        let told = told.or_else(|| self.environment.get(variable?).cloned());
        client::options(told.as_deref().filter(|path| !path.is_empty()))
    }

    fn gs(&mut self, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
        let builder = GoogleCloudStorageBuilder::new()
            .with_client_options(self.client_options(None)?)
            .with_http_connector(client::Dialer::default())
            .with_retry(request_retries());
        let mut said: Said<GoogleConfigKey> = self.said("gs", &["google_"])?;
        said.settle_google()?;
        require_private_keys(&said, self.environment.get("home"))?;
        handed(said, builder, GoogleCloudStorageBuilder::with_config)
            .with_bucket_name(bucket)
            .build()
            .map(shared)
            .map_err(|e| self.bad_settings("gs", &e))
    }

    fn az(&mut self, container: &str) -> Result<Arc<dyn ObjectStore>> {
        let builder = MicrosoftAzureBuilder::new()
            .with_client_options(self.client_options(None)?)
            .with_http_connector(client::Dialer::default())
            .with_retry(request_retries());
        let mut said: Said<AzureConfigKey> = self.said("az", &["azure_", "msi_", "identity_"])?;
        let emulator = self.environment.get("azurite_blob_storage_url");
        said.settle_azure(emulator.map(String::as_str))?;
        handed(said, builder, MicrosoftAzureBuilder::with_config)
            .with_container_name(container)
            .build()
            .map(shared)
            .map_err(|e| self.bad_settings("az", &e))
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

/// What the client calls it, which asks whether the bucket stands in the name of the host.
fn virtual_host(path_style: &str) -> Result<&'static str> {
    match path_style {
        "true" | "yes" | "on" | "1" => Ok("false"),
        "false" | "no" | "off" | "0" => Ok("true"),
        _ => Err(usage(format!(
            "path_style is \"{path_style}\", not true or false"
        ))),
    }
}

/// Hands every setting to `set`: defaults, then what is said.
fn handed<B, K: FromStr>(said: Said<K>, builder: B, set: impl Fn(B, K, String) -> B) -> B {
    let defaults = DEFAULTS.iter();
    let defaults =
        defaults.filter_map(|(key, value)| Some((key.parse().ok()?, (*value).to_owned())));
    let all = defaults.chain(said.environment).chain(said.options);
    all.fold(builder, |builder, (key, value)| set(builder, key, value))
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use object_store::{ClientConfigKey, ObjectStoreExt};
    use pgstrata_testbed::recorder::{Asked, Recorder, Reply};

    use super::*;
    use crate::error::Kind;
    use crate::repository::settings::KNOWN;

    fn listening() -> Recorder {
        let absent = |_: &Asked| Reply {
            status: 404,
            ..Reply::default()
        };
        Recorder::start(absent).unwrap()
    }

    /// Asks for an object in that environment.
    async fn ask(environment: &[(&str, &str)], options: &RepositoryOptions) {
        let opened = opened(environment, options).unwrap();
        let asked = opened.store.head(&Path::from("x")).await;
        assert!(
            matches!(asked, Err(object_store::Error::NotFound { .. })),
            "{asked:?}"
        );
    }

    fn opened(environment: &[(&str, &str)], options: &RepositoryOptions) -> Result<Opened> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        open_in(environment.iter().map(owned).collect(), options)
    }

    fn written(directory: &tempfile::TempDir, text: &str, mode: u32) -> PathBuf {
        let file = directory.path().join("said");
        std::fs::write(&file, text).unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, mode).unwrap();
        file
    }

    fn s3() -> RepositoryOptions {
        RepositoryOptions::new("s3://b/p")
            .with("access_key_id", "a")
            .with("secret_access_key", "b")
    }

    fn azure() -> RepositoryOptions {
        RepositoryOptions::new("az://c/p").with("account_name", "account")
    }

    #[tokio::test]
    async fn no_variable_overrides_an_address_that_an_option_or_the_file_names() {
        let (ours, theirs) = (listening(), listening());
        let scratch = tempfile::tempdir().unwrap();
        let of_s3: Vec<_> = ["aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint"]
            .map(|name| (name, theirs.endpoint()))
            .into();
        for name in ["endpoint", "aws_endpoint", "endpoint_url"] {
            ask(&of_s3, &s3().with(name, ours.endpoint())).await;
        }
        let text = format!("endpoint = '{}'\n", ours.endpoint());
        let mut of_file = s3();
        of_file.credentials = Some(written(&scratch, &text, 0o600));
        ask(&of_s3, &of_file).await;
        let of_azure = [
            ("azure_storage_endpoint", theirs.endpoint()),
            ("azure_storage_use_emulator", "true"),
            ("azurite_blob_storage_url", theirs.endpoint()),
        ];
        let named = azure().with("sas_key", "sig=x");
        ask(&of_azure, &named.with("endpoint", ours.endpoint())).await;
        assert_eq!((ours.asked().len(), theirs.asked().len()), (5, 0));
        // An option beats the file, whatever the names.
        let of_file = of_file.with("aws_endpoint", theirs.endpoint());
        ask(&[], &of_file).await;
        // Where nobody else says it, the environment does; what is said of S3 alone counts more there.
        let both = [
            ("aws_endpoint_url", ours.endpoint()),
            ("aws_endpoint_url_s3", theirs.endpoint()),
        ];
        ask(&both, &s3()).await;
        assert_eq!((ours.asked().len(), theirs.asked().len()), (5, 2));
    }

    #[test]
    fn plain_http_is_judged_by_the_address_to_which_requests_go() {
        let (near, far) = ("http://127.0.0.1:1", "http://192.0.2.1");
        let azure = azure().with("access_key", "Zm9v");
        let refused: &[(&[(&str, &str)], RepositoryOptions)] = &[
            (
                &[("aws_endpoint_url", near), ("aws_endpoint_url_s3", far)],
                s3(),
            ),
            (&[("aws_endpoint", near)], s3().with("endpoint_url", far)),
            (&[("azure_storage_endpoint", far)], azure.clone()),
            (&[], s3().with("endpoint", "HTTP://192.0.2.1")),
            (
                &[("azurite_blob_storage_url", far)],
                azure.clone().with("use_emulator", "true"),
            ),
            (
                &[("azure_authority_host", far)],
                azure.clone().with("endpoint", near),
            ),
            (
                &[("google_base_url", far)],
                RepositoryOptions::new("gs://b/p").with("skip_signature", "true"),
            ),
        ];
        for (environment, options) in refused {
            let error = opened(environment, options).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{environment:?}: {error}");
            assert!(error.to_string().contains("http://"), "{error}");
        }
        let ours = s3().with("endpoint", near);
        opened(&[("aws_endpoint_url_s3", far)], &ours).unwrap();
        opened(&[("aws_endpoint_url_s3", near)], &s3()).unwrap();
        opened(&[], &s3().with("endpoint", "HTTP://LocalHost:1")).unwrap();
        opened(&[], &azure.with("use_emulator", "true")).unwrap();
    }

    #[test]
    fn what_no_request_can_carry_is_refused_whoever_says_it() {
        let plain = || RepositoryOptions::new("s3://b/p");
        let secret = ("aws_secret_access_key", "b");
        let refused: &[(&[(&str, &str)], RepositoryOptions)] = &[
            (&[("aws_endpoint_url", "")], s3()),
            (&[("aws_endpoint_url_s3", "minio:9000")], s3()),
            (&[("aws_region", "eu west")], s3()),
            (&[("aws_default_region", "eu\n")], s3()),
            (&[("aws_access_key_id", "AKIA\n"), secret], plain()),
            (&[("aws_session_token", "hidden\n")], plain()),
            (&[("aws_metadata_endpoint", "169.254.169.254")], plain()),
            (&[("azure_storage_token", "hidden\n")], azure()),
            (&[("azure_storage_endpoint", "azurite:10000")], azure()),
        ];
        for (environment, options) in refused {
            let error = opened(environment, options).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{environment:?}: {error}");
            assert!(!error.to_string().contains("hidden"), "{error}");
        }
        // What an option stands in for is not sent.
        let ours = s3().with("endpoint", "https://minio:9000");
        let theirs = [
            ("aws_endpoint_url", "minio"),
            ("aws_session_token", "hidden\n"),
            ("aws_metadata_endpoint", "169.254.169.254"),
        ];
        opened(&theirs, &ours).unwrap();
        let key = azure().with("access_key", "Zm9v");
        opened(&[("azure_authority_host", "login.example.com")], &key).unwrap();
    }

    /// What the environment has to open Azure with, each way that beats a signature in the client.
    const OTHERS: &[(&str, &str)] = &[
        ("azure_storage_account_key", "Zm9v"),
        ("azure_storage_token", "theirs"),
        ("azure_client_id", "theirs"),
        ("azure_tenant_id", "theirs"),
        ("azure_client_secret", "theirs"),
        ("azure_federated_token_file", "/nowhere"),
        ("azure_credential_type", "access_key"),
    ];

    #[tokio::test]
    async fn no_variable_opens_azure_when_the_file_or_an_option_does() {
        let server = listening();
        let scratch = tempfile::tempdir().unwrap();
        let at = azure().with("endpoint", server.endpoint());
        let mut of_file = at.clone();
        let text = "sas_key = 'sv=x&sig=ours'\n";
        of_file.credentials = Some(written(&scratch, text, 0o600));
        let key = ("access_key", "b3Vycw==");
        for options in [
            of_file.clone(),
            at.clone().with("sas_key", "?sv=x&sig=ours"),
            of_file.with("credential_type", "sas_token"),
        ] {
            ask(OTHERS, &options).await;
        }
        for options in [
            at.clone().with(key.0, key.1),
            at.clone().with("token", "ours"),
        ] {
            ask(OTHERS, &options).await;
        }
        // Who silently leaves it to the environment gets what it has.
        ask(OTHERS, &at).await;
        let asked = server.asked();
        let (signed, opened) = asked.split_at(3);
        for asked in signed {
            assert!(asked.target.contains("sig=ours"), "{asked:?}");
            assert!(!asked.headers.contains_key("authorization"), "{asked:?}");
        }
        let words = opened.iter().map(|asked| {
            let said = asked.headers["authorization"].split(':').next().unwrap();
            said.to_owned()
        });
        let words: Vec<String> = words.collect();
        assert_eq!(
            words,
            ["SharedKey account", "Bearer ours", "SharedKey account"]
        );
    }

    #[tokio::test]
    async fn no_variable_opens_s3_while_the_credentials_file_is_being_written() {
        let server = listening();
        let scratch = tempfile::tempdir().unwrap();
        let keys = "access_key_id = 'ours'\nsecret_access_key = 'b'\n";
        let theirs = [
            ("aws_access_key_id", "theirs"),
            ("aws_secret_access_key", "theirs"),
            ("aws_session_token", "theirs"),
        ];
        let mut options = RepositoryOptions::new("s3://b/p").with("endpoint", server.endpoint());
        options.credentials = Some(written(&scratch, keys, 0o600));
        let opened = opened(&theirs, &options).unwrap();
        for text in [keys, "", "region = 'x'\n"] {
            written(&scratch, text, 0o600);
            let asked = opened.store.head(&Path::from("x")).await;
            assert!(asked.is_err());
        }
        let asked = server.asked();
        assert_eq!(asked.len(), 3);
        for asked in asked {
            let said = &asked.headers["authorization"];
            assert!(said.contains("Credential=ours/"), "{asked:?}");
            let token = asked.headers.get("x-amz-security-token");
            assert_eq!(token, None);
        }
    }

    #[test]
    fn a_file_that_is_empty_when_a_repository_is_opened_is_waited_for() {
        let scratch = tempfile::tempdir().unwrap();
        let file = written(&scratch, "", 0o600);
        let mut of_file = RepositoryOptions::new("s3://b/p");
        of_file.credentials = Some(file.clone());
        let keys = "access_key_id = 'a'\nsecret_access_key = 'b'\n";
        let of_option = s3().with("session_token_file", file.to_str().unwrap());
        for (options, text) in [(of_file, keys), (of_option, "c\n")] {
            written(&scratch, "", 0o600);
            let file = file.clone();
            let writing = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                std::fs::write(file, text).unwrap();
            });
            let opened = super::open(&options).unwrap();
            writing.join().unwrap();
            assert!(matches!(opened.renewal, Renewal::OfFiles(_)), "{text}");
        }
    }

    #[test]
    fn a_file_of_comments_alone_is_no_reason_to_refuse_a_repository() {
        let scratch = tempfile::tempdir().unwrap();
        let mut options = RepositoryOptions::new("s3://b/p");
        options.credentials = Some(written(&scratch, "# none\n", 0o600));
        let by_role = opened(&[], &options).unwrap();
        assert!(matches!(by_role.renewal, Renewal::ByMachine));
        written(&scratch, "", 0o600);
        let error = super::open(&options).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("holds nothing"), "{error}");
    }

    #[test]
    fn a_key_file_of_google_that_others_can_read_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let text = "{\"type\": \"service_account\", \"private_key\": \"x\", \"private_key_id\": \"x\", \
             \"client_email\": \"x\", \"disable_oauth\": true}";
        let default = home.path().join(".config/gcloud");
        std::fs::create_dir_all(&default).unwrap();
        let default = default.join("application_default_credentials.json");
        let home = home.path().to_str().unwrap();
        for (mode, is_refused) in [(0o644, true), (0o660, true), (0o600, false)] {
            let file = written(&scratch, text, mode);
            std::fs::copy(&file, &default).unwrap();
            let path = file.to_str().unwrap();
            let bucket = RepositoryOptions::new("gs://b/p");
            let require = |environment: &[(&str, &str)], options: &RepositoryOptions| {
                let kind = opened(environment, options).err().map(|error| error.kind());
                let refused = kind == Some(Kind::Refused);
                assert_eq!(refused, is_refused, "{mode:o} {environment:?} {kind:?}");
            };
            for name in [
                "service_account",
                "service_account_path",
                "application_credentials",
            ] {
                require(&[], &bucket.clone().with(name, path));
                require(&[(&format!("google_{name}"), path)], &bucket);
            }
            require(&[("home", home)], &bucket);
        }
    }

    #[test]
    fn nothing_ends_the_largest_upload_that_moves() {
        let empty = Said::<AmazonS3ConfigKey> {
            environment: Vec::new(),
            options: Vec::new(),
        };
        let builder = handed(empty, AmazonS3Builder::new(), AmazonS3Builder::with_config);
        let key = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
        let timeout = builder.get_config_value(&key).unwrap();
        let timeout: jiff::SignedDuration = timeout.parse().unwrap();
        // So long does `client` believe in a segment of 1 GiB.
        let believed = jiff::SignedDuration::from_secs(30 + (1 << 30) / 150_000);
        assert!(timeout > believed, "{timeout} {believed}");
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
