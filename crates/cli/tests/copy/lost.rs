//! What of a chain is lost or damaged at one end of a mirror is an error, and what is whole is copied.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::support::{Stage, Store, process, text};
use super::{DAMAGED, NOT_FOUND, WARNINGS, at, change, copy, other, stage};

/// The labels of the full layer of the stage, and of an increment on it.
fn chain(stage: &Stage) -> [String; 2] {
    let full = text(&stage.json(&["info"]), "/layers/0/label").to_owned();
    change(stage);
    let increment = stage.backup(&["--type", "incr"]);
    [full, text(&increment, "/label").to_owned()]
}

#[test]
fn an_increment_whose_base_is_lost_is_an_error_and_comes_where_the_base_is() {
    let stage = stage(Store::Directory);
    let names = ["mirror", "named", "empty"];
    let [has_base, by_name, empty] = names.map(|name| other(&stage, name).0);
    for to in [&has_base, &by_name] {
        copy(&stage, to, &[]);
    }
    let [full, increment] = chain(&stage);
    fs::remove_dir_all(stage.objects().join("main/layer").join(&full)).unwrap();
    for more in [&[][..], &["--dry-run"], &[increment.as_str()]] {
        let (code, log) = stage.fails(&[&["copy", "--to", &empty][..], more].concat());
        assert_eq!(code, NOT_FOUND, "{more:?}: {log}");
    }
    let label = [increment.as_str()];
    for (to, more) in [(&has_base, &[][..]), (&by_name, &label[..])] {
        let report = copy(&stage, to, more);
        let came = report["layers"].as_array().unwrap();
        assert_eq!(came.len(), 1, "{report:#}");
        assert_eq!(came[0]["label"], Value::from(label[0]), "{report:#}");
        // A layer that is asked for by name comes without the WAL before its own.
        at(&stage, to, &["verify", "--deep", &increment]);
    }
}

#[test]
fn an_object_that_is_damaged_in_the_mirror_is_an_error_until_somebody_deletes_it() {
    let stage = stage(Store::Directory);
    let (to, directory) = other(&stage, "mirror");
    let labels = chain(&stage);
    copy(&stage, &to, &[]);
    // As after a copy that was stopped.
    let layers = labels.map(|label| directory.join("main/layer").join(label));
    for layer in &layers {
        for name in ["manifest", "committed"] {
            fs::remove_file(layer.join(name)).unwrap();
        }
    }
    let pack = layers[0].join("pack-000000");
    let whole = fs::read(&pack).unwrap();
    fs::write(&pack, &whole[..whole.len() - 1]).unwrap();
    for _ in 0..2 {
        let (code, log) = stage.fails(&["copy", "--to", &to]);
        assert_eq!(code, DAMAGED, "{log}");
        assert!(log.contains("delete it by hand"), "{log}");
        assert_eq!(log.matches("is left out").count(), 2, "{log}");
    }
    fs::remove_file(&pack).unwrap();
    let report = copy(&stage, &to, &[]);
    assert_eq!(report["layers"].as_array().unwrap().len(), 2, "{report:#}");
    at(&stage, &to, &["verify", "--deep"]);
}

#[test]
fn a_mirror_that_follows_says_once_that_a_label_is_taken() {
    let stage = stage(Store::Directory);
    let taken = text(&stage.json(&["info"]), "/layers/0/label").to_owned();
    let newer = stage.backup(&["--type", "full"]);
    let newer = text(&newer, "/label");
    let (to, directory) = other(&stage, "mirror");
    copy(&stage, &to, &[newer]);
    let place = directory.join("main/layer").join(&taken);
    fs::create_dir(&place).unwrap();
    let claim = place.join("claim");
    fs::copy(place.with_file_name(newer).join("claim"), &claim).unwrap();
    for path in [&place, &claim] {
        stage.cluster.own(path).unwrap();
    }
    let follow = ["copy", "--to", &to, "--follow", "--every", "100ms"];
    let child = process::spawn(&stage, &follow);
    thread::sleep(Duration::from_secs(3));
    process::signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(WARNINGS), "{log}");
    assert_eq!(log.matches("is left out").count(), 1, "{log}");
}
