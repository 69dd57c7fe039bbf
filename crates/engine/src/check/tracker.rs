//! Is the page tracker at work, and what is missing if it is not.
//!
//! Asks and changes nothing. Backups work without the tracker; these are for the
//! person who wants them to read less.

use pgstrata_pgdata::version::Major;
use pgstrata_store::error::{Error, Kind, Result};

use super::CheckReport;
use crate::server::session::Session;
use crate::server::{ConnectionOptions, NoTracker, Tracker, TrackerState};

/// The tracker of a server.
#[derive(Clone, Debug)]
pub struct TrackerStatus {
    /// The database with the extension; `None` when there is no tracker to ask.
    pub database: Option<String>,
    /// What the tracker says of itself.
    pub state: Option<TrackerState>,
    /// Why the next backup cannot use it.
    pub problem: Option<NoTracker>,
}

/// Asks the server for its tracker.
///
/// # Errors
/// When the server cannot be reached or does not answer.
pub async fn status(connection: &ConnectionOptions) -> Result<TrackerStatus> {
    let session = Session::connect(connection).await?;
    let tracker = match Tracker::find(&session, connection).await {
        Ok(tracker) => tracker,
        Err(problem) => {
            return Ok(TrackerStatus {
                database: None,
                state: None,
                problem: Some(problem),
            });
        }
    };
    let state = tracker.state().await?;
    Ok(TrackerStatus {
        database: Some(tracker.database().to_owned()),
        problem: (!state.tracking).then(|| refusal(&state)),
        state: Some(state),
    })
}

fn refusal(state: &TrackerState) -> NoTracker {
    NoTracker {
        reason: state
            .reason
            .clone()
            .unwrap_or_else(|| "the tracker does not say why".to_owned()),
        hint: "docs/TRACKER.md, section \"When changes are unknown\", says what each reason asks for; backups compare pages meanwhile".to_owned(),
        may_be_there: true,
    }
}

/// Looks at each step of the installation.
pub async fn install_check(connection: &ConnectionOptions) -> CheckReport {
    let mut report = CheckReport::default();
    let session = report.note("server", Session::connect(connection).await, |session| {
        let facts = session.facts();
        format!("version {}, as role \"{}\"", facts.version, facts.role)
    });
    let Some(session) = session else {
        return report;
    };
    let installed = session
        .tracker_files()
        .await
        .and_then(|version| version.ok_or_else(|| not_installed(session.facts().major)));
    let installed = report.note("files", installed, |version| {
        format!("extension \"pgstrata\" {version} can be created")
    });
    let loaded = session.tracker_library().await.and_then(|library| {
        if library.is_loaded {
            return Ok(());
        }
        let error = Error::new(
            Kind::NotFound,
            "the server runs without the pgstrata library",
        );
        Err(error.hint(match library.preloaded {
            Some(names) if names.contains("pgstrata") => "restart the server".to_owned(),
            Some(names) if !names.is_empty() => {
                format!("set shared_preload_libraries = '{names}, pgstrata' and restart the server")
            }
            _ => "add pgstrata to shared_preload_libraries and restart the server".to_owned(),
        }))
    });
    let loaded = report.note("library", loaded, |()| {
        "loaded by shared_preload_libraries".to_owned()
    });
    if loaded.is_some() {
        let found = Tracker::find(&session, connection).await;
        let found = found.map_err(|none| Error::new(Kind::NotFound, none.reason).hint(none.hint));
        let tracker = report.note("extension", found, |tracker| {
            format!("created in database \"{}\"", tracker.database())
        });
        if let Some(tracker) = tracker {
            check_tracker(&mut report, &tracker, installed).await;
        }
    }
    report
}

fn not_installed(major: Major) -> Error {
    Error::new(
        Kind::NotFound,
        "the extension's files are not installed on the server",
    )
    .hint(format!(
        "on the server's host, with a C compiler and the server's headers (Debian: build-essential, postgresql-server-dev-{major}): \
         make -C ext install PG_CONFIG=/path/to/the/server's/pg_config"
    ))
}

async fn check_tracker(report: &mut CheckReport, tracker: &Tracker, installed: Option<String>) {
    let rights = tracker.missing_grants().await.and_then(|missing| {
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Server,
            "the role may not call all functions that backups call",
        )
        .hint(format!(
            "in database \"{}\": {}",
            tracker.database(),
            missing.join("; ")
        )))
    });
    let granted = report.note("rights", rights, |()| {
        "the role may call what backups call".to_owned()
    });
    if granted.is_none() {
        return;
    }
    let Some(state) = report.note("answer", tracker.state().await, |state| {
        format!("library version {}", state.version)
    }) else {
        return;
    };
    check_versions(report, tracker, installed.as_deref(), &state).await;
    let tracking = if state.tracking {
        Ok(())
    } else {
        let no = refusal(&state);
        Err(Error::new(Kind::Server, no.reason).hint(no.hint))
    };
    let tracking = report.note("tracking", tracking, |()| {
        format!(
            "since {}: {}",
            state.history_since.as_deref().unwrap_or("an unknown time"),
            state.history_reason.as_deref().unwrap_or("no reason given")
        )
    });
    if tracking.is_some() && state.flush_failures > 0 {
        report.warn(
            "flushes",
            format!("{} flushes of the page map failed", state.flush_failures),
            "look into the server's log: is the disk full?",
        );
    }
}

/// Files, library and functions are renewed one after the other: what is left to do.
async fn check_versions(
    report: &mut CheckReport,
    tracker: &Tracker,
    installed: Option<&str>,
    state: &TrackerState,
) {
    let library = &state.version;
    if let Some(installed) = installed.filter(|installed| installed != library) {
        report.warn(
            "version",
            format!(
                "the files on disk are of version {installed}, the loaded library is {library}"
            ),
            "restart the server, then run ALTER EXTENSION pgstrata UPDATE",
        );
        return;
    }
    let created = report.note("functions", tracker.functions_version().await, |version| {
        format!("version {version}")
    });
    if let Some(created) = created.filter(|created| created != library) {
        report.warn(
            "version",
            format!("the functions are of version {created}, the loaded library is {library}"),
            &format!(
                "in database \"{}\": ALTER EXTENSION pgstrata UPDATE",
                tracker.database()
            ),
        );
    }
}
