//! Where the repository is: a directory, or a bucket behind a network that fails.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use pgstrata_testbed::cluster::Cluster;
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::{self, S3Server};

use super::disk::Disk;
use super::world::{NAME, Shape, copy_tree};
use crate::report::output::print;

/// How long a run of the program asks a store that fails, so that a step does not take minutes.
const GIVES_UP: [&str; 4] = [
    "--storage",
    "retry_seconds=6",
    "--storage",
    "read_timeout=1s",
];

/// Older than any sign of life that counts.
const LONG_AGO: Duration = Duration::from_secs(48 * 3600);

/// See the module.
#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
    /// Where copies go, in a directory always.
    mirror: PathBuf,
    /// The file with the identity that opens a sealed cluster.
    identity: Option<PathBuf>,
    bucket: Option<Bucket>,
    disk: Option<Disk>,
}

#[derive(Debug)]
struct Bucket {
    server: S3Server,
    proxy: Proxy,
    /// The network between the archiver and the store.
    archiver: Proxy,
    credentials: PathBuf,
    wrong_credentials: PathBuf,
}

impl Store {
    pub(super) fn make(owner: &Cluster, directory: &Path, shape: &Shape) -> Result<Self> {
        let mirror = directory.join("mirror");
        fs::create_dir(&mirror).context("could not create the directory for copies")?;
        owner.own(&mirror)?;
        let mut store = Self {
            directory: directory.join("repository"),
            mirror,
            identity: shape.is_sealed.then(|| directory.join("reader.identity")),
            bucket: None,
            disk: None,
        };
        if shape.is_on_s3 {
            let bucket = Bucket::start(directory, shape.has_versions)?;
            store.directory = bucket.server.bucket_dir().join("backups");
            store.bucket = Some(bucket);
            return Ok(store);
        }
        fs::create_dir(&store.directory).context("could not create the repository")?;
        if shape.has_disk {
            store.disk = Disk::mount(&store.directory)?;
            if store.disk.is_none() {
                print("SKIPPED: full repositories, since only root may mount a small file system")?;
            }
        }
        owner.own(&store.directory)?;
        Ok(store)
    }

    fn url(&self) -> String {
        match &self.bucket {
            Some(bucket) => format!("s3://{}/backups", bucket.server.bucket()),
            None => format!("file://{}", self.directory.display()),
        }
    }

    /// What the program finds in its environment.
    pub(super) fn environment(&self, denied: bool) -> Vec<(&'static str, String)> {
        let mut environment = vec![("PGSTRATA_REPO", self.url())];
        if let Some(bucket) = &self.bucket {
            environment.extend(bucket.environment(bucket.proxy.endpoint(), denied));
        }
        environment.extend(self.who());
        environment
    }

