//! What is said, and refused, of a sealed cluster that nobody or not everybody opens.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use pgstrata_testbed::cluster::{Cluster, Major};
use support::Store;
use support::vault::Vault;

const WARNINGS: i32 = 3;
const REFUSED: i32 = 13;
const DAMAGED: i32 = 14;

fn silent() -> Vault {
    Vault::on(Cluster::builder(Major::V15), Store::Directory)
}

const FULL: [&str; 4] = ["--type", "full", "--wal", "stream"];

/// The directory of an epoch.
fn epoch(vault: &Vault, number: u32) -> PathBuf {
    let keys = vault.stage.objects().join("vault/key");
    let seal = fs::read_dir(keys).unwrap().next().unwrap().unwrap().path();
    seal.join(format!("{number:06}"))
}

/// The key boxes of an epoch whose names begin so.
fn boxes(vault: &Vault, number: u32, role: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(epoch(vault, number)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = paths
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(role)
        })
        .collect();
    found.sort();
    found
}

/// Takes the readers' boxes of an epoch away; they come back with [`bring_back`].
fn lose_readers(vault: &Vault, number: u32) -> PathBuf {
    let kept = vault.stage.target(&format!("kept-{number}"));
    fs::create_dir_all(&kept).unwrap();
    for path in boxes(vault, number, "reader-") {
        let name = path.file_name().unwrap();
        fs::copy(&path, kept.join(name)).unwrap();
        fs::remove_file(&path).unwrap();
    }
    kept
}

fn bring_back(vault: &Vault, number: u32, kept: &Path) {
    for entry in fs::read_dir(kept).unwrap() {
        let entry = entry.unwrap();
        let place = epoch(vault, number).join(entry.file_name());
        fs::copy(entry.path(), &place).unwrap();
        vault.stage.cluster.own(&place).unwrap();
    }
}

/// Whoever verifies finds that an epoch has no reader.
fn require_unread(vault: &Vault, number: u32, who: &[&str]) {
    let says = format!("nobody can open what was sealed in epoch {number}");
    for who in who {
        let (code, named) = vault.verify(who, &[]);
        assert_eq!(code, DAMAGED, "{who}: {named:?}");
        let about = named.iter().filter(|line| line.contains(&says));
        assert!(about.count() >= 1, "{who}: {named:?}");
    }
    let pgdata = vault.stage.pgdata();
    for (words, code) in [
        (&["info"][..], WARNINGS),
        (&["key", "check"], DAMAGED),
        (&["check", "-D", &pgdata, "--wal", "stream"], REFUSED),
    ] {
        let output = vault.run("writer", words);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {shown}");
        assert_eq!(shown.matches(&says).count(), 1, "{words:?}: {shown}");
        assert!(!shown.contains("has one reader"), "{words:?}: {shown}");
    }
}

