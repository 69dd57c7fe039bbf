//! S3 servers on this machine: an honest one and one that overwrites.

mod bucket;

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use rand::Rng as _;

use crate::certificates::Identity;
use crate::cluster::free_port;
use crate::leash::Leash;
use crate::programs;
pub use crate::request::Answer;
pub use bucket::{Bucket, ROLES};

const BUCKET: &str = "pgstrata";
const REGION: &str = "us-east-1";
const SECOND: &str = "second";

/// Both servers answer within 0.3 s on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// An S3 server with one bucket on a free loopback port.
#[derive(Debug)]
pub struct S3Server {
    endpoint: String,
    access_key: String,
    secret: String,
    second_secret: String,
    role_secrets: Vec<String>,
    directory: PathBuf,
    /// Ends the server and removes `directory` when dropped.
    _leash: Leash,
}

impl S3Server {
    /// Starts `versitygw`, which honours create-if-absent.
    pub fn start() -> Result<Self> {
        Self::start_program("versitygw", "http", versitygw)
    }

    /// Starts it with a bucket of that kind.
    pub fn start_with(bucket: Bucket) -> Result<Self> {
        let server = match bucket {
            Bucket::Plain => Self::start()?,
            Bucket::Versioned | Bucket::Locked => {
                Self::start_program("versitygw", "http", |start| {
                    let versions = start.directory.join("versions");
                    fs::create_dir(&versions)
                        .with_context(|| format!("could not create \"{}\"", versions.display()))?;
                    let mut command = versitygw(start)?;
                    command.env("VGW_VERSIONING_DIR", versions);
                    Ok(command)
                })?
            }
        };
        server.set_up(bucket)?;
        Ok(server)
    }

    /// Starts it with TLS, known by `identity`.
    pub fn start_with_tls(identity: &Identity) -> Result<Self> {
        Self::start_program("versitygw", "https", |start| {
            let [certificate, key] = identity.write(&start.directory, "server")?;
            let mut command = versitygw(start)?;
            command.env("VGW_CERT", certificate).env("VGW_KEY", key);
            Ok(command)
        })
    }

    /// Starts `rclone serve s3`, which ignores `If-None-Match`: whoever writes
    /// last wins. The product must find that out and refuse it.
    pub fn start_hostile() -> Result<Self> {
        Self::start_program("rclone", "http", |start| {
            let mut command = Command::new(&start.program);
            command
                .env("RCLONE_CONFIG", start.directory.join("rclone.conf"))
                .args(["serve", "s3", "--addr", &start.address, "--auth-key"])
                .arg(format!("{},{}", start.access_key, start.secret))
                .arg(start.directory.join("buckets"));
            Ok(command)
        })
    }

    /// Where it listens, as a URL without a bucket.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The access key of the account that owns the bucket.
    #[must_use]
    pub fn access_key(&self) -> &str {
        &self.access_key
    }