    /// The same for the copy.
    pub(super) fn mirror_environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = vec![("PGSTRATA_REPO", self.mirror())];
        environment.extend(self.who());
        environment
    }

    /// The copy's address.
    pub(super) fn mirror(&self) -> String {
        format!("file://{}", self.mirror.display())
    }

    /// The file with the identity, when the cluster is sealed.
    pub(super) fn identity(&self) -> Option<&Path> {
        self.identity.as_deref()
    }

    fn who(&self) -> Option<(&'static str, String)> {
        let file = self.identity()?.display().to_string();
        Some(("PGSTRATA_IDENTITY", file))
    }

    /// What makes the program give up within seconds; nothing for a directory.
    pub(super) fn gives_up(&self) -> &'static [&'static str] {
        if self.bucket.is_some() {
            &GIVES_UP
        } else {
            &[]
        }
    }

    /// The command that archives. It has a network of its own.
    pub(super) fn archive_command(&self, program: &Path) -> String {
        let bucket = self.bucket.as_ref();
        let variables = bucket.map(|b| b.environment(b.archiver.endpoint(), false));
        let variables = variables.into_iter().flatten().chain(self.who());
        let variables: String = variables
            .map(|(name, value)| format!("{name}={value} "))
            .collect();
        format!(
            "{variables}{} --repo {} --cluster {NAME} {} archive-push %p",
            program.display(),
            self.url(),
            self.gives_up().join(" ")
        )
    }

    /// The network, when there is one.
    pub(super) fn network(&self) -> Option<&Proxy> {
        self.bucket.as_ref().map(|bucket| &bucket.proxy)
    }

    /// The network of the archiver, when there is one, and the access key with which it comes.
    pub(super) fn archiver(&self) -> Option<(&Proxy, &str)> {
        let bucket = self.bucket.as_ref()?;
        Some((&bucket.archiver, bucket.server.access_key()))
    }

    /// The disk of a repository that has one of its own.
    pub(super) fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Keeps the objects of a bucket, which goes with its server.
    pub(super) fn keep(&self, directory: &Path) -> Result<()> {
        match &self.bucket {
            Some(_) if self.directory.exists() => {
                copy_tree(&self.directory, &directory.join("bucket"))
            }
            _ => Ok(()),
        }
    }

    /// The directory whose files are the objects of the cluster.
    pub(super) fn objects(&self) -> PathBuf {
        self.directory.join(NAME)
    }

    /// The keys of the cluster's objects in the bucket, but for those that serve for a moment, which no rescue brings back.
    pub(super) fn keys(&self) -> Result<Vec<String>> {
        let bucket = self.bucket.as_ref().context("there is no bucket")?;
        let mut keys = Vec::new();
        loop {
            let after = keys.last().map_or("", String::as_str);
            let page = format!("?list-type=2&start-after={after}");
            let listed = bucket.server.request(None, "GET", &page, "")?;
            ensure!(
                listed.status == 200,
                "could not list objects: {}",
                listed.body
            );
            let found = listed.body.split("<Key>").skip(1);
            let before = keys.len();
            keys.extend(found.filter_map(|rest| Some(rest.split_once('<')?.0.to_owned())));
            if keys.len() == before || listed.body.contains("<IsTruncated>false<") {
                keys.retain(|key| comes_back(key));
                return Ok(keys);
            }
        }
    }

    /// Deletes an object of the bucket, or overwrites it, as somebody would who should not.
    pub(super) fn destroy(&self, key: &str, deletes: bool) -> Result<()> {
        let bucket = self.bucket.as_ref().context("there is no bucket")?;
        let (method, body) = if deletes {
            ("DELETE", "")
        } else {
            ("PUT", "evil")
        };
        let answer = bucket
            .server
            .request(None, method, &format!("/{key}"), body)?;
        ensure!(
            answer.status < 300,
            "could not destroy \"{key}\": {}",
            answer.body
        );
        Ok(())
    }

    /// Lets two days pass for what is not finished: attempts that were killed, and restores.
    pub(super) fn age(&self) -> Result<()> {
        let long_ago = SystemTime::now() - LONG_AGO;
        let layers = self.objects().join("layer");
        let mut old = Vec::new();
        if layers.exists() {
            for layer in fs::read_dir(&layers).context("could not list layers")? {
                let layer = layer?.path();
                if !layer.join("manifest").exists() {
                    old.push(layer);
                }
            }
        }
        old.push(self.objects().join("restore"));
        old.iter().try_for_each(|path| age(path, long_ago))
    }
}

impl Bucket {
    fn start(directory: &Path, has_versions: bool) -> Result<Self> {
        let kind = match has_versions {
            true => s3::Bucket::Versioned,
            false => s3::Bucket::Plain,
        };
        let server = S3Server::start_with(kind)?;
        let proxy = Proxy::before(server.endpoint())?;
        let archiver = Proxy::before(server.endpoint())?;
        let write = |name: &str, secret: &str| -> Result<PathBuf> {
            let path = directory.join(name);
            let key = server.access_key();
            let text = format!("access_key_id = \"{key}\"\nsecret_access_key = \"{secret}\"\n");
            fs::write(&path, text).context("could not write credentials")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            let owner = fs::metadata(directory)?;
            chown(&path, Some(owner.uid()), Some(owner.gid()))
                .context("could not give credentials away")?;
            Ok(path)
        };
        Ok(Self {
            credentials: write("credentials.toml", server.secret())?,
            wrong_credentials: write("wrong-credentials.toml", "not the secret")?,
            proxy,
            archiver,
            server,
        })
    }

    fn environment(&self, endpoint: &str, denied: bool) -> Vec<(&'static str, String)> {
        let credentials = match denied {
            true => &self.wrong_credentials,
            false => &self.credentials,
        };
        vec![
            ("PGSTRATA_S3_ENDPOINT", endpoint.to_owned()),
            ("PGSTRATA_S3_REGION", self.server.region().to_owned()),
            ("PGSTRATA_S3_PATH_STYLE", "true".to_owned()),
            ("PGSTRATA_CREDENTIALS", credentials.display().to_string()),
        ]
    }
}

/// Whether an object of the cluster stays for longer than a command.
fn comes_back(key: &str) -> bool {
    let cluster = format!("backups/{NAME}/");
    let Some(key) = key.strip_prefix(&cluster) else {
        return false;
    };
    let name = key.rsplit('/').next().unwrap_or(key);
    let passing = ["clock/", "probe-", "restore/"];
    !passing.iter().any(|begin| key.starts_with(begin)) && !name.starts_with("beat-")
}

fn age(path: &Path, to: SystemTime) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            age(&entry?.path(), to)?;
        }
    } else if path.is_file() {
        let file = fs::File::options().write(true).open(path)?;
        file.set_modified(to)
            .with_context(|| format!("could not age \"{}\"", path.display()))?;
    }
    Ok(())
}