#[test]
fn an_epoch_that_has_lost_its_readers_is_damage_for_everybody() {
    let vault = silent();
    vault.backup(&FULL);
    vault.ok("one", &["key", "rotate"]);
    vault.backup(&FULL);
    for who in ["", "one", "writer"] {
        assert_eq!(vault.verify(who, &[]), (0, Vec::new()), "{who}");
    }
    let copy = vault.stage.target("copy");
    let to = format!("file://{}", copy.display());

    // An old one: what is new is made and copied all the same.
    let kept = lose_readers(&vault, 1);
    require_unread(&vault, 1, &["", "one", "writer"]);
    vault.backup(&FULL);
    let output = vault.run("writer", &["copy", "--to", &to]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    assert!(log.contains("in the copy nobody can open"), "{log}");
    bring_back(&vault, 1, &kept);
    assert_eq!(vault.verify("one", &[]), (0, Vec::new()));

    // The current one: no backup and no copy that nobody would open.
    lose_readers(&vault, 2);
    require_unread(&vault, 2, &["", "writer"]);
    let says = "nobody can open what was sealed in epoch 2";
    let pgdata = vault.stage.pgdata();
    let log = vault.fails(
        "writer",
        &[&["backup", "-D", &pgdata][..], &FULL].concat(),
        DAMAGED,
    );
    assert!(log.contains(says), "{log}");
    let other = vault.stage.target("other");
    let to = format!("file://{}", other.display());
    let log = vault.fails("writer", &["copy", "--to", &to], DAMAGED);
    assert!(log.contains(says) && !other.exists(), "{log}");
    for words in [&["info"][..], &["key", "rotate"]] {
        let log = vault.fails("one", words, DAMAGED);
        assert!(log.contains(says) && !log.contains("key remove"), "{log}");
    }
    // WAL goes on: boxes can be brought back, and segments that the server has dropped cannot.
    let sql = |sql: &str| vault.stage.cluster.sql("postgres", sql).unwrap();
    sql("CREATE TABLE t AS SELECT 1 AS n");
    let segment = sql("SELECT pg_walfile_name(pg_current_wal_lsn())");
    sql("SELECT pg_switch_wal()");
    let mark = PathBuf::from(format!("{pgdata}/pg_wal/archive_status/{segment}.ready"));
    fs::write(&mark, "").unwrap();
    vault.stage.cluster.own(&mark).unwrap();
    let segment = format!("{pgdata}/pg_wal/{segment}");
    let output = vault.run("writer", &["archive-push", &segment]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    assert_eq!(log.matches(says).count(), 1, "{log}");
}

#[test]
fn boxes_of_others_that_rot_are_found_by_who_has_a_key() {
    let vault = silent();
    vault.backup(&FULL);
    let own = boxes(&vault, 1, "writer-").remove(0);
    let all = [boxes(&vault, 1, "reader-"), boxes(&vault, 1, "keeper-")].concat();
    for (number, place) in all.iter().enumerate() {
        let genuine = fs::read(place).unwrap();
        let mut flipped = genuine.clone();
        flipped[genuine.len() / 2] ^= 1;
        let key = place.strip_prefix(vault.stage.objects()).unwrap();
        let key = key.display().to_string();
        let wrong = [
            flipped,
            genuine[..genuine.len() / 2].to_vec(),
            Vec::new(),
            fs::read(&own).unwrap(),
        ];
        for wrong in &wrong[number % wrong.len()..][..1] {
            fs::write(place, wrong).unwrap();
            for who in ["", "writer"] {
                let (code, named) = vault.verify(who, &[]);
                assert_eq!(code, DAMAGED, "{who}: {named:?}");
                let about = named.iter().filter(|line| line.contains(&key));
                assert_eq!(about.count(), 1, "{who}: {named:?}");
            }
        }
        fs::write(place, &genuine).unwrap();
    }
    let place = &boxes(&vault, 1, "keeper-")[0];
    let genuine = fs::read(place).unwrap();
    fs::copy(&own, place).unwrap();
    for (who, more) in [("writer", &[][..]), ("one", &["--deep"])] {
        let (code, named) = vault.verify(who, more);
        assert_eq!((code, named.len()), (DAMAGED, 1), "{who}: {named:?}");
    }
    fs::write(place, &genuine).unwrap();
    assert_eq!(vault.verify("one", &["--deep"]), (0, Vec::new()));
}

#[test]
fn who_opens_no_page_plans_no_restore_and_leaves_the_target_as_it_is() {
    let vault = silent();
    vault.backup(&FULL);
    let target = vault.stage.target("nothing");
    let directory = target.display().to_string();
    let restore = ["restore", "--target-dir", &directory];
    for who in ["writer", "keeper"] {
        for more in [&["--dry-run"][..], &[]] {
            let log = vault.fails(who, &[&restore[..], more].concat(), REFUSED);
            assert!(log.contains("pages and WAL"), "{who} {more:?}: {log}");
            assert!(!target.exists(), "{who} {more:?}");
        }
    }
    vault.ok("one", &[&restore[..], &["--dry-run"]].concat());
}

/// Takes the record of an epoch away; answers where it was and what it held.
fn lose_record(vault: &Vault, number: u32) -> (PathBuf, Vec<u8>) {
    let place = epoch(vault, number).join("epoch");
    let record = fs::read(&place).unwrap();
    fs::remove_file(&place).unwrap();
    (place, record)
}

fn put_back(vault: &Vault, (place, record): &(PathBuf, Vec<u8>)) {
    fs::write(place, record).unwrap();
    vault.stage.cluster.own(place).unwrap();
}

/// Whoever seals refuses, and names the record of the epoch.
fn require_refused(vault: &Vault, number: u32) {
    let key = format!("{number:06}/epoch\" is lost");
    let pgdata = vault.stage.pgdata();
    let (two, late) = (vault.recipient("two"), vault.recipient("keeper"));
    let backup = [&["backup", "-D", &pgdata][..], &FULL].concat();
    let add = ["key", "add", "--recipient", &late];
    let remove = ["key", "remove", &two];
    for (who, words) in [("writer", &backup[..]), ("one", &add), ("one", &remove)] {
        let log = vault.fails(who, words, DAMAGED);
        assert!(log.contains(&key) && log.contains("key rotate"), "{log}");
    }
}

/// Verification names the record once, and nothing says to take a full backup first.
fn require_named(vault: &Vault, number: u32, who: &[&str]) {
    let key = format!("{number:06}/epoch: ");
    for who in who {
        let (code, named) = vault.verify(who, &[]);
        assert_eq!(code, DAMAGED, "{who}: {named:?}");
        let about = named.iter().filter(|line| line.contains(&key));
        assert_eq!(about.count(), 1, "{who}: {named:?}");
        let output = vault.run(who, &["verify"]);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!shown.contains("take a full backup now"), "{who}: {shown}");
    }
}

#[test]
fn nobody_seals_in_the_epoch_before_when_the_record_of_the_newest_is_lost() {
    let vault = silent();
    vault.backup(&FULL);
    vault.ok("two", &["key", "rotate"]);
    vault.ok("one", &["key", "remove", &vault.recipient("two")]);

    // Nothing is sealed in it yet: key boxes show it.
    let lost = lose_record(&vault, 3);
    require_refused(&vault, 3);
    require_named(&vault, 3, &["", "one", "writer"]);
    put_back(&vault, &lost);
    assert_eq!(vault.verify("one", &[]), (0, Vec::new()));

    // A layer shows it when the boxes are gone, too.
    vault.backup(&FULL);
    let lost = lose_record(&vault, 3);
    let kept = vault.stage.target("kept-boxes");
    fs::create_dir_all(&kept).unwrap();
    for path in boxes(&vault, 3, "") {
        fs::copy(&path, kept.join(path.file_name().unwrap())).unwrap();
        fs::remove_file(&path).unwrap();
    }
    require_refused(&vault, 3);
    require_named(&vault, 3, &["", "one", "writer"]);
    for words in [&["info"][..], &["key", "check"]] {
        let output = vault.run("one", words);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success(), "{words:?}: {shown}");
        assert!(shown.contains("epoch 3 is not there"), "{words:?}: {shown}");
        assert!(shown.contains("bring that object back"), "{shown}");
    }

    // It is lost for good: its number is not used again, and what was sealed in it is still named.
    vault.ok("one", &["key", "rotate"]);
    assert!(epoch(&vault, 4).join("epoch").exists());
    let layer = vault.backup(&FULL);
    assert!(!lost.0.exists());
    require_named(&vault, 3, &["", "one"]);
    vault.restore("one", "four", support::text(&layer, "/stop_lsn"));

    // Both are there, each begun apart from the other: all can be opened, and nothing is sealed.
    put_back(&vault, &lost);
    bring_back(&vault, 3, &kept);
    assert_eq!(vault.verify("one", &[]), (0, Vec::new()));
    let pgdata = vault.stage.pgdata();
    let backup = [&["backup", "-D", &pgdata][..], &FULL].concat();
    let log = vault.fails("writer", &backup, DAMAGED);
    assert!(
        log.contains("epoch 4 was begun apart from epoch 3"),
        "{log}"
    );
}

