//! One habit for all commands, proved on the command line as clap knows it.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::{Cli, command};

/// What each option means, in a few words. A meaning that stands here twice has two spellings, which is refused;
/// an option that does not stand here needs a meaning first.
const MEANINGS: &[(&str, &str)] = &[
    ("along", "timeline on which recovery stays"),
    ("archive-mode", "whether a restored server archives"),
    ("archive-timeout", "patience for WAL to be archived"),
    ("audit", "share of unchanged pages to compare"),
    ("audit-seed", "choice of audited pages"),
    ("change-source", "how changed pages are found"),
    ("checkpoint", "pace of the checkpoint"),
    ("cluster", "name of the cluster"),
    ("compress", "compression"),
    ("config", "configuration file"),
    (
        "config-dir",
        "directory for configuration from outside the data directory",
    ),
    ("connection", "connection to the server"),
    ("costs", "what is stored, and for which rule"),
    ("credentials", "file of storage options"),
    ("deep", "verify pages too"),
    ("delta", "restore in place"),
    ("dry-run", "show and change nothing"),
    ("encrypt", "seal a cluster"),
    ("every", "pause between two copies"),
    ("fetch-ahead", "segments fetched ahead"),
    ("follow", "go on copying"),
    ("from", "oldest layer to merge"),
    ("help", "help"),
    ("hole-timeout", "patience for a hole to be filled"),
    ("identity", "file of an age identity"),
    ("ignore-restores", "remove what restores need"),
    ("impact", "who comes first on a busy machine"),
    ("jobs", "workers"),
    ("keep-daily", "retention by days"),
    ("keep-full", "retention by full layers"),
    ("keep-monthly", "retention by months"),
    ("keep-wal", "retention of WAL between layers"),
    ("keep-weekly", "retention by weeks"),
    ("keep-within", "retention of all moments"),
    ("keep-yearly", "retention by years"),
    ("keeper", "who may expire a sealed cluster"),
    ("key-command", "command that prints an age identity"),
    ("links-are-own", "promise about links"),
    ("log-level", "what is logged"),
    ("max-age", "alarm about an old backup"),
    ("max-chain", "retention by length of chain"),
    ("max-rate", "limit of reading"),
    ("max-verify-age", "alarm about an old verification"),
    ("no-page-header-check", "foreign page headers"),
    ("no-progress", "silence"),
    ("note", "why a layer is pinned"),
    ("on-corrupt-page", "policy for corrupt pages"),
    ("on-hole", "policy for holes"),
    ("one-recipient", "content with one reader"),
    ("output", "format of standard output"),
    ("pgdata", "data directory of a server"),
    ("primary", "connection to the primary of a standby"),
    ("push-ahead", "segments pushed ahead"),
    ("quorum", "repositories that must have a file"),
    ("recipient", "who may read a sealed cluster"),
    ("remove-inputs", "remove merged layers"),
    ("repo", "repository"),
    (
        "repository-as-of",
        "the moment at which the repository is read",
    ),
    ("require-tracker", "the tracker or nothing"),
    ("retain", "how long objects are locked"),
    ("retain-mode", "who may lift a lock"),
    ("s3-ca-file", "authority of the S3 endpoint"),
    ("s3-endpoint", "S3 endpoint"),
    ("s3-path-style", "S3 addressing"),
    ("s3-region", "S3 region"),
    ("same-timeline", "stay on the old timeline"),
    ("seal-id", "which sealed cluster is meant"),
    ("server-is-stopped", "promise about the server"),
    ("since", "moment to bring the repository back to"),
    ("skip-damaged", "skip damaged layers"),
    ("spool", "directory of files fetched ahead"),
    ("storage", "one storage option"),
    ("tablespace-map", "places of tablespaces"),
    ("target", "recovery target"),
    ("target-action", "what happens at the target"),
    ("target-dir", "directory to restore into"),
    ("target-exclusive", "before or after the target"),
    ("target-timeline", "timeline to follow"),
    ("target-type", "kind of recovery target"),
    ("to", "repository to copy into"),
    (
        "to-credentials",
        "file of storage options of that repository",
    ),
    ("to-storage", "one storage option of that repository"),
    ("type", "type of backup"),
    ("until", "end of a pin"),
    ("version", "version"),
    ("wal", "source of a backup's WAL"),
    ("wal-dir", "place of pg_wal"),
    ("writer", "who may write a sealed cluster"),
];

