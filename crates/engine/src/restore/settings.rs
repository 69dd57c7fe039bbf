//! Recovery settings: what is appended to `postgresql.auto.conf`, and which signal file goes with it.
//!
//! Settings of an earlier recovery are taken out of the file, and those that could still stand in `postgresql.conf` are
//! set to nothing, because PostgreSQL refuses two targets at once and would silently obey a forgotten one. Commands that
//! the source runs at the end of a recovery or to clean its archive are set to nothing, too: they are not this server's.
//!
//! The file is bytes: PostgreSQL writes values in the encoding of whoever set them, and they stay as they are.

use pgstrata_pgdata::conf;
use pgstrata_pgdata::timeline::TimelineId;
use serde::{Deserialize, Serialize};

use crate::restore::target::{Target, TargetAction, TimelineChoice};

/// How long a standby waits before it replays a transaction. In a copy that is to be opened it would hold up recovery for
/// as long, hours perhaps. PostgreSQL heeds it also where `recovery.signal` and no `standby.signal` is.
pub(crate) const APPLY_DELAY: &str = "recovery_min_apply_delay";

/// What a server that is not its source must not do when it is opened: wait at its first commit for a standby that
/// follows the source; or, with subscriptions of its source, take from a publisher's slot what its source is to get.
const NOT_OF_A_COPY: [(&str, &str); 2] = [
    ("synchronous_standby_names", ""),
    ("max_logical_replication_workers", "0"),
];

/// A server reads WAL ahead of what it replays, and ends when it cannot, behind its target as well. What is there may be
/// damaged, or sealed for others, and it is not needed.
const READS_AHEAD: (&str, &str) = ("recovery_prefetch", "off");

/// What the copy's file says of that.
const READS_NOTHING_AHEAD: &str = "recovery reads no WAL behind its target, which may be damaged";

/// What a server runs for itself during recovery, beside `restore_command`. In `postgresql.conf` they are the source's:
/// one may move an address of the network, the other delete WAL that the source's standbys need.
const COMMANDS_OF_THE_SOURCE: [&str; 2] = ["recovery_end_command", "archive_cleanup_command"];

/// What the copy's file says of targets that configuration which is not the copy's may have. A line hides those before it that
/// spell the name as it does; the server obeys all others in their order, and there no second target may come.
const OTHER_SPELLINGS: &str = "no target is taken from a postgresql.conf that spells its name so";

/// What becomes of the settings of a recovery that has ended: whoever makes a standby copies the file, and the standby obeys
/// what its primary passes over.
const STAYS: &str = "the settings of this recovery stay in postgresql.auto.conf, where a standby that is made from this server finds them: it \
     stops at the same target, promotes itself, follows no other timeline, or does not wait as recovery_min_apply_delay says elsewhere; so, \
     when recovery has ended";

/// Settings of a standby that are its own, not its primary's.
pub(crate) const STANDBY_SETTINGS: [&str; 2] = ["primary_conninfo", "primary_slot_name"];

/// A line of configuration that outlives its file, as the marker of a restore has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KeptLine {
    /// As it stands there.
    Text(String),
    /// The bytes of a line that is not UTF-8.
    Bytes(Vec<u8>),
}

impl KeptLine {
    pub(crate) fn new(line: &[u8]) -> Self {
        match str::from_utf8(line) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(line.to_vec()),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Whether a `postgresql.auto.conf` turns archiving off; the last line about it counts.
pub(crate) fn turns_archiving_off(contents: &[u8]) -> bool {
    last_value(contents, ARCHIVE_MODE).is_some_and(|value| {
        let value = value.trim().to_ascii_lowercase();
        matches!(value.as_str(), "off" | "of" | "false" | "no" | "0")
    })
}

/// What a file like `postgresql.conf` sets a parameter to; the last line about it counts.
pub(crate) fn last_value(contents: &[u8], name: &str) -> Option<String> {
    let found = conf::settings(contents)
        .into_iter()
        .rfind(|one| one.name == name)?;
    Some(String::from_utf8_lossy(&found.value).into_owned())
}

/// Lines without their ends; what follows the last end counts when it is not empty.
pub(crate) fn lines(contents: &[u8]) -> impl Iterator<Item = &[u8]> {
    let contents = contents.strip_suffix(b"\n").unwrap_or(contents);
    let none = contents.is_empty();
    contents.split(|&byte| byte == b'\n').filter(move |_| !none)
}

const ARCHIVE_MODE: &str = "archive_mode";

/// What the copy's file says of archiving.
const ARCHIVING_IS_OFF: &str = "archiving is off in this restored copy, so that it does not archive beside its source; to turn it on: \
     ALTER SYSTEM SET archive_mode = 'on', and restart";

/// What the copy's file says of standbys and subscriptions.
const NO_PARTNERS: &str = "this restored copy waits for no synchronous standby and applies no subscription, as its source may; when it replaces \
     its source: ALTER SYSTEM RESET synchronous_standby_names, and RESET max_logical_replication_workers";

/// The parameters that name a target; PostgreSQL takes one at a time.
const TARGETS: [(&str, &str); 5] = [
    ("immediate", "recovery_target"),
    ("time", "recovery_target_time"),
    ("xid", "recovery_target_xid"),
    ("lsn", "recovery_target_lsn"),
    ("name", "recovery_target_name"),
];

/// The empty file that tells the server what to do with the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalFile {
    /// `recovery.signal`: recover from the archive, then promote.
    Recovery,
    /// `standby.signal`: recover for ever.
    Standby,
}

impl SignalFile {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Recovery => "recovery.signal",
            Self::Standby => "standby.signal",
        }
    }
}

