//! What is said of the keys of a sealed cluster, and of keys that do not fit.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::{Value, json};
use support::roles::forged_removal;
use support::vault::Vault;
use support::{Store, schema};

const REFUSED: i32 = 13;
const USAGE: i32 = 2;
const DAMAGED: i32 = 14;
const WARNINGS: i32 = 3;

fn silent() -> Vault {
    Vault::on(Cluster::builder(Major::V15), Store::Directory)
}

/// The report of `check`, and its items about keys.
fn check(vault: &Vault, who: &str) -> (i32, Value, Vec<Value>) {
    let pgdata = vault.stage.pgdata();
    let words = [
        "--output", "json", "check", "-D", &pgdata, "--wal", "stream",
    ];
    let output = vault.run(who, &words);
    let printed = String::from_utf8(output.stdout).unwrap();
    let report = schema::document(&printed);
    let items = report["items"].as_array().unwrap().iter();
    let items = items.filter(|item| item["name"] == "keys").cloned();
    (
        output.status.code().unwrap(),
        report.clone(),
        items.collect(),
    )
}

#[test]
fn check_says_who_opens_a_sealed_cluster_and_nothing_of_a_clear_one() {
    let vault = silent();
    let (code, report, items) = check(&vault, "writer");
    let detail = items[0]["detail"].as_str().unwrap();
    assert_eq!(items.len(), 2, "{report:#}");
    assert_eq!(items[0]["status"], "ok", "{report:#}");
    assert_eq!(items[1]["status"], "warning", "{report:#}");
    assert!(
        items[1]["hint"]
            .as_str()
            .unwrap()
            .contains(&seal_id(&vault)),
        "{report:#}"
    );
    assert!(
        detail.contains("epoch 1 is current: 2 readers, 1 writer, 1 keeper"),
        "{detail}"
    );
    assert!(detail.contains("is a writer of it"), "{detail}");
    assert_eq!(code, WARNINGS, "{report:#}");
    let expected = json!({
        "epoch": 1, "readers": 2, "writers": 1, "keepers": 1, "own_roles": ["writer"], "opened_up_to": 1, "lone_epochs": [],
    });
    assert_eq!(report["keys"], expected);

    // One reader is left: whoever asks is warned.
    vault.ok("one", &["key", "remove", &vault.recipient("two")]);
    let (code, report, items) = check(&vault, "one");
    assert_eq!(code, WARNINGS, "{report:#}");
    assert_eq!(items[1]["status"], "warning", "{report:#}");
    assert!(
        items[1]["detail"].as_str().unwrap().contains("one reader"),
        "{report:#}"
    );
    assert_eq!(report["keys"]["lone_epochs"], json!([2]));
    assert_eq!(report["keys"]["own_roles"], json!(["reader"]));

    // Who was left out, who never was in, and who shows nothing: backups would fail.
    vault.generate("other");
    for (who, says, opened) in [
        ("two", "up to epoch 1, and was left out since", json!(1)),
        ("other", "opens nothing", Value::Null),
        ("", "opens nothing", Value::Null),
    ] {
        let (code, report, items) = check(&vault, who);
        assert_eq!(code, REFUSED, "{report:#}");
        assert_eq!(items[0]["status"], "failed", "{report:#}");
        assert!(
            items[0]["detail"].as_str().unwrap().contains(says),
            "{report:#}"
        );
        assert_eq!(report["keys"]["opened_up_to"], opened, "{report:#}");
    }
    let pgdata = vault.stage.pgdata();
    let clear = vault.stage.run(&[
        "--output", "json", "check", "-D", &pgdata, "--wal", "stream",
    ]);
    let clear = schema::document(&String::from_utf8(clear.stdout).unwrap());
    assert_eq!(clear["keys"], Value::Null);
    let items = clear["items"].as_array().unwrap();
    assert!(items.iter().all(|item| item["name"] != "keys"), "{clear:#}");
}

