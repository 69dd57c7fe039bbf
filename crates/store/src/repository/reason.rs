//! Why a store failed: in words, with what to do, and whether trying again may help.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use object_store::client::{HttpError, HttpErrorKind};
use quick_xml::DeError;

use super::fault::Injected;
use super::page::NoListing;
use super::signatures::without_signatures;

/// One failure, explained.
#[derive(Debug)]
pub(super) struct Reason {
    pub(super) text: String,
    pub(super) hint: Option<&'static str>,
    /// The same request may succeed later.
    pub(super) may_pass: bool,
    /// The store said that the object, and nothing else, is not there.
    pub(super) object_is_absent: bool,
    /// With a newer session token the same request may succeed.
    pub(super) token_has_expired: bool,
}

/// A request about the past that failed: it needs more rights than one about the present.
#[derive(Debug)]
pub(super) struct OfThePast(pub(super) Box<dyn StdError + Send + Sync>);

impl fmt::Display for OfThePast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for OfThePast {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// Answers of object stores that mean a wrong setting: code, words, hint.
const CODES: &[(&str, &str, &str)] = &[
    ("NoSuchBucket", "the bucket does not exist", BUCKET),
    ("ContainerNotFound", "the container does not exist", BUCKET),
    (
        "ContainerBeingDeleted",
        "the container is being deleted",
        BUCKET,
    ),
    ("InvalidBucketName", "the bucket name is not valid", BUCKET),
    (
        "InvalidResourceName",
        "the container's name is not valid",
        BUCKET,
    ),
    (
        "XAdminUserNotFound",
        "the access key is unknown",
        CREDENTIALS,
    ),
    (
        "InvalidAccessKeyId",
        "the access key is unknown",
        CREDENTIALS,
    ),
    (
        "SignatureDoesNotMatch",
        "the secret key is wrong",
        CREDENTIALS,
    ),
    ("ExpiredToken", "the session token has expired", EXPIRED),
    (
        "TokenRefreshRequired",
        "the session token has expired",
        EXPIRED,
    ),
    ("InvalidToken", "the session token is wrong", CREDENTIALS),
    (
        "AuthenticationFailed",
        "the credentials are wrong or have expired, or this machine's clock is wrong",
        CREDENTIALS,
    ),
    (
        SKEWED,
        "the clocks differ too much",
        "set this machine's clock",
    ),
    (
        "AuthorizationHeaderMalformed",
        "the region is wrong",
        REGION,
    ),
    (
        "PermanentRedirect",
        "the bucket is in another region",
        REGION,
    ),
    ("QuotaExceeded", "the quota is used up", FULL),
    ("XMinioStorageFull", "the store is full", FULL),
    ("AccessDenied", "access denied", ACCESS),
    (
        "AuthorizationFailure",
        "access denied, to these credentials or from this address",
        ACCESS,
    ),
    (MAY_NOT[0], "access denied", ACCESS),
    (MAY_NOT[1], "access denied", ACCESS),
    ("AuthorizationResourceTypeMismatch", "access denied", ACCESS),
    ("InsufficientAccountPermissions", "access denied", ACCESS),
    (
        "NoAuthenticationInformation",
        "the request names no account",
        CREDENTIALS,
    ),
    (
        "ResourceNotFound",
        "the account does not exist",
        CREDENTIALS,
    ),
    (
        "InvalidAuthenticationInfo",
        "the credentials are wrong",
        CREDENTIALS,
    ),
    ("AccountIsDisabled", "the account is disabled", CREDENTIALS),
    (
        "BlobImmutableDueToPolicy",
        "an immutability policy keeps it",
        IMMUTABLE,
    ),
    (
        "BlobImmutableDueToLegalHold",
        "a legal hold keeps it",
        IMMUTABLE,
    ),
    ("InvalidObjectState", "it is in archive storage", THAWED),
    (
        "MethodNotAllowed",
        "the store does not allow this request",
        ACCESS,
    ),
    (
        "NotImplemented",
        "the store cannot do this",
        "use a store with conditional writes",
    ),
];

/// What comes before the error in the body of an answer that began with status 200: a copy within the store can take long.
pub(super) const FAILED_LATE: &str = "failed after the answer had begun, body: ";

pub(super) const DENIED: &str = "access denied";
const BUCKET: &str = "create the bucket or container, or correct the repository's URL";
pub(super) const CREDENTIALS: &str =
    "check the credentials of the repository (options, environment, instance role)";
const EXPIRED: &str = "write a new token into the file that --credentials or session_token_file names, \
    which is read again when it changes; a token in the environment cannot be renewed";
const REGION: &str = "set the option \"region\" of the repository";
const FULL: &str = "free space where the repository is";
const MEMORY: &str =
    "a limit of memory is reached (ulimit -v, systemd's LimitAS): raise it, or use fewer --jobs";
const ACCESS: &str =
    "the repository's credentials must allow reading, listing and creating objects";
pub(super) const VERSIONS: &str = "the repository's credentials must allow s3:ListBucketVersions and s3:GetObjectVersion too, and for \
    a rescue s3:PutObject, as a keeper's do in docs/SECURITY.md";
const IMMUTABLE: &str = "it can be deleted when the policy lets it go; an expiry tries again";
const LATER: &str = "try again later, or ask who runs the store";
const THAWED: &str = "bring that version back from archive storage first, then run it again";
const KMS: &str = "the key with which the store encrypted it must be there and enabled";
const REACH: &str = "check the repository's endpoint, and that it can be reached from here";

/// Where credentials belong, by what the store's client calls itself.
fn no_credentials(store: &str) -> &'static str {
    match store {
        "MicrosoftAzure" => NO_AZURE_CREDENTIALS,
        "GCS" => NO_GOOGLE_CREDENTIALS,
        _ => NO_CREDENTIALS,
    }
}

