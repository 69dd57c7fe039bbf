//! A server, a repository, and the program as a DBA runs it.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    unreachable_pub,
    missing_docs,
    reason = "helpers of tests may fail like tests; each test file uses some"
)]

pub mod files;
pub mod judged;
pub mod namespace;
pub mod past;
pub mod process;
pub mod roles;
pub mod schema;
pub mod standby;
pub mod vault;

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::azure::AzureServer;
use pgstrata_testbed::cluster::{Builder, Cluster};
use pgstrata_testbed::s3::S3Server;
use serde_json::Value;

pub const PATIENCE: Duration = Duration::from_secs(120);

/// What a backup warns of that does not come after the newest layer of its timeline.
pub const ANOTHER_SERVER: &str = "may be another one than that of";

/// With these a backup of a small cluster lasts for seconds.
pub const SLOWLY: [&str; 6] = ["--compress", "none", "--max-rate", "10M", "--jobs", "1"];

/// A cluster that archives to a repository, with the program beside it.
pub struct Stage {
    pub cluster: Cluster,
    pub program: PathBuf,
    pub repository: String,
    environment: Vec<(&'static str, String)>,
    s3: Option<S3Server>,
    azure: Option<AzureServer>,
}

/// Where a stage keeps its backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Directory,
    S3,
    Azure,
}

impl Stage {
    /// Starts a cluster that archives to its own repository, and runs `init`.
    pub fn archiving(builder: Builder, store: Store) -> Self {
        let stage = Self::silent(
            builder
                .conf("archive_mode", "on")
                .conf("archive_command", "false"),
            store,
        );
        stage.begin_archiving();
        stage
    }

    /// Starts a cluster that archives as `builder` says, and runs `init`.
    pub fn silent(builder: Builder, store: Store) -> Self {
        let cluster = builder.start().unwrap();
        let program = cluster
            .installed_binary(Path::new(env!("CARGO_BIN_EXE_pgstrata")))
            .unwrap();
        let (mut s3, mut azure) = (None, None);
        let (repository, environment) = match store {
            Store::Directory => {
                let directory = cluster.create_dir("repository").unwrap();
                (format!("file://{}", directory.display()), Vec::new())
            }
            Store::S3 => {
                let server = s3.insert(S3Server::start().unwrap());
                let keys = (server.access_key(), server.secret());
                let environment = s3_environment(&cluster, server, keys);
                (format!("s3://{}/backups", server.bucket()), environment)
            }
            Store::Azure => {
                let server = azure.insert(AzureServer::start().unwrap());
                let file = credentials_file(&cluster, "azure", &azure_keys(server));
                let environment = vec![("PGSTRATA_CREDENTIALS", file.display().to_string())];
                (format!("az://{}/backups", server.container()), environment)
            }
        };
        let stage = Self {
            cluster,
            program,
            repository,
            environment,
            s3,
            azure,
        };
        stage.ok(&["init", "--pgdata", &stage.pgdata()]);
        stage
    }

    /// The server archives into the repository from now on, as this stage's environment says.
    pub fn begin_archiving(&self) {
        self.archive_with("--cluster main");
    }

    /// The same with these options of `archive-push`.
    pub fn archive_with(&self, options: &str) {
        let settings = self.environment.iter().map(|(k, v)| format!("{k}={v}"));
        let settings: Vec<String> = settings.collect();
        let command = format!(
            "{} {} --repo {} archive-push {options} %p",
            settings.join(" "),
            self.program.display(),
            self.repository
        );
        self.set_archive_command(&command);
    }

    /// The server archives by that command from now on.
    pub fn set_archive_command(&self, command: &str) {
        let set = self.cluster.append_conf("archive_command", command);
        set.unwrap();
        self.cluster.reload().unwrap();
    }

    pub fn s3_endpoint(&self) -> &str {
        self.s3.as_ref().unwrap().endpoint()
    }

    pub fn s3_secret(&self) -> &str {
        self.s3.as_ref().unwrap().secret()
    }

    /// The server that holds the bucket.
    pub fn s3(&self) -> &S3Server {
        self.s3.as_ref().unwrap()
    }

    /// The server that holds the container.
    pub fn azure(&self) -> &AzureServer {
        self.azure.as_ref().unwrap()
    }

    /// The file in which commands find the account of the store.
    pub fn credentials(&self) -> &str {
        let mut all = self.environment.iter();
        let found = all.find(|(name, _)| *name == "PGSTRATA_CREDENTIALS");
        &found.unwrap().1
    }

    /// The directory whose files are the repository's objects, also of one on S3.
    pub fn objects(&self) -> PathBuf {
        match &self.s3 {
            Some(s3) => s3.bucket_dir().join("backups"),
            None => PathBuf::from(self.repository.trim_start_matches("file://")),
        }
    }