/// Everybody who may create objects can put something in the place of an epoch that has not begun.
#[test]
fn what_somebody_puts_in_the_place_of_an_epoch_keeps_nobody_from_what_is_sealed() {
    let vault = Vault::new(Major::V15);
    vault.backup(&["--type", "full"]);
    let (lsn, _) = vault.stage.moment();
    let first = fs::read(epoch(&vault, 1).join("epoch")).unwrap();
    let pgdata = vault.stage.pgdata();
    let backup = [&["backup", "-D", &pgdata][..], &FULL].concat();
    let segment = "000000010000000000000001";
    let got = vault.stage.target("got").display().to_string();
    let put = |number: u32, bytes: &[u8]| {
        fs::create_dir_all(epoch(&vault, number)).unwrap();
        let place = (epoch(&vault, number).join("epoch"), bytes.to_owned());
        put_back(&vault, &place);
    };
    for (number, bytes) in [
        (2, b"junk".as_slice()),
        (2, &first[..]),
        (99, b"junk".as_slice()),
    ] {
        put(number, bytes);
        let key = format!("{number:06}/epoch\" is not the record of an epoch");
        vault.restore("one", &format!("{number}-{}", bytes.len()), &lsn);
        vault.ok("one", &["archive-get", "--fetch-ahead", "0", segment, &got]);
        vault.ok("keeper", &["expire", "--keep-full", "9", "--dry-run"]);
        require_named(&vault, number, &["", "one", "writer"]);
        for (who, words) in [("one", &["info"][..]), ("writer", &["key", "check"])] {
            let output = vault.run(who, words);
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(!output.status.success(), "{words:?}: {shown}");
            assert!(shown.contains(&key), "{words:?}: {shown}");
        }
        let log = vault.fails("writer", &backup, DAMAGED);
        assert!(log.contains(&key) && log.contains("key rotate"), "{log}");
        fs::remove_dir_all(epoch(&vault, number)).unwrap();
    }
    put(2, b"junk");
    vault.ok("one", &["key", "rotate"]);
    assert!(epoch(&vault, 3).join("epoch").exists());
    let layer = vault.backup(&FULL);
    vault.restore("one", "three", support::text(&layer, "/stop_lsn"));
    require_named(&vault, 2, &["", "one"]);
    fs::remove_dir_all(epoch(&vault, 2)).unwrap();
    assert_eq!(vault.verify("one", &[]), (0, Vec::new()));
    junk_among_boxes(&vault, &lsn);
    // A label that no clock can follow.
    let far = vault.stage.objects().join("vault/layer/99991231-235959F");
    fs::create_dir(&far).unwrap();
    put_back(&vault, &(far.join("manifest"), b"junk".to_vec()));
    let log = vault.fails("writer", &backup, REFUSED);
    assert!(log.contains("pgstrata rescue --since"), "{log}");
}