const NO_AZURE_CREDENTIALS: &str = "set access_key or sas_key in the file that --credentials names, or \
    AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY in the environment";
const NO_GOOGLE_CREDENTIALS: &str = "set service_account in the file that --credentials names, or \
    GOOGLE_SERVICE_ACCOUNT in the environment, to the file of a service account's key";
const NO_CREDENTIALS: &str = "set access_key_id and secret_access_key in the file that --credentials names, or \
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment";
const HTTP: &str =
    "correct the port, or write http:// and --storage allow_http=true where the network is trusted";
const AUTHORITY: &str =
    "name the file of its certificate authority with --s3-ca-file, or the storage option ca_file";
const NAME: &str = "write the endpoint with a name that its certificate has";

/// What Azure says to those who may create and not overwrite when the object is there, whatever the condition: the service
/// itself, and its emulator, which says the same where nothing may be created.
const MAY_NOT: [&str; 2] = [
    "UnauthorizedBlobOverwrite",
    "AuthorizationPermissionMismatch",
];

/// Whether a create was denied because the object is there, or because nothing may be created.
pub(super) fn may_deny_what_exists(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::PermissionDenied { .. })
        && xml_code(&error.to_string()).is_some_and(|code| MAY_NOT.contains(&code))
}

/// The code of S3 for clocks that differ.
const SKEWED: &str = "RequestTimeTooSkewed";

/// The same about a signed URL, which comes with the code of every denial.
const OTHER_CLOCK: &[&str] = &[
    "Request has expired",
    "Request is not valid yet",
    "Request is not yet valid",
];

/// What stores say of a bucket in which nothing can be locked, under several codes: AWS goes on with `Object Lock
/// Configuration`, versitygw with `ObjectLockConfiguration`.
const NO_LOCK: &str = "Bucket is missing Object";
const LOCK: &str = "turn on versions and Object Lock of the bucket, or use a bucket that has them; a cluster that was made \
    with --retain is locked from its first object on";

/// Codes of requests that a store gave up because their bytes did not come, or came as others. They come with status 400.
const CUT_OFF: &[&str] = &[
    "BadDigest",
    "IncompleteBody",
    "RequestTimeout",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
];

const NO_CHECKSUMS: &str = "set the option \"checksum_algorithm\" of the repository to none; \
    such a store must refuse an upload that is cut off by itself, or its objects can be incomplete";

/// Where a machine's role is asked for.
const INSTANCE: &[&str] = &[
    "169.254.",
    "/latest/api/token",
    "/latest/meta-data/",
    "/metadata/identity/",
    "/computeMetadata/",
];

