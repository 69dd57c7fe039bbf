//! A sealed cluster with readers "one" and "two", a writer and a keeper.

use std::process::{Command, Output};

use pgstrata_testbed::cluster::{Builder, Cluster, Major};
use pgstrata_testbed::s3::Bucket;
use serde_json::Value;

use super::{Stage, Store, process, schema, to_lsn};

/// A server that archives, beside the stage's own, to the sealed cluster "vault" of the same repository.
pub struct Vault {
    pub stage: Stage,
    keys: String,
}

impl Vault {
    pub fn new(major: Major) -> Self {
        Self::archiving(Cluster::builder(major))
    }

    pub fn archiving(builder: Builder) -> Self {
        let vault = Self::on(ready_to_archive(builder), Store::Directory);
        vault.begin_archiving();
        vault
    }

    /// In a bucket in which each role may do what SECURITY.md gives it; `more` are options of `init`.
    pub fn with_roles(builder: Builder, bucket: Bucket, more: &[&str]) -> Self {
        let stage = Stage::with_roles(ready_to_archive(builder), bucket);
        let vault = Self::beside(stage, more);
        vault.begin_archiving();
        vault
    }

    /// The layers are locked for 8 days, by locks that the owner of the bucket may lift. With some data.
    pub fn lifted() -> Self {
        let retain = ["--retain", "8d", "--retain-mode", "governance"];
        let vault = Self::with_roles(Cluster::builder(Major::V15), Bucket::Locked, &retain);
        let pgbench = vault.stage.cluster.pgbench(&["-i", "-q", "-s", "1"]);
        pgbench.unwrap();
        vault
    }

    fn begin_archiving(&self) {
        let identity = self.identity("writer");
        let options = format!("--cluster vault --identity {identity} --compress none");
        self.stage.archive_with(&options);
    }

    pub fn on(builder: Builder, store: Store) -> Self {
        Self::beside(Stage::silent(builder, store), &[])
    }

    fn beside(stage: Stage, more: &[&str]) -> Self {
        let keys = stage
            .cluster
            .create_dir("keys")
            .unwrap()
            .display()
            .to_string();
        let vault = Self { stage, keys };
        let [one, two, writer, keeper] =
            ["one", "two", "writer", "keeper"].map(|who| vault.generate(who));
        let pgdata = vault.stage.pgdata();
        let init = [
            "--cluster",
            "vault",
            "init",
            "--pgdata",
            &pgdata,
            "--encrypt",
            "--recipient",
            &one,
            "--recipient",
            &two,
            "--writer",
            &writer,
            "--keeper",
            &keeper,
        ];
        let told = vault.stage.ok(&[&init[..], more].concat());
        assert!(told.contains("loses every backup"), "{told}");
        vault
    }

    pub fn identity(&self, who: &str) -> String {
        format!("{}/{who}", self.keys)
    }

    /// The public half of somebody's identity.
    pub fn recipient(&self, who: &str) -> String {
        let file = std::fs::read_to_string(self.identity(who)).unwrap();
        let first = file.lines().next().unwrap();
        first.trim_start_matches("# public key: ").to_owned()
    }

    pub fn generate(&self, who: &str) -> String {
        let printed = self.stage.ok(&["key", "generate", &self.identity(who)]);
        printed.trim().to_owned()
    }

    /// The program with somebody's identity.
    pub fn command(&self, who: &str, arguments: &[&str]) -> Command {
        let mut command = self.stage.command(&["--cluster", "vault"]);
        if !who.is_empty() {
            command.env("PGSTRATA_IDENTITY", self.identity(who));
        }
        command.args(arguments);
        command
    }

    pub fn run(&self, who: &str, arguments: &[&str]) -> Output {
        self.command(who, arguments).output().unwrap()
    }

    /// Runs it with a role's rights in the bucket and somebody's identity, which must end with that code; answers standard
    /// output and standard error.
    pub fn ends_as(
        &self,
        (role, who): (&str, &str),
        arguments: &[&str],
        code: i32,
    ) -> (String, String) {
        let mut command = self.command(who, arguments);
        command.env("PGSTRATA_CREDENTIALS", self.stage.credentials_of(role));
        let what = format!("{role} {who} {arguments:?}");
        process::ended(command.output().unwrap(), &what, code)
    }

    pub fn ok(&self, who: &str, arguments: &[&str]) -> String {
        let output = self.run(who, arguments);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{who} {arguments:?}: {}\n{log}",
            output.status
        );
        assert!(!log.contains("AGE-SECRET"), "{log}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn fails(&self, who: &str, arguments: &[&str], code: i32) -> String {
        let output = self.run(who, arguments);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{who} {arguments:?}: {log}"
        );
        log
    }

    pub fn backup(&self, arguments: &[&str]) -> Value {
        let pgdata = self.stage.pgdata();
        let server = [
            "--output",
            "json",
            "backup",
            "--pgdata",
            &pgdata,
            "--compress",
            "none",
        ];
        let printed = self.ok("writer", &[&server[..], arguments].concat());
        serde_json::from_str(&printed).unwrap()
    }

    /// The exit code of a verification, and what its report names.
    pub fn verify(&self, who: &str, arguments: &[&str]) -> (i32, Vec<String>) {
        let verify = ["--output", "json", "verify"];
        let output = self.run(who, &[&verify[..], arguments].concat());
        let report = schema::document(&String::from_utf8(output.stdout).unwrap());
        let findings = report["findings"].as_array().unwrap().iter();
        let named = findings.map(|finding| {
            let words = [&finding["object"], &finding["message"]];
            words.map(|word| word.as_str().unwrap()).join(": ")
        });
        (output.status.code().unwrap(), named.collect())
    }

    pub fn restore(&self, who: &str, name: &str, lsn: &str) -> String {
        let target = self.stage.target(name).display().to_string();
        let restore = ["restore", "--target-dir", &target];
        self.ok(who, &[&restore[..], &to_lsn(lsn)].concat());
        target
    }
}

fn ready_to_archive(builder: Builder) -> Builder {
    let builder = builder.conf("archive_mode", "on");
    builder.conf("archive_command", "false")
}

/// Keys of what in the bucket is made to last of the sealed cluster.
pub fn lasting(stage: &Stage) -> Vec<String> {
    let parts = ["/layer/", "/wal/", "/wal-mended/", "/key/", "/cluster"];
    let mut keys = stage.keys();
    keys.retain(|key| {
        let lasts = key.starts_with("backups/vault/") && !key.contains("/beat-");
        lasts && parts.iter().any(|part| key.contains(part))
    });
    keys
}
