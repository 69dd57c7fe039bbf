//! Credentials that may change while a command runs: session tokens expire, keys are rotated.
//!
//! A backup can take longer than a session token lasts. Whoever renews the token writes it into the file that it
//! came from; the file is looked at before each request, and read again when it changed, or when the store says that the
//! token has expired. A file that cannot be read then, because it is being written, leaves the credentials as they were, and
//! is read again until it can be. Nothing else takes their place, and a key that is refused while its files are being renewed is
//! not the last one. When a repository is opened there is nothing to leave: a file that is empty is waited for.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use object_store::CredentialProvider;
use object_store::aws::{AmazonS3ConfigKey, AwsCredential};
use object_store::gcp::GoogleConfigKey;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::sendable::require_header;
use super::settings::Said;
use crate::error::{Error, Kind, Result};
use crate::input::{read_settings, require_private};

/// Whoever renews a file in place makes it empty first, and has written it, and those that belong to it, within this time.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

/// How often an empty file is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The options in a credentials file: lines `key = "value"`, read by nobody else; none when all of them are comments. A file
/// that is empty is waited for.
///
/// # Errors
/// `Refused` when others may use the file; `Usage` when it holds something else, or nothing.
pub fn read_credentials(file: &Path) -> Result<BTreeMap<String, String>> {
    once_written(&[file], || credentials_in(file))
}

/// The same, without waiting.
pub(super) fn credentials_in(file: &Path) -> Result<BTreeMap<String, String>> {
    require_private(file, "credentials file")?;
    let text = read_settings(file, "credentials file")?;
    let wrong = |is: &str| {
        let message = format!("credentials file \"{}\" {is}", file.display());
        Error::new(Kind::Usage, message)
    };
    if text.trim().is_empty() {
        return Err(wrong("holds nothing").hint("write options into it, or name no such file"));
    }
    // The parser's message would show the line, and with it the secret.
    toml::from_str(&text).map_err(|_| wrong("is not a list of key = \"value\" lines"))
}

