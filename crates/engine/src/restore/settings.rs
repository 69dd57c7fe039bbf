//! Recovery settings: what is appended to `postgresql.auto.conf`, and which signal file goes with it.
//!
//! Settings of an earlier recovery are taken out of the file, and those that could still stand in `postgresql.conf` are
//! set to nothing, because PostgreSQL refuses two targets at once and would silently obey a forgotten one.

use std::fmt::Write as _;

use pgstrata_pgdata::timeline::TimelineId;

use super::target::{Target, TargetAction, TimelineChoice};

/// Settings that only mean something to recovery, beside all that start with `recovery_target`.
const RECOVERY_SETTINGS: [&str; 3] = [
    "restore_command",
    "recovery_end_command",
    "archive_cleanup_command",
];

/// Settings of a standby that are its own, not its primary's.
const STANDBY_SETTINGS: [&str; 2] = ["primary_conninfo", "primary_slot_name"];

/// The lines of a standby's `postgresql.auto.conf` that it keeps when it is refreshed.
pub(super) fn kept_settings(text: &str) -> Vec<String> {
    let own = |line: &&str| {
        setting_name(line).is_some_and(|name| STANDBY_SETTINGS.contains(&name.as_str()))
    };
    text.lines().filter(own).map(str::to_owned).collect()
}

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
pub(super) enum SignalFile {
    /// `recovery.signal`: recover from the archive, then promote.
    Recovery,
    /// `standby.signal`: recover for ever.
    Standby,
}

impl SignalFile {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Recovery => "recovery.signal",
            Self::Standby => "standby.signal",
        }
    }
}

/// What recovery is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecoverySettings<'a> {
    pub(super) label: &'a str,
    pub(super) target: &'a Target,
    pub(super) inclusive: bool,
    pub(super) action: TargetAction,
    /// What the user asked for; nothing means PostgreSQL's own choice.
    pub(super) timeline: Option<TimelineChoice>,
    /// What that was found to be when the restore was planned.
    pub(super) planned_timeline: TimelineId,
    /// The program and its arguments, up to and including `archive-get`.
    pub(super) restore_command: &'a [String],
    /// Whether a tablespace lies within the data directory: without its setting the server gives up
    /// at the point where the backup is consistent.
    pub(super) in_place_tablespaces: bool,
    /// Lines that are put behind those of the layer.
    pub(super) kept: &'a [String],
}

