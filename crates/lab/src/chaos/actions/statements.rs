//! What a server is told in SQL: rows, tables, indexes, upkeep, databases and prepared transactions, at random.
//!
//! A statement that the server refuses, for a lock say, is no finding: the truth is read from the server afterwards.

use anyhow::Result;
use pgstrata_testbed::cluster::{Cluster, SUPERUSER};

use super::super::chance::Chance;

/// A prepared transaction may hold a lock for many steps.
const PATIENCE: &str = "SET lock_timeout = '1s'; SET statement_timeout = '60s';\n";

/// So that a cluster stays small: backups of it take a second.
const MOST_DATABASES: usize = 4;
const MOST_TABLES: usize = 12;
const MOST_ROWS: u64 = 3000;

/// A statement, and the database in which it is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) database: String,
    pub(super) text: String,
    /// The first words of it, for the log.
    pub(super) name: &'static str,
}

/// What there is to work with in one database.
#[derive(Debug)]
struct Scene {
    database: String,
    databases: Vec<String>,
    tables: Vec<String>,
    indexes: Vec<String>,
    prepared: Vec<String>,
    /// Names what is made.
    serial: u64,
}

/// Kinds of statements, and how often each is chosen.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Rows,
    Tables,
    Indexes,
    Upkeep,
    Databases,
    Prepared,
    Ledger,
}

const KINDS: [(Kind, u64); 7] = [
    (Kind::Rows, 40),
    (Kind::Tables, 20),
    (Kind::Indexes, 10),
    (Kind::Upkeep, 14),
    (Kind::Databases, 6),
    (Kind::Prepared, 6),
    (Kind::Ledger, 10),
];

/// Runs a random statement. Returns its name, and whether the server did it.
pub(super) fn run_one(
    server: &Cluster,
    chance: &mut Chance,
    serial: u64,
) -> Result<(&'static str, bool)> {
    let statement = choose(server, chance, serial)?;
    let script = format!("{PATIENCE}{}", statement.text);
    let is_done = server.sql(&statement.database, &script).is_ok();
    Ok((statement.name, is_done))
}

/// Chooses a random statement for what there is.
pub(super) fn choose(server: &Cluster, chance: &mut Chance, serial: u64) -> Result<Statement> {
    let scene = scene(server, chance, serial)?;
    let kind = chance.weighted(&KINDS).unwrap_or(Kind::Rows);
    let (name, text) = match kind {
        Kind::Rows => rows(&scene, chance),
        Kind::Tables => tables(&scene, chance),
        Kind::Indexes => indexes(&scene, chance),
        Kind::Upkeep => upkeep(&scene, chance),
        Kind::Databases => databases(&scene, chance),
        Kind::Prepared => prepared(&scene, chance),
        Kind::Ledger => ("ledger", ledger(serial, chance)),
    };
    // A database cannot be worked on from within.
    let outside = matches!(kind, Kind::Databases | Kind::Ledger);
    let database = if outside {
        SUPERUSER.to_owned()
    } else {
        scene.database
    };
    Ok(Statement {
        database,
        text,
        name,
    })
}

fn scene(server: &Cluster, chance: &mut Chance, serial: u64) -> Result<Scene> {
    let lines = |text: String| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    let databases: Vec<String> = server.databases()?;
    let own: Vec<String> = databases
        .iter()
        .filter(|name| *name != "template1")
        .cloned()
        .collect();
    let database = chance
        .one(&own)
        .cloned()
        .unwrap_or_else(|| SUPERUSER.to_owned());
    let relations = |kind: char, prefix: &str| {
        server.sql(
            &database,
            &format!(
                "SELECT relname FROM pg_class WHERE relkind = '{kind}' AND relname LIKE '{prefix}%'
                   AND relnamespace = 'public'::regnamespace ORDER BY 1"
            ),
        )
    };
    let prepared =
        format!("SELECT gid FROM pg_prepared_xacts WHERE database = '{database}' ORDER BY 1");
    Ok(Scene {
        tables: lines(relations('r', "t")?),
        indexes: lines(relations('i', "i")?),
        prepared: lines(server.sql(&database, &prepared)?),
        databases: own.into_iter().filter(|name| name != SUPERUSER).collect(),
        database,
        serial,
    })
}

