//! The reader of WAL records, held against `pg_waldump` over whole segments of busy servers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests fail and report as tests do"
)]

use std::collections::BTreeMap;
use std::fs;

use pgstrata_pgdata::wal_records::{Meaning, TransactionId};
use pgstrata_pgdata::{DatabaseDirectory, Lsn, Major, RecordReader, WalSegment, WalSegmentSize};
use pgstrata_testbed::cluster;

/// What `pg_waldump` prints of the records that matter: where they begin, and which transaction ends.
fn dumped(text: &str) -> BTreeMap<Lsn, Option<TransactionId>> {
    let lines = text.lines().filter_map(|line| {
        let after = |key: &str| line.split_once(key).map(|(_, rest)| rest);
        let lsn = after("lsn: ")?.split(',').next()?.parse().unwrap();
        let desc = after("desc: ")?;
        let transaction = match desc.split(' ').next()? {
            "COMMIT" | "ABORT" if line.contains("rmgr: Transaction") => {
                after("tx: ")?.split(',').next()?.trim()
            }
            "COMMIT_PREPARED" | "ABORT_PREPARED" => desc.split([' ', ':']).nth(1)?,
            "RESTORE_POINT" => return Some((lsn, None)),
            _ => return None,
        };
        Some((lsn, Some(TransactionId(transaction.parse().unwrap()))))
    });
    lines.collect()
}

/// What `pg_waldump` prints of the records that make or drop directories of databases.
fn dumped_databases(text: &str) -> Vec<(Lsn, String)> {
    let lines = text.lines().filter_map(|line| {
        let after = |key: &str| line.split_once(key).map(|(_, rest)| rest);
        let lsn = after("lsn: ")?.split(',').next()?.parse().unwrap();
        let words = line.contains("rmgr: Database").then(|| after("desc: "))??;
        let (_, words) = words.split_once(' ')?;
        Some((lsn, words.trim().to_owned()))
    });
    lines.collect()
}

/// The same of a record, in the words of `dbasedesc.c`.
fn of_database(meaning: &Meaning) -> Option<String> {
    let place = |of: &DatabaseDirectory| format!("{}/{}", of.tablespace, of.database);
    match meaning {
        Meaning::DatabaseMade { directory, copy_of } => {
            let made = place(directory);
            Some(match copy_of {
                Some(source) => format!("copy dir {} to {made}", place(source)),
                None => format!("create dir {made}"),
            })
        }
        Meaning::DatabaseDropped(dropped) => {
            let dropped: Vec<String> = dropped.iter().map(place).collect();
            Some(format!("dir {}", dropped.join(" ")))
        }
        _ => None,
    }
}

/// A server with much WAL, and the last segment that it has finished.
fn busy(major: cluster::Major) -> (cluster::Cluster, WalSegment) {
    let server = cluster::Cluster::builder(major)
        .initdb_arg("--wal-segsize=1")
        .conf("wal_keep_size", "1GB")
        .conf("max_prepared_transactions", "5")
        .start()
        .unwrap();
    server.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    server.pgbench(&["-n", "-c", "4", "-t", "700"]).unwrap();
    for statement in [
        "CREATE DATABASE copied STRATEGY file_copy",
        "CREATE DATABASE logged STRATEGY wal_log",
        "DROP DATABASE copied",
    ] {
        server.sql("postgres", statement).unwrap();
    }
    // Records as long as pages, in which transactions end.
    let long = "DO $$ BEGIN FOR i IN 1..3000 LOOP BEGIN INSERT INTO pgbench_history VALUES (i, i, i, i, now());
        EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$";
    for nth in 0..4 {
        server.sql("postgres", long).unwrap();
        let point = format!("SELECT pg_create_restore_point('point {nth}')");
        server.sql("postgres", &point).unwrap();
        let tables =
            format!("CREATE TABLE t{nth} AS SELECT generate_series(1, 1000); DROP TABLE t{nth}");
        server.sql("postgres", &tables).unwrap();
        let prepared = "BEGIN; INSERT INTO pgbench_history VALUES (1); PREPARE TRANSACTION 'p'";
        server.sql("postgres", prepared).unwrap();
        server.sql("postgres", "COMMIT PREPARED 'p'").unwrap();
    }
    // A commit record of 12 000 bytes that begins in the last 6 000 of a segment.
    let fill = "SELECT pg_logical_emit_message(false, '', repeat('x',
        (1048576 - (pg_current_wal_insert_lsn() - '0/0') % 1048576 - 6000)::int)) IS NULL";
    let across = format!("BEGIN; {long}; {fill}; COMMIT");
    server.sql("postgres", &across).unwrap();
    let last = "SELECT pg_walfile_name(pg_switch_wal() - 1)";
    let last = server.sql("postgres", last).unwrap();
    let last = WalSegment::parse(&last, size()).unwrap();
    (server, last)
}

