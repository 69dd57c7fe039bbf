//! The server: program, settings, contents, activity.

use std::fs;
use std::io::Read;
use std::path::Path;

use postgres::Client;
use sha2::{Digest, Sha256};

use super::{Environment, Setting};

/// One query, one fact. Written for 12 to 19; what a version or a role does
/// not have becomes "not readable".
const QUERIES: [(&str, &str); 14] = [
    ("server.version", "SELECT version()"),
    ("server.version_num", "SHOW server_version_num"),
    ("server.checksums", "SHOW data_checksums"),
    ("server.block_size", "SHOW block_size"),
    ("server.wal_segment_size", "SHOW wal_segment_size"),
    ("server.encoding", "SHOW server_encoding"),
    (
        "server.collation",
        "SELECT datcollate FROM pg_database WHERE datname = current_database()",
    ),
    (
        "server.system_identifier",
        "SELECT system_identifier::text FROM pg_control_system()",
    ),
    ("server.in_recovery", "SELECT pg_is_in_recovery()::text"),
    (
        "server.configure",
        "SELECT setting FROM pg_config WHERE name = 'CONFIGURE'",
    ),
    (
        "server.cflags",
        "SELECT setting FROM pg_config WHERE name = 'CFLAGS'",
    ),
    (
        "contents.extensions",
        "SELECT string_agg(extname || ' ' || extversion, ', ' ORDER BY extname) FROM pg_extension",
    ),
    (
        "contents.dead_share",
        "SELECT round(sum(n_dead_tup)::numeric / greatest(sum(n_live_tup + n_dead_tup), 1), 4)::text FROM pg_stat_user_tables",
    ),
    (
        "contents.never_vacuumed",
        "SELECT count(*)::text FROM pg_stat_user_tables WHERE last_vacuum IS NULL AND last_autovacuum IS NULL AND n_live_tup > 1000",
    ),
];

/// Facts that change while nothing is wrong; asked for all the same.
const ACTIVITY: [(&str, &str); 5] = [
    (
        "noise.other_sessions",
        "SELECT count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name NOT LIKE 'pgstrata-lab%'",
    ),
    (
        "noise.replication_slots",
        "SELECT count(*)::text FROM pg_replication_slots",
    ),
    (
        "noise.archive_failures",
        "SELECT failed_count::text FROM pg_stat_archiver",
    ),
    (
        "contents.database_bytes",
        "SELECT pg_database_size(current_database())::text",
    ),
    (
        "noise.prepared_transactions",
        "SELECT count(*)::text FROM pg_prepared_xacts",
    ),
];

/// Captures the server behind a connection.
#[must_use]
pub fn capture(client: &mut Client) -> Environment {
    let mut env = Environment::default();
    for (name, query) in QUERIES.iter().chain(&ACTIVITY) {
        match client
            .query_one(*query, &[])
            .and_then(|row| row.try_get::<_, Option<String>>(0))
        {
            Ok(Some(value)) => env.found(name, value),
            Ok(None) => env.found(name, ""),
            Err(error) => env.not_readable(name, reason(&error)),
        }
    }
    settings(&mut env, client);
    env
}

/// The server's own words, without the client's wrapping.
fn reason(error: &postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), |e| e.message().to_owned())
}

fn settings(env: &mut Environment, client: &mut Client) {
    let query = "SELECT name, setting, unit, source, pending_restart FROM pg_settings \
                 WHERE name NOT IN ('data_directory', 'config_file', 'hba_file', 'ident_file', \
                 'external_pid_file', 'unix_socket_directories', 'port', 'application_name')";
    match client.query(query, &[]) {
        Ok(rows) => {
            for row in rows {
                let name: String = row.get(0);
                let value: Option<String> = row.get(1);
                let setting = Setting {
                    value: super::mask::mask(&value.unwrap_or_default()),
                    unit: row.get(2),
                    source: row.get(3),
                    pending_restart: row.get(4),
                };
                env.settings.insert(name, setting);
            }
        }
        Err(error) => env.not_readable("server.settings", reason(&error)),
    }
}

/// SHA-256 of the program a process runs, even if the file was replaced since.
///
/// # Errors
/// Says why it cannot be read: another user's process, or not on this machine.
pub fn executable_hash(pid: u32) -> Result<String, String> {
    let path = format!("/proc/{pid}/exe");
    let mut file = fs::File::open(&path).map_err(|error| format!("{path}: {error}"))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => hash.update(&buffer[..count]),
            Err(error) => return Err(format!("{path}: {error}")),
        }
    }
    let digest = hash.finalize();
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Adds what /proc knows of a server on this machine.
pub fn capture_process(env: &mut Environment, pid: u32) {
    env.found("server.pid", pid.to_string());
    match executable_hash(pid) {
        Ok(hash) => env.found("server.executable_sha256", hash),
        Err(why) => env.not_readable("server.executable_sha256", why),
    }
    let link = format!("/proc/{pid}/exe");
    match fs::read_link(Path::new(&link)) {
        Ok(path) => env.found("server.executable", path.to_string_lossy()),
        Err(error) => env.not_readable("server.executable", error),
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    match status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
    {
        Some(list) => env.found("server.cpus_allowed", list),
        None => env.not_readable("server.cpus_allowed", "/proc does not say"),
    }
}
