//! A mistake in what the file says of one repository is the matter with that repository alone.

use super::support::process;
use super::*;

const FILE: i32 = 17;

/// What may stand in the table of `far`, and the exit code for it alone: a secret that is not mounted, one that others may
/// read, an option that the store does not have, an address without a scheme, a key that no request can carry.
fn mistakes(two: &Two) -> [(String, i32); 5] {
    let keys = two.stage.cluster.create_dir("keys").unwrap();
    let written = |name: &str, key: &str, mode| {
        let file = keys.join(name);
        let text = format!("access_key_id = {key}\nsecret_access_key = 'xxxx'\n");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        two.stage.cluster.own(&file).unwrap();
        file
    };
    let open = written("open.toml", "'x'", 0o644);
    let broken = written("broken.toml", "\"x\\n\"", 0o600);
    let with = |path: &Path| {
        let shown = path.display();
        format!("repo = 's3://backups/far'\ncredentials = '{shown}'\n")
    };
    let mistyped = "repo = 's3://backups/far'\n[repositories.far.storage]\nacess_key = 'x'\n";
    let nowhere = "repo = 's3://backups/far'\ns3-endpoint = 'minio:9000'\n";
    [
        (with(&keys.join("absent.toml")), FILE),
        (with(&open), REFUSED),
        (mistyped.to_owned(), USAGE),
        (nowhere.to_owned(), USAGE),
        (with(&broken), USAGE),
    ]
}

#[test]
fn a_mistake_in_the_table_of_one_repository_keeps_no_other_from_its_work() {
    let two = Two::in_directories();
    two.backup(0, "full");
    let name = two.last_segment();
    let path = two.get_to_push(&name);
    let plain = fs::read_to_string(&two.config).unwrap();
    let (head, _) = plain.split_once("[repositories.far]\n").unwrap();
    for (number, (table, code)) in mistakes(&two).into_iter().enumerate() {
        let text = format!("quorum = 1\n{head}[repositories.far]\n{table}");
        for (turn, text) in [text.clone(), two.far_first(&text)].iter().enumerate() {
            fs::write(&two.config, text).unwrap();
            fs::remove_file(segment(&two.near, &name)).unwrap();
            let output = two.run(&["archive-push", "--push-ahead", "0", &path]);
            assert_eq!(output.status.code(), Some(0), "{text}: {}", log(&output));
            assert!(log(&output).contains("repository far"), "{}", log(&output));
            let (got, said, _) = two.get(&name, &[]);
            assert_eq!(got, 0, "{text}: {said}");
            // What is not in the other may be in this one.
            let (got, said, _) = two.get(&next(&next(&next(&name))), &["--on-hole", "end"]);
            assert_eq!(got, STOP, "{text}: {said}");
            assert!(said.contains("repository far"), "{said}");
            shows_both(&two.json(code, &["info"]), code);
            let target = two.stage.target(&format!("restored-{number}-{turn}"));
            let restore = ["restore", "--target-dir", target.to_str().unwrap()];
            let planned = two.json(0, &[&restore[..], &["--dry-run"]].concat());
            assert!(planned["notes"].to_string().contains("repository far"));
        }
    }
    // A mistake in the command is not said once for each.
    fs::write(&two.config, &plain).unwrap();
    let output = two.run(&["info", "no-label"]);
    assert_eq!(output.status.code(), Some(USAGE), "{}", log(&output));
    assert!(!log(&output).contains("repository far"), "{}", log(&output));
}

/// All of `near`, and what is the matter with `far`.
fn shows_both(shown: &Value, code: i32) {
    for one in shown["repositories"].as_array().unwrap() {
        match text(one, "/name") {
            "near" => schema::require(&one["document"]),
            _ => {
                assert_eq!(one["exit_code"], code, "{shown:#}");
                assert!(one["error"].is_object(), "{shown:#}");
                assert!(text(one, "/url").contains("/far"), "{shown:#}");
            }
        }
    }
}

/// Whoever renews a token writes the file while somebody may open it.
#[test]
fn a_mirror_goes_on_when_its_credentials_are_being_written_at_the_beginning_of_a_round() {
    let two = Two::with_a_network();
    let keys = two.config.with_file_name("../keys/far.toml");
    let whole = fs::read_to_string(&keys).unwrap();
    let follow = [
        "--repo", "near", "copy", "--to", "far", "--follow", "--every", "100ms",
    ];
    let mut command = two.command(&follow);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut follows = || {
        let pgdata = two.stage.pgdata();
        let near = ["--output", "json", "--repo", "near"];
        // The archiver fails while the file cannot be used, and the backup has a warning of that.
        let output = two.run(&[&near[..], &["backup", "-D", &pgdata, "--wal", "stream"]].concat());
        let report = schema::document(&String::from_utf8_lossy(&output.stdout));
        let layers = two.far.join("main/layer");
        let manifest = layers.join(text(&report, "/label")).join("manifest");
        let end = Instant::now() + PATIENCE;
        while !manifest.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the mirror has ended");
            assert!(Instant::now() < end);
            thread::sleep(Duration::from_millis(50));
        }
    };
    follows();
    for part in [&whole[..whole.len() / 2], ""] {
        fs::write(&keys, part).unwrap();
        thread::sleep(Duration::from_secs(1));
        fs::write(&keys, &whole).unwrap();
        follows();
    }
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o666)).unwrap();
    thread::sleep(Duration::from_secs(1));
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    follows();
    // To the end of that round.
    thread::sleep(Duration::from_secs(2));
    process::signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert!(log(&output).contains("will try again"), "{}", log(&output));
}
