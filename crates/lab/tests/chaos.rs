//! Chaos finds nothing in short runs, and notices what is done to restores, archives and backups on purpose.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pgstrata_testbed::programs::{copy_program, write_script};
use serde_json::Value;
use tempfile::TempDir;

/// A directory that the server's user can reach.
fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("pgs-chaos-test-")
        .permissions(Permissions::from_mode(0o755))
        .tempdir()
        .unwrap()
}

/// The program that is tried, which must be built beside the lab.
fn pgstrata() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_pgstrata-lab")).with_file_name("pgstrata");
    assert!(program.is_file(), "build pgstrata first: make test does");
    program
}

fn chaos(scratch: &Path, words: &[&str]) -> Output {
    let out = scratch.join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgstrata-lab"));
    command.arg("chaos").args(words).arg("--out").arg(out);
    // Beside other tests what gives way hardly gets on.
    command.env("PGSTRATA_IMPACT", "none");
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// A run that finds nothing; a finding stays on the disk. Returns what it said.
fn finds_nothing(words: &[&str]) -> String {
    let scratch = scratch();
    let output = chaos(scratch.path(), words);
    if output.status.code() != Some(0) {
        let kept = scratch.keep();
        panic!("{}\nkept in {}", said(&output), kept.display());
    }
    assert!(!scratch.path().join("out").exists(), "nothing was found");
    said(&output)
}

/// Seed 7 took the place of 1 when the run had to find changes by page LSNs. No finding of either is noted.
#[test]
fn thirty_steps_on_15_with_page_lsns_find_nothing() {
    let how = ["--seed", "7", "--steps", "30", "--major", "15"];
    let where_to = [
        "--archive",
        "true",
        "--store",
        "directory",
        "--at-the-end",
        "3",
    ];
    let said = finds_nothing(&[how, where_to].concat());
    assert!(said.contains(" by lsn"), "{said}");
}

/// Seed 5 took the place of 2 when the run had to find changes by the tracker. No finding of either is noted.
#[test]
fn thirty_steps_on_18_with_the_tracker_find_nothing() {
    let how = ["--seed", "5", "--steps", "30", "--major", "18", "--tracker"];
    let said = finds_nothing(&[&how[..], &["--store", "directory", "--at-the-end", "3"]].concat());
    assert!(said.contains(" by tracker"), "{said}");
}

/// The seed is the first that this run had. No finding of it is noted.
#[test]
fn twenty_steps_on_16_find_nothing() {
    let how = ["--seed", "3", "--steps", "20", "--major", "16"];
    finds_nothing(&[&how[..], &["--store", "directory", "--at-the-end", "2"]].concat());
}

/// The seed is the first that this run had, and finds changes by WAL summaries. No finding of it is noted.
#[test]
fn twenty_steps_on_17_find_nothing() {
    let how = ["--seed", "4", "--steps", "20", "--major", "17"];
    let said = finds_nothing(&[&how[..], &["--store", "directory", "--at-the-end", "2"]].concat());
    assert!(said.contains(" by summary"), "{said}");
}

/// The network of this seed stalled in the middle of an object once, and the store kept what had come: keep the seed.
#[test]
fn twenty_steps_on_s3_find_nothing() {
    let how = ["--seed", "2", "--steps", "20", "--major", "18"];
    finds_nothing(&[&how[..], &["--store", "s3", "--at-the-end", "2"]].concat());
}

/// With this seed a copy lives beside its original for ten steps, and both are backed up: keep the seed.
const TWO_SERVERS: [&str; 2] = ["105071", "15"];

#[test]
fn two_servers_of_one_cluster_find_nothing() {
    let [seed, steps] = TWO_SERVERS;
    let how = ["--seed", seed, "--steps", steps, "--major", "17"];
    let where_to = ["--archive", "true", "--store", "directory"];
    finds_nothing(&[&how[..], &where_to, &["--at-the-end", "6"]].concat());
}

/// With this seed somebody destroys objects of a bucket with versions in step 6, and the network of the first rescue is slow.
/// In step 11 a restore in place is asked to end. Keep the seed.
const DESTROYED: [&str; 2] = ["9022", "11"];

#[test]
fn a_bucket_with_versions_whose_objects_are_destroyed_finds_nothing() {
    let [seed, steps] = DESTROYED;
    let how = ["--seed", seed, "--steps", steps, "--archive", "true"];
    let said = finds_nothing(&[&how[..], &["--store", "s3", "--at-the-end", "2"]].concat());
    assert!(said.contains("objects destroyed"), "{said}");
    assert!(said.contains(" in place "), "{said}");
}

/// Runs a program in the place of `pgstrata`, which does something wrong; returns the finding.
fn finding(wrong: &str) -> String {
    finding_of(["4", "6"], wrong)
}

/// The same with a seed, for so many steps.
fn finding_of(run: [&str; 2], wrong: &str) -> String {
    finding_in("directory", run, wrong)
}

/// The same where the repository is in such a store.
fn finding_in(store: &str, [seed, steps]: [&str; 2], wrong: &str) -> String {
    let scratch = scratch();
    let real = scratch.path().join("pgstrata");
    copy_program(&pgstrata(), &real).unwrap();
    let script = scratch.path().join("wrong");
    let text = format!(
        "#!/bin/bash\nreal={}\nact= target= before=\nfor word in \"$@\"; do\n\
         \tcase $word in backup | restore | archive-push | info) act=${{act:-$word}} ;; esac\n\
         \t[ \"$before\" = --target-dir ] && target=$word\n\tbefore=$word\ndone\n{wrong}\nexec \"$real\" \"$@\"\n",
        real.display()
    );
    write_script(&script, &text).unwrap();
    let program = script.display().to_string();
    let calm = [
        "--seed",
        seed,
        "--steps",
        steps,
        "--archive",
        "true",
        "--store",
        store,
    ];
    let output = chaos(
        scratch.path(),
        &[&calm[..], &["--pgstrata", &program]].concat(),
    );
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let found = said
        .lines()
        .find(|line| line.starts_with(&format!("FINDING with seed {seed}")));
    let found = found.unwrap_or_else(|| panic!("{said}")).to_owned();
    let repeat = format!("chaos --seed {seed} --steps {steps}");
    assert!(said.contains(&repeat), "{said}");
    let steps = fs::read_to_string(scratch.path().join("out/steps.jsonl")).unwrap();
    let last: Value = serde_json::from_str(steps.lines().next_back().unwrap()).unwrap();
    let logged = last["finding"].as_str().unwrap().lines().next().unwrap();
    assert!(found.ends_with(logged), "{last}");
    found
}

#[test]
fn a_page_that_is_not_the_one_that_was_backed_up_is_noticed() {
    let found = finding(
        "if [ \"$act\" = restore ]; then\n\
         \t\"$real\" \"$@\" || exit\n\
         \tfind -L \"$target\"/base \"$target\"/pg_tblspc -type f -size +7k -name '1[6-9][0-9][0-9][0-9]' | while read -r file; do\n\
         \t\thead -c 8192 /dev/urandom | dd of=\"$file\" conv=notrunc status=none\n\
         \tdone\n\texit 0\nfi",
    );
    assert!(found.contains("restored server"), "{found}");
}

#[test]
fn wal_that_was_called_archived_and_is_not_is_noticed() {
    let found = finding("[ \"$act\" = archive-push ] && exit 0");
    assert!(!found.is_empty());
}

#[test]
fn a_backup_that_was_reported_and_not_taken_is_noticed() {
    let found = finding(
        "report=$(dirname \"$0\")/report.$$\n\
         if [ \"$act\" = backup ]; then\n\
         \t\"$real\" \"$@\" >\"$report\" || exit\n\
         \tsed -i 's/\"label\": *\"[^\"]*\"/\"label\":\"20200101-000000F\"/' \"$report\"\n\tcat \"$report\"\n\texit 0\nfi",
    );
    assert!(found.contains("layer"), "{found}");
}

#[test]
fn a_restore_that_follows_the_other_of_two_servers_is_noticed() {
    let found = finding_of(
        TWO_SERVERS,
        "if [ \"$act\" = restore ]; then\n\
         \tfor word in \"$@\"; do\n\t\tshift\n\
         \t\tset -- \"$@\" \"${word/#--target-timeline=*/--target-timeline=latest}\"\n\tdone\nfi",
    );
    assert!(
        found.contains("which nothing explains") || found.contains("restored server"),
        "{found}"
    );
}

#[test]
fn changes_since_a_backup_of_the_other_server_that_a_source_claims_to_know_are_noticed() {
    let found = finding_of(
        TWO_SERVERS,
        "report=$(dirname \"$0\")/report.$$\n\
         if [ \"$act\" = backup ]; then\n\
         \t\"$real\" \"$@\" >\"$report\"\n\tcode=$?\n\
         \tsed -i 's/\"used\": *\"digest\"/\"used\":\"lsn\"/' \"$report\"\n\tcat \"$report\"\n\texit $code\nfi",
    );
    assert!(found.contains("which is not in its past"), "{found}");
}

#[test]
fn objects_that_a_rescue_calls_back_and_are_not_are_noticed() {
    let found = finding_in(
        "s3",
        DESTROYED,
        "case \" $* \" in *\" rescue \"*)\n\
         \t\"$real\" --output json rescue --since 2999-12-31T00:00:00Z --dry-run 2>/dev/null\n\texit 0\n\tesac",
    );
    assert!(found.contains("verify"), "{found}");
}