/// What recovery is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecoverySettings<'a> {
    pub(crate) label: &'a str,
    pub(crate) target: &'a Target,
    pub(crate) inclusive: bool,
    pub(crate) action: TargetAction,
    /// What the user asked for; nothing means PostgreSQL's own choice.
    pub(crate) timeline: Option<TimelineChoice>,
    /// What that was found to be when the restore was planned.
    pub(crate) planned_timeline: TimelineId,
    /// The program and its arguments, up to and including `archive-get`.
    pub(crate) restore_command: &'a [String],
    /// Whether a tablespace lies within the data directory: without its setting the server gives up
    /// at the point where the backup is consistent.
    pub(crate) in_place_tablespaces: bool,
    /// Lines that are put behind those of the layer.
    pub(crate) kept: &'a [KeptLine],
    /// Whether archiving is turned off.
    pub(crate) archiving_off: bool,
    /// Whether the layer's configuration has a standby wait before it replays.
    pub(crate) has_delay: bool,
    /// How the source's configuration spells parameters that name a target, where that is not in lower case.
    pub(crate) spellings: &'a [String],
}

impl RecoverySettings<'_> {
    /// The signal file, if there is one.
    pub(crate) fn signal(&self) -> Option<SignalFile> {
        match self.target {
            Target::None => None,
            Target::Standby => Some(SignalFile::Standby),
            _ => Some(SignalFile::Recovery),
        }
    }

    /// `recovery_target_timeline`. A target in the past is pinned to the timeline that was planned, which may be one before
    /// that which was named: one that appears in the archive before the server gets there must not change what is restored.
    fn timeline(&self) -> String {
        match (self.timeline, self.target) {
            (timeline, target) if target.follows_latest(timeline) => "latest".to_owned(),
            (Some(TimelineChoice::Current), _) | (None, Target::Immediate) => "current".to_owned(),
            _ => self.planned_timeline.to_string(),
        }
    }

    /// The new contents of `postgresql.auto.conf`, whose present contents are `old`.
    pub(crate) fn rewrite(&self, old: &[u8]) -> Vec<u8> {
        let mut new = Vec::with_capacity(old.len() + 1024);
        for line in lines(old) {
            let name = conf::spelling(line).map(|name| name.to_ascii_lowercase());
            if name.is_some_and(|name| is_recovery_setting(&name)) {
                new.extend_from_slice(b"# of an earlier recovery: ");
            }
            new.extend_from_slice(line);
            new.push(b'\n');
        }
        self.append(&mut new);
        new
    }

    fn append(&self, new: &mut Vec<u8>) {
        let header = format!(
            "# pgstrata restore of layer {} to {}\n",
            self.label, self.target
        );
        new.extend_from_slice(header.as_bytes());
        for line in self.kept {
            new.extend_from_slice(line.as_bytes());
            new.push(b'\n');
        }
        if let Some(note) = self.stays() {
            new.extend_from_slice(format!("# {note}\n").as_bytes());
        }
        let line = |name: &str, value: &str| format!("{name} = {}\n", quote_setting(value));
        if !self.spellings.is_empty() && *self.target != Target::None {
            new.extend_from_slice(format!("# {OTHER_SPELLINGS}\n").as_bytes());
            for name in self.spellings {
                new.extend_from_slice(line(name, "").as_bytes());
            }
        }
        for (name, value) in self.settings() {
            new.extend_from_slice(line(name, &value).as_bytes());
        }
        if self.target.has_stop_point() {
            let (name, value) = READS_AHEAD;
            new.extend_from_slice(format!("# {READS_NOTHING_AHEAD}\n").as_bytes());
            new.extend_from_slice(line(name, value).as_bytes());
        }
        if self.archiving_off && *self.target != Target::Standby {
            new.extend_from_slice(format!("# {NO_PARTNERS}\n").as_bytes());
            for (name, value) in NOT_OF_A_COPY {
                new.extend_from_slice(line(name, value).as_bytes());
            }
        }
        if self.archiving_off {
            let lines = format!("# {ARCHIVING_IS_OFF}\n{ARCHIVE_MODE} = 'off'\n");
            new.extend_from_slice(lines.as_bytes());
        }
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = self.recovery();
        if self.in_place_tablespaces {
            settings.push(("allow_in_place_tablespaces", "on".to_owned()));
        }
        settings
    }

    fn recovery(&self) -> Vec<(&'static str, String)> {
        if *self.target == Target::None {
            return Vec::new();
        }
        let mut command = self.restore_command.to_vec();
        command.extend(self.answers_to_holes().map(str::to_owned));
        if !self.target.follows_latest(self.timeline) {
            command.push(format!("--along={}", self.planned_timeline));
        }
        let mut settings = vec![("restore_command", shell_command(&command))];
        for name in COMMANDS_OF_THE_SOURCE {
            settings.push((name, String::new()));
        }
        if *self.target != Target::Standby {
            settings.push((APPLY_DELAY, "0".to_owned()));
        }
        // The server reads in order and takes even an empty target after a real one for a second one.
        let (chosen, others): (Vec<_>, Vec<_>) = TARGETS
            .into_iter()
            .partition(|(kind, _)| self.target.kind() == *kind);
        for (_, name) in others {
            settings.push((name, String::new()));
        }
        for (kind, name) in chosen {
            let value = self.target.value().unwrap_or_else(|| kind.to_owned());
            settings.push((name, value));
        }
        let inclusive = if self.inclusive { "on" } else { "off" };
        settings.push(("recovery_target_inclusive", inclusive.to_owned()));
        settings.push(("recovery_target_timeline", self.timeline()));
        settings.push(("recovery_target_action", self.action.as_str().to_owned()));
        settings
    }
}