    /// The secret of that key.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The access key of a second account of the honest server, with the same rights.
    #[must_use]
    pub const fn second_access_key(&self) -> &'static str {
        SECOND
    }

    /// The secret of that key.
    #[must_use]
    pub fn second_secret(&self) -> &str {
        &self.second_secret
    }

    /// The region it says it is in.
    #[must_use]
    pub const fn region(&self) -> &'static str {
        REGION
    }

    /// The only bucket.
    #[must_use]
    pub const fn bucket(&self) -> &'static str {
        BUCKET
    }

    /// The directory whose files are the bucket's objects, for tests that damage
    /// them.
    #[must_use]
    pub fn bucket_dir(&self) -> PathBuf {
        self.directory.join("buckets").join(BUCKET)
    }

    /// The environment by which S3 clients find it.
    #[must_use]
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", self.endpoint.clone()),
            ("AWS_ACCESS_KEY_ID", self.access_key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.secret.clone()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }

    /// The environment by which `pgstrata` finds it behind `endpoint`: its own, or that of a link to it.
    #[must_use]
    pub fn pgstrata_env(&self, endpoint: &str) -> Vec<(&'static str, String)> {
        vec![
            ("PGSTRATA_S3_ENDPOINT", endpoint.to_owned()),
            ("PGSTRATA_S3_REGION", REGION.to_owned()),
            ("PGSTRATA_S3_PATH_STYLE", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", self.access_key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.secret.clone()),
        ]
    }

    /// Storage options by which `pgstrata` finds it, for a repository beside that of its environment.
    #[must_use]
    pub fn options(&self) -> [(&'static str, &str); 6] {
        [
            ("endpoint", self.endpoint()),
            ("region", REGION),
            ("virtual_hosted_style_request", "false"),
            ("allow_http", "true"),
            ("access_key_id", self.access_key()),
            ("secret_access_key", self.secret()),
        ]
    }

    /// A client of the bucket behind `endpoint`.
    ///
    /// # Errors
    /// When the client cannot be set up.
    pub fn client(&self, endpoint: &str) -> Result<AmazonS3> {
        self.client_of(endpoint, self.access_key(), self.secret())
    }

    /// A client of the bucket for the account of a role.
    ///
    /// # Errors
    /// When the client cannot be set up.
    pub fn client_as(&self, role: &str) -> Result<AmazonS3> {
        self.client_of(self.endpoint(), role, self.role_secret(role)?)
    }

    fn client_of(&self, endpoint: &str, access_key: &str, secret: &str) -> Result<AmazonS3> {
        AmazonS3Builder::new()
            .with_endpoint(endpoint)
            .with_access_key_id(access_key)
            .with_secret_access_key(secret)
            .with_bucket_name(self.bucket())
            .with_region(self.region())
            .with_allow_http(true)
            .build()
            .context("could not set up an S3 client")
    }

    fn start_program(
        program: &str,
        scheme: &str,
        command: impl Fn(&Start) -> Result<Command>,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("pgs-s3-")
            .tempdir()
            .context("could not create a temporary directory")?
            .keep();
        let bucket = directory.join("buckets").join(BUCKET);
        fs::create_dir_all(&bucket)
            .with_context(|| format!("could not create \"{}\"", bucket.display()))?;
        let start = Start {
            program: programs::installed_or(
                &format!("bin/{program}"),
                &Vec::from_iter(programs::on_path(program)),
            )?,
            address: format!("127.0.0.1:{}", free_port()?),
            access_key: random_word("access"),
            secret: random_word("secret"),
            second_secret: random_word("secret"),
            role_secrets: ROLES.map(|_| random_word("secret")).into(),
            directory,
        };
        let log = start.directory.join("log");
        let leash = Leash::run(&command(&start)?, &start.directory, &log)?;
        wait_until_it_answers(program, &start.address, &log)?;
        Ok(Self {
            endpoint: format!("{scheme}://{}", start.address),
            access_key: start.access_key,
            secret: start.secret,
            second_secret: start.second_secret,
            role_secrets: start.role_secrets,
            directory: start.directory,
            _leash: leash,
        })
    }
}

/// What a server is started with.
struct Start {
    program: PathBuf,
    address: String,
    access_key: String,
    secret: String,
    second_secret: String,
    role_secrets: Vec<String>,
    directory: PathBuf,
}

fn versitygw(start: &Start) -> Result<Command> {
    let accounts = start.directory.join("accounts");
    fs::create_dir(&accounts)
        .with_context(|| format!("could not create \"{}\"", accounts.display()))?;
    let account = |(name, secret, role): (&str, &String, &str)| {
        format!(r#""{name}":{{"access":"{name}","secret":"{secret}","role":"{role}"}}"#)
    };
    let roles = ROLES.iter().zip(&start.role_secrets);
    let all = roles.map(|(name, secret)| account((name, secret, "user")));
    let second = account((SECOND, &start.second_secret, "admin"));
    let all: Vec<String> = all.chain([second]).collect();
    let users = format!(r#"{{"accessAccounts":{{{}}}}}"#, all.join(","));
    let file = accounts.join("users.json");
    fs::write(&file, users).with_context(|| format!("could not write \"{}\"", file.display()))?;
    let mut command = Command::new(&start.program);
    command
        .env("ROOT_ACCESS_KEY_ID", &start.access_key)
        .env("ROOT_SECRET_ACCESS_KEY", &start.secret)
        .args(["--port", &start.address, "--region", REGION])
        .arg("--iam-dir")
        .arg(accounts)
        .arg("posix")
        .arg(start.directory.join("buckets"));
    Ok(command)
}

/// Waits until `program` accepts connections on `address`; `log` says why it does not.
pub(crate) fn wait_until_it_answers(program: &str, address: &str, log: &Path) -> Result<()> {
    let end = Instant::now() + START_TIMEOUT;
    while TcpStream::connect(address).is_err() {
        if Instant::now() > end {
            let log = fs::read_to_string(log).unwrap_or_default();
            bail!("{program} did not answer on {address} within {START_TIMEOUT:?}: {log}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

pub(crate) fn random_word(prefix: &str) -> String {
    format!("{prefix}{:016x}", rand::rng().random::<u64>())
}
