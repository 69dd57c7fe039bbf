//! Options that the rest of the line leaves without a meaning: whoever gives one waits for what it asks, so it is refused.
//!
//! What the environment says is meant for all commands, and counts where it can.

use clap::ArgMatches;
use clap::error::ErrorKind;
use clap::parser::ValueSource;

/// What `info --costs` does not look at: it tells of the whole cluster, and raises no alarm.
const NOT_OF_COSTS: [&str; 5] = ["label", "max_age", "max_verify_age", "pgdata", "connection"];

/// What only `info --costs` looks at.
const RULES: [&str; 8] = [
    "keep_full",
    "keep_within",
    "keep_daily",
    "keep_weekly",
    "keep_monthly",
    "keep_yearly",
    "keep_wal",
    "max_chain",
];

/// Refuses a line with such an option.
pub(crate) fn refuse_idle(matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some(("info", info)) = matches.subcommand() else {
        return Ok(());
    };
    let told = |ids: &[&'static str]| {
        let mut ids = ids.iter();
        ids.find(|id| info.value_source(id) == Some(ValueSource::CommandLine))
            .copied()
    };
    let why = match (info.get_flag("costs"), told(&NOT_OF_COSTS), told(&RULES)) {
        (true, Some("label"), _) => "--costs tells of all layers: leave out the label".to_owned(),
        (true, Some(idle), _) => format!("--costs raises no alarm: leave out {}", option(idle)),
        (false, _, Some(idle)) => format!("{} needs --costs", option(idle)),
        _ => return Ok(()),
    };
    Err(super::command().error(ErrorKind::ArgumentConflict, why))
}

fn option(id: &str) -> String {
    format!("--{}", id.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(line: &str) -> Result<(), String> {
        let words = format!("pgstrata {line}");
        let parsed = crate::args::command().try_get_matches_from(words.split(' '));
        refuse_idle(&parsed.unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_info_would_not_look_at_is_refused() {
        for idle in [
            "info --costs latest",
            "backup-list --costs --max-age 26h",
            "info --max-verify-age 8d --costs",
            "info --costs -D /data",
            "info --keep-full 2",
            "info latest --keep-wal 2d",
        ] {
            assert!(outcome(idle).is_err(), "{idle}");
        }
        for fine in [
            "info --costs --keep-full 2 --keep-wal 2d",
            "info latest --max-age 26h -D /data",
            "info",
            "expire --keep-full 2",
        ] {
            assert_eq!(outcome(fine), Ok(()), "{fine}");
        }
    }
}
