//! `pg_control` of a running cluster, and the proof that a directory is that cluster's.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_pgdata::control::{CONTROL_FILE_SIZE, ClusterState, ControlFile};
use pgstrata_pgdata::{LOCK_FILE, LockFile, Lsn, Major};
use pgstrata_store::blocking::blocking;
use pgstrata_store::error::{Error, FileContext, Kind, Result};

use super::facts::ServerFacts;
use super::session::{Session, get, row_of, server_error};

/// The server writes the file with one `write`; a reader can still meet it half
/// way. Twenty readings 10 ms apart outlast any such write.
const READINGS: u32 = 20;
const BETWEEN_READINGS: Duration = Duration::from_millis(10);

/// Path of the control file within a data directory.
pub const CONTROL_PATH: &str = "global/pg_control";

/// The control file as bytes and as values, from one reading whose checksum is right.
#[derive(Clone, Debug)]
pub struct ControlReading {
    /// The file's bytes.
    pub bytes: Vec<u8>,
    /// What they say.
    pub control: ControlFile,
}

/// Reads `global/pg_control` below `data_directory`, again while its checksum does not match.
///
/// # Errors
/// When the directory is not a data directory of a supported version, or the checksum stays wrong.
pub fn read_control(data_directory: &Path) -> Result<ControlReading> {
    check_version_file(data_directory)?;
    let path = data_directory.join(CONTROL_PATH);
    for reading in 1..=READINGS {
        let bytes = fs::read(&path).context(|| format!("could not read \"{}\"", path.display()))?;
        if bytes.len() != CONTROL_FILE_SIZE {
            return Err(Error::new(
                Kind::Damaged,
                format!(
                    "\"{}\" has {} bytes, expected {CONTROL_FILE_SIZE}",
                    path.display(),
                    bytes.len()
                ),
            ));
        }
        match ControlFile::parse(&bytes) {
            Ok(control) => return Ok(ControlReading { bytes, control }),
            Err(error) if error.kind() == pgstrata_pgdata::Kind::Damaged && reading < READINGS => {
                thread::sleep(BETWEEN_READINGS);
            }
            Err(error) => {
                let kind = match error.kind() {
                    pgstrata_pgdata::Kind::Unsupported => Kind::Unsupported,
                    _ => Kind::Damaged,
                };
                return Err(Error::new(
                    kind,
                    format!("could not read \"{}\": {error}", path.display()),
                ));
            }
        }
    }
    unreachable!("the last reading returns")
}

/// The control file, read on a thread that may block.
pub(crate) async fn control_of(data_directory: &Path) -> Result<ControlReading> {
    let directory = data_directory.to_owned();
    tokio::task::spawn_blocking(move || read_control(&directory))
        .await
        .unwrap_or_else(|error| {
            Err(Error::new(
                Kind::File,
                format!("could not read pg_control: {error}"),
            ))
        })
}

/// The control file of `data_directory`, when that is the directory of the server of `session`.
///
/// # Errors
/// `Kind::Refused`, saying what differs; when the file cannot be read, or the server does not answer.
pub(crate) async fn control_of_server(
    session: &Session,
    data_directory: &Path,
) -> Result<ControlReading> {
    let reading = control_of(data_directory).await?;
    check_same_cluster(data_directory, &reading.control, session.facts())?;
    require_its_own(session, data_directory).await?;
    Ok(reading)
}

/// Requires a file there that the server makes at our word. Two standbys of one primary, on two hosts, or the old and the new
/// primary, have the same identifier, state and port, and mostly the same checkpoint.
async fn require_its_own(session: &Session, data_directory: &Path) -> Result<()> {
    let act = "could not have the server export a snapshot, whose file shows which directory is the server's";
    let client = session.client();
    let run = async |statement: &str| {
        let done = client.batch_execute(statement).await;
        done.map_err(|error| server_error(act, &error))
    };
    run("BEGIN").await?;
    let query = "SELECT pg_export_snapshot(), pg_backend_pid()";
    let exported = row_of(client, act, query, &[]).await;
    let seen = match &exported {
        Ok(row) => {
            let (name, process): (String, i32) = (get(row, 0, act)?, get(row, 1, act)?);
            let path = data_directory.join("pg_snapshots").join(name);
            let contents = blocking(move || Ok(fs::read_to_string(path))).await?;
            let line = format!("pid:{process}");
            contents.is_ok_and(|text| text.lines().any(|one| one == line))
        }
        Err(_) => false,
    };
    // The file goes with the transaction.
    run("ROLLBACK").await?;
    exported.map_err(|error| {
        error.hint(format!(
            "when the right is missing, GRANT EXECUTE ON FUNCTION pg_catalog.pg_export_snapshot() TO \"{}\"; everybody has it in a new cluster",
            session.facts().role
        ))
    })?;
    match seen {
        true => Ok(()),
        false => Err(not_of_server(
            data_directory,
            session.facts(),
            "a snapshot that the server exports does not appear in its pg_snapshots, so it is a copy, or another server's",
        )),
    }
}

