//! Repositories that have not all the same: layers and WAL that one has missed, seals that differ, names that were used.

use std::fs;
use std::os::unix::fs::symlink;
use std::thread;
use std::time::Duration;

use pgstrata_testbed::s3::{Bucket, S3Server};
use serde_json::Value;

use super::support::text;
use super::{REFUSED, Two, USAGE, WARNINGS, log, segment, spoil, without};

const WAL_MISSING: i32 = 18;
const UNREACHABLE: i32 = 19;
const DAMAGED: i32 = 14;

#[test]
fn a_restore_takes_no_older_layer_because_the_first_repository_has_missed_one() {
    let two = Two::in_directories();
    let older = text(&two.backup(0, "full"), "/label").to_owned();
    let pgdata = two.stage.pgdata();
    let mut newer = String::new();
    without(&two.near, || {
        let sql = "CREATE TABLE after AS SELECT 1 AS one";
        two.stage.cluster.sql("postgres", sql).unwrap();
        let backup = ["backup", "-D", &pgdata, "--wal", "stream", "--type", "incr"];
        newer = text(&two.json(WARNINGS, &backup), "/label").to_owned();
    });
    let target = two.stage.target("restored");
    let into = ["restore", "--target-dir", target.to_str().unwrap()];
    let then = ["--target-type", "immediate", "--target-action", "promote"];
    let restore = [&into[..], &then].concat();
    let planned = two.json(0, &[&restore[..], &["--dry-run"]].concat());
    let has_note = |document: &Value, words: &[&str]| {
        let mut notes = document["notes"].as_array().unwrap().iter();
        let has = notes.any(|note| {
            words
                .iter()
                .all(|word| note.as_str().unwrap().contains(word))
        });
        assert!(has, "{words:?}: {document:#}");
    };
    assert_eq!(text(&planned, "/label"), newer);
    // Each looks well alone.
    let shown = two.json(WARNINGS, &["info"]);
    has_note(&shown, &[&newer, "not in repository near"]);
    has_note(
        &planned,
        &[&newer, "repository far", "not in repository near"],
    );
    let restored = two.json(0, &restore);
    has_note(&restored, &[&newer, "not in repository near"]);
    let server = two.stage.start_restored(&target);
    assert_eq!(
        server.sql("postgres", "SELECT one FROM after").unwrap(),
        "1"
    );
    // When the newest one cannot be restored, both are named.
    spoil(&two.far.join("main/layer").join(&newer).join("manifest"));
    let other = two.stage.target("other");
    let into = ["restore", "--target-dir", other.to_str().unwrap()];
    let restored = two.json(0, &[&into[..], &then].concat());
    assert_eq!(text(&restored, "/label"), older);
    has_note(
        &restored,
        &[&older, &newer, "which cannot be restored from"],
    );
}

/// Nobody knows who puts a file there, and it says nothing of the WAL.
#[test]
fn a_name_in_the_archive_that_no_timeline_has_does_not_lead_to_an_older_layer() {
    let two = Two::in_directories();
    two.backup(0, "full");
    let pgdata = two.stage.pgdata();
    let mut newer = String::new();
    without(&two.near, || {
        let backup = ["backup", "-D", &pgdata, "--wal", "stream", "--type", "incr"];
        newer = text(&two.json(WARNINGS, &backup), "/label").to_owned();
    });
    fs::write(two.near.join("main/wal/README"), "x").unwrap();
    let target = two.stage.target("restored");
    let restore = [
        "restore",
        "--dry-run",
        "--target-dir",
        target.to_str().unwrap(),
    ];
    let planned = two.json(0, &restore);
    assert_eq!(text(&planned, "/label"), newer);
    let notes = planned["notes"].to_string();
    assert!(!notes.contains("last timeline"), "{notes}");
    // One that was not tried may be fit to restore from.
    let file = two.stage.target("00000002.history");
    fs::write(&file, "1\t0/FFFFFF0\tpromoted\n").unwrap();
    let push = ["--repo", "near", "archive-push", file.to_str().unwrap()];
    let output = two.run(&push);
    assert!(output.status.success(), "{}", log(&output));
    let along = ["--target-timeline", "1", "--target-type", "immediate"];
    let planned = two.json(0, &[&restore[..], &along].concat());
    assert_ne!(text(&planned, "/label"), newer);
    let notes = planned["notes"].to_string();
    let words = "is in repository far, which does not know the last timeline";
    assert!(notes.contains(words), "{notes}");
}