fn junk_among_boxes(vault: &Vault, lsn: &str) {
    let genuine = boxes(vault, 3, "reader-");
    let name = genuine[0].file_name().unwrap().to_str().unwrap();
    let end = name.rsplit('-').next().unwrap();
    let others = [
        epoch(vault, 3).join(name.replace("reader-", "keeper-")),
        epoch(vault, 3).join(format!("reader-0000000000000000-{end}")),
    ];
    for place in others {
        put_back(vault, &(place.clone(), b"junk".to_vec()));
        for who in ["one", "two"] {
            let name = format!("{who}-{}", place.file_name().unwrap().display());
            vault.restore(who, &name, lsn);
        }
        let shown = place.file_name().unwrap().to_str().unwrap();
        for (words, code) in [(&["info"][..], WARNINGS), (&["key", "check"], DAMAGED)] {
            let output = vault.run("one", words);
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(output.status.code(), Some(code), "{words:?}: {told}");
            assert!(told.contains(shown) && told.contains("delete it"), "{told}");
            // The genuine ones are listed all the same.
            let recipients = told.matches("  reader  age1").count();
            assert!(words.len() == 1 || recipients >= 4, "{told}");
        }
        let log = vault.fails("one", &["key", "rotate"], DAMAGED);
        let name = place.file_name().unwrap().to_str().unwrap();
        assert!(log.contains(name) && log.contains("delete it"), "{log}");
        fs::remove_file(place).unwrap();
    }
}

