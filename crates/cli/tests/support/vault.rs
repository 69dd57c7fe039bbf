//! A sealed cluster with readers "one" and "two", a writer and a keeper.

use std::process::Output;

use pgstrata_testbed::cluster::{Builder, Cluster, Major};
use serde_json::Value;

use super::{Stage, Store};

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
        let builder = builder
            .conf("archive_mode", "on")
            .conf("archive_command", "false");
        let vault = Self::on(builder, Store::Directory);
        let command = format!(
            "{} --repo {} --cluster vault --identity {} archive-push --compress none %p",
            vault.stage.program.display(),
            vault.stage.repository,
            vault.identity("writer")
        );
        vault
            .stage
            .cluster
            .append_conf("archive_command", &command)
            .unwrap();
        vault.stage.cluster.reload().unwrap();
        vault
    }

    pub fn on(builder: Builder, store: Store) -> Self {
        let stage = Stage::silent(builder, store);
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
        let told = vault.stage.ok(&init);
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

    pub fn run(&self, who: &str, arguments: &[&str]) -> Output {
        let mut command = self.stage.command(&["--cluster", "vault"]);
        if !who.is_empty() {
            command.env("PGSTRATA_IDENTITY", self.identity(who));
        }
        command.args(arguments).output().unwrap()
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

    pub fn restore(&self, who: &str, name: &str, lsn: &str) -> String {
        let target = self.stage.target(name).display().to_string();
        let until = [
            "restore",
            "--target-dir",
            &target,
            "--target-type",
            "lsn",
            "--target",
            lsn,
        ];
        self.ok(who, &[&until[..], &["--target-action", "promote"]].concat());
        target
    }
}