/// What `read` makes of these files. While it fails, and one of them is empty, it reads again for some seconds.
pub(super) fn once_written<T>(files: &[&Path], read: impl Fn() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        // It may be emptied, and written, at any moment.
        let was_empty = any_is_empty(files);
        let done = read();
        let may_come = done.is_err() && (was_empty || any_is_empty(files));
        if !may_come || begun.elapsed() >= WRITTEN_WITHIN {
            return done;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn any_is_empty(files: &[&Path]) -> bool {
    files.iter().any(|file| {
        let found = std::fs::metadata(file);
        found.is_ok_and(|found| found.is_file() && found.len() == 0)
    })
}

/// What the file at `path` says, which the option `name` of a repository names.
///
/// # Errors
/// As [`read_settings`]; `Refused` when it holds a secret and others may use it; `Usage` when it is empty: it may be about to be
/// written.
pub(super) fn read_option(name: &str, path: &str) -> Result<String> {
    let what = format!("the file of storage option {name},");
    let text = read_settings(Path::new(path), &what)?;
    if is_secret_option(name.trim_end_matches("_file"), &text) {
        require_private(Path::new(path), &what)?;
    }
    match text.trim() {
        "" => Err(
            Error::new(Kind::Usage, format!("{what} \"{path}\" holds nothing"))
                .hint(format!("write the value into it, or leave {name} out")),
        ),
        value => Ok(value.to_owned()),
    }
}

/// Refuses a file with a key of Google that others may use, whoever names it; also the one that the client looks for in
/// the home directory by itself.
///
/// # Errors
/// As [`require_private`].
pub(super) fn require_private_keys(
    said: &Said<GoogleConfigKey>,
    home: Option<&String>,
) -> Result<()> {
    use GoogleConfigKey as Key;
    let named = [Key::ServiceAccount, Key::ApplicationCredentials].map(|key| said.value(key));
    for file in named.into_iter().flatten() {
        require_private(Path::new(file), "key file")?;
    }
    let other = [Key::ServiceAccountKey, Key::BearerToken].map(|key| said.value(key));
    let names_any = named.iter().chain(&other).any(Option::is_some);
    let own = home
        .map(|home| Path::new(home).join(".config/gcloud/application_default_credentials.json"));
    match own.filter(|file| !names_any && file.exists()) {
        Some(file) => require_private(&file, "key file"),
        None => Ok(()),
    }
}

/// Whether the option `key` is set to a secret, and not to the name of a file that holds one. A URL with a user or a
/// password in it is one, whatever the key.
#[must_use]
pub fn is_secret_option(key: &str, value: &str) -> bool {
    let key = key.to_ascii_lowercase();
    (is_secret(&key) || user_in(value).is_some()) && !key.ends_with("_file")
}

/// What stands before the host of a URL (RFC 3986, 3.2.1).
fn user_in(value: &str) -> Option<&str> {
    let (_, rest) = value.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    Some(user)
}

/// Whether the option is about a secret: it is set to one, or to the name of its file.
fn is_secret(key: &str) -> bool {
    let marks = [
        "secret",
        "token",
        "password",
        "access_key",
        "account_key",
        "customer_key",
        "encryption_key",
        "master_key",
        "sas",
    ];
    marks.iter().any(|mark| key.contains(mark)) && !key.ends_with("_id")
}

/// What is shorter keeps nothing secret, and stands in every message by chance.
const SHORTEST_SECRET: usize = 4;

/// Values that must not appear in a message. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Secrets(Arc<Mutex<Vec<String>>>);

impl Secrets {
    pub(super) fn add(&self, secret: &str) {
        self.add_one(secret);
        self.add_one(&in_url(secret));
        if let Some((_, password)) = user_in(secret).and_then(|user| user.split_once(':')) {
            self.add_one(password);
        }
    }

    fn add_one(&self, secret: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = all.iter().any(|known| known == secret);
        if secret.chars().count() >= SHORTEST_SECRET && !is_known {
            all.push(secret.to_owned());
            // One may be a part of another.
            all.sort_by_key(|known| Reverse(known.len()));
        }
    }

    /// The text without them.
    pub(super) fn hidden_in(&self, text: &str) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }
}

/// The text as a signed URL has it, which an answer may repeat.
fn in_url(text: &str) -> String {
    const SIGNED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~');
    utf8_percent_encode(text, SIGNED).to_string()
}

/// Where the keys of an S3 account come from; each beats those before it.
#[derive(Default)]
pub(super) struct CredentialSource {
    /// Variables of the environment.
    pub(super) environment: BTreeMap<String, String>,
    /// The credentials file.
    pub(super) file: Option<PathBuf>,
    /// Options of the repository.
    pub(super) options: BTreeMap<String, String>,
}

impl CredentialSource {
    /// The files that it is read from.
    fn files(&self) -> Vec<PathBuf> {
        let named = self.options.iter();
        let named = named.filter(|(key, _)| part_of_file(key).is_some());
        let named = named.map(|(_, path)| PathBuf::from(path));
        self.file.iter().cloned().chain(named).collect()
    }

    /// Reads them. `file_said` tells whether the credentials file has held options before, and is told when it does: one that held
    /// some and holds comments alone is being written, and nothing takes the place of what it said.
    fn read(&self, file_said: &mut bool) -> Result<Option<AwsCredential>> {
        let mut parts = BTreeMap::new();
        collect(&self.environment, &mut parts)?;
        if let Some(file) = &self.file {
            let said = credentials_in(file)?;
            if *file_said && said.is_empty() {
                return Ok(None);
            }
            *file_said |= !said.is_empty();
            collect(&said, &mut parts)?;
        }
        collect(&self.options, &mut parts)?;
        let mut take = |part| parts.remove(&part);
        let (key_id, secret, token) = (
            take(KeyPart::KeyId),
            take(KeyPart::Secret),
            take(KeyPart::Token),
        );
        // What is half written may hold anything.
        require_header("access_key_id", key_id.as_deref())?;
        require_header("session_token", token.as_deref())?;
        Ok(key_id
            .zip(secret)
            .map(|(key_id, secret_key)| AwsCredential {
                key_id,
                secret_key,
                token,
            }))
    }

    /// Whether it names keys at all, or leaves that to the machine's role.
    pub(super) fn names_keys(&self) -> Result<bool> {
        Ok(self.read(&mut false)?.is_some())
    }
}

/// Adds what `options` say of the keys.
fn collect(
    options: &BTreeMap<String, String>,
    parts: &mut BTreeMap<KeyPart, String>,
) -> Result<()> {
    let mut found = BTreeMap::new();
    for (name, value) in options {
        let name = name.to_ascii_lowercase();
        if let Some(part) = part(&name) {
            found.insert(part, value.clone());
        } else if let Some(part) = part_of_file(&name) {
            found.insert(part, read_option(&name, value)?);
        }
    }
    if found.contains_key(&KeyPart::KeyId) {
        // A token belongs to its key.
        parts.remove(&KeyPart::Token);
    }
    parts.extend(found);
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KeyPart {
    KeyId,
    Secret,
    Token,
}

fn part(key: &str) -> Option<KeyPart> {
    match key.parse() {
        Ok(AmazonS3ConfigKey::AccessKeyId) => Some(KeyPart::KeyId),
        Ok(AmazonS3ConfigKey::SecretAccessKey) => Some(KeyPart::Secret),
        Ok(AmazonS3ConfigKey::Token) => Some(KeyPart::Token),
        _ => None,
    }
}

fn part_of_file(key: &str) -> Option<KeyPart> {
    part(key.strip_suffix("_file")?)
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
    /// Of its owner and its mode too: a file that others may read is none, and becomes one without being written.
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            inode: metadata.ino(),
            size_bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Whether it came about a moment ago, by a clock that may be that of a file server.
    fn is_new(&self) -> bool {
        let age = Timestamp::now().as_second() - self.changed.0;
        age.unsigned_abs() <= WRITTEN_WITHIN.as_secs()
    }
}

/// Credentials out of files, as new as the files are.
pub(super) struct Renewed {
    source: CredentialSource,
    files: Vec<PathBuf>,
    secrets: Secrets,
    state: Mutex<CredentialState>,
}

struct CredentialState {
    credential: Arc<AwsCredential>,
    /// The files as they were when they were read last, and said something; nothing when that is of no use any more.
    seen: Option<Vec<Option<Stamp>>>,
    /// Whether the credentials file has ever held options.
    file_said: bool,
    /// The files as they were when it was said that they cannot be used.
    told: Option<Vec<Option<Stamp>>>,
}

/// Whether credentials that have expired may be followed by others.
#[derive(Clone)]
pub(super) enum Renewal {
    None,
    /// They come from the machine's role.
    ByMachine,
    OfFiles(Arc<Renewed>),
}

impl Renewal {
    /// Asked when the store says that they have expired. The files are read then whatever they look like: two states of a
    /// file that follow one another at once may have the same times.
    pub(super) fn is_possible(&self) -> bool {
        if let Self::OfFiles(renewed) = self {
            renewed.state().seen = None;
        }
        !matches!(self, Self::None)
    }

    /// Asked when the store refuses the key. Parts of it that have files of their own are renewed one after another: for a
    /// moment some are old, and some new.
    pub(super) fn is_under_way(&self) -> bool {
        match self {
            Self::OfFiles(renewed) => renewed.is_under_way(),
            Self::None | Self::ByMachine => false,
        }
    }
}

impl std::fmt::Debug for Renewed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewed")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Renewed {
    /// `None` when there are no keys, or none that could change.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(super) fn of(source: CredentialSource, secrets: &Secrets) -> Result<Option<Self>> {
        let files = source.files();
        if files.is_empty() {
            return Ok(None);
        }
        // Before the reading: what is written after it is seen as a change.
        let seen = stamps(&files);
        let mut file_said = false;
        let Some(credential) = source.read(&mut file_said)? else {
            return Ok(None);
        };
        add_secrets(&credential, secrets);
        Ok(Some(Self {
            source,
            files,
            secrets: secrets.clone(),
            state: Mutex::new(CredentialState {
                credential: Arc::new(credential),
                seen: Some(seen),
                file_said,
                told: None,
            }),
        }))
    }

    fn newest(&self) -> Arc<AwsCredential> {
        let found = Some(stamps(&self.files));
        let mut state = self.state();
        if state.seen == found {
            return Arc::clone(&state.credential);
        }
        let read = self.source.read(&mut state.file_said);
        let unusable = match read {
            Ok(Some(credential)) => {
                if credential != *state.credential {
                    tracing::info!(
                        "the repository's credentials have changed, and were read again"
                    );
                    add_secrets(&credential, &self.secrets);
                    state.credential = Arc::new(credential);
                }
                state.seen = found;
                return Arc::clone(&state.credential);
            }
            Ok(None) => " and hold no keys: the old ones stay in use".to_owned(),
            Err(error) => format!(", and the old ones stay in use: {error}"),
        };
        // They are read again before the next request. That is said once.
        if state.told != found {
            tracing::warn!("the repository's credentials have changed{unusable}");
            state.told = found;
        }
        Arc::clone(&state.credential)
    }

    /// Whether the files have changed since they were read, or a moment ago. They are read again then.
    fn is_under_way(&self) -> bool {
        let found = stamps(&self.files);
        let is_new = found.iter().flatten().any(Stamp::is_new);
        let mut state = self.state();
        let is_under_way = is_new || state.seen.as_ref() != Some(&found);
        if is_under_way {
            state.seen = None;
        }
        is_under_way
    }

    fn state(&self) -> MutexGuard<'_, CredentialState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    files.iter().map(|file| Stamp::of(file)).collect()
}