/// The server that recovers asks all for each history: what stops it may be in the one that is not restored from.
#[test]
fn a_history_that_no_repository_can_read_stops_a_restore_along_the_latest_timeline() {
    let two = Two::in_directories();
    two.backup(0, "full");
    two.stage.moment();
    let expected = two.stage.cluster.dump().unwrap();
    for (at, place) in [&two.near, &two.far].into_iter().enumerate() {
        let directory = place.join("main/wal/00000002");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("00000002.history"), "x").unwrap();
        let target = two.stage.target(&format!("restored-{at}"));
        let into = ["restore", "--target-dir", target.to_str().unwrap()];
        let output = two.run(&into);
        assert_eq!(output.status.code(), Some(DAMAGED), "{}", log(&output));
        assert!(
            log(&output).contains("--target-timeline"),
            "{}",
            log(&output)
        );
        let output = two.run(&[&into[..], &["--target-timeline", "1"]].concat());
        assert!(output.status.success(), "{}", log(&output));
        let restored = two.stage.start_restored(&target);
        assert_eq!(restored.dump().unwrap(), expected);
        fs::remove_file(directory.join("00000002.history")).unwrap();
        fs::write(directory.join("foo"), "x").unwrap();
        let other = two.stage.target("other");
        let output = two.run(&["restore", "--target-dir", other.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(WAL_MISSING), "{}", log(&output));
        fs::remove_dir_all(&directory).unwrap();
    }
}

/// Who knows the last timeline says that it is not there yet; the other would go along the one that was left.
#[test]
fn a_repository_that_does_not_know_the_last_timeline_restores_nothing_that_the_other_refuses() {
    let two = Two::in_directories();
    two.backup(0, "full");
    let (lsn, _) = two.stage.moment();
    let file = two
        .stage
        .cluster
        .create_dir("histories")
        .unwrap()
        .join("00000002.history");
    fs::write(&file, format!("1\t{lsn}\tpromoted\n")).unwrap();
    let push = ["--repo", "far", "archive-push", file.to_str().unwrap()];
    let output = two.run(&push);
    assert!(output.status.success(), "{}", log(&output));
    let target = two.stage.target("restored");
    let restore = ["restore", "--target-dir", target.to_str().unwrap()];
    let restore = [&restore[..], &["--target-type", "standby"]].concat();
    for (latest, code) in [
        (&[][..], UNREACHABLE),
        (&["--target-timeline", "latest"], WAL_MISSING),
    ] {
        let output = two.run(&[&restore[..], latest].concat());
        assert_eq!(output.status.code(), Some(code), "{}", log(&output));
        assert!(!target.exists());
    }
    let output = two.run(&[&restore[..], &["--target-timeline", "1"]].concat());
    assert!(output.status.success(), "{}", log(&output));
}

#[test]
fn wal_that_is_split_over_repositories_is_brought_together_by_copies() {
    let two = Two::in_directories();
    two.backup(0, "full");
    let (one, other) = (two.last_segment(), two.last_segment());
    let (lsn, expected) = two.stage.moment();
    fs::remove_file(segment(&two.near, &one)).unwrap();
    fs::remove_file(segment(&two.far, &other)).unwrap();
    let target = two.stage.target("restored");
    let into = ["restore", "--target-dir", target.to_str().unwrap()];
    let until = [
        "--target-type",
        "lsn",
        "--target",
        &lsn,
        "--target-action",
        "promote",
    ];
    let restore = [&into[..], &until].concat();
    let output = two.run(&restore);
    assert_eq!(output.status.code(), Some(WAL_MISSING), "{}", log(&output));
    for (from, to) in [("far", "near"), ("near", "far")] {
        let copy = format!("\"pgstrata --repo {from} copy --to {to}\"");
        assert!(log(&output).contains(&copy), "{}", log(&output));
        two.json(0, &["--repo", from, "copy", "--to", to]);
    }
    let output = two.run(&restore);
    assert!(output.status.success(), "{}", log(&output));
    let restored = two.stage.start_restored(&target);
    assert_eq!(restored.dump().unwrap(), expected);
}