/// The same rows into two tables: whatever moment is restored, both hold the same.
pub(super) fn ledger(serial: u64, chance: &mut Chance) -> String {
    let (rows, amount) = (chance.between(1, 50), chance.below(1000));
    format!(
        "WITH one AS (INSERT INTO ledger_one SELECT {serial} * 1000 + g, {amount} FROM generate_series(1, {rows}) g RETURNING *)
         INSERT INTO ledger_two SELECT * FROM one"
    )
}

fn rows(scene: &Scene, chance: &mut Chance) -> (&'static str, String) {
    let Some(table) = chance.one(&scene.tables) else {
        return create_table(scene, chance);
    };
    let (count, part) = (chance.between(1, MOST_ROWS), chance.between(2, 9));
    let of = chance.below(part);
    let (name, text) = match chance.below(6) {
        0 => (
            "update",
            format!("UPDATE {table} SET v = v + 1 WHERE id % {part} = {of}"),
        ),
        1 => (
            "delete",
            format!("DELETE FROM {table} WHERE id % {part} = {of}"),
        ),
        2 => (
            "rollback",
            format!("BEGIN; UPDATE {table} SET v = v - 1 WHERE id % {part} = {of}; SAVEPOINT s; DELETE FROM {table}; ROLLBACK"),
        ),
        3 => (
            "large object",
            format!("SELECT lo_from_bytea(0, decode(repeat('{:08x}', {count}), 'hex'))", scene.serial),
        ),
        _ => (
            "insert",
            format!(
                "INSERT INTO {table} (id, v, pad) SELECT {} * 10000 + g, g, repeat(chr(97 + g % 26), 20 + g % 300) FROM generate_series(1, {count}) g
                 ON CONFLICT DO NOTHING",
                scene.serial
            ),
        ),
    };
    (name, text)
}

fn create_table(scene: &Scene, chance: &mut Chance) -> (&'static str, String) {
    let serial = scene.serial;
    let kind = if chance.percent(10) { "UNLOGGED" } else { "" };
    let (space, key) = (space(chance), chance.one(&["bigint PRIMARY KEY", "bigint"]));
    let key = key.copied().unwrap_or("bigint");
    let rows = chance.between(0, MOST_ROWS);
    let text = format!(
        "CREATE {kind} TABLE t{serial} (id {key}, v bigint, pad text) TABLESPACE {space};
         INSERT INTO t{serial} SELECT g, g % 7, repeat(md5(g::text), 1 + (g % 9)::int) FROM generate_series(1, {rows}) g"
    );
    ("create table", text)
}

fn space(chance: &mut Chance) -> &'static str {
    let spaces = [("pg_default", 5), ("space", 3), ("inside", 2)];
    chance.weighted(&spaces).unwrap_or("pg_default")
}

fn tables(scene: &Scene, chance: &mut Chance) -> (&'static str, String) {
    let Some(table) = chance.one(&scene.tables) else {
        return create_table(scene, chance);
    };
    let serial = scene.serial;
    match chance.below(9) {
        0 => ("truncate", format!("TRUNCATE {table}")),
        1 => ("drop table", format!("DROP TABLE {table} CASCADE")),
        2 => (
            "rewrite",
            format!(
                "ALTER TABLE {table} ALTER v TYPE bigint USING v + 1, ADD c{serial} int DEFAULT random() * 100"
            ),
        ),
        3 => (
            "set tablespace",
            format!("ALTER TABLE {table} SET TABLESPACE {}", space(chance)),
        ),
        4 => (
            "rename table",
            format!("ALTER TABLE {table} RENAME TO t{serial}"),
        ),
        5 => (
            "set logged",
            format!(
                "ALTER TABLE {table} SET {}",
                chance.one(&["LOGGED", "UNLOGGED"]).unwrap_or(&"LOGGED")
            ),
        ),
        6 => (
            "view",
            format!(
                "CREATE MATERIALIZED VIEW v{serial} AS SELECT id, v FROM {table} WHERE v % 2 = 0"
            ),
        ),
        _ if scene.tables.len() >= MOST_TABLES => {
            ("drop table", format!("DROP TABLE {table} CASCADE"))
        }
        _ => create_table(scene, chance),
    }
}