/// Refuses a cluster that is not the repository's.
pub(crate) fn check_record(record: &ClusterRecord, control: &ControlFile) -> Result<()> {
    let refuse = |what: &str, server: String, repository: String| {
        Err(Error::new(
            Kind::Refused,
            format!("cluster \"{}\" in the repository is another one: its {what} is {repository}, the server's is {server}", record.name),
        )
        .hint(
            "use another --cluster name for this server; one that pg_upgrade made is another cluster: RUNBOOKS.md, \"Go to a new \
             major version\", has the steps",
        )
        .for_other_cluster())
    };
    if record.system_identifier != control.system_identifier {
        return refuse(
            "system identifier",
            control.system_identifier.to_string(),
            record.system_identifier.to_string(),
        );
    }
    if u32::from(record.major) != control.major.get() {
        return refuse(
            "version",
            control.major.to_string(),
            record.major.to_string(),
        );
    }
    if record.catalog_version != control.catalog_version {
        return refuse(
            "catalog version",
            control.catalog_version.to_string(),
            record.catalog_version.to_string(),
        );
    }
    if u64::from(record.wal_segment_size) != control.wal_segment_size.get() {
        return refuse(
            "WAL segment size",
            control.wal_segment_size.to_string(),
            record.wal_segment_size.to_string(),
        );
    }
    Ok(())
}

fn check_version_file(data_directory: &Path) -> Result<()> {
    let path = data_directory.join("PG_VERSION");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let what = if data_directory.is_dir() {
                "is not a data directory: it has no PG_VERSION"
            } else {
                "does not exist"
            };
            return Err(Error::new(
                Kind::NotFound,
                format!("\"{}\" {what}", data_directory.display()),
            )
            .hint("name the server's data directory, as \"SHOW data_directory\" tells it"));
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Error::new(Kind::File, format!("could not read \"{}\": {error}", path.display()))
                .hint("run as the server's owner, or as a member of its group when the cluster allows group access"));
        }
        other => other.context(|| format!("could not read \"{}\"", path.display()))?,
    };
    Major::parse(&text).map(|_| ()).map_err(|error| {
        Error::new(
            Kind::Unsupported,
            format!("could not use \"{}\": {error}", data_directory.display()),
        )
    })
}

/// Refuses when `reading` is not the control file of the server that `facts` describe.
///
/// # Errors
/// `Kind::Refused`, saying what differs.
pub fn check_same_cluster(
    data_directory: &Path,
    control: &ControlFile,
    facts: &ServerFacts,
) -> Result<()> {
    let refuse = |what: String| Err(not_of_server(data_directory, facts, &what));
    if control.system_identifier != facts.system_identifier {
        return refuse(format!(
            "its system identifier is {}, the server's is {}",
            control.system_identifier, facts.system_identifier
        ));
    }
    if control.major != facts.major {
        return refuse(format!(
            "it is of version {}, the server of {}",
            control.major, facts.major
        ));
    }
    let expected = ClusterState::of_running(facts.in_recovery);
    if control.state != expected {
        return refuse(format!(
            "its state is \"{}\", the server is \"{expected}\"",
            control.state
        ));
    }
    check_lock_file(data_directory, facts).or_else(refuse)
}

fn not_of_server(data_directory: &Path, facts: &ServerFacts, what: &str) -> Error {
    let directory = data_directory.display();
    let what = format!("\"{directory}\" is not the data directory of the server: {what}");
    Error::new(Kind::Refused, what).hint(match &facts.data_directory {
        Some(told) if Path::new(told) == data_directory => format!(
            "a server of another host, or of another container, answers, whose data directory has that name, too: connect to the one that \
             runs on \"{directory}\", by its socket or by one host and port"
        ),
        Some(told) => format!("the server says its data directory is \"{told}\""),
        None => "name the data directory of the server you connect to".to_owned(),
    })
}

/// The process id of the server that runs on `data_directory`.
pub(crate) fn postmaster(data_directory: &Path) -> Option<u32> {
    let pid = read_lock_file(data_directory)?.pid?;
    u32::try_from(pid).ok()
}

/// What the server that runs on `data_directory` says of itself; `None` when none does.
pub(super) fn read_lock_file(data_directory: &Path) -> Option<LockFile> {
    let contents = fs::read(data_directory.join(LOCK_FILE)).ok()?;
    Some(LockFile::parse(&contents))
}

/// Two servers of one host differ in their ports.
fn check_lock_file(data_directory: &Path, facts: &ServerFacts) -> std::result::Result<(), String> {
    let Some(says) = read_lock_file(data_directory) else {
        return Err("it has no readable postmaster.pid".to_owned());
    };
    match says.port {
        Some(port) if port == facts.port => Ok(()),
        Some(port) => Err(format!(
            "its server listens on port {port}, the server on {}",
            facts.port
        )),
        None => Err("its postmaster.pid names no port".to_owned()),
    }
}

/// Refuses when the storage does not show the checkpoint with which the backup
/// began: then it is not what the server writes to.
///
/// # Errors
/// `Kind::Refused`, naming both positions.
pub fn check_start_is_visible(
    data_directory: &Path,
    control: &ControlFile,
    start: Lsn,
) -> Result<()> {
    if control.redo_lsn >= start {
        return Ok(());
    }
    Err(Error::new(
        Kind::Refused,
        format!(
            "\"{}\" shows a checkpoint at {}, before the start of the backup at {start}",
            data_directory.display(),
            control.redo_lsn
        ),
    )
    .hint(
        "the directory is not the storage the server writes to: look for a wrong mount or a copy",
    ))
}