/// Why that gave nothing.
const NO_ROLE: &str = "there are no credentials, and this machine has no role that gives any";

/// What a TLS library says of an answer in plain text.
const NO_TLS: &[&str] = &["InvalidContentType", "wrong version number"];

/// The error, and what is behind it.
fn causes_of(error: &object_store::Error) -> Vec<&(dyn StdError + 'static)> {
    let mut causes: Vec<&(dyn StdError + 'static)> = Vec::new();
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(cause) = next {
        causes.push(cause);
        next = cause.source();
    }
    causes
}

impl Reason {
    /// Whether the store is full.
    pub(super) fn is_lack_of_space(&self) -> bool {
        self.hint == Some(FULL)
    }

    /// Whether this machine, and not the store, had no memory for the request.
    pub(super) fn is_lack_of_memory(&self) -> bool {
        self.hint == Some(MEMORY)
    }

    /// Whether the credentials do not allow it.
    pub(super) fn is_denial(&self) -> bool {
        self.hint == Some(ACCESS) || self.hint == Some(VERSIONS)
    }

    pub(super) fn of(error: &object_store::Error) -> Self {
        let causes = causes_of(error);
        let mut reason = Self::of_causes(error, &causes);
        let mut about_past = causes.iter().filter(|cause| cause.is::<OfThePast>());
        if reason.is_denial() && about_past.next().is_some() {
            reason.hint = Some(VERSIONS);
        }
        reason
    }

    fn of_causes(error: &object_store::Error, causes: &[&(dyn StdError + 'static)]) -> Self {
        for cause in causes {
            if let Some(injected) = cause.downcast_ref::<Injected>() {
                return Self::plain(injected.to_string(), None).passing(injected.may_pass());
            }
        }
        if let Some(reason) = Self::of_listing(causes) {
            return reason;
        }
        let whole = error.to_string();
        let store = match error {
            object_store::Error::Generic { store, .. } => store,
            _ => "",
        };
        Self::of_status(error, &whole)
            .or_else(|| Self::of_late(&whole))
            .or_else(|| Self::of_instance(store, &whole))
            .or_else(|| Self::of_code(&whole))
            .or_else(|| Self::of_transport(store, causes))
            .or_else(|| match error {
                object_store::Error::NotFound { .. } => None,
                _ => Self::of_file(causes),
            })
            .unwrap_or_else(|| Self::of_rest(error, causes))
    }

    /// A listing that ends within its text, as of a connection that was cut, or that is none, or part of one.
    fn of_listing(causes: &[&(dyn StdError + 'static)]) -> Option<Self> {
        let none = causes.iter().find_map(|c| c.downcast_ref::<NoListing>());
        if let Some(none) = none {
            let text = one_line(&none.to_string());
            return Some(Self::plain(text, Some(none.hint)).passing(true));
        }
        let read = causes.iter().find_map(|cause| cause.downcast_ref())?;
        let is_cut = matches!(read, DeError::InvalidXml(_) | DeError::UnexpectedEof);
        let text = format!("the store's listing cannot be read: {read}");
        is_cut.then(|| Self::plain(one_line(&text), Some(REACH)).passing(true))
    }

    fn plain(text: impl Into<String>, hint: Option<&'static str>) -> Self {
        Self {
            text: text.into(),
            hint,
            may_pass: false,
            object_is_absent: false,
            token_has_expired: false,
        }
    }

    fn passing(mut self, may_pass: bool) -> Self {
        self.may_pass = may_pass;
        self
    }

    /// Server errors and throttling pass; their code says what they were.
    fn of_status(error: &object_store::Error, whole: &str) -> Option<Self> {
        if !matches!(error, object_store::Error::Generic { .. }) {
            return None;
        }
        let status = whole.split("status code: ").nth(1)?;
        let number: u16 = status.get(..3)?.parse().ok()?;
        let passes = (500..600).contains(&number) && number != 501 || [408, 429].contains(&number);
        let full = ["QuotaExceeded", "XMinioStorageFull"]
            .iter()
            .any(|c| whole.contains(c));
        if !passes || full {
            return None;
        }
        let code = xml_code(whole).map_or(String::new(), |c| format!(" ({})", one_line(c)));
        let text = format!("the store answered with status {number}{code}");
        Some(Self::plain(text, Some(LATER)).passing(true))
    }

    /// What would have been a server error, or throttling, had it been known when the answer began.
    fn of_late(whole: &str) -> Option<Self> {
        let (_, body) = whole.split_once(FAILED_LATE)?;
        let code = xml_code(body).filter(|code| PASSING.contains(code))?;
        let text = format!("the store failed after its answer had begun ({code})");
        Some(Self::plain(text, Some(LATER)).passing(true))
    }

    /// The machine's own service answered, and gave no role.
    fn of_instance(store: &str, whole: &str) -> Option<Self> {
        let answered = !store.is_empty()
            && whole.contains("status code: ")
            && INSTANCE.iter().any(|address| whole.contains(address));
        answered.then(|| Self::plain(NO_ROLE, Some(no_credentials(store))))
    }

    fn of_code(whole: &str) -> Option<Self> {
        if let Some(reason) = Self::of_deletion(whole) {
            return Some(reason);
        }
        let Some(code) = xml_code(whole) else {
            // The answer to a HEAD has no body; AWS refuses so what it calls ExpiredToken elsewhere.
            let is_bare = whole.contains("performing HEAD") && whole.contains("status code: 400");
            return is_bare.then(|| {
                let text =
                    "the store answered with status 400, as to a session token that has expired";
                Self::plain(text, Some(EXPIRED)).expired()
            });
        };
        if whole.contains(NO_LOCK) {
            let text =
                "objects of this cluster are to be locked, and the bucket has no Object Lock";
            return Some(Self::plain(text, Some(LOCK)));
        }
        if CUT_OFF.contains(&code) {
            let text = format!("the request did not arrive as it was sent ({code})");
            return Some(Self::plain(text, Some(REACH)).passing(true));
        }
        let is_skew =
            code == "AccessDenied" && OTHER_CLOCK.iter().any(|words| whole.contains(words));
        let code = if is_skew { SKEWED } else { code };
        if code.starts_with("KMS.") {
            let text = format!("the store's key of it cannot be used ({})", one_line(code));
            return Some(Self::plain(text, Some(KMS)));
        }
        let known = CODES.iter().find(|(c, _, _)| *c == code);
        // Answers about a wrong signature repeat all headers.
        if known.is_none() && whole.contains("x-amz-checksum") {
            let code = one_line(code);
            let text = format!("the store takes no checksum of an object ({code})");
            return Some(Self::plain(text, Some(NO_CHECKSUMS)));
        }
        let &(code, text, hint) = known?;
        let reason = Self::plain(format!("{text} ({code})"), Some(hint));
        Some(if hint == EXPIRED {
            reason.expired()
        } else {
            reason
        })
    }

    fn expired(mut self) -> Self {
        self.token_has_expired = true;
        self
    }

    /// A request to delete several objects succeeds, and tells of each object whether it did.
    fn of_deletion(whole: &str) -> Option<Self> {
        let failure = whole.split_once("DeleteObjects request failed for key ");
        let Some((_, failure)) = failure else {
            return Self::of_batch(whole);
        };
        let (_, code) = failure.rsplit_once("(code: ")?;
        let (code, _) = code.split_once(')')?;
        if ABSENT.contains(&code) {
            return Some(Self::absent());
        }
        if let Some((code, text, hint)) = CODES.iter().find(|(known, _, _)| *known == code) {
            return Some(Self::plain(format!("{text} ({code})"), Some(hint)));
        }
        let text = format!("the store did not delete it ({})", one_line(code));
        Some(Self::plain(text, None).passing(PASSING.contains(&code)))
    }

    /// The same of Azure, which tells a status and its words.
    fn of_batch(whole: &str) -> Option<Self> {
        let (_, failure) = whole.split_once("ulk delete request failed ")?;
        let (words, code) = failure.rsplit_once(" (code: ")?;
        let words = words.rsplit_once(": ").map_or(words, |(_, words)| words);
        let status: u16 = code.split_once(')')?.0.parse().ok()?;
        Some(match status {
            404 => Self::absent(),
            401 => Self::plain("the credentials were not accepted", Some(CREDENTIALS)),
            403 => Self::plain("access denied", Some(ACCESS)),
            409 => Self::plain(
                format!("the store keeps it: {}", one_line(words)),
                Some(IMMUTABLE),
            ),
            _ => {
                let text = format!(
                    "the store answered with status {status}: {}",
                    one_line(words)
                );
                Self::plain(text, None).passing(status >= 500 || [408, 429].contains(&status))
            }
        })
    }

    fn of_transport(store: &str, causes: &[&(dyn StdError + 'static)]) -> Option<Self> {
        let http = causes.iter().find_map(|c| c.downcast_ref::<HttpError>())?;
        let last = causes.last().map(ToString::to_string).unwrap_or_default();
        let words = match http.kind() {
            HttpErrorKind::Connect => "could not connect",
            HttpErrorKind::Timeout => "the store did not answer in time",
            _ => "the connection failed",
        };
        let first = causes.first().map(ToString::to_string).unwrap_or_default();
        // The instance's credentials are asked for only when there are no others.
        if INSTANCE.iter().any(|address| first.contains(address)) {
            return Some(Self::plain(NO_ROLE, Some(no_credentials(store))).passing(true));
        }
        if NO_TLS.iter().any(|words| last.contains(words)) {
            let text = "the endpoint's URL begins with https://, and the port does not speak TLS";
            return Some(Self::plain(text, Some(HTTP)));
        }
        if let Some(reason) = Self::of_certificate(&last) {
            return Some(reason);
        }
        let may_pass = !last.contains("URL scheme is not allowed");
        Some(Self::plain(format!("{words}: {}", one_line(&last)), Some(REACH)).passing(may_pass))
    }

    /// A certificate does not become a better one by asking again.
    fn of_certificate(last: &str) -> Option<Self> {
        let (_, problem) = last.split_once("invalid peer certificate: ")?;
        let (text, hint) = if problem.starts_with("UnknownIssuer") {
            ("its authority is not trusted by this machine", AUTHORITY)
        } else if problem.contains("not valid for name") || problem.starts_with("NotValidForName") {
            ("it is for another host", NAME)
        } else {
            (problem, AUTHORITY)
        };
        let text = format!("the endpoint's certificate is refused: {}", one_line(text));
        Some(Self::plain(text, Some(hint)))
    }

    fn of_file(causes: &[&(dyn StdError + 'static)]) -> Option<Self> {
        let io = causes.iter().find_map(|c| c.downcast_ref::<io::Error>())?;
        let hint = match io.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(FULL),
            io::ErrorKind::OutOfMemory => Some(MEMORY),
            io::ErrorKind::ReadOnlyFilesystem => {
                Some("mount the repository's file system for writing")
            }
            io::ErrorKind::PermissionDenied => {
                Some("the repository's directory must belong to the user who runs this")
            }
            io::ErrorKind::NotFound => Some("is the repository's file system mounted?"),
            _ => None,
        };
        let may_pass = matches!(
            io.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
        );
        Some(Self::plain(one_line(&io.to_string()), hint).passing(may_pass))
    }

    fn of_rest(error: &object_store::Error, causes: &[&(dyn StdError + 'static)]) -> Self {
        use object_store::Error as E;
        match error {
            E::NotFound { .. } => Self::of_absence(&error.to_string()),
            E::AlreadyExists { .. } => Self::plain("it exists already", None),
            E::PermissionDenied { .. } => Self::plain(DENIED, Some(ACCESS)),
            E::Unauthenticated { .. } => {
                Self::plain("the credentials were not accepted", Some(CREDENTIALS))
            }
            _ => {
                let last = causes.last().map(ToString::to_string).unwrap_or_default();
                Self::plain(one_line(&last), None)
            }
        }
    }
}

/// Codes with which a store says that an object is not there.
const ABSENT: &[&str] = &["NoSuchKey", "BlobNotFound"];

/// Codes of failures that pass.
const PASSING: &[&str] = &[
    "InternalError",
    "SlowDown",
    "ServiceUnavailable",
    "OperationAborted",
];

impl Reason {
    /// "Not found" can also mean a missing bucket, an unknown user or a wrong address; only
    /// a store that says so, or need not (a directory, the answer to a `HEAD`), is believed.
    fn of_absence(whole: &str) -> Self {
        let answered = whole.contains("status code: 404") && !whole.contains("performing HEAD");
        let code = xml_code(whole);
        let absent = !answered || code.is_some_and(|c| ABSENT.contains(&c));
        if !absent {
            let code = code.map_or("no code".to_owned(), one_line);
            return Self::plain(
                format!("the store answered with status 404 ({code})"),
                Some(REACH),
            );
        }
        Self::absent()
    }

    fn absent() -> Self {
        let mut reason = Self::plain("there is no such object", None);
        reason.object_is_absent = true;
        reason
    }
}

/// The text between `<Code>` and `</Code>` in a store's answer.
fn xml_code(answer: &str) -> Option<&str> {
    let (_, rest) = answer.split_once("<Code>")?;
    rest.split_once("</Code>").map(|(code, _)| code)
}

/// On one line, without query strings and signatures, not too long.
fn one_line(text: &str) -> String {
    let shown = without_signatures(text);
    let words = shown
        .split_whitespace()
        .map(|word| match word.split_once('?') {
            Some((address, _)) if address.contains("://") => address,
            _ => word,
        });
    let line = words.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As object_store reports that of several objects one was not deleted.
    fn of_deletion(code: &str, message: &str) -> Reason {
        let source = format!(
            "DeleteObjects request failed for key main/layer/x/claim: {message} (code: {code})"
        );
        Reason::of(&object_store::Error::Generic {
            store: "S3",
            source: source.into(),
        })
    }

    #[test]
    fn what_another_has_deleted_meanwhile_is_deleted() {
        let reason = of_deletion("NoSuchKey", "The specified key does not exist.");
        assert!(reason.object_is_absent);
        let reason = of_deletion("InternalError", "We encountered an internal error (again).");
        assert!(reason.may_pass && !reason.object_is_absent);
        let reason = of_deletion("AccessDenied", "Access Denied");
        assert!(
            !reason.may_pass && reason.text.starts_with("access denied"),
            "{}",
            reason.text
        );
    }

    /// As object_store reports what Azure says of one of several objects.
    fn of_batch(status: u16, words: &str) -> Reason {
        let source = format!(
            "Bulk delete request failed for key main/layer/x/claim: {words} (code: {status})"
        );
        Reason::of(&object_store::Error::Generic {
            store: "MicrosoftAzure",
            source: source.into(),
        })
    }

    #[test]
    fn of_several_objects_azure_tells_which_stay() {
        assert!(of_batch(404, "The specified blob does not exist.").object_is_absent);
        assert!(of_batch(403, "This request is not authorized.").is_denial());
        assert!(of_batch(503, "Server busy.").may_pass);
        let kept = of_batch(
            409,
            "This operation is not permitted: the blob is immutable.",
        );
        assert!(!kept.may_pass && !kept.is_denial());
        assert!(kept.text.contains("immutable"), "{}", kept.text);
    }

    #[test]
    fn what_a_policy_of_azure_keeps_is_said() {
        let body = "<Error><Code>BlobImmutableDueToPolicy</Code><Message>no</Message></Error>";
        let reason = Reason::of(&object_store::Error::AlreadyExists {
            path: "main/cluster".to_owned(),
            source: format!("Server returned non-2xx status code: 409 Conflict: {body}").into(),
        });
        assert!(
            reason.text.contains("immutability policy"),
            "{}",
            reason.text
        );
        assert!(!reason.may_pass);
    }

    #[test]
    fn each_store_is_told_its_own_credentials() {
        for (store, address, expected) in [
            (
                "MicrosoftAzure",
                "http://169.254.169.254/metadata/identity/oauth2/token",
                "sas_key",
            ),
            (
                "GCS",
                "http://metadata/computeMetadata/v1/instance/service-accounts/",
                "service_account",
            ),
            (
                "S3",
                "http://169.254.169.254/latest/meta-data/",
                "access_key_id",
            ),
        ] {
            let source = format!(
                "Error performing GET {address} in 1ms - Server returned non-2xx status code: 404 Not Found: no"
            );
            let source = source.into();
            let reason = Reason::of(&object_store::Error::Generic { store, source });
            assert_eq!(reason.text, NO_ROLE);
            assert!(reason.hint.unwrap().contains(expected), "{:?}", reason.hint);
        }
    }

    /// As object_store reports an answer with status 400.
    fn of_refusal(code: &str, message: &str) -> Reason {
        let source = format!(
            "Error performing PUT http://s3/b/k in 1s - Server returned non-2xx status code: 400 Bad Request: \
             <Error><Code>{code}</Code><Message>{message}</Message></Error>"
        );
        Reason::of(&object_store::Error::Generic {
            store: "S3",
            source: source.into(),
        })
    }

    #[test]
    fn a_request_that_came_in_part_is_sent_again() {
        for code in ["RequestTimeout", "BadDigest", "IncompleteBody"] {
            let reason = of_refusal(code, "it did not come");
            assert!(reason.may_pass && reason.text.contains(code), "{reason:?}");
        }
        assert!(!of_refusal("InvalidRequest", "never").may_pass);
    }

    #[test]
    fn what_fails_after_its_answer_had_begun_is_done_again_when_that_may_help() {
        let of_late = |code: &str| {
            let source = format!("the copy {FAILED_LATE}<Error><Code>{code}</Code></Error>").into();
            let store = "S3";
            Reason::of(&object_store::Error::Generic { store, source })
        };
        for code in ["InternalError", "SlowDown", "RequestTimeout"] {
            let reason = of_late(code);
            assert!(reason.may_pass && reason.text.contains(code), "{reason:?}");
        }
        assert!(of_late("AccessDenied").is_denial());
        assert_eq!(of_late("InvalidObjectState").hint, Some(THAWED));
        assert_eq!(of_late("KMS.NotFoundException").hint, Some(KMS));
    }

    #[test]
    fn what_an_unknown_answer_repeats_of_a_signature_is_not_shown() {
        let reason = of_refusal("Unknown", "?X-Amz-Security-Token=IQo%2Fx%3D");
        assert!(!reason.text.contains("IQo"), "{}", reason.text);
        assert!(
            reason.text.contains("Security-Token=***"),
            "{}",
            reason.text
        );
        let code = "a\nx-amz-security-token:IQo";
        let of_checksum = of_refusal(code, "x-amz-checksum-crc64nvme");
        for reason in [of_checksum, of_deletion(code, "no")] {
            let is_hidden = reason.text.ends_with("(a x-amz-security-token:***)");
            assert!(is_hidden, "{}", reason.text);
        }
    }

    /// The service itself, and not the emulator, answers so.
    #[test]
    fn azure_may_deny_what_is_there_with_either_code() {
        for code in MAY_NOT {
            let body = format!("<Error><Code>{code}</Code><Message>no</Message></Error>");
            let denied = object_store::Error::PermissionDenied {
                path: "main/cluster".to_owned(),
                source: format!("status code: 403 Forbidden: {body}").into(),
            };
            assert!(may_deny_what_exists(&denied), "{code}");
            assert!(Reason::of(&denied).is_denial(), "{code}");
        }
    }

    #[test]
    fn a_store_that_takes_no_checksums_is_told_what_to_set() {
        let message = "Unsupported header 'x-amz-checksum-crc64nvme' received for this API call.";
        let reason = of_refusal("InvalidRequest", message);
        assert!(!reason.may_pass, "{reason:?}");
        let hint = reason.hint.unwrap();
        assert!(hint.contains("checksum_algorithm"), "{hint}");
    }

    #[test]
    fn a_machine_that_has_no_role_leaves_no_credentials() {
        for (act, status) in [
            (
                "PUT http://169.254.169.254/latest/api/token",
                "403 Forbidden",
            ),
            (
                "GET http://169.254.169.254/latest/meta-data/iam/security-credentials/",
                "404 Not Found",
            ),
        ] {
            let source = format!(
                "Error performing {act} in 1ms - Server returned non-2xx status code: {status}: no"
            );
            let reason = Reason::of(&object_store::Error::Generic {
                store: "S3",
                source: source.into(),
            });
            assert_eq!(reason.text, NO_ROLE);
            assert_eq!(reason.hint, Some(NO_CREDENTIALS));
            assert!(!reason.object_is_absent && !reason.may_pass);
        }
    }
}