#[test]
fn a_backup_during_which_an_epoch_begins_is_refused_at_its_end() {
    let vault = silent();
    vault.backup(&FULL);
    let pgdata = vault.stage.pgdata();
    let backup = [&["backup", "-D", &pgdata][..], &FULL].concat();
    let layers = vault.stage.objects().join("vault/layer");
    let mut command = vault.command("writer", &backup);
    let child = command
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while fs::read_dir(&layers).unwrap().count() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let signal = |name: &str| {
        let id = child.id().to_string();
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args([name, &id]).status().unwrap().success());
    };
    signal("-STOP");
    vault.ok("one", &["key", "remove", &vault.recipient("two")]);
    signal("-CONT");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(REFUSED), "{log}");
    assert!(log.contains("epoch 2 has begun"), "{log}");
    assert_eq!(vault.verify("one", &[]), (0, Vec::new()));
    vault.backup(&FULL);
}

#[test]
fn a_finished_layer_without_its_claim_is_a_warning_for_everybody() {
    let vault = silent();
    let layer = vault.backup(&FULL);
    let label = support::text(&layer, "/label").to_owned();
    let place = vault
        .stage
        .objects()
        .join(format!("vault/layer/{label}/claim"));
    let genuine = fs::read(&place).unwrap();
    for wrong in [None, Some(&genuine[..genuine.len() / 2])] {
        fs::remove_file(&place).unwrap();
        if let Some(wrong) = wrong {
            fs::write(&place, wrong).unwrap();
            vault.stage.cluster.own(&place).unwrap();
        }
        for who in ["", "one"] {
            let (code, named) = vault.verify(who, &[]);
            assert_eq!(code, WARNINGS, "{who}: {named:?}");
            assert!(named[0].contains("/claim"), "{named:?}");
            assert_eq!(named.len(), 1, "{named:?}");
        }
        fs::write(&place, &genuine).unwrap();
        vault.stage.cluster.own(&place).unwrap();
    }
}

/// Two clusters in one repository, and a layer of each in the other.
#[test]
fn a_layer_of_another_kind_of_cluster_is_named_as_what_it_is() {
    let vault = silent();
    let layer = vault.backup(&FULL);
    let sealed = support::text(&layer, "/label").to_owned();
    let stage = &vault.stage;
    stage.ok(&["init", "--pgdata", &stage.pgdata()]);
    // Labels are of a second, and clusters do not know those of others.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let clear = stage.backup(&FULL);
    let clear = support::text(&clear, "/label").to_owned();
    let of = |cluster: &str| stage.objects().join(cluster).join("layer");
    support::files::copy_all(&of("vault").join(&sealed), &of("main").join(&sealed));
    support::files::copy_all(&of("main").join(&clear), &of("vault").join(&clear));
    let said = |output: std::process::Output| {
        assert_eq!(output.status.code(), Some(DAMAGED));
        String::from_utf8(output.stdout).unwrap()
    };
    let verify = said(stage.run(&["verify"]));
    let expected = "the manifest of a sealed layer, and this cluster is not sealed";
    assert!(verify.contains(expected), "{verify}");
    let verify = said(vault.run("one", &["verify"]));
    let expected = "manifest is not sealed, and everything in this cluster is";
    assert!(verify.contains(expected), "{verify}");
}