impl RecoverySettings<'_> {
    /// The signal file, if there is one.
    pub(super) fn signal(&self) -> Option<SignalFile> {
        match self.target {
            Target::None => None,
            Target::Standby => Some(SignalFile::Standby),
            _ => Some(SignalFile::Recovery),
        }
    }

    /// `recovery_target_timeline`. A target in the past is pinned to the timeline that was planned: one that appears in
    /// the archive before the server gets there must not change what is restored.
    fn timeline(&self) -> String {
        match (self.timeline, self.target) {
            (Some(TimelineChoice::Current), _) | (None, Target::Immediate) => "current".to_owned(),
            (_, Target::Default | Target::Standby) | (_, Target::Immediate) => {
                match self.timeline {
                    Some(TimelineChoice::Number(timeline)) => timeline.to_string(),
                    _ => "latest".to_owned(),
                }
            }
            _ => self.planned_timeline.to_string(),
        }
    }

    /// The new contents of `postgresql.auto.conf`, whose present contents are `old`.
    pub(super) fn rewrite(&self, old: &str) -> String {
        let mut text = String::with_capacity(old.len() + 1024);
        for line in old.lines() {
            match setting_name(line) {
                Some(name) if is_recovery_setting(&name) => {
                    text.push_str("# of an earlier recovery: ");
                    text.push_str(line);
                }
                _ => text.push_str(line),
            }
            text.push('\n');
        }
        self.append(&mut text);
        text
    }

    fn append(&self, text: &mut String) {
        let header = format!(
            "pgstrata restore of layer {} to {}",
            self.label, self.target
        );
        writeln!(text, "# {header}").expect("writing to a string does not fail");
        for line in self.kept {
            writeln!(text, "{line}").expect("writing to a string does not fail");
        }
        for (name, value) in self.settings() {
            let value = quote_setting(&value);
            writeln!(text, "{name} = {value}").expect("writing to a string does not fail");
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
            // The server goes on with the timeline it was backed up on. What it would archive has the names of the
            // WAL that its source archives, and other contents.
            return vec![("archive_mode", "off".to_owned())];
        }
        let mut settings = vec![("restore_command", shell_command(self.restore_command))];
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

fn is_recovery_setting(name: &str) -> bool {
    name.starts_with("recovery_target") || RECOVERY_SETTINGS.contains(&name)
}

/// The parameter that a line of a configuration file sets, in lower case; `None` for comments and blank lines.
fn setting_name(line: &str) -> Option<String> {
    let line = line.trim_start();
    let end = line
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.' || c == '$'))
        .unwrap_or(line.len());
    (end > 0).then(|| line[..end].to_ascii_lowercase())
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
/// and `%p`, so a percent sign of ours is doubled.
fn shell_command(arguments: &[String]) -> String {
    let mut command = String::new();
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
        }
    }

    fn command(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn rule_3_settings_of_an_earlier_recovery_are_taken_out() {
        let old = "# Do not edit this file manually!\nwork_mem = '8MB'\n  Recovery_Target_Time='2020-01-01'\n\
                   restore_command = 'cp /old/%f %p'\nprimary_conninfo = 'host=a'\nrecovery_target_xid 5\n";
        let argv = command(&["/usr/bin/pgstrata", "archive-get"]);
        let new = settings(&Target::Lsn("0/3000000".parse().unwrap()), &argv).rewrite(old);
        let active: Vec<&str> = new.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            active,
            [
                "work_mem = '8MB'",
                "primary_conninfo = 'host=a'",
                "restore_command = '/usr/bin/pgstrata archive-get %f \"%p\"'",
                "recovery_target = ''",
                "recovery_target_time = ''",
                "recovery_target_xid = ''",
                "recovery_target_name = ''",
                "recovery_target_lsn = '0/3000000'",
                "recovery_target_inclusive = 'on'",
                "recovery_target_timeline = '3'",
                "recovery_target_action = 'pause'",
            ]
        );
    }

    #[test]
    fn every_word_of_the_restore_command_survives_shell_and_file() {
        let words = ["/opt/my tools/pgstrata", "it's 100% \\ \"$HOME\"", ""];
        assert_eq!(
            quote_setting(&shell_command(&command(&words))),
            r#"'''/opt/my tools/pgstrata'' ''it''\\''''s 100%% \\ "$HOME"'' '''' %f "%p"'"#
        );
    }

    #[test]
    fn the_timeline_follows_the_target() {
        let lsn = Target::Lsn("0/3000000".parse().unwrap());
        let number = TimelineChoice::Number(TimelineId::new(2));
        for (target, choice, expected) in [
            (&Target::Default, None, "latest"),
            (&Target::Default, Some(number), "2"),
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
    fn rule_3_a_restore_without_recovery_does_not_archive() {
        let target = Target::None;
        let settings = settings(&target, &[]);
        assert_eq!(settings.signal(), None);
        let new = settings.rewrite("archive_mode = 'on'");
        assert!(new.ends_with("\narchive_mode = 'off'\n"));
    }

    #[test]
    fn a_tablespace_in_place_gets_the_setting_it_needs() {
        let target = Target::Immediate;
        let settings = RecoverySettings {
            in_place_tablespaces: true,
            ..settings(&target, &[])
        };
        assert!(
            settings
                .rewrite("")
                .ends_with("\nallow_in_place_tablespaces = 'on'\n")
        );
    }

    #[test]
    fn a_refreshed_standby_keeps_its_primary() {
        let kept =
            kept_settings("work_mem = 1\nPrimary_conninfo = 'host=a'\n# primary_slot_name = 'b'\n");
        assert_eq!(kept, ["Primary_conninfo = 'host=a'"]);
        let argv = command(&["get"]);
        let settings = RecoverySettings {
            kept: &kept,
            ..settings(&Target::Standby, &argv)
        };
        let new = settings.rewrite("primary_conninfo = 'host=b'\n");
        let of_layer = new.find("host=b").unwrap();
        assert!(of_layer < new.find("host=a").unwrap(), "{new}");
    }

    #[test]
    fn comments_and_blank_lines_set_nothing() {
        for line in ["", "   ", "# recovery_target = 'immediate'", "'x'"] {
            assert_eq!(setting_name(line), None, "{line:?}");
        }
    }
}