/// Commands that change or delete what a `--dry-run` can show before.
const SHOWN_FIRST: [&str; 6] = ["backup", "restore", "copy", "merge", "expire", "rescue"];

/// Commands that only look at layers; the others act on one of them.
const LOOK_AT_ALL: [&str; 2] = ["info", "verify"];

/// Commands that say something of a layer for long: it is named, so that nobody means another one.
const NAME_IT: [&str; 3] = ["pin", "unpin", "annotate"];

/// Every command with its path, subcommands included.
fn commands() -> Vec<(String, Command)> {
    fn collect(path: &str, command: &Command, found: &mut Vec<(String, Command)>) {
        found.push((path.to_owned(), command.clone()));
        for below in command.get_subcommands().filter(|c| c.get_name() != "help") {
            collect(&format!("{path} {}", below.get_name()), below, found);
        }
    }
    let mut found = Vec::new();
    collect("pgstrata", &command(), &mut found);
    found
}

/// What has to be the same wherever an option stands.
fn habit(arg: &Arg) -> String {
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    format!(
        "-{:?} {:?} {:?} {values:?}: {}",
        arg.get_short(),
        arg.get_value_names(),
        arg.get_env(),
        arg.get_help().map(ToString::to_string).unwrap_or_default()
    )
}

/// Options by name, each with its habits and with the commands that have that one.
fn spellings(commands: &[(String, Command)]) -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
    let mut found: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (path, command) in commands {
        for arg in command.get_arguments().filter(|arg| arg.get_id() != "help") {
            if let Some(long) = arg.get_long() {
                let habits = found.entry(long.to_owned()).or_default();
                habits.entry(habit(arg)).or_default().push(path.clone());
            }
        }
    }
    found
}

fn two_habits(commands: &[(String, Command)]) -> Vec<String> {
    let spellings = spellings(commands).into_iter();
    let twice = spellings.filter(|(_, habits)| habits.len() > 1);
    twice
        .map(|(long, habits)| format!("--{long}: {habits:#?}"))
        .collect()
}

#[test]
fn an_option_is_the_same_in_every_command() {
    let commands = commands();
    assert!(commands.len() > 12, "only {} commands", commands.len());
    assert_eq!(two_habits(&commands), Vec::<String>::new());
}

#[test]
fn a_second_habit_is_noticed() {
    let mut commands = commands();
    let other = Arg::new("jobs")
        .long("jobs")
        .action(ArgAction::SetTrue)
        .help("Be quick");
    commands.push(("pgstrata new".to_owned(), Command::default().arg(other)));
    let found = two_habits(&commands);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("--jobs"), "{found:?}");
}

#[test]
fn an_option_has_one_meaning_and_a_meaning_one_option() {
    let known: BTreeMap<&str, &str> = MEANINGS.iter().copied().collect();
    assert_eq!(known.len(), MEANINGS.len(), "an option has two meanings");
    let meanings: BTreeSet<&str> = known.values().copied().collect();
    assert_eq!(meanings.len(), known.len(), "a meaning has two spellings");
    let mut used: BTreeSet<String> = spellings(&commands()).into_keys().collect();
    used.insert("help".to_owned());
    let known: BTreeSet<String> = known.into_keys().map(str::to_owned).collect();
    assert_eq!(used, known);
}

#[test]
fn letters_mean_one_option() {
    let mut letters: BTreeMap<char, BTreeSet<String>> = BTreeMap::new();
    for (_, command) in commands() {
        for arg in command.get_arguments() {
            if let (Some(short), Some(long)) = (arg.get_short(), arg.get_long()) {
                letters.entry(short).or_default().insert(long.to_owned());
            }
        }
    }
    letters.retain(|_, longs| longs.len() > 1);
    assert!(letters.is_empty(), "{letters:?}");
}

