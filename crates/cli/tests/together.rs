//! Several processes on one repository: backups of two clusters, two backups of one, expiry and merging, all at once.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use serde_json::Value;
use support::{Stage, Store, number};

const BUSY: i32 = 12;
const REFUSED: i32 = 13;
const WARNINGS: i32 = 3;

/// How often a program ended with each of the codes that it may end with.
#[derive(Debug, Default)]
struct Codes {
    done: u32,
    busy: u32,
    refused: u32,
    warned: u32,
}

impl Codes {
    fn count(&mut self, output: &Output) {
        let log = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => self.done += 1,
            Some(BUSY) => self.busy += 1,
            Some(REFUSED) => {
                assert!(log.contains("removed in the meantime"), "{log}");
                self.refused += 1;
            }
            Some(WARNINGS) => self.warned += 1,
            _ => panic!("{}: {log}", output.status),
        }
    }
}

/// A server and its name in the repository.
#[derive(Clone, Copy)]
struct Named<'a> {
    stage: &'a Stage,
    server: &'a Cluster,
    name: &'static str,
}

impl Named<'_> {
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self
            .stage
            .command_beside(self.server, &["--cluster", self.name]);
        command.args(arguments).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.run(arguments);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{} {arguments:?}: {log}",
            self.name
        );
        output.stdout
    }

    fn pgdata(&self) -> String {
        self.server.pgdata().display().to_string()
    }
}

fn backups(of: Named<'_>, count: u32) -> Codes {
    let (mut codes, pgdata) = (Codes::default(), of.pgdata());
    while codes.done < count {
        let update = "UPDATE numbers SET n = n + 1 WHERE n % 7 = 0";
        of.server.sql("postgres", update).unwrap();
        codes.count(&of.run(&["backup", "--pgdata", &pgdata, "--type", "auto"]));
    }
    codes
}

fn expiries(of: Named<'_>, over: &AtomicBool) -> Codes {
    let mut codes = Codes::default();
    while !over.load(Ordering::Relaxed) {
        codes.count(&of.run(&["expire", "--max-chain", "2"]));
    }
    codes
}

/// Two loops of backups and two of expiry on one cluster, and one of backups of another.
fn all_at_once(main: Named<'_>, other: Named<'_>) {
    let over = AtomicBool::new(false);
    let (ours, others, expired) = thread::scope(|scope| {
        let ours = [0, 1].map(|_| scope.spawn(|| backups(main, 4)));
        let others = scope.spawn(|| backups(other, 5));
        let expired = [0, 1].map(|_| scope.spawn(|| expiries(main, &over)));
        let ours = ours.map(thread::ScopedJoinHandle::join);
        let others = others.join();
        over.store(true, Ordering::Relaxed);
        let expired = expired.map(|thread| thread.join().unwrap());
        (ours.map(Result::unwrap), others.unwrap(), expired)
    });
    let told = format!("{ours:?} {others:?} {expired:?}");
    let busy = ours[0].busy + ours[1].busy;
    assert!(busy > 0, "two backups of one server are kept apart: {told}");
    assert_eq!(
        (others.busy, others.refused),
        (0, 0),
        "the other is alone: {told}"
    );
    let warned = expired[0].warned + expired[1].warned;
    assert!(warned > 0, "expiry sees backups at work: {told}");
}

/// A backup of what the server has now restores to that.
fn assert_restores(of: Named<'_>) {
    of.ok(&["backup", "--pgdata", &of.pgdata()]);
    let expected = of.server.dump().unwrap();
    let target = of.stage.target(&format!("restored-{}", of.name));
    let directory = target.display().to_string();
    let until = ["--target-type", "immediate", "--target-action", "promote"];
    of.ok(&[&["restore", "--target-dir", &directory], &until[..]].concat());
    let restored = Cluster::adopt(of.server.major(), &target)
        .conf("archive_mode", "off")
        .start()
        .unwrap();
    restored.wait_promoted(support::PATIENCE).unwrap();
    require_same_dump(&expected, &restored.dump().unwrap()).unwrap();
}

#[test]
fn many_processes_share_a_repository() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::S3);
    let server = Cluster::builder(Major::V18).start().unwrap();
    let named = |server, name| Named {
        stage: &stage,
        server,
        name,
    };
    let both = [named(&stage.cluster, "main"), named(&server, "other")];
    let [main, other] = both;
    other.ok(&["init", "--pgdata", &other.pgdata()]);
    for of in both {
        let table = "CREATE TABLE numbers AS SELECT n FROM generate_series(1, 40000) n";
        of.server.sql("postgres", table).unwrap();
    }
    all_at_once(main, other);

    main.ok(&["expire", "--max-chain", "2"]);
    // Backups that chose their parent at the same time stand beside each other, and no rule is against either.
    let info = stage.json(&["info"]);
    let newest = info.pointer("/layers").and_then(Value::as_array).unwrap();
    assert!(
        number(newest.last().unwrap(), "/chain_length") <= 2,
        "{info:#}"
    );
    let (_, unfinished) = stage.layer_counts();
    assert_eq!(unfinished, 0, "{info:#}");
    for of in both {
        of.ok(&["verify", "--deep"]);
        assert_restores(of);
    }
}