impl RecoverySettings<'_> {
    /// What to do about these settings when recovery has ended; nothing where a standby would go on as any other one does.
    pub(crate) fn stays(&self) -> Option<String> {
        let resets = self.to_reset().into_iter();
        let resets: Vec<String> = resets
            .map(|name| format!("ALTER SYSTEM RESET {name}"))
            .collect();
        (!resets.is_empty())
            .then(|| format!("{STAYS}: {}; SELECT pg_reload_conf()", resets.join("; ")))
    }

    /// The settings that are of no use behind the target and bind a standby, in the order in which they stand in the file.
    fn to_reset(&self) -> Vec<&'static str> {
        let stops = self.target.has_stop_point();
        let written = self.recovery();
        let binds = |(name, value): &(&str, String)| {
            *name == "recovery_target_timeline" && value != "latest"
        };
        // It hides the delay of the source, whose standbys are to have it.
        let hides = self.has_delay && written.iter().any(|(name, _)| *name == APPLY_DELAY);
        let hides = hides.then_some(APPLY_DELAY);
        if !stops && !written.iter().any(binds) {
            return Vec::from_iter(hides);
        }
        // What is set to nothing hides what may stand in postgresql.conf.
        let of_the_way = written.into_iter().filter(|(name, value)| {
            (name.starts_with("recovery_target") || *name == "restore_command") && !value.is_empty()
        });
        let of_the_way = of_the_way.map(|(name, _)| name);
        let ahead = stops.then_some(READS_AHEAD.0);
        of_the_way.chain(ahead).chain(hides).collect()
    }

    /// What is said to `archive-get` about files that are missing though later ones are there. The server reads ahead of a
    /// target, and fails itself when it does not get there; what lies behind the target need not be in the archive.
    fn answers_to_holes(&self) -> impl Iterator<Item = &'static str> {
        let answers: &[&str] = match self.target {
            Target::None | Target::Standby => &[],
            // What a configuration file says is for standbys.
            Target::Default => &["--on-hole=stop"],
            // All that this needs was there before the layer was.
            Target::Immediate => &["--on-hole=end", "--hole-timeout=0s"],
            _ => &["--on-hole=end"],
        };
        answers.iter().copied()
    }
}