#[test]
fn a_bucket_with_versions_gets_one_backup_after_another() {
    let two = Two::with_s3(S3Server::start_with(Bucket::Versioned).unwrap());
    for kind in ["full", "incr", "full"] {
        two.backup(0, kind);
    }
    two.json(0, &["--repo", "far", "verify", "--deep"]);
}

#[test]
fn one_directory_under_two_names_is_refused() {
    let two = Two::in_directories();
    let name = two.last_segment();
    let path = two.get_to_push(&name);
    let link = two.near.with_extension("link");
    symlink(&two.near, &link).unwrap();
    let text = fs::read_to_string(&two.config).unwrap();
    let far = format!("'file://{}'", two.far.display());
    let twice = text.replace(&far, &format!("'file://{}'", link.display()));
    assert_ne!(twice, text);
    fs::write(&two.config, twice).unwrap();
    for arguments in [&["archive-push", &path][..], &["info"]] {
        let output = two.run(arguments);
        assert_eq!(output.status.code(), Some(USAGE), "{}", log(&output));
        assert!(
            log(&output).contains("are the same directory"),
            "{}",
            log(&output)
        );
    }
    two.json(0, &["--repo", "far", "info"]);
}

/// One store may be reached at several addresses, and one address be written in several ways.
#[test]
fn a_bucket_under_two_names_is_no_second_repository() {
    let two = Two::with_a_network();
    two.backup(0, "full");
    let (proxy, s3) = two.network.as_ref().unwrap();
    let keys = two.config.with_file_name("../keys/far.toml");
    let keys = keys.display().to_string();
    let url = format!("s3://{}/far", s3.bucket());
    for endpoint in [
        proxy.endpoint().to_owned(),
        format!("{}/", proxy.endpoint()),
        s3.endpoint().to_owned(),
    ] {
        let endpoint = format!("endpoint={endpoint}");
        let copy = [
            "--repo",
            "far",
            "copy",
            "--to",
            &url,
            "--to-credentials",
            &keys,
        ];
        let more = ["endpoint", "path_style=true", "allow_http=true"];
        let more = more.map(|one| if one == "endpoint" { &endpoint } else { one });
        let more = more.map(|option| ["--to-storage", option]).concat();
        let output = two.run(&[&copy[..], &more].concat());
        assert_eq!(
            output.status.code(),
            Some(USAGE),
            "{endpoint}: {}",
            log(&output)
        );
        let said = log(&output);
        assert!(said.contains("out of which to copy"), "{endpoint}: {said}");
    }
    let probes = fs::read_dir(two.far.join("main")).unwrap().flatten();
    let left = probes.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"probe"));
    assert_eq!(left.count(), 0);
    let text = fs::read_to_string(&two.config).unwrap();
    let (_, table) = text.split_once("[repositories.far]").unwrap();
    let again = table.replace("[repositories.far", "[repositories.again");
    let again = again.replace(proxy.endpoint(), &format!("{}/", proxy.endpoint()));
    fs::write(&two.config, format!("{text}[repositories.again]{again}")).unwrap();
    let output = two.run(&["info"]);
    assert_eq!(output.status.code(), Some(USAGE), "{}", log(&output));
    assert!(log(&output).contains("are the same"), "{}", log(&output));
}

#[test]
fn two_that_were_away_one_after_the_other_are_each_told_what_they_lack() {
    let two = Two::in_directories();
    two.backup(0, "full");
    let pgdata = two.stage.pgdata();
    let backup = ["backup", "-D", &pgdata, "--wal", "stream", "--type", "incr"];
    let mut missed = Vec::new();
    for away in [&two.near, &two.far] {
        without(away, || {
            let taken = two.json(WARNINGS, &backup);
            missed.push(text(&taken, "/label").to_owned());
        });
        // Who knows nothing of the other may take the label of the same second, and a label may be a second ahead.
        thread::sleep(Duration::from_millis(2100));
    }
    let taken = two.json(WARNINGS, &backup);
    // The other one has got what the new backup stands on.
    let lack = format!("near lacks 1 layer that far has, up to {}", missed[0]);
    assert!(
        taken["warnings"].to_string().contains(&lack),
        "{lack}: {taken:#}"
    );
    two.json(0, &["--repo", "far", "copy", "--to", "near"]);
    two.json(0, &["--repo", "near", "copy", "--to", "far"]);
    let output = two.run(&[&["--output", "json"], &backup[..]].concat());
    let again = String::from_utf8(output.stdout).unwrap();
    assert!(
        again.contains("backup/1") && !again.contains("lacks"),
        "{again}"
    );
}