    /// All that is stored now, of every layer that is not finished and of every restore, becomes two days older.
    pub fn age(&self) {
        let main = self.objects().join("main");
        let layers = fs::read_dir(main.join("layer")).unwrap();
        let layers = layers.map(|layer| layer.unwrap().path());
        let unfinished = layers.filter(|layer| !layer.join("manifest").exists());
        for directory in unfinished.chain([main.join("restore")]) {
            if !directory.exists() {
                continue;
            }
            files::age(&directory, "2 days ago");
        }
    }

    pub fn pgdata(&self) -> String {
        self.cluster.pgdata().display().to_string()
    }

    /// The program with repository and cluster set, run as the server's user.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_beside(&self.cluster, arguments)
    }

    /// The same for another server.
    pub fn command_beside(&self, server: &Cluster, arguments: &[&str]) -> Command {
        let mut command = server.command_as_server_user(&self.program);
        command
            .env("PGSTRATA_REPO", &self.repository)
            .env("PGSTRATA_CLUSTER", "main")
            // Tests share the machine; work that gives way to other tests ends when they do.
            .env("PGSTRATA_IMPACT", "none");
        command.envs(self.environment.iter().map(|(k, v)| (k, v)));
        command.args(arguments);
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs the program, which must succeed; returns its standard output.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "pgstrata {arguments:?}: {}\n{log}\n{}",
            output.status,
            self.cluster.log_tail(20)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the program, which must fail; returns its exit code and standard error.
    pub fn fails(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code().unwrap();
        assert_ne!(code, 0, "pgstrata {arguments:?} succeeded");
        (code, log)
    }

    /// A restore into a new directory that ends with `code` and all of `words`, and makes nothing.
    pub fn refuses_to_restore(&self, arguments: &[&str], code: i32, words: &[&str]) {
        let target = self.target("refused").display().to_string();
        let restore = [&["restore", "--target-dir", &target][..], arguments].concat();
        let (found, log) = self.fails(&restore);
        assert_eq!(found, code, "{arguments:?}: {log}");
        for words in words {
            assert!(log.contains(words), "{arguments:?}: {words}: {log}");
        }
        assert!(!Path::new(&target).exists(), "{arguments:?}: {log}");
    }

    /// Runs the program, which must succeed; returns its JSON document, which is as its schema says.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["--output", "json"];
        all.extend(arguments);
        schema::document(&self.ok(&all))
    }

    /// Switches to a new WAL segment and waits until all up to now is archived.
    pub fn archive_all(&self) {
        let end = self
            .cluster
            .sql("postgres", "SELECT pg_switch_wal()")
            .unwrap();
        self.wait_archived(&end);
    }

    /// A quiet moment: its LSN and what the source holds then. More follows it in the archive.
    pub fn moment(&self) -> (String, String) {
        let sql = |query| self.cluster.sql("postgres", query).unwrap();
        let lsn = sql("SELECT pg_create_restore_point('moment')");
        let dump = self.cluster.dump().unwrap();
        sql("CREATE TABLE afterwards AS SELECT 1");
        self.archive_all();
        (lsn, dump)
    }

    /// Waits until the server has archived the segment that holds the record ending at `lsn`.
    pub fn wait_archived(&self, lsn: &str) {
        // The names of segments sort in their order, and the archiver takes the oldest first.
        let query = format!(
            "SELECT coalesce(last_archived_wal >= pg_walfile_name('{lsn}'::pg_lsn - 1), false)
               FROM pg_stat_archiver"
        );
        self.cluster.wait_for("postgres", &query, PATIENCE).unwrap();
    }

    /// The manifest of a layer in a directory: a line about itself, then JSON.
    pub fn manifest(&self, label: &str) -> Value {
        let root = self.repository.strip_prefix("file://").unwrap();
        let path = format!("{root}/main/layer/{label}/manifest");
        let object = std::fs::read_to_string(path).unwrap();
        let (_, json) = object.split_once('\n').unwrap();
        serde_json::from_str(json).unwrap()
    }

    /// Takes a backup; returns its report.
    pub fn backup(&self, arguments: &[&str]) -> Value {
        let pgdata = self.pgdata();
        let mut all = vec!["--output", "json", "backup", "--pgdata", &pgdata];
        all.extend(arguments);
        self.require_backup(&self.run(&all))
    }

    /// The report of a backup with which nothing is wrong but that the server may be another one, as after its storage was set
    /// back.
    pub fn require_backup(&self, output: &Output) -> Value {
        let log = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        assert!(
            matches!(code, Some(0 | 3)),
            "{code:?}: {log}\n{}",
            self.cluster.log_tail(20)
        );
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let warnings = report["warnings"].as_array().unwrap();
        let is_expected = |told: &Value| told.as_str().unwrap().contains(ANOTHER_SERVER);
        assert!(warnings.iter().all(is_expected), "{report:#}");
        assert_eq!(code == Some(3), !warnings.is_empty(), "{report:#}");
        report
    }

    /// Starts a backup that takes a while, and returns when it is in the middle: the server is in
    /// backup mode and a pack is stored.
    pub fn begin_backup(&self, arguments: &[&str]) -> Child {
        let before = self.unfinished_packs();
        let pgdata = self.pgdata();
        let backup = ["backup", "--pgdata", &pgdata];
        let mut child = process::spawn(self, &[&backup[..], &SLOWLY, arguments].concat());
        let end = Instant::now() + PATIENCE;
        while self.unfinished_packs() == before {
            if let Some(status) = child.try_wait().unwrap() {
                let log = process::log_of(child);
                panic!("the backup ended too early, with {status}: {log}");
            }
            assert!(Instant::now() < end, "the backup stores nothing");
            thread::sleep(Duration::from_millis(20));
        }
        child
    }

    /// Layers with a pack and without a manifest.
    fn unfinished_packs(&self) -> usize {
        let layers = self.objects().join("main/layer");
        let Ok(entries) = fs::read_dir(layers) else {
            return 0;
        };
        let unfinished = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|layer| layer.join("pack-000000").exists() && !layer.join("manifest").exists());
        unfinished.count()
    }

    /// The layers and the unfinished ones that `info` shows, whatever it warns of.
    pub fn layer_counts(&self) -> (usize, usize) {
        let output = self.run(&["--output", "json", "info"]);
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = |key: &str| info[key].as_array().unwrap().len();
        (count("layers"), count("unfinished"))
    }

    /// Waits until no session of a backup is left, and with it no backup mode.
    pub fn wait_out_of_backup_mode(&self) {
        let query =
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgstrata backup'";
        self.cluster.wait_for("postgres", query, PATIENCE).unwrap();
    }

    /// An empty directory that the server's user owns, with the mode PostgreSQL wants.
    pub fn target(&self, name: &str) -> PathBuf {
        self.cluster.socket_dir().join(name)
    }

    /// Restores into a new directory of that name.
    pub fn restore(&self, name: &str, arguments: &[&str]) -> PathBuf {
        let target = self.target(name);
        let text = target.display().to_string();
        let mut all = vec!["restore", "--target-dir", &text];
        all.extend(arguments);
        self.ok(&all);
        target
    }

    /// Restores the newest state to `lsn`, inclusive, and starts it as a server of its own.
    pub fn start_restored_at(&self, name: &str, lsn: &str) -> Cluster {
        self.start_restored(&self.restore(name, &to_lsn(lsn)))
    }

    /// Starts a restored cluster and waits until it accepts writes.
    pub fn start_restored(&self, target: &Path) -> Cluster {
        let restored = Cluster::adopt(self.cluster.major(), target)
            .conf("archive_mode", "off")
            .conf("shared_preload_libraries", "")
            .start();
        let restored = restored.unwrap();
        restored.wait_promoted(PATIENCE).unwrap();
        restored
    }
}