fn is_recovery_setting(name: &str) -> bool {
    name.starts_with("recovery_target")
        || name == "restore_command"
        || COMMANDS_OF_THE_SOURCE.contains(&name)
}

/// A value between single quotes, as configuration files have it.
fn quote_setting(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('\'');
    for c in value.chars() {
        match c {
            '\'' => quoted.push_str("''"),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            _ => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

/// The shell command that runs `arguments` with the names of the file and of its destination. PostgreSQL replaces `%f`
/// and `%p`, so a percent sign of ours is doubled. A shell that cannot start another process ends with a code that
/// PostgreSQL takes for the end of the archive; with `exec` it need not.
fn shell_command(arguments: &[String]) -> String {
    let mut command = "exec ".to_owned();
    for argument in arguments {
        command.push_str(&quote_shell(argument).replace('%', "%%"));
        command.push(' ');
    }
    command.push_str("%f \"%p\"");
    command
}

fn quote_shell(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings<'a>(target: &'a Target, command: &'a [String]) -> RecoverySettings<'a> {
        RecoverySettings {
            label: "20261121-093305F",
            target,
            inclusive: true,
            action: TargetAction::Pause,
            timeline: None,
            planned_timeline: TimelineId::new(3),
            restore_command: command,
            in_place_tablespaces: false,
            kept: &[],
            archiving_off: false,
            has_delay: false,
            spellings: &[],
        }
    }

    fn rewritten(settings: &RecoverySettings<'_>, old: &str) -> String {
        String::from_utf8(settings.rewrite(old.as_bytes())).unwrap()
    }

    fn command(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn rule_3_settings_of_an_earlier_recovery_are_taken_out() {
        let old = "# Do not edit this file manually!\nwork_mem = '8MB'\n  Recovery_Target_Time='2020-01-01'\n\
                   restore_command = 'cp /old/%f %p'\nprimary_conninfo = 'host=a'\nrecovery_target_xid 5\n";
        let argv = command(&["/usr/bin/pgstrata", "archive-get"]);
        let lsn = Target::Lsn("0/3000000".parse().unwrap());
        let new = rewritten(&settings(&lsn, &argv), old);
        let active: Vec<&str> = new.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            active,
            [
                "work_mem = '8MB'",
                "primary_conninfo = 'host=a'",
                "restore_command = 'exec /usr/bin/pgstrata archive-get --on-hole=end --along=3 %f \"%p\"'",
                "recovery_end_command = ''",
                "archive_cleanup_command = ''",
                "recovery_min_apply_delay = '0'",
                "recovery_target = ''",
                "recovery_target_time = ''",
                "recovery_target_xid = ''",
                "recovery_target_name = ''",
                "recovery_target_lsn = '0/3000000'",
                "recovery_target_inclusive = 'on'",
                "recovery_target_timeline = '3'",
                "recovery_target_action = 'pause'",
                "recovery_prefetch = 'off'",
            ]
        );
    }

    #[test]
    fn what_would_bind_a_standby_is_to_be_reset_when_recovery_has_ended() {
        let argv = command(&["get"]);
        let lsn = Target::Lsn("0/3000000".parse().unwrap());
        let two = Some(TimelineChoice::Number(TimelineId::new(2)));
        let way = [
            "recovery_target_inclusive",
            "recovery_target_timeline",
            "recovery_target_action",
        ];
        let stop = |target| {
            [
                &["restore_command", target][..],
                &way,
                &["recovery_prefetch"],
            ]
            .concat()
        };
        for (target, timeline, expected) in [
            (&Target::Default, None, vec![]),
            (&Target::Standby, None, vec![]),
            (&Target::None, None, vec![]),
            (
                &Target::Default,
                two,
                [&["restore_command"][..], &way].concat(),
            ),
            (&Target::Immediate, None, stop("recovery_target")),
            (
                &Target::Immediate,
                Some(TimelineChoice::Latest),
                stop("recovery_target"),
            ),
            (&lsn, None, stop("recovery_target_lsn")),
        ] {
            let settings = RecoverySettings {
                timeline,
                ..settings(target, &argv)
            };
            assert_eq!(settings.to_reset(), expected, "{target} {timeline:?}");
            let new = rewritten(&settings, "");
            let reset = |name: &&str| new.contains(&format!("ALTER SYSTEM RESET {name};"));
            assert!(expected.iter().all(reset), "{new}");
            assert_eq!(new.contains("ALTER SYSTEM"), !expected.is_empty(), "{new}");
        }
    }

    #[test]
    fn a_delay_of_the_source_that_recovery_hides_is_to_be_reset() {
        let argv = command(&["get"]);
        let resets = |target: &Target| {
            let settings = RecoverySettings {
                has_delay: true,
                ..settings(target, &argv)
            };
            let new = rewritten(&settings, "recovery_min_apply_delay = '2h'\n");
            let named = new.contains("ALTER SYSTEM RESET recovery_min_apply_delay;");
            assert_eq!(
                named,
                new.contains("recovery_min_apply_delay = '0'"),
                "{new}"
            );
            settings.to_reset()
        };
        assert_eq!(resets(&Target::Default), [APPLY_DELAY]);
        assert_eq!(resets(&Target::Immediate).last(), Some(&APPLY_DELAY));
        for target in [Target::Standby, Target::None] {
            assert_eq!(resets(&target), [""; 0], "{target}");
        }
    }

    #[test]
    fn every_word_of_the_restore_command_survives_shell_and_file() {
        let words = ["/opt/my tools/pgstrata", "it's 100% \\ \"$HOME\"", ""];
        assert_eq!(
            quote_setting(&shell_command(&command(&words))),
            r#"'exec ''/opt/my tools/pgstrata'' ''it''\\''''s 100%% \\ "$HOME"'' '''' %f "%p"'"#
        );
    }

    #[test]
    fn a_configuration_file_opens_no_server_at_a_hole() {
        let argv = command(&["get"]);
        for (target, told) in [
            (Target::Default, "--on-hole=stop"),
            (Target::Lsn("0/3000000".parse().unwrap()), "--on-hole=end"),
            (Target::Standby, ""),
        ] {
            let new = rewritten(&settings(&target, &argv), "");
            let mut lines = new.lines();
            let line = lines
                .find(|line| line.starts_with("restore_command"))
                .unwrap();
            assert_eq!(line.contains("--on-hole"), !told.is_empty(), "{line}");
            assert!(line.contains(told), "{line}");
        }
    }

    #[test]
    fn the_timeline_follows_the_target() {
        let lsn = Target::Lsn("0/3000000".parse().unwrap());
        let number = TimelineChoice::Number(TimelineId::new(2));
        for (target, choice, expected) in [
            (&Target::Default, None, "latest"),
            (&Target::Default, Some(number), "3"),
            (&Target::Standby, Some(TimelineChoice::Latest), "latest"),
            (&Target::Immediate, None, "current"),
            (&Target::Immediate, Some(TimelineChoice::Latest), "latest"),
            (&lsn, None, "3"),
            (&lsn, Some(TimelineChoice::Latest), "3"),
            (&lsn, Some(TimelineChoice::Current), "current"),
        ] {
            let timeline = RecoverySettings {
                timeline: choice,
                ..settings(target, &[])
            }
            .timeline();
            assert_eq!(timeline, expected, "{target} {choice:?}");
        }
    }

    #[test]
    fn a_restore_without_recovery_writes_no_settings_of_recovery() {
        let target = Target::None;
        let settings = settings(&target, &[]);
        assert_eq!(settings.signal(), None);
        let new = rewritten(&settings, "work_mem = '8MB'\n");
        let header = "# pgstrata restore of layer 20261121-093305F to the backup itself\n";
        assert_eq!(new, format!("work_mem = '8MB'\n{header}"));
    }

    #[test]
    fn archiving_is_turned_off_last_and_plainly() {
        let target = Target::Immediate;
        let settings = RecoverySettings {
            archiving_off: true,
            ..settings(&target, &[])
        };
        let new = rewritten(&settings, "archive_mode = 'on'");
        let lines: Vec<&str> = new.lines().collect();
        let [.., comment, setting] = lines[..] else {
            panic!("{new}");
        };
        assert!(
            comment.starts_with("# archiving is off in this restored copy"),
            "{comment}"
        );
        assert!(
            comment.contains("ALTER SYSTEM SET archive_mode = 'on'"),
            "{comment}"
        );
        assert_eq!(setting, "archive_mode = 'off'");
        assert!(turns_archiving_off(new.as_bytes()));
    }

    #[test]
    fn a_standby_keeps_its_delay_and_its_partners_and_no_other_copy_does() {
        let old = "recovery_min_apply_delay = '2h'\nsynchronous_standby_names = '*'\n";
        let last = |target: &Target, archiving_off: bool, name: &str| {
            let settings = RecoverySettings {
                archiving_off,
                ..settings(target, &[])
            };
            let new = rewritten(&settings, old);
            let mut lines = new.lines().filter(|line| line.starts_with(name));
            lines.next_back().map(str::to_owned)
        };
        let delay = |target: &Target| last(target, true, "recovery_min_apply_delay").unwrap();
        assert_eq!(delay(&Target::Standby), "recovery_min_apply_delay = '2h'");
        assert_eq!(delay(&Target::Default), "recovery_min_apply_delay = '0'");
        let names =
            |target: &Target, off: bool| last(target, off, "synchronous_standby_names").unwrap();
        for target in [Target::None, Target::Immediate, Target::Default] {
            assert_eq!(names(&target, true), "synchronous_standby_names = ''");
            // It is its source.
            assert_eq!(names(&target, false), "synchronous_standby_names = '*'");
            let workers = last(&target, true, "max_logical_replication_workers");
            assert_eq!(workers.unwrap(), "max_logical_replication_workers = '0'");
        }
        assert_eq!(
            names(&Target::Standby, true),
            "synchronous_standby_names = '*'"
        );
    }

    #[test]
    fn the_last_line_about_archiving_counts() {
        for (text, off) in [
            ("", false),
            ("archive_mode = 'on'\n", false),
            ("archive_mode = off", true),
            ("Archive_Mode 'OFF' # why\n", true),
            ("archive_mode = 'off'\narchive_mode = 'on'\n", false),
            ("# archive_mode = 'off'\n", false),
            ("archive_mode = 'on'\narchive_mode='false'\n", true),
        ] {
            assert_eq!(turns_archiving_off(text.as_bytes()), off, "{text:?}");
        }
    }

    #[test]
    fn a_tablespace_in_place_gets_the_setting_it_needs() {
        let target = Target::Immediate;
        let settings = RecoverySettings {
            in_place_tablespaces: true,
            ..settings(&target, &[])
        };
        assert!(rewritten(&settings, "").contains("\nallow_in_place_tablespaces = 'on'\n"));
    }

    #[test]
    fn a_refreshed_standby_keeps_its_primary() {
        let kept = [KeptLine::new(b"Primary_conninfo = 'host=a'")];
        let argv = command(&["get"]);
        let settings = RecoverySettings {
            kept: &kept,
            ..settings(&Target::Standby, &argv)
        };
        let new = rewritten(&settings, "primary_conninfo = 'host=b'\n");
        let of_layer = new.find("host=b").unwrap();
        assert!(of_layer < new.find("host=a").unwrap(), "{new}");
    }

    #[test]
    fn bytes_that_are_not_utf8_stay_as_they_are() {
        let old = b"search_path = 'b\xfccher'\nprimary_conninfo = 'password=m\xfcller'\n\xfc\n";
        let kept = [KeptLine::new(b"primary_conninfo = 'password=m\xfcller'")];
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(
            serde_json::from_str::<Vec<KeptLine>>(&text).unwrap(),
            kept,
            "{text}"
        );
        let settings = RecoverySettings {
            kept: &kept,
            ..settings(&Target::Standby, &[])
        };
        let new = settings.rewrite(old);
        assert!(new.starts_with(old));
        let line = b"\nprimary_conninfo = 'password=m\xfcller'\n";
        let count = new.windows(line.len()).filter(|part| part == line).count();
        assert_eq!(count, 2);
    }

    #[test]
    fn a_target_in_another_spelling_is_hidden_ahead_of_all_others() {
        let spellings = ["Recovery_Target_Time".to_owned()];
        for (target, hides) in [
            (Target::None, false),
            (Target::Default, true),
            (Target::Lsn("0/3000000".parse().unwrap()), true),
        ] {
            let settings = RecoverySettings {
                spellings: &spellings,
                ..settings(&target, &[])
            };
            let new = rewritten(&settings, "Recovery_Target_Time = 'x'\n");
            let hidden = new.find("\nRecovery_Target_Time = ''\n");
            assert_eq!(hidden.is_some(), hides, "{new}");
            assert!(hidden <= new.find("\nrecovery_target = "), "{new}");
        }
    }
}