fn add_secrets(credential: &AwsCredential, secrets: &Secrets) {
    secrets.add(&credential.secret_key);
    secrets.add(credential.token.as_deref().unwrap_or_default());
}

#[async_trait]
impl CredentialProvider for Renewed {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        Ok(self.newest())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(file: &Path, text: &str) {
        std::fs::write(file, text).unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(file, mode).unwrap();
    }

    fn renewed(options: &[(&str, &str)], file: Option<&Path>) -> Option<Renewed> {
        let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        let variables = [
            ("aws_access_key_id", "theirs"),
            ("aws_session_token", "theirs"),
        ];
        let source = CredentialSource {
            environment: variables.iter().map(owned).collect(),
            file: file.map(Path::to_owned),
            options: options.iter().map(owned).collect(),
        };
        Renewed::of(source, &Secrets::default()).unwrap()
    }

    #[test]
    fn a_file_that_changes_is_read_again_and_a_broken_one_is_not_believed() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("s3.toml");
        let keys = "access_key_id = 'a'\nsecret_access_key = 'hidden'\n";
        write(&file, &format!("{keys}session_token = 'oldest'\n"));
        let renewed = renewed(&[], Some(&file)).unwrap();
        let token = || renewed.newest().token.clone();
        assert_eq!(token().as_deref(), Some("oldest"));
        write(&file, "access_key_id = 'a'\nsecret_acc");
        assert_eq!(token().as_deref(), Some("oldest"));
        for nothing in ["region = 'x'\n", "", "\n", "# renewed at\n"] {
            write(&file, nothing);
            assert_eq!(token().as_deref(), Some("oldest"), "{nothing:?}");
        }
        write(&file, &format!("{keys}session_token = 'newer'\n"));
        assert_eq!(token().as_deref(), Some("newer"));
        assert_eq!(
            renewed.secrets.hidden_in("oldest newer hidden"),
            "*** *** ***"
        );
        std::fs::remove_file(&file).unwrap();
        assert_eq!(token().as_deref(), Some("newer"));
    }

    #[test]
    fn a_file_that_becomes_private_after_it_has_its_name_is_read_then() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("s3.toml");
        let keys = "access_key_id = 'a'\nsecret_access_key = 'hidden'\n";
        write(&file, &format!("{keys}session_token = 'oldest'\n"));
        let renewed = renewed(&[], Some(&file)).unwrap();
        let token = || renewed.newest().token.clone();
        let newer = scratch.path().join("s3.toml.new");
        write(&newer, &format!("{keys}session_token = 'newer'\n"));
        std::fs::set_permissions(&newer, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::rename(&newer, &file).unwrap();
        assert_eq!(token().as_deref(), Some("oldest"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(token().as_deref(), Some("newer"));
    }

    #[test]
    fn what_looks_like_the_file_that_was_read_is_read_when_the_token_has_expired() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("s3.toml");
        let keys = "access_key_id = 'a'\nsecret_access_key = 'hidden'\n";
        write(&file, &format!("{keys}session_token = 'oldest'\n"));
        let renewed = Arc::new(renewed(&[], Some(&file)).unwrap());
        write(&file, &format!("{keys}session_token = 'newest'\n"));
        // As if it had been written within one tick of the clock.
        renewed.state().seen = Some(stamps(&renewed.files));
        assert_eq!(renewed.newest().token.as_deref(), Some("oldest"));
        assert!(Renewal::OfFiles(Arc::clone(&renewed)).is_possible());
        assert_eq!(renewed.newest().token.as_deref(), Some("newest"));
        assert!(Renewal::ByMachine.is_possible());
        assert!(!Renewal::None.is_possible());
    }

    #[test]
    fn single_values_are_renewed_and_options_beat_the_file() {
        let scratch = tempfile::tempdir().unwrap();
        let (file, token) = (scratch.path().join("s3.toml"), scratch.path().join("token"));
        write(
            &file,
            "access_key_id = 'a'\nsecret_access_key = 'b'\nsession_token = 'c'\n",
        );
        write(&token, "first\n");
        let path = token.to_str().unwrap();
        let options = [("AWS_ACCESS_KEY_ID", "mine"), ("session_token_file", path)];
        let renewed = renewed(&options, Some(&file)).unwrap();
        let now = renewed.newest();
        assert_eq!(
            (now.key_id.as_str(), now.token.as_deref()),
            ("mine", Some("first"))
        );
        // Whoever renews a token in place makes its file empty first.
        for part in ["", "\n", "\0\0\0\0", "the\nsecond\n"] {
            write(&token, part);
            assert_eq!(renewed.newest().token.as_deref(), Some("first"), "{part:?}");
        }
        write(&token, "the second\n");
        assert_eq!(renewed.newest().token.as_deref(), Some("the second"));
    }

    #[test]
    fn a_file_that_holds_nothing_is_no_value() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for text in ["", " \n\n"] {
            write(file.path(), text);
            let read = read_option("session_token_file", file.path().to_str().unwrap());
            for error in [read.unwrap_err(), credentials_in(file.path()).unwrap_err()] {
                assert_eq!(error.kind(), Kind::Usage, "{text:?}");
                assert!(error.to_string().contains("holds nothing"), "{error}");
            }
        }
    }

    /// Where the environment or the machine's role has the keys.
    #[test]
    fn a_file_of_comments_alone_says_nothing_until_it_holds_keys() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("s3.toml");
        write(&file, "# none\n");
        assert_eq!(read_credentials(&file).unwrap(), BTreeMap::new());
        let options = [("secret_access_key", "b")];
        let renewed = renewed(&options, Some(&file)).unwrap();
        let key = || renewed.newest().key_id.clone();
        assert_eq!(key(), "theirs");
        write(&file, "access_key_id = 'ours'\n");
        assert_eq!(key(), "ours");
        write(&file, "# renewed, and not written yet\n");
        assert_eq!(key(), "ours");
    }

    #[test]
    fn a_file_is_new_for_some_seconds_by_whatever_clock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stamp = Stamp::of(file.path()).unwrap();
        for (seconds, is_new) in [(0, true), (2, true), (-20, false), (20, false)] {
            let changed = (stamp.changed.0 + seconds, 0);
            assert_eq!(Stamp { changed, ..stamp }.is_new(), is_new, "{seconds}");
        }
    }

    #[test]
    fn a_token_belongs_to_the_key_it_stands_with() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("s3.toml");
        write(&file, "access_key_id = 'a'\nsecret_access_key = 'b'\n");
        let now = renewed(&[], Some(&file)).unwrap().newest();
        assert_eq!((now.key_id.as_str(), now.token.as_deref()), ("a", None));
    }

    #[test]
    fn what_is_too_short_to_be_a_secret_is_no_reason_to_spoil_a_message() {
        let secrets = Secrets::default();
        for secret in ["a", "s3", "", "key!", "key!and more"] {
            secrets.add(secret);
        }
        let said = "an s3 repository refuses key!and more, and key%21and%20more, and key!";
        assert_eq!(
            secrets.hidden_in(said),
            "an s3 repository refuses ***, and ***, and ***"
        );
    }

    #[test]
    fn what_cannot_change_is_left_to_the_client() {
        let keys = [("access_key_id", "a"), ("secret_access_key", "b")];
        assert!(renewed(&keys, None).is_none());
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("s3.toml");
        write(&file, "region = 'x'\n");
        assert!(renewed(&[], Some(&file)).is_none());
    }

    #[test]
    fn credentials_that_others_can_read_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret_access_key = 'hunter2'\n").unwrap();
        // A file of root may be read by the group of a service.
        let is_roots = file.path().metadata().unwrap().uid() == 0;
        let modes = [
            (0o600, false),
            (0o640, !is_roots),
            (0o660, true),
            (0o644, true),
            (0o602, true),
        ];
        for (mode, refused) in modes {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path(), permissions).unwrap();
            let kind = read_credentials(file.path()).map_err(|error| error.kind());
            assert_eq!(kind.err(), refused.then_some(Kind::Refused), "{mode:o}");
        }
    }

    #[test]
    fn a_file_without_end_is_none() {
        let kind = read_credentials(Path::new("/dev/zero")).map_err(|error| error.kind());
        assert_eq!(kind.err(), Some(Kind::Usage));
    }

    #[test]
    fn a_broken_credentials_file_shows_no_secret() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret_access_key = hunter2\n").unwrap();
        let error = read_credentials(file.path()).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