fn indexes(scene: &Scene, chance: &mut Chance) -> (&'static str, String) {
    let serial = scene.serial;
    let index = chance.one(&scene.indexes);
    let Some(table) = chance.one(&scene.tables) else {
        return create_table(scene, chance);
    };
    match (index, chance.below(4)) {
        (Some(index), 0) => ("drop index", format!("DROP INDEX {index}")),
        (Some(index), 1) => ("reindex", format!("REINDEX INDEX {index}")),
        _ => {
            let kinds = [
                "btree (v)",
                "hash (v)",
                "brin (id)",
                "btree (pad text_pattern_ops)",
                "gin (to_tsvector('simple', pad))",
                "spgist (pad)",
            ];
            let kind = chance.one(&kinds).copied().unwrap_or("btree (v)");
            let beside = if chance.percent(30) {
                "CONCURRENTLY"
            } else {
                ""
            };
            (
                "create index",
                format!("CREATE INDEX {beside} i{serial} ON {table} USING {kind}"),
            )
        }
    }
}

fn upkeep(scene: &Scene, chance: &mut Chance) -> (&'static str, String) {
    let table = chance.one(&scene.tables).cloned().unwrap_or_default();
    let statements = [
        ("vacuum", format!("VACUUM {table}")),
        ("vacuum full", format!("VACUUM FULL {table}")),
        ("vacuum freeze", format!("VACUUM (FREEZE, ANALYZE) {table}")),
        ("checkpoint", "CHECKPOINT".to_owned()),
        ("switch wal", "SELECT pg_switch_wal()".to_owned()),
        ("analyze", format!("ANALYZE {table}")),
    ];
    chance.one(&statements).cloned().unwrap_or_default()
}

fn databases(scene: &Scene, chance: &mut Chance) -> (&'static str, String) {
    let serial = scene.serial;
    let strategy = chance
        .one(&["wal_log", "file_copy"])
        .copied()
        .unwrap_or("wal_log");
    let database = chance.one(&scene.databases);
    let template = match (database, chance.percent(40)) {
        (Some(database), true) => database.as_str(),
        _ => "template1",
    };
    let create = format!(
        "CREATE DATABASE d{serial} TEMPLATE {template} STRATEGY {strategy} TABLESPACE {}",
        space(chance)
    );
    match (database, chance.below(5)) {
        (Some(database), 0) => (
            "drop database",
            format!("DROP DATABASE {database} WITH (FORCE)"),
        ),
        (Some(database), 1) => (
            "rename database",
            format!("ALTER DATABASE {database} RENAME TO d{serial}"),
        ),
        (Some(database), 2) => (
            "move database",
            format!("ALTER DATABASE {database} SET TABLESPACE {}", space(chance)),
        ),
        (Some(database), _) if scene.databases.len() >= MOST_DATABASES => (
            "drop database",
            format!("DROP DATABASE {database} WITH (FORCE)"),
        ),
        _ => ("create database", create),
    }
}

fn prepared(scene: &Scene, chance: &mut Chance) -> (&'static str, String) {
    let serial = scene.serial;
    if let Some(gid) = chance.one(&scene.prepared)
        && chance.percent(70)
    {
        return match chance.percent(60) {
            true => ("commit prepared", format!("COMMIT PREPARED '{gid}'")),
            false => ("rollback prepared", format!("ROLLBACK PREPARED '{gid}'")),
        };
    }
    let Some(table) = chance.one(&scene.tables) else {
        return create_table(scene, chance);
    };
    (
        "prepare",
        format!(
            "BEGIN; INSERT INTO {table} (id, v, pad) SELECT {serial} * 10000 + g, 1, 'prepared' FROM generate_series(1, 20) g;
             PREPARE TRANSACTION 'p{serial}'"
        ),
    )
}