/// A backup would take the objects for files of the cluster, and a restore in place would remove them.
#[test]
fn no_repository_of_the_file_may_lie_in_the_cluster_whichever_is_used() {
    let two = Two::in_directories();
    two.backup(0, "full");
    let pgdata = two.stage.cluster.pgdata().to_owned();
    let text = fs::read_to_string(&two.config).unwrap();
    let inside = pgdata.join("far");
    let moved = text.replace(
        &format!("'file://{}'", two.far.display()),
        &format!("'file://{}'", inside.display()),
    );
    assert_ne!(moved, text);
    fs::write(&two.config, moved).unwrap();
    fs::rename(&two.far, &inside).unwrap();
    let objects = || fs::read_dir(inside.join("main/layer")).unwrap().count();
    let there = objects();
    let data = pgdata.display().to_string();
    let backup = ["backup", "-D", &data];
    let restore = ["restore", "--target-dir", &data, "--delta"];
    for arguments in [
        &backup[..],
        &[&["--repo", "near"], &backup[..]].concat(),
        &restore,
        &[&["--repo", "near"], &restore[..]].concat(),
    ] {
        let output = two.run(arguments);
        assert_eq!(output.status.code(), Some(REFUSED), "{}", log(&output));
        assert!(log(&output).contains("lies in"), "{}", log(&output));
    }
    assert_eq!(objects(), there);
}

#[test]
fn nobody_is_told_to_copy_where_that_is_refused() {
    let two = Two::in_directories();
    let pgdata = two.stage.pgdata();
    let identity = two
        .stage
        .cluster
        .create_dir("identities")
        .unwrap()
        .join("one");
    let shown = identity.display().to_string();
    let made = two.run(&["key", "generate", &shown]);
    assert!(made.status.success(), "{}", log(&made));
    let recipient = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let sealed = two.stage.cluster.create_dir("sealed").unwrap();
    let text = fs::read_to_string(&two.config).unwrap();
    let far = format!("repo = 'file://{}'", two.far.display());
    let other = format!("repo = 'file://{}'\nidentity = '{shown}'", sealed.display());
    fs::write(&two.config, text.replace(&far, &other)).unwrap();
    let init = [
        "--repo",
        "far",
        "init",
        "-D",
        &pgdata,
        "--encrypt",
        "--one-recipient",
    ];
    let made = two.run(&[&init[..], &["--recipient", &recipient]].concat());
    assert!(made.status.success(), "{}", log(&made));
    let backup = ["backup", "-D", &pgdata, "--wal", "stream", "--type", "full"];
    let output = two.run(&backup);
    assert_eq!(output.status.code(), Some(WARNINGS), "{}", log(&output));
    let said = log(&output);
    assert!(said.contains("failed   in far"), "{said}");
    assert!(said.contains("is not sealed"), "{said}");
    assert!(!said.contains("brings it there"), "{said}");
}

/// Each has a record of its own then, and a layer that a backup has stored in both is the same in each.
#[test]
fn a_repository_that_init_has_made_knows_the_past_that_another_one_has_written_down() {
    let two = Two::in_directories();
    let pgdata = two.stage.pgdata();
    fs::remove_dir_all(two.far.join("main")).unwrap();
    two.json(0, &["--repo", "far", "init", "-D", &pgdata]);
    let full = two.backup(0, "full");
    let backup = ["backup", "-D", &pgdata, "--wal", "stream", "--type", "incr"];
    let require_known = |made: &Value, parent: &str| {
        assert_eq!(text(made, "/parent"), parent, "{made:#}");
        assert_eq!(text(made, "/change_source/used"), "lsn", "{made:#}");
        assert!(!made.to_string().contains("another one"), "{made:#}");
    };
    let mut made = Value::Null;
    without(&two.near, || made = two.json(WARNINGS, &backup));
    require_known(&made, text(&full, "/label"));
    let copied = two.run(&["--repo", "far", "copy", "--to", "near"]);
    assert!(copied.status.success(), "{}", log(&copied));
    // Its archiver tries again what failed meanwhile.
    two.stage.archive_all();
    let next = two.json(0, &backup);
    require_known(&next, text(&made, "/label"));
}
