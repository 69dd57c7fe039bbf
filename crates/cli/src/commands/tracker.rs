//! `tracker`.

use indicatif::BinaryBytes;
use pgstrata_engine::check::tracker::{self, TrackerStatus};
use pgstrata_engine::server::TrackerState;
use pgstrata_store::error::Result;
use serde_json::json;

use super::Context;
use crate::args::TrackerCommand;
use crate::exit;

pub(super) async fn run(context: &Context, command: &TrackerCommand) -> Result<u8> {
    match command {
        TrackerCommand::Status(args) => {
            let found = tracker::status(&context.connection(&args.server)).await?;
            let document = json!({
                "database": found.database,
                "state": found.state,
                "problem": found.problem.as_ref().map(|problem| json!({
                    "reason": problem.reason, "hint": problem.hint,
                })),
            });
            context.report("tracker-status/1", &document, || text(&found))?;
            Ok(match found.problem {
                None => 0,
                Some(_) => exit::WARNINGS,
            })
        }
        TrackerCommand::InstallCheck(args) => {
            let report = tracker::install_check(&context.connection(&args.server)).await;
            super::check::show(context, "tracker-install-check/1", &report)
        }
    }
}

fn text(found: &TrackerStatus) -> String {
    let mut text = match (&found.problem, &found.state) {
        (None, Some(state)) => format!(
            "tracking    since {}\n",
            state.history_since.as_deref().unwrap_or("an unknown time")
        ),
        (Some(problem), _) => format!(
            "tracking    no: {}\nto do       {}\n",
            problem.reason, problem.hint
        ),
        (None, None) => String::new(),
    };
    if let Some(database) = &found.database {
        text.push_str(&format!("extension   in database \"{database}\"\n"));
    }
    if let Some(state) = &found.state {
        text.push_str(&details(state));
    }
    text
}

fn details(state: &TrackerState) -> String {
    let bytes = |number: i64| BinaryBytes(u64::try_from(number).unwrap_or_default());
    format!(
        "library     {}\nhistory     from {}: {}\ntokens      {}\nmap         {} of {} in use{}\nflushes     {}, {} failed; last {:.1} ms, longest {:.1} ms\n",
        state.version,
        state.history_lsn.as_deref().unwrap_or("nowhere"),
        state.history_reason.as_deref().unwrap_or("no reason given"),
        state.tokens,
        bytes(state.map_used_bytes),
        bytes(state.map_capacity_bytes),
        if state.overflow {
            ", full: changes are unknown"
        } else {
            ""
        },
        state.flushes,
        state.flush_failures,
        state.flush_last_ms,
        state.flush_max_ms,
    )
}