#[test]
fn variables_have_the_names_of_their_options() {
    for (path, command) in commands() {
        for arg in command.get_arguments() {
            let (Some(variable), Some(long)) = (arg.get_env(), arg.get_long()) else {
                continue;
            };
            let expected = format!("PGSTRATA_{}", long.to_uppercase().replace('-', "_"));
            // What PostgreSQL's own programs read.
            let expected = if long == "pgdata" {
                "PGDATA".to_owned()
            } else {
                expected
            };
            assert_eq!(
                variable.to_str(),
                Some(expected.as_str()),
                "{path} --{long}"
            );
        }
    }
}

#[test]
fn help_tells_every_default() {
    let mut silent = Vec::new();
    for (path, command) in commands()
        .into_iter()
        .filter(|(path, _)| path != "pgstrata lab")
    {
        for arg in command.get_arguments() {
            let takes = arg.get_action().takes_values() && !arg.is_required_set();
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let told = help.contains("[default: ") || !arg.get_default_values().is_empty();
            if takes && !told {
                silent.push(format!("{path} {}", arg.get_id()));
            }
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
}

#[test]
fn what_changes_something_can_be_shown_first() {
    for (path, command) in commands() {
        let shows = |arg: &Arg| arg.get_long() == Some("dry-run");
        let expected = SHOWN_FIRST.contains(&command.get_name());
        assert_eq!(command.get_arguments().any(shows), expected, "{path}");
    }
}

#[test]
fn a_label_left_out_is_all_to_look_at_and_the_latest_to_act_on() {
    let mut seen = 0;
    for (path, command) in commands() {
        let Some(label) = command
            .get_positionals()
            .find(|arg| arg.get_id() == "label")
        else {
            continue;
        };
        seen += 1;
        if NAME_IT.contains(&command.get_name()) {
            assert!(label.is_required_set(), "{path}");
            continue;
        }
        let looks = LOOK_AT_ALL.contains(&command.get_name());
        let expected = if looks { "all" } else { "latest" };
        assert_eq!(label.get_default_values(), [expected], "{path}");
    }
    assert_eq!(seen, 7);
}

/// The help of a command shows its own options, and one short block for the others.
#[test]
fn global_options_are_described_once() {
    for (path, command) in commands() {
        let mut command = command;
        let is_program = path == "pgstrata";
        for help in [command.render_help(), command.render_long_help()] {
            let text = help.to_string();
            assert_eq!(
                text.contains("PGSTRATA_S3_REGION"),
                is_program,
                "{path}: {text}"
            );
            assert_eq!(
                text.contains("\"pgstrata --help\" describes"),
                !is_program,
                "{path}: {text}"
            );
        }
    }
    let program = command();
    let names = program.get_arguments().filter_map(Arg::get_long);
    for long in names.filter(|long| !["help", "version"].contains(long)) {
        let option = format!("--{long}");
        assert!(
            super::GLOBAL_OPTIONS.contains(&option),
            "{option} is not named"
        );
    }
}

/// A tip may name whatever exists; what is hidden is no help.
#[test]
fn nothing_is_hidden_from_help() {
    for (path, command) in commands() {
        assert!(!command.is_hide_set(), "{path}");
        let hidden =
            |arg: &&Arg| arg.is_hide_set() && arg.get_help_heading() != Some(super::GLOBAL_HEADING);
        let hidden = command.get_arguments().find(hidden);
        assert!(hidden.is_none(), "{path}: {hidden:?}");
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn names_of_other_tools_are_understood() {
    for (alias, name) in [
        ("backup-push", "backup"),
        ("backup-fetch", "restore"),
        ("backup-list", "info"),
        ("show", "info"),
        ("wal-push", "archive-push"),
        ("wal-fetch", "archive-get"),
        ("validate", "verify"),
    ] {
        let found = command();
        let found = found.find_subcommand(alias).map(Command::get_name);
        assert_eq!(found, Some(name));
    }
}