/// How commands, and the servers that run them, find the bucket: the secrets in a file, as
/// `restore_command` needs them.
fn s3_environment(
    cluster: &Cluster,
    s3: &S3Server,
    (access_key, secret): (&str, &str),
) -> Vec<(&'static str, String)> {
    let text = format!("access_key_id = \"{access_key}\"\nsecret_access_key = \"{secret}\"\n");
    let file = credentials_file(cluster, access_key, &text);
    vec![
        ("PGSTRATA_S3_ENDPOINT", s3.endpoint().to_owned()),
        ("PGSTRATA_S3_REGION", s3.region().to_owned()),
        ("PGSTRATA_S3_PATH_STYLE", "true".to_owned()),
        ("PGSTRATA_CREDENTIALS", file.display().to_string()),
    ]
}

/// What a credentials file says of the account of the server.
pub fn azure_keys(server: &AzureServer) -> String {
    format!(
        "account_name = '{}'\naccess_key = '{}'\nendpoint = '{}'\n",
        server.account(),
        server.key(),
        server.endpoint()
    )
}

/// A file that the server's user alone may read.
pub fn credentials_file(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let directory = cluster.pgdata().parent().unwrap().join("credentials");
    if !directory.exists() {
        cluster.create_dir("credentials").unwrap();
    }
    let file = directory.join(format!("{name}.toml"));
    fs::write(&file, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&file, mode).unwrap();
    let owner = fs::metadata(&directory).unwrap();
    chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
    file
}

/// A restore into `target` that ends where the backup ended.
pub fn restore_alone(target: &str) -> [&str; 5] {
    [
        "restore",
        "--target-dir",
        target,
        "--target-type",
        "immediate",
    ]
}

/// Options of a restore that ends at `lsn`, inclusive, and lets the server go on from there.
pub fn to_lsn(lsn: &str) -> [&str; 6] {
    [
        "--target-type",
        "lsn",
        "--target",
        lsn,
        "--target-action",
        "promote",
    ]
}

/// The number at `path` of a JSON document.
pub fn number(document: &Value, path: &str) -> u64 {
    let found = document.pointer(path).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no number at {path} in {document:#}"))
}

/// The text at `path` of a JSON document.
pub fn text<'a>(document: &'a Value, path: &str) -> &'a str {
    let found = document.pointer(path).and_then(Value::as_str);
    found.unwrap_or_else(|| panic!("no text at {path} in {document:#}"))
}
