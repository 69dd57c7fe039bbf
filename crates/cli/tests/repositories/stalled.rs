//! A repository that accepts connections and says nothing: the others do their work in time, and it is said what it misses.

use std::fs;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use super::support::{process, schema, text};
use super::{Two, WARNINGS, log, segment, states};

const UNREACHABLE: i32 = 15;

/// A request to a store that stalls is believed for half a minute, and made three times.
const ONE_REQUEST: Duration = Duration::from_secs(30);

fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let result = act();
    (result, started.elapsed())
}

#[test]
fn a_store_that_stalls_holds_up_no_quorum_and_neither_backup_nor_recovery() {
    let two = Two::with_a_network();
    two.backup(0, "full");
    let names = [two.last_segment(), two.last_segment(), two.last_segment()];
    let paths = names.clone().map(|name| two.get_to_push(&name));
    for name in &names {
        fs::remove_file(segment(&two.near, name)).unwrap();
        fs::remove_file(segment(&two.far, name)).unwrap();
    }
    two.proxy().stall_after(1);
    let (output, took) = timed(|| two.run(&["archive-push", "--quorum", "1", &paths[0]]));
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert!(took < ONE_REQUEST, "{took:?}: {}", log(&output));
    let said = log(&output);
    assert!(said.contains("repository far has not taken it"), "{said}");
    assert!(said.contains("--repo near copy --to far"), "{said}");
    assert!(segment(&two.near, &names[0]).exists());
    // The next one need not find out again.
    let output = two.run(&["archive-push", "--quorum", "1", &paths[1]]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    let said = log(&output);
    assert!(said.contains("far has not taken it within 0."), "{said}");

    // As the first one it does not hold up recovery either.
    let plain = fs::read_to_string(&two.config).unwrap();
    fs::write(&two.config, two.far_first(&plain)).unwrap();
    let ((code, said, _), took) = timed(|| two.get(&names[0], &[]));
    assert_eq!(code, 0, "{said}");
    assert!(took < ONE_REQUEST, "{took:?}: {said}");
    let notes = fs::read_dir(two.spool()).unwrap().flatten();
    for note in notes {
        fs::remove_dir_all(note.path()).unwrap();
    }
    let ((code, said, _), took) = timed(|| two.get(&names[0], &[]));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("repository far is asked last"), "{said}");
    assert!(took < ONE_REQUEST, "{took:?}: {said}");
    let target = two.stage.target("restored").display().to_string();
    let then = ["--target-dir", &target, "--target-type", "immediate"];
    let (output, took) = timed(|| two.run(&[&["restore"], &then[..]].concat()));
    assert!(output.status.success(), "{}", log(&output));
    assert!(took < ONE_REQUEST, "{took:?}: {}", log(&output));

    // Nor a backup, whichever of them it is.
    let pgdata = two.stage.pgdata();
    let backup = ["backup", "-D", &pgdata, "--wal", "stream", "--type", "incr"];
    for (text, expected) in [
        (two.far_first(&plain), ["failed", "stored"]),
        (plain.clone(), ["stored", "failed"]),
    ] {
        fs::write(&two.config, text).unwrap();
        let (report, took) = timed(|| two.json(WARNINGS, &backup));
        assert_eq!(states(&report), expected, "{report:#}");
        assert!(took < 2 * ONE_REQUEST, "{took:?}: {report:#}");
    }

    // When it answers again it gets what comes at once, and the rest by a copy.
    two.proxy().clear();
    let output = two.run(&["archive-push", "--quorum", "1", &paths[2]]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert!(segment(&two.far, &names[2]).exists(), "{}", log(&output));
    assert!(!segment(&two.far, &names[0]).exists());
    let copied = two.json(0, &["--repo", "near", "copy", "--to", "far"]);
    assert_eq!(copied["layers"].as_array().unwrap().len(), 2, "{copied:#}");
    assert!(segment(&two.far, &names[0]).exists(), "{copied:#}");
    let label = text(&copied, "/layers/1/label");
    let manifest = two.far.join("main/layer").join(label).join("manifest");
    assert!(manifest.exists());
}

/// As one of a network whose machine is gone: whoever looks into it waits for ever.
#[test]
fn a_directory_that_does_not_answer_holds_up_nothing_that_the_other_can_do() {
    let two = Two::in_directories();
    two.backup(0, "full");
    let name = two.last_segment();
    let path = two.get_to_push(&name);
    fs::remove_file(segment(&two.near, &name)).unwrap();
    let library = process::provoker(&two.stage);
    let run = |arguments: &[&str]| {
        let mut command = two.command(arguments);
        command.env("LD_PRELOAD", &library).env("HANGS", &two.far);
        let (output, took) = timed(|| command.output().unwrap());
        // Some ask twice or three times, and for ten seconds each time.
        assert!(took < 3 * ONE_REQUEST, "{took:?}: {}", log(&output));
        output
    };
    let pgdata = two.stage.pgdata();
    let target = two.stage.target("restored").display().to_string();
    let got = two.stage.target("got").display().to_string();
    let json = |output: &Output| schema::document(&String::from_utf8_lossy(&output.stdout));
    let output = run(&["archive-push", "--quorum", "1", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert!(segment(&two.near, &name).exists());
    let restore = ["restore", "--target-dir", &target, "--dry-run"];
    let backup = ["backup", "-D", &pgdata, "--wal", "stream"];
    let alone = [&["--repo", "near"], &backup[..]].concat();
    thread::scope(|scope| {
        scope.spawn(|| {
            let output = run(&["archive-get", "--fetch-ahead", "0", &name, &got]);
            assert_eq!(output.status.code(), Some(0), "{}", log(&output));
        });
        scope.spawn(|| {
            let output = run(&["--output", "json", "info"]);
            assert_eq!(output.status.code(), Some(UNREACHABLE), "{}", log(&output));
            let shown = json(&output);
            assert!(
                shown["repositories"][0]["document"].is_object(),
                "{shown:#}"
            );
            let why = text(&shown, "/repositories/1/error/message");
            assert!(why.contains("has not answered"), "{shown:#}");
        });
        scope.spawn(|| {
            let output = run(&restore);
            assert_eq!(output.status.code(), Some(0), "{}", log(&output));
        });
        scope.spawn(|| {
            let output = run(&alone);
            assert_eq!(output.status.code(), Some(0), "{}", log(&output));
        });
    });
    let output = run(&[&["--output", "json"], &backup[..]].concat());
    assert_eq!(output.status.code(), Some(WARNINGS), "{}", log(&output));
    assert_eq!(states(&json(&output)), ["stored", "failed"]);
    let output = run(&["--repo", "near", "copy", "--to", "far"]);
    assert_eq!(output.status.code(), Some(UNREACHABLE), "{}", log(&output));
}
