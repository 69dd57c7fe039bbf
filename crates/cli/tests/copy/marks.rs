//! What is said of a layer at both ends of a mirror.

use std::fs;

use serde_json::Value;

use super::support::{Stage, Store, text};
use super::{at, change, copy, other, stage};

fn is_pinned(stage: &Stage, repository: &str) -> bool {
    let info = at(stage, repository, &["info"]);
    !info["layers"][0]["pin"].is_null()
}

#[test]
fn a_mark_that_cannot_be_read_stops_no_copy() {
    let stage = stage(Store::Directory);
    let label = text(&stage.json(&["info"]), "/layers/0/label").to_owned();
    stage.ok(&["pin", &label]);
    let (to, directory) = other(&stage, "mirror");
    copy(&stage, &to, &[]);
    let mark = format!("main/mark/{label}/000000");
    fs::write(directory.join(&mark), "x").unwrap();
    change(&stage);
    stage.backup(&["--type", "incr"]);
    let report = copy(&stage, &to, &[]);
    assert_eq!(report["layers"].as_array().unwrap().len(), 1, "{report:#}");
    assert!(is_pinned(&stage, &to));
    assert_eq!(at(&stage, &to, &["unpin", &label])["pin"], Value::Null);
    // One that cannot be read in the source may be a pin.
    fs::write(stage.objects().join(&mark), "x").unwrap();
    copy(&stage, &to, &[]);
    assert!(is_pinned(&stage, &to));
}

/// The mirror knows all that the source says, and more was said there.
#[test]
fn what_was_taken_back_in_a_mirror_stays_so_until_the_source_says_more() {
    let stage = stage(Store::Directory);
    let label = text(&stage.json(&["info"]), "/layers/0/label").to_owned();
    stage.ok(&["pin", &label]);
    stage.ok(&["annotate", &label, "ticket=DB-1"]);
    let (to, directory) = other(&stage, "mirror");
    copy(&stage, &to, &[]);
    assert!(is_pinned(&stage, &to));
    at(&stage, &to, &["unpin", &label]);
    at(&stage, &to, &["annotate", &label, "ticket="]);
    let marks = directory.join("main/mark").join(&label);
    for _ in 0..2 {
        assert_eq!(copy(&stage, &to, &[])["records"], 0);
        let info = at(&stage, &to, &["info"]);
        assert_eq!(info["layers"][0]["pin"], Value::Null, "{info:#}");
        let notes = info["layers"][0]["annotations"].as_object().unwrap();
        assert!(notes.is_empty(), "{info:#}");
        assert_eq!(fs::read_dir(&marks).unwrap().count(), 4);
    }
    assert!(is_pinned(&stage, &stage.repository));
    stage.ok(&["pin", &label, "--note", "again"]);
    copy(&stage, &to, &[]);
    assert!(is_pinned(&stage, &to));
}