/// He keeps what signs the next epoch, and may overwrite objects: nobody seals for him, whoever looks is told, and it can be mended.
#[test]
fn a_reader_who_was_taken_out_does_not_let_himself_in_by_another_epoch() {
    let vault = silent();
    vault.backup(&FULL);
    let two = vault.recipient("two");
    vault.ok("one", &["key", "remove", &two]);
    // He has a copy of before, and makes an epoch of that number there.
    let (place, kept) = (epoch(&vault, 2), vault.stage.target("genuine"));
    let own = vault.stage.target("own");
    let take = |to: &Path| {
        support::files::copy_all(&place, to);
        fs::remove_dir_all(&place).unwrap();
    };
    take(&kept);
    vault.ok("two", &["key", "rotate"]);
    take(&own);
    support::files::copy_all(&kept, &place);
    let names = |of: &Path| -> Vec<std::ffi::OsString> {
        let entries = fs::read_dir(of).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    for name in names(&own) {
        support::files::copy_all(&own.join(&name), &place.join(&name));
    }

    let says = "is a key box of another epoch 2 than the one whose record is there";
    let pgdata = vault.stage.pgdata();
    let backup = [&["backup", "-D", &pgdata][..], &FULL].concat();
    for (who, words) in [("writer", &backup[..]), ("one", &["key", "rotate"])] {
        let log = vault.fails(who, words, DAMAGED);
        assert!(log.contains(says), "{words:?}: {log}");
    }
    for who in ["", "one"] {
        let (code, named) = vault.verify(who, &[]);
        assert_eq!(code, DAMAGED, "{who}: {named:?}");
        let about = named.iter().filter(|line| line.contains(says));
        assert_eq!(about.count(), 1, "{who}: {named:?}");
    }
    for (words, code) in [
        (&["info"][..], WARNINGS),
        (&["key", "check"], DAMAGED),
        (&["check", "-D", &pgdata, "--wal", "stream"], REFUSED),
    ] {
        let output = vault.run("writer", words);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {shown}");
        assert_eq!(shown.matches(says).count(), 1, "{words:?}: {shown}");
    }

    let record = Path::new("epoch");
    support::files::copy_all(&kept.join(record), &place.join(record));
    for name in names(&own).iter().filter(|name| *name != "epoch") {
        fs::remove_file(place.join(name)).unwrap();
    }
    vault.backup(&FULL);
    assert_eq!(vault.verify("one", &[]), (0, Vec::new()));
}

/// "A key is stolen", when only readers are left who came later.
#[test]
fn who_came_later_changes_keys_when_the_founders_are_gone() {
    let vault = silent();
    let late = vault.generate("late");
    vault.backup(&FULL);
    vault.ok("one", &["key", "rotate"]);
    vault.ok("one", &["key", "add", "--recipient", &late]);
    vault.ok("one", &["key", "remove", &vault.recipient("two")]);
    let output = vault.run("late", &["key", "remove", &vault.recipient("one")]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    assert!(log.contains("reads what was sealed in epoch 1"), "{log}");
    assert!(log.contains("key reseal"), "{log}");

    let host = vault.generate("host");
    vault.ok("late", &["key", "add", "--writer", &host]);
    vault.ok("late", &["key", "remove", &vault.recipient("writer")]);
    let pgdata = vault.stage.pgdata();
    vault.ok("host", &[&["backup", "-D", &pgdata][..], &FULL].concat());
    let person = vault.generate("person");
    let output = vault.run("late", &["key", "add", "--recipient", &person]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    assert!(log.contains("reads no page and no WAL"), "{log}");
    vault.ok("late", &["key", "reseal", &person]);
    // Who was taken out still opens the first epoch, and can let a reader into that.
    vault.ok("one", &["key", "reseal", &person]);
    assert_eq!(vault.verify("person", &["--deep"]), (0, Vec::new()));
}
