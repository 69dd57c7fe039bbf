//! A stage whose commands have no more rights in the bucket than SECURITY.md gives their role.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use pgstrata_layer::manifest::{self, ParentRef};
use pgstrata_testbed::cluster::Builder;
use pgstrata_testbed::s3::{Bucket, ROLES, S3Server};
use serde_json::{Value, json};

use super::{Stage, files, process, s3_environment};

#[path = "../../../layer/tests/support/forged.rs"]
mod forged;

/// The policy of the bucket that makes each account what SECURITY.md says of its role, and `more` beside.
pub fn policy(s3: &S3Server, more: &[Value]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("docs/SECURITY.md")).unwrap();
    let blocks = text.split("```json\n").skip(1);
    let blocks: Vec<&str> = blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks.len(), ROLES.len(), "one policy for each role");
    let mut statements = Vec::new();
    for (role, block) in ROLES.iter().zip(blocks) {
        assert!(block.contains(role), "{block} is not that of a {role}");
        let block = block
            .replace("BUCKET", s3.bucket())
            .replace("PREFIX", "backups");
        let policy: Value = serde_json::from_str(&block).unwrap();
        for statement in policy["Statement"].as_array().unwrap() {
            let mut statement = statement.clone();
            statement["Principal"] = json!({ "AWS": [role] });
            statements.push(statement);
        }
    }
    statements.extend(more.iter().cloned());
    json!({ "Version": "2012-10-17", "Statement": statements }).to_string()
}

/// The same without some actions, for all of them.
pub fn policy_without(s3: &S3Server, actions: &[&str]) -> String {
    let mut policy: Value = serde_json::from_str(&policy(s3, &[])).unwrap();
    for statement in policy["Statement"].as_array_mut().unwrap() {
        let allowed = statement["Action"].as_array_mut().unwrap();
        allowed.retain(|action| !actions.contains(&action.as_str().unwrap()));
    }
    policy.to_string()
}

/// What a host can forge that may only create objects: a removal of the layers with these labels and manifests, newest
/// first. Keys below the cluster, with what is there.
pub fn forged_removal(layers: &[(&str, &[u8])]) -> [(&'static str, String); 2] {
    let layers = layers.iter().map(|(label, manifest)| ParentRef {
        label: (*label).to_owned(),
        manifest_digest: manifest::digest(manifest),
    });
    let layers: Vec<ParentRef> = layers.collect();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    forged::removal(&layers, None).map(|(key, bytes)| (key, text(bytes)))
}

impl Stage {
    /// A server without archiving beside a bucket of that kind. Commands run as its writer; nothing is there yet.
    pub fn with_roles(builder: Builder, bucket: Bucket) -> Self {
        let cluster = builder.start().unwrap();
        let program = cluster.installed_binary(Path::new(env!("CARGO_BIN_EXE_pgstrata")));
        let s3 = S3Server::start_with(bucket).unwrap();
        s3.allow(&policy(&s3, &[])).unwrap();
        let environment = ROLES.map(|role| {
            let secret = s3.role_secret(role).unwrap().to_owned();
            s3_environment(&cluster, &s3, (role, &secret))
        });
        let [writer, ..] = environment;
        Self {
            cluster,
            program: program.unwrap(),
            repository: format!("s3://{}/backups", s3.bucket()),
            environment: writer,
            s3: Some(s3),
            azure: None,
        }
    }

    /// Runs the program with the rights of a role.
    pub fn run_as(&self, role: &str, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.env("PGSTRATA_CREDENTIALS", self.credentials_of(role));
        command.output().unwrap()
    }

    /// Runs it, which must end with that code; answers standard output and standard error.
    pub fn ends_as(&self, role: &str, arguments: &[&str], code: i32) -> (String, String) {
        let output = self.run_as(role, arguments);
        process::ended(output, &format!("{role} {arguments:?}"), code)
    }

    /// The file in which commands find the account of a role.
    pub fn credentials_of(&self, role: &str) -> String {
        let directory = self.cluster.pgdata().parent().unwrap().to_owned();
        let file = directory.join(format!("credentials/{role}.toml"));
        file.display().to_string()
    }

    /// Keys of all objects in the bucket.
    pub fn keys(&self) -> Vec<String> {
        let listed = self.s3().request(None, "GET", "?list-type=2", "").unwrap();
        assert!(
            listed.body.contains("<IsTruncated>false<"),
            "{}",
            listed.body
        );
        let keys = listed.body.split("<Key>").skip(1);
        let keys = keys.map(|rest| rest.split('<').next().unwrap().to_owned());
        keys.collect()
    }

    /// Everything in the bucket becomes two days older.
    pub fn age_all(&self) {
        files::age(&self.objects(), "2 days ago");
    }
}

/// Stores note whole seconds: nothing happens within some of them.
pub fn quiet_moment() -> String {
    let pause = Duration::from_millis(1600);
    thread::sleep(pause);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    thread::sleep(pause);
    let seconds = i64::try_from(now.as_secs()).unwrap();
    Timestamp::from_second(seconds).unwrap().to_string()
}