#[test]
fn who_was_taken_out_is_told_what_he_opens() {
    let vault = silent();
    let pgdata = vault.stage.pgdata();
    vault.backup(&["--type", "full", "--wal", "stream"]);
    vault.ok("one", &["key", "remove", &vault.recipient("two")]);
    vault.ok("one", &["key", "remove", &vault.recipient("writer")]);
    let nowhere = vault.stage.target("nowhere").display().to_string();
    for (who, words) in [
        ("two", &["restore", "--target-dir", &nowhere][..]),
        ("two", &["info"]),
        ("writer", &["backup", "-D", &pgdata, "--wal", "stream"]),
        ("two", &["key", "rotate"]),
    ] {
        let log = vault.fails(who, words, REFUSED);
        let says = match who {
            "two" => "opens what was sealed up to epoch 1, and was left out when epoch 2 began",
            _ => "opens what was sealed up to epoch 2, and was left out when epoch 3 began",
        };
        assert!(log.contains(says) && log.contains("key add"), "{log}");
    }
    let checked = vault.run("two", &["key", "check"]);
    let shown = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(WARNINGS), "{shown}");
    assert!(
        shown.contains("epoch 3 is current, and the identity at hand opens nothing of it"),
        "{shown}"
    );
}

/// The seal id that the cluster's record has.
fn seal_id(vault: &Vault) -> String {
    let record = vault.stage.objects().join("vault/cluster");
    let record = fs::read_to_string(record).unwrap();
    let (_, json) = record.split_once('\n').unwrap();
    let record: Value = serde_json::from_str(json).unwrap();
    record["sealing"]["seal_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_cluster_that_somebody_puts_in_the_place_of_ours_is_refused_by_its_seal_id() {
    let vault = silent();
    let (stage, pgdata) = (&vault.stage, vault.stage.pgdata());
    let ours = seal_id(&vault);
    let config = stage.target("pgstrata.toml");
    fs::write(&config, format!("seal-id = \"{ours}\"\n")).unwrap();
    let config = config.display().to_string();
    let sql = "SELECT pg_walfile_name(pg_current_wal_lsn())";
    let segment = stage.cluster.sql("postgres", sql).unwrap();
    let segment = format!("{pgdata}/pg_wal/{segment}");
    let backup = ["backup", "-D", &pgdata, "--wal", "stream"];
    let named: [&[&str]; 2] = [&["--seal-id", &ours], &["--config", &config]];
    for named in named {
        vault.ok("writer", &[named, &backup].concat());
    }
    // Who restores has seen which cluster it is: the server asks for the WAL of no other.
    let copy = stage.target("copy");
    let to = copy.display().to_string();
    vault.ok("one", &["restore", "--target-dir", &to]);
    let conf = fs::read_to_string(copy.join("postgresql.auto.conf")).unwrap();
    assert!(conf.contains(&format!("--seal-id={ours}")), "{conf}");

    // Recipients are public: the operator of the store lets the same people in, and himself.
    let recipients = ["one", "two", "writer", "keeper"].map(|who| vault.recipient(who));
    let [one, two, writer, keeper] = recipients.each_ref().map(String::as_str);
    let operator = vault.generate("operator");
    let elsewhere = stage.target("elsewhere");
    let repository = format!("file://{}", elsewhere.display());
    vault.ok(
        "",
        &[
            "--repo",
            &repository,
            "init",
            "-D",
            &pgdata,
            "--encrypt",
            "--recipient",
            one,
            "--recipient",
            two,
            "--recipient",
            &operator,
            "--writer",
            writer,
            "--keeper",
            keeper,
        ],
    );
    let place = stage.objects().join("vault");
    fs::rename(&place, stage.target("what was there")).unwrap();
    fs::rename(elsewhere.join("vault"), &place).unwrap();
    assert_ne!(seal_id(&vault), ours);

    for named in named {
        for act in [&backup[..], &["archive-push", &segment]] {
            let log = vault.fails("writer", &[named, act].concat(), REFUSED);
            assert!(log.contains(&format!("expected {ours}")), "{act:?}: {log}");
        }
    }
    assert!(!place.join("layer").exists() && !place.join("wal").exists());
    // Without it nobody can see the difference; at least it is said each time.
    let output = vault.run("writer", &backup);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    assert_eq!(log.matches("nobody has said").count(), 1, "{log}");
}

#[test]
fn the_host_of_the_database_has_no_layer_of_a_sealed_cluster_removed() {
    let vault = silent();
    let full = vault.backup(&["--type", "full", "--wal", "stream"]);
    let label = full["label"].as_str().unwrap();
    vault.backup(&["--type", "full", "--wal", "stream"]);
    let place = vault.stage.objects().join("vault");
    let manifest = fs::read(place.join(format!("layer/{label}/manifest"))).unwrap();
    let owner = fs::metadata(&place).unwrap();
    let as_the_server = |path: &Path| chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    for (key, body) in forged_removal(&[(label, &manifest)]) {
        let file = place.join(key);
        let directory = file.parent().unwrap();
        fs::create_dir_all(directory).unwrap();
        fs::write(&file, body).unwrap();
        for made in [directory.parent().unwrap(), directory, &file] {
            as_the_server(made);
        }
    }
    // Without its manifest it is being removed for who has no key as for who has one; without the record it is lost.
    let own = place.join(format!("layer/{label}/manifest"));
    let removal = place.join("removal/f0f0");
    let aside = place.with_file_name("aside");
    fs::rename(&own, &aside).unwrap();
    for who in ["", "one"] {
        let (code, found) = vault.verify(who, &[]);
        assert_eq!((code, found.len()), (0, 0), "{who}: {found:?}");
    }
    fs::rename(&removal, place.with_file_name("f0f0")).unwrap();
    for who in ["", "one"] {
        let (code, found) = vault.verify(who, &[]);
        assert_eq!((code, found.len()), (DAMAGED, 1), "{who}: {found:?}");
    }
    fs::rename(place.with_file_name("f0f0"), &removal).unwrap();
    fs::rename(&aside, &own).unwrap();
    let log = vault.fails("keeper", &["expire", "--keep-full", "2"], REFUSED);
    assert!(
        log.contains(label) && log.contains("removal/f0f0/wanted"),
        "{log}"
    );
    vault.ok("one", &["verify", "--deep"]);
    let info = vault.ok("keeper", &["info"]);
    assert!(info.contains(label), "{info}");
    // Rules that give it up anyway leave nothing of the record.
    vault.ok("keeper", &["expire", "--keep-full", "1"]);
    assert!(!place.join("removal/f0f0/wanted").exists());
    assert!(!place.join(format!("layer/{label}/manifest")).exists());
}

/// The directory of the cluster's first epoch.
fn first_epoch(vault: &Vault) -> PathBuf {
    let keys = vault.stage.objects().join("vault/key");
    let seal = fs::read_dir(keys).unwrap().next().unwrap().unwrap().path();
    seal.join("000001")
}

#[test]
fn an_identity_file_may_hold_several_and_an_epoch_may_be_opened_by_nobody() {
    let vault = silent();
    vault.generate("other");
    let both = [vault.identity("other"), vault.identity("one")];
    let both = both.map(|file| fs::read_to_string(file).unwrap()).concat();
    let file = vault.identity("several");
    fs::copy(vault.identity("one"), &file).unwrap();
    fs::write(&file, &both).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    vault.stage.cluster.own(file.as_ref()).unwrap();
    vault.ok("several", &["info"]);
    fs::write(
        &file,
        both.replacen("AGE-SECRET-KEY-1", "AGE-SECRET-KEY-2", 1),
    )
    .unwrap();
    let log = vault.fails("several", &["info"], REFUSED);
    assert!(log.contains("line 2 of identity file"), "{log}");
    let log = vault.fails("", &["info", "--key-command", "yes"], REFUSED);
    assert!(log.contains("more than 64 KiB"), "{log}");

    // Every box is lost: nobody opens it, and each is told so.
    let epoch = first_epoch(&vault);
    let kept = epoch.with_file_name("kept");
    fs::create_dir(&kept).unwrap();
    for key in fs::read_dir(&epoch).unwrap() {
        let key = key.unwrap();
        if key.file_name() != "epoch" {
            fs::rename(key.path(), kept.join(key.file_name())).unwrap();
        }
    }
    for who in ["one", "writer"] {
        let log = vault.fails(who, &["info"], DAMAGED);
        assert!(
            log.contains("nobody can open what was sealed in epoch 1"),
            "{log}"
        );
    }
    let (code, report, items) = check(&vault, "one");
    assert_eq!(code, REFUSED, "{report:#}");
    // A backup would be refused, so nobody is told to take one.
    let told = String::from_utf8(vault.run("", &["verify"]).stdout).unwrap();
    assert!(told.contains("bring the epoch's key boxes back"), "{told}");
    assert!(!told.contains("take a full backup"), "{told}");
    let detail = items[0]["detail"].as_str().unwrap();
    assert!(detail.contains("epoch 1 is current: 0 readers"), "{detail}");
    assert_eq!(report["keys"]["lone_epochs"], json!([1]));
    // The epoch is lost too.
    fs::rename(epoch.join("epoch"), kept.join("epoch")).unwrap();
    let log = vault.fails("one", &["info"], DAMAGED);
    assert!(log.contains("its keys below"), "{log}");
    let (code, report, items) = check(&vault, "one");
    assert!(
        code == REFUSED && items[0]["status"] == "failed",
        "{report:#}"
    );
}

/// Runs `init` for one recipient on a terminal of its own, and types an answer; returns the exit code and what the terminal shows.
fn asked(vault: &Vault, cluster: &str, recipient: &str, answer: &str) -> (i32, String) {
    let stage = &vault.stage;
    let words = format!(
        "{} --cluster {cluster} init --pgdata {} --encrypt --recipient {recipient}",
        stage.program.display(),
        stage.pgdata()
    );
    let script = Path::new("/usr/bin/script");
    let mut command = stage.cluster.command_as_server_user(script);
    command.env("PGSTRATA_REPO", &stage.repository);
    command.args(["--quiet", "--return", "--command", &words, "/dev/null"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut typed = child.stdin.take().unwrap();
    typed.write_all(answer.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(typed);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().unwrap(), shown)
}

#[test]
fn one_recipient_is_asked_about_on_a_terminal() {
    let vault = silent();
    let alone = vault.generate("alone");
    let is_there = |cluster: &str| vault.stage.objects().join(cluster).exists();
    for (cluster, answer) in [
        ("said-no", "no\n"),
        ("said-nothing", "\n"),
        ("said-y", "y\n"),
    ] {
        let (code, shown) = asked(&vault, cluster, &alone, answer);
        assert!(shown.contains("write \"yes\" to go on"), "{shown}");
        assert!(shown.contains("--one-recipient"), "{shown}");
        assert_eq!(code, USAGE, "{shown}");
        assert!(!is_there(cluster), "{answer:?}");
    }
    let (code, shown) = asked(&vault, "said-yes", &alone, "yes\n");
    assert!(
        shown.contains("who loses that identity loses them all"),
        "{shown}"
    );
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("sealed, seal id"), "{shown}");
    assert!(is_there("said-yes"));
}

#[test]
fn a_recipient_in_capitals_is_the_one_whose_identity_opens() {
    let vault = silent();
    let pgdata = vault.stage.pgdata();
    let [one, two] = ["one", "two"].map(|who| vault.recipient(who));
    let [capital_one, capital_two] = [&one, &two].map(|own| own.to_uppercase());
    let run = |who: &str, words: &[&str], code: i32| {
        let mut command = vault.stage.command(&["--cluster", "capitals"]);
        command.args(words);
        if !who.is_empty() {
            command.env("PGSTRATA_IDENTITY", vault.identity(who));
        }
        let output = command.output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8(printed).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {printed}");
        printed
    };
    let init = ["init", "-D", &pgdata, "--encrypt", "--recipient"];
    let init = [&init[..], &[&capital_one]].concat();
    // Twice the same is one.
    for again in [&one, &capital_one] {
        let log = run("", &[&init[..], &["--recipient", again]].concat(), USAGE);
        assert!(log.contains("--one-recipient"), "{log}");
    }
    let mixed = format!("age1{}", &capital_one[4..]);
    let log = run("", &[&init[..], &["--recipient", &mixed]].concat(), USAGE);
    assert!(log.contains("is not an age recipient"), "{log}");
    let doubled = [&init[..], &["--one-recipient", "--writer", &one]].concat();
    let mut made = vault.stage.command(&["--cluster", "doubled"]);
    let made = made.args(&doubled).output().unwrap();
    let log = String::from_utf8_lossy(&made.stderr);
    let says = format!("{one} is a reader, and was let in as writer or keeper too");
    assert!(log.contains(&says), "{log}");
    let log = run("", &[&init[..], &["--one-recipient"]].concat(), 0);
    assert!(!log.contains("too: whoever"), "{log}");
    let opened = |who: &str, code: i32| {
        let shown = run(who, &["key", "check"], code);
        shown.matches("opens everything").count()
    };
    assert_eq!(opened("one", WARNINGS), 1);
    run("one", &["key", "rotate"], 0);
    run("one", &["key", "add", "--recipient", &capital_two], 0);
    run("one", &["key", "reseal", &capital_two], 0);
    assert_eq!(opened("two", 0), 2);
    run("one", &["key", "remove", &capital_two], 0);
    assert_eq!(opened("two", WARNINGS), 2);
    assert_eq!(opened("one", WARNINGS), 3);
}

#[test]
fn a_sealed_cluster_of_others_is_not_taken_for_the_one_that_was_asked_for() {
    let vault = silent();
    let pgdata = vault.stage.pgdata();
    let mine = ["mine", "mine too"].map(|who| vault.generate(who));
    let [one, two, writer] = ["one", "two", "writer"].map(|who| vault.recipient(who));
    let init = ["init", "-D", &pgdata, "--encrypt", "--recipient"];
    for named in [
        &[&mine[0], "--recipient", &mine[1]][..],
        &[&one, "--recipient", &mine[1]],
        &[&one, "--recipient", &writer],
        &[&one, "--recipient", &two, "--writer", &two],
    ] {
        let output = vault.run("", &[&init[..], named].concat());
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8(printed).unwrap();
        assert_eq!(output.status.code(), Some(REFUSED), "{printed}");
        assert!(!printed.contains(&seal_id(&vault)), "{printed}");
        assert!(printed.contains("is sealed for others"), "{printed}");
        assert!(printed.contains("key check"), "{printed}");
    }
    for named in [
        &[&one, "--recipient", &two, "--writer", &writer][..],
        &[&two, "--one-recipient"],
    ] {
        let told = vault.ok("", &[&init[..], named].concat());
        assert!(told.contains("already there"), "{told}");
    }
}

#[test]
fn reseal_makes_a_reader_of_nobody() {
    let vault = silent();
    let stranger = vault.generate("stranger");
    let [two, writer, keeper] = ["two", "writer", "keeper"].map(|who| vault.recipient(who));
    vault.backup(&["--type", "full", "--wal", "stream"]);
    let nowhere = vault.stage.target("nowhere").display().to_string();
    let restore = ["restore", "--target-dir", &nowhere];
    let log = vault.fails("writer", &restore, REFUSED);
    assert!(!log.contains("reseal"), "{log}");
    assert!(log.contains("identity of a writer or keeper"), "{log}");
    vault.ok("one", &["key", "reseal", &two]);
    vault.ok("one", &["key", "remove", &two]);
    for who in [&writer, &keeper, &stranger, &two] {
        let log = vault.fails("one", &["key", "reseal", who], REFUSED);
        assert!(log.contains("is not a reader of epoch 2"), "{log}");
    }
    vault.fails("writer", &restore, REFUSED);
}

#[test]
fn what_is_no_seal_id_is_said_to_be_none() {
    let vault = silent();
    for wrong in ["zz", "", "0123"] {
        let log = vault.fails("one", &["info", "--seal-id", wrong], USAGE);
        assert!(log.contains("is not a seal id"), "{log}");
    }
}

#[test]
fn an_identity_that_reads_everything_is_no_good_writer() {
    let vault = silent();
    let one = vault.recipient("one");
    vault.ok("one", &["key", "add", "--writer", &one]);
    let output = vault.run("one", &["key", "check"]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(WARNINGS), "{told}");
    let words = format!("{one} is a reader, and was let in as writer or keeper too");
    assert!(told.contains(&words), "{told}");
    let (code, report, items) = check(&vault, "one");
    assert_eq!(code, WARNINGS, "{report:#}");
    let told = items
        .iter()
        .any(|item| item["detail"].as_str().unwrap().contains(&words));
    assert!(told, "{report:#}");
}

/// Who has no key sees the names as well as who has one.
#[test]
fn what_nobody_knows_is_named_with_a_key_and_without() {
    let vault = silent();
    let report = vault.backup(&["--type", "full", "--wal", "stream"]);
    let label = report["label"].as_str().unwrap();
    let objects = vault.stage.objects().join("vault");
    let strange = [
        format!("layer/{label}/pack-999999"),
        "wal/00000001/junk".to_owned(),
        "wal/00000001/00000001000000000000ZZZZ".to_owned(),
        "zzz".to_owned(),
    ];
    for key in &strange {
        let path = objects.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    for who in ["one", ""] {
        let (code, found) = vault.verify(who, &[]);
        assert_eq!((code, found.len()), (WARNINGS, strange.len()), "{found:#?}");
        for key in &strange {
            assert!(found.iter().any(|found| found.contains(key)), "{found:#?}");
        }
    }
}

/// The whole time that a key command has, and nothing of it is left afterwards.
#[test]
fn a_key_command_that_hangs_is_ended_after_half_a_minute() {
    let vault = silent();
    let mark = format!("6{}", std::process::id());
    let hangs = format!("sleep {mark}; cat nothing");
    let began = Instant::now();
    let log = vault.fails("", &["info", "--key-command", &hangs], REFUSED);
    let took = began.elapsed().as_secs();
    assert!(log.contains("did not end within 30 s"), "{log}");
    assert!(
        log.contains("waiting for the key command, which has 30 s to end"),
        "{log}"
    );
    assert!((30..60).contains(&took), "{took} s");
    let ps = Command::new("ps").args(["-eo", "args"]).output().unwrap();
    let ps = String::from_utf8_lossy(&ps.stdout);
    let left = ps
        .lines()
        .find(|line| line.contains(&format!("sleep {mark}")));
    assert_eq!(left, None);
}

/// Who has only lost the record of a sealed cluster does not want to go on in clear.
#[test]
fn a_clear_cluster_is_not_begun_over_the_keys_of_a_sealed_one() {
    let vault = silent();
    let stage = &vault.stage;
    let record = stage.objects().join("vault/cluster");
    let held = fs::read(&record).unwrap();
    fs::remove_file(&record).unwrap();
    let pgdata = stage.pgdata();
    let (code, log) = stage.fails(&["--cluster", "vault", "init", "--pgdata", &pgdata]);
    assert_eq!(code, 13, "{log}");
    assert!(
        log.contains("has keys below") && log.contains("init --encrypt"),
        "{log}"
    );
    assert!(!record.exists());
    fs::write(&record, held).unwrap();
    vault.ok("one", &["key", "check"]);
}