fn size() -> WalSegmentSize {
    WalSegmentSize::try_from(1 << 20).unwrap()
}

/// Every segment is read by itself, as a restore does, and what is open at its end is completed from the next.
fn every_transaction_end_is_found(of_test: cluster::Major, major: Major) {
    let (server, end) = busy(of_test);
    let size = size();
    let wal = server.pgdata().join("pg_wal");
    let mut segments: Vec<WalSegment> = fs::read_dir(&wal)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| WalSegment::parse(&name, size).ok())
        .filter(|segment| *segment <= end)
        .collect();
    segments.sort();
    let bytes = |segment: WalSegment| fs::read(wal.join(segment.file_name(size))).unwrap();
    let (mut found, mut databases) = (BTreeMap::new(), Vec::new());
    let (mut completed, mut records) = (0, 0);
    for (nth, segment) in segments.iter().enumerate() {
        let mut reader = RecordReader::new(major, *segment, size);
        let mut own = Vec::new();
        reader
            .feed(&bytes(*segment), |record| own.push(record))
            .unwrap();
        if reader.open_record().is_some() && nth + 1 < segments.len() {
            completed += 1;
            reader.follow(segments[nth + 1]).unwrap();
            reader
                .feed(&bytes(segments[nth + 1]), |record| own.push(record))
                .unwrap();
        }
        for record in own {
            if record.start >= segment.end_lsn(size) {
                continue;
            }
            records += 1;
            databases.extend(of_database(&record.meaning).map(|words| (record.start, words)));
            match record.meaning {
                Meaning::End(end) => found.insert(record.start, Some(end.transaction)),
                Meaning::RestorePoint { .. } => found.insert(record.start, None),
                Meaning::Prepared(_)
                | Meaning::Checkpoint { .. }
                | Meaning::TablespaceCreated { .. }
                | Meaning::DatabaseMade { .. }
                | Meaning::DatabaseDropped(_)
                | Meaning::InitForkMade(_)
                | Meaning::WalLevel(_)
                | Meaning::Other => None,
            };
        }
    }
    let path = wal.display().to_string();
    let first = segments[0].file_name(size);
    let last = segments[segments.len() - 1].file_name(size);
    let mut dump = server.command("pg_waldump");
    let dump = dump.args(["-p", &path, &first, &last]).output().unwrap();
    let text = String::from_utf8_lossy(&dump.stdout);
    assert_eq!(databases, dumped_databases(&text), "PostgreSQL {major}");
    assert!(databases.len() > 2, "PostgreSQL {major}");
    let expected = dumped(&text);
    let missing = expected
        .iter()
        .find(|(at, what)| found.get(at) != Some(what));
    assert_eq!(missing, None, "PostgreSQL {major}");
    assert!(found.len() >= expected.len(), "PostgreSQL {major}");
    let beyond = found
        .iter()
        .find(|(at, what)| expected.get(at) != Some(what));
    assert_eq!(beyond, None, "PostgreSQL {major}");
    assert!(
        expected.len() > 2500 && segments.len() > 10,
        "PostgreSQL {major}: {records} records"
    );
    assert!(completed > 0, "PostgreSQL {major}");
}

#[test]
fn every_transaction_end_is_found_on_15() {
    every_transaction_end_is_found(cluster::Major::V15, Major::V15);
}

#[test]
fn every_transaction_end_is_found_on_16() {
    every_transaction_end_is_found(cluster::Major::V16, Major::V16);
}

#[test]
fn every_transaction_end_is_found_on_17() {
    every_transaction_end_is_found(cluster::Major::V17, Major::V17);
}

#[test]
fn every_transaction_end_is_found_on_18() {
    every_transaction_end_is_found(cluster::Major::V18, Major::V18);
}
