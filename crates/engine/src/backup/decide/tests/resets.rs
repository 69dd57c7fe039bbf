//! What is made of that somebody has called `pgstrata.reset()`, and of a page tracker that cannot be asked.

use futures::FutureExt as _;
use pgstrata_layer::lineage::with_layer;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_pgdata::Lsn;
use pgstrata_store::error::{Error, Kind};

use super::super::past::{believed, reset_after, reset_without_token, told_of_reset};
use super::directory::place;
use crate::server::lineage::Circumstances;
use crate::server::{NoTracker, TrackerState};

fn void(why: &str) -> String {
    format!(
        "the token is not of this history, which began at 2026-11-21 09:33:05 UTC because {why}"
    )
}

#[test]
fn a_reset_is_told_whatever_is_said_beside_it() {
    let reset = void("it was reset by role \"dba\"");
    for why in [
        reset.clone(),
        format!("{reset}, later fsync was turned off"),
        format!("changes are not tracked: the page map is full; {reset}"),
    ] {
        assert_eq!(told_of_reset(Ok(Some(why.clone()))), Some(why));
    }
}

#[test]
fn what_voids_a_token_otherwise_is_no_reset() {
    for why in [
        void("fsync was turned off"),
        "changes are not tracked: fsync is off".to_owned(),
        "it is not a token".to_owned(),
    ] {
        assert_eq!(told_of_reset(Ok(Some(why))), None);
    }
    assert_eq!(told_of_reset(Ok(None)), None);
}

/// With a token in the lineage file of a server that was not started since.
fn doubt(token: Option<&str>, answer: Option<Result<Option<String>, Error>>) -> Option<String> {
    let now = Circumstances {
        boot_id: Some("one".to_owned()),
        ..Circumstances::now(7, true, Some("run".to_owned()))
    };
    let layer = ParentRef {
        label: "20261121-093305F".to_owned(),
        manifest_digest: "a".repeat(64),
    };
    let lines = with_layer(Vec::new(), "line", layer);
    let token = token.map(str::to_owned);
    let lineage = now.clone().lineage(place(2, 3), lines, token);
    let ask = answer.map(|answer| async move |_: &str| answer);
    let known = believed(Some((lineage, place(2, 3))), &now, ask);
    known.now_or_never().unwrap().err()
}

#[test]
fn a_tracker_that_cannot_be_asked_is_a_doubt_while_the_lineage_has_a_token() {
    let denied = || Err(Error::new(Kind::Server, "permission denied"));
    let why = doubt(Some("1:1"), Some(denied())).unwrap();
    assert!(why.ends_with("cannot be asked: permission denied"), "{why}");
    let why = doubt(Some("1:1"), None).unwrap();
    assert!(why.contains("cannot be asked"), "{why}");
    // Without a token in it, that of the parent or its place in the WAL tells.
    for answer in [None, Some(denied()), Some(Ok(None))] {
        assert_eq!(doubt(None, answer), None);
    }
    assert_eq!(doubt(Some("1:1"), Some(Ok(None))), None);
    let full = "changes are not tracked: the page map is full".to_owned();
    assert_eq!(doubt(Some("1:1"), Some(Ok(Some(full)))), None);
    let reset = void("it was reset by role \"dba\"");
    assert!(doubt(Some("1:1"), Some(Ok(Some(reset)))).is_some());
}

fn state(lsn: &str, why: &str) -> TrackerState {
    TrackerState {
        version: String::new(),
        tracking: false,
        reason: None,
        history_since: None,
        history_lsn: Some(lsn.to_owned()),
        history_reason: Some(why.to_owned()),
        tokens: 0,
        map_capacity_bytes: 0,
        map_used_bytes: 0,
        overflow: true,
        flushes: 0,
        flush_last_ms: 0.0,
        flush_max_ms: 0.0,
        flush_failures: 0,
    }
}

#[test]
fn a_layer_without_token_goes_by_where_the_wal_was_at_the_reset() {
    let reset = "it was reset by role \"dba\"";
    let start = Lsn::new(0x300_0028);
    for (lsn, why, is_told) in [
        ("0/3000029", reset, true),
        ("1/28", reset, true),
        // A backup that starts where it was reset has seen the files as they were written.
        ("0/3000028", reset, false),
        ("0/2FFFFFF", reset, false),
        ("0/3000029", "fsync was turned off", false),
        // Not known, as after a crash.
        ("0/0", reset, true),
        ("0/0", "there was no page map", false),
    ] {
        let told = reset_after(&state(lsn, why), start);
        assert_eq!(told.is_some(), is_told, "{lsn} {why}");
    }
}

#[test]
fn a_layer_without_token_is_in_doubt_for_as_long_as_a_tracker_may_be_there_that_nobody_can_ask() {
    let start = Lsn::new(0x300_0028);
    let told = |may_be_there| {
        let none = NoTracker {
            reason: "too many connections".to_owned(),
            hint: "raise the limit".to_owned(),
            may_be_there,
        };
        reset_without_token(&Err(none), start)
    };
    let why = told(true).unwrap();
    for words in [
        "cannot be asked: too many connections",
        "each backup compares every page",
        "raise the limit",
    ] {
        assert!(why.contains(words), "{why}");
    }
    assert_eq!(told(false), None);
    let reset = "it was reset by role \"dba\"";
    for (lsn, is_told) in [("0/3000029", true), ("0/3000028", false)] {
        let told = reset_without_token(&Ok(state(lsn, reset)), start);
        assert_eq!(told.is_some(), is_told, "{lsn}");
    }
}
