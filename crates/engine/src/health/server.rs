//! The server: what keeps its WAL and its configuration from the repository, and what makes `pg_wal` grow until the server
//! stops.
//!
//! PostgreSQL's own measures are the limits here: `max_wal_size`, and the time that WAL may take into the repository.

use std::time::Duration;

use jiff::Timestamp;
use pgstrata_pgdata::{TimelineHistory, TimelineId};
use pgstrata_store::error::Result;

use super::{Alarm, AlarmKind, Severity};
use crate::server::archiver::Archiving;
use crate::server::held::{ForeignSlot, HeldWal};
use crate::server::pg_wal::WalDirectory;
use crate::server::recovery_left::{
    RecoveryLeft, RecoverySetting, TARGET_ACTION, TARGET_TIMELINE, names_target,
};
use crate::server::session::OwnSlot;

/// A server begins a new segment before the old one is archived, and a backup ends one.
const SPARE_SEGMENTS: u64 = 2;

/// What was asked of a server, and looked up in its data directory.
#[derive(Debug)]
pub(crate) struct ServerState {
    /// Slots with a name of ours.
    pub(crate) own_slots: Result<Vec<OwnSlot>>,
    pub(crate) held: Result<HeldWal>,
    /// What a primary has in its configuration files of a recovery.
    pub(crate) recovery: Result<RecoveryLeft>,
    /// `None` when it is not known where it is.
    pub(crate) pg_wal: Option<Result<WalDirectory>>,
    /// The time that WAL may take into the repository.
    pub(crate) patience: Duration,
}

impl ServerState {
    /// Whether the server may begin new segments, as far as that is known.
    pub(crate) fn has_room_to_switch(&self) -> bool {
        match (&self.pg_wal, &self.held) {
            (Some(Ok(found)), Ok(held)) => has_room_to_switch(found, held),
            _ => true,
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerVerdict {
    /// As it should be.
    Fine { kind: AlarmKind, detail: String },
    /// Who may not look is told so; it is no reason to worry.
    Unseen { kind: AlarmKind, why: String },
    /// As it should not be.
    Wrong(Alarm),
}

impl ServerVerdict {
    fn fine(kind: AlarmKind, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self::Fine { kind, detail }
    }

    pub(crate) fn unseen(kind: AlarmKind, why: impl ToString) -> Self {
        let why = why.to_string();
        Self::Unseen { kind, why }
    }

    fn warning(kind: AlarmKind, reason: String, to_do: impl Into<String>) -> Self {
        Self::Wrong(Alarm {
            severity: Severity::Warning,
            kind,
            layer: None,
            reason,
            lost: None,
            to_do: to_do.into(),
        })
    }

    /// With what cannot be restored because of it.
    fn losing(self, what: &str) -> Self {
        match self {
            Self::Wrong(alarm) => Self::Wrong(Alarm {
                lost: Some(what.to_owned()),
                ..alarm
            }),
            verdict => verdict,
        }
    }
}

/// What is known of the server, in the order in which `check` shows it. The archiver is judged by [`archiver`].
pub(crate) fn judge(state: &ServerState) -> Vec<ServerVerdict> {
    let mut verdicts = match &state.recovery {
        Ok(left) => Vec::from_iter(ended_recovery(&left.settings)),
        Err(error) => vec![ServerVerdict::unseen(AlarmKind::Configuration, error)],
    };
    verdicts.extend(unknown_of_recovery(&state.recovery));
    verdicts.extend(own_slots(&state.own_slots));
    match &state.held {
        Ok(held) => verdicts.extend(held.slots.iter().filter_map(foreign_slot)),
        Err(error) => verdicts.push(ServerVerdict::unseen(AlarmKind::Slots, error)),
    }
    match (&state.pg_wal, &state.held) {
        (Some(Ok(found)), held) => {
            verdicts.push(backlog(found, state.patience));
            match held {
                Ok(held) => verdicts.push(room(found, held)),
                Err(error) => verdicts.push(ServerVerdict::unseen(AlarmKind::Room, error)),
            }
        }
        (Some(Err(error)), _) => verdicts.push(ServerVerdict::unseen(AlarmKind::Room, error)),
        // That it is not known has been said.
        (None, _) => {}
    }
    verdicts
}

/// Whether the server's archiver brings WAL into this repository.
pub(crate) fn archiver(archiving: &Archiving) -> ServerVerdict {
    const KIND: AlarmKind = AlarmKind::Archiver;
    if !archiving.archives && archiving.in_recovery {
        return ServerVerdict::fine(KIND, "a standby that archives nothing: its primary does");
    }
    if let Some(trouble) = archiving.trouble().filter(|_| archiving.archives) {
        let verdict = ServerVerdict::warning(
            KIND,
            trouble,
            format!(
                "look at the server's log, and at archive_command, \"{}\": what is not archived stays in pg_wal \
                 until its disk is full",
                archiving.command
            ),
        );
        return verdict
            .losing("what the server does after the WAL archived last, when this host is lost");
    }
    match lacking(archiving) {
        None => ServerVerdict::fine(
            KIND,
            "no attempt has failed lately, and no file waits for it",
        ),
        Some(lacking) => ServerVerdict::warning(
            KIND,
            lacking,
            match archiving.library.as_str() {
                "" => {
                    "set archive_mode = on and archive_command = 'pgstrata ... archive-push %p'; without an archive here a \
                     restore can reach the end of a backup, and no later point"
                }
                _ => {
                    "set archive_library = '' and archive_command = 'pgstrata ... archive-push %p': beside a library the \
                     server runs no command; without an archive here a restore can reach the end of a backup, and no later point"
                }
            },
        )
        .losing("every moment after the end of the newest backup"),
    }
}

/// Configuration outside the data directory that no backup stores.
pub(crate) fn configuration(left_out: Result<Vec<String>>) -> Vec<ServerVerdict> {
    let lost = "this part of the configuration, when this host is lost";
    match left_out {
        Err(error) => vec![ServerVerdict::unseen(AlarmKind::Configuration, error)],
        Ok(left_out) => {
            let verdicts = files(left_out).into_iter();
            verdicts.map(|verdict| verdict.losing(lost)).collect()
        }
    }
}

/// What a backup does with files that may be unexpected: it follows a link, say, and loses nothing.
pub(crate) fn files(warnings: Vec<String>) -> Vec<ServerVerdict> {
    let to_do = "see \"What is backed up\" in OPERATIONS.md";
    let warnings = warnings.into_iter();
    warnings
        .map(|warning| ServerVerdict::warning(AlarmKind::Configuration, warning, to_do))
        .collect()
}

/// A primary passes over the settings of its own recovery; a standby that is made from it has them, too, and obeys.
fn ended_recovery(settings: &[RecoverySetting]) -> Option<ServerVerdict> {
    const KIND: AlarmKind = AlarmKind::Configuration;
    let (targets, others): (Vec<_>, Vec<_>) =
        settings.iter().partition(|one| names_target(&one.name));
    let timeline = others.iter().find(|one| pins_timeline(one)).copied();
    let action = others.iter().find(|one| one.name == TARGET_ACTION);
    let then = match (
        targets.is_empty(),
        action.and_then(|one| one.value.as_deref()),
    ) {
        (true, _) => "follows no timeline but that one, whatever this server does",
        (false, Some("promote")) => {
            "promotes itself there, and is a second primary beside this one"
        }
        (false, Some("shutdown")) => "shuts down there, whenever it is started",
        (false, _) => "stops there, and follows this server no further",
    };
    let set = targets.iter().copied().chain(timeline);
    let set: Vec<String> = set
        .map(|one| match &one.value {
            Some(value) => format!("{} = '{value}'", one.name),
            None => format!("{}, whose value is not seen before a restart", one.name),
        })
        .collect();
    if set.is_empty() {
        return None;
    }
    let way = settings.iter().filter(|one| is_of_the_way(one));
    let way: Vec<String> = way.map(take_out).collect();
    Some(ServerVerdict::warning(
        KIND,
        format!(
            "settings of a recovery are in the configuration files of a primary ({}): a standby that is made from this server obeys \
             them: it {then}",
            set.join(", ")
        ),
        format!(
            "{}; then SELECT pg_reload_conf(): a primary obeys none of them, so it needs no restart, though it shows those of \
             recovery_target* until the next one",
            way.join("; ")
        ),
    ))
}

fn pins_timeline(setting: &RecoverySetting) -> bool {
    setting.name == TARGET_TIMELINE && setting.value.as_deref() != Some("latest")
}

/// Whether a setting is of the way to a target. A `restore_command` is when a restore has written it: what `archive-get` is told
/// there is about that way.
fn is_of_the_way(setting: &RecoverySetting) -> bool {
    let told = ["--on-hole=end", "--along="];
    let value = setting.value.as_deref().unwrap_or_default();
    let is_ours = in_auto_conf(setting) && told.iter().any(|word| value.contains(word));
    setting.name != "restore_command" || is_ours
}

/// Whether `ALTER SYSTEM` takes a setting out; of one whose file is not known a restore has most likely written it.
fn in_auto_conf(setting: &RecoverySetting) -> bool {
    let mut file = setting.file.iter();
    file.all(|file| file.ends_with("/postgresql.auto.conf"))
}

fn take_out(setting: &RecoverySetting) -> String {
    let name = &setting.name;
    match &setting.file {
        Some(file) if !in_auto_conf(setting) => format!("take {name} out of \"{file}\""),
        // It came after the server's last start, and so from no restore.
        None if setting.value.is_none() => format!(
            "ALTER SYSTEM RESET {name}, or take {name} out of the other configuration files"
        ),
        _ => format!("ALTER SYSTEM RESET {name}"),
    }
}

/// Nobody who may not see the files knows whether a target was taken out of them, or exchanged for another.
fn unknown_of_recovery(left: &Result<RecoveryLeft>) -> Option<ServerVerdict> {
    let left = left.as_ref().ok()?;
    let unknown = left.unknown.iter().map(String::as_str);
    let binding: Vec<&str> = unknown
        .filter(|name| names_target(name) || *name == TARGET_TIMELINE)
        .collect();
    (!binding.is_empty()).then(|| {
        let why = format!(
            "{} was changed in the configuration files since the server was started, and what it is there now, if anything, this \
             role and user may not see: ask on the server's host as its user, or as a superuser",
            binding.join(", ")
        );
        ServerVerdict::unseen(AlarmKind::Configuration, why)
    })
}

/// Why the server's WAL does not come into this repository, as far as the file archived last tells.
fn lacking(archiving: &Archiving) -> Option<String> {
    if !archiving.archives {
        return Some("the server does not archive".to_owned());
    }
    if archiving.is_ours() {
        let is_known = archiving.is_for_another() || archiving.archiver.archived.is_some();
        return archiving.doubt().filter(|_| is_known);
    }
    archiving
        .is_elsewhere()
        .then(|| format!("the server archives elsewhere ({})", archiving.describe()))
}

/// Slots of ours that no session uses keep WAL for ever.
fn own_slots(slots: &Result<Vec<OwnSlot>>) -> Vec<ServerVerdict> {
    const KIND: AlarmKind = AlarmKind::Slots;
    let slots = match slots {
        Ok(slots) => slots,
        Err(error) => return vec![ServerVerdict::unseen(KIND, error)],
    };
    let (held, left): (Vec<_>, Vec<_>) = slots.iter().partition(|slot| slot.process.is_some());
    let detail = match held.len() {
        0 => "no replication slot of a backup is left".to_owned(),
        count => format!("{count} held by backups at work"),
    };
    let left = left.into_iter().map(|slot| {
        let name = &slot.name;
        let reason = format!(
            "replication slot \"{name}\" is used by nobody and keeps WAL from being removed"
        );
        ServerVerdict::warning(
            KIND,
            reason,
            format!("SELECT pg_drop_replication_slot('{name}')"),
        )
    });
    std::iter::once(ServerVerdict::fine(KIND, detail))
        .chain(left)
        .collect()
}

/// What somebody else's slot does to the server, and what to do about it.
fn foreign_slot(slot: &ForeignSlot) -> Option<ServerVerdict> {
    let ForeignSlot {
        name,
        active,
        wal_status,
        held_bytes,
    } = slot;
    let used = if *active { "in use" } else { "used by nobody" };
    let (reason, to_do) = match wal_status.as_str() {
        "reserved" => return None,
        "extended" => (
            format!(
                "replication slot \"{name}\", {used}, holds {} of WAL, more than max_wal_size: pg_wal grows until its \
                 file system is full and the server stops",
                mebibytes(*held_bytes)
            ),
            format!(
                "see to it that whoever reads from the slot does, or SELECT pg_drop_replication_slot('{name}'); \
                 max_slot_wal_keep_size limits what slots hold"
            ),
        ),
        _ => (
            format!(
                "replication slot \"{name}\", {used}, is {wal_status}: whoever reads from it cannot go on without WAL that \
                 pg_wal does not keep"
            ),
            format!(
                "make its standby or subscriber anew, or let it read from the archive, and SELECT \
                 pg_drop_replication_slot('{name}')"
            ),
        ),
    };
    Some(ServerVerdict::warning(AlarmKind::Slots, reason, to_do))
}

fn backlog(found: &WalDirectory, patience: Duration) -> ServerVerdict {
    const KIND: AlarmKind = AlarmKind::Backlog;
    let files = match found.waiting.count {
        0 => return ServerVerdict::fine(KIND, "no file waits to be archived"),
        1 => "1 file waits".to_owned(),
        more => format!("{more} files wait"),
    };
    let since = found.waiting.first.as_ref().map(|(since, _)| *since);
    let waits = since.and_then(|since| since.elapsed().ok());
    let since = since.and_then(|since| Timestamp::try_from(since).ok());
    let since = since.map_or_else(String::new, |since| format!(", the first since {since:.0}"));
    let detail = format!("{files} to be archived{since}");
    if waits.is_none_or(|waits| waits <= patience) {
        return ServerVerdict::fine(KIND, detail);
    }
    let verdict = ServerVerdict::warning(
        KIND,
        format!(
            "{detail}: they are lost with this host, and stay in pg_wal until its file system is full and the server stops"
        ),
        "look at pg_stat_archiver and at the server's log: archive_command fails, or is too slow",
    );
    verdict.losing("what is in these files, when this host is lost")
}

fn room(found: &WalDirectory, held: &HeldWal) -> ServerVerdict {
    const KIND: AlarmKind = AlarmKind::Room;
    let detail = format!(
        "pg_wal holds {}, and its file system has {} left",
        mebibytes(found.segment_bytes),
        mebibytes(found.free_bytes)
    );
    let (need, because) = may_grow(found, held);
    if found.free_bytes >= need {
        return ServerVerdict::fine(KIND, detail);
    }
    let severity = match has_room_to_switch(found, held) {
        true => Severity::Warning,
        false => Severity::Error,
    };
    ServerVerdict::Wrong(Alarm {
        severity,
        kind: KIND,
        layer: None,
        reason: format!(
            "{detail}, which is less than the {} that it may grow by: {because}; when the file system is full, the server stops",
            mebibytes(need)
        ),
        lost: None,
        to_do: "make room there, find out what holds WAL (slots, the archiver), or lower max_wal_size and wal_keep_size"
            .to_owned(),
    })
}

/// Whether the server may begin a segment, and the one behind it, without a full file system.
fn has_room_to_switch(found: &WalDirectory, held: &HeldWal) -> bool {
    found.free_bytes >= SPARE_SEGMENTS * held.segment_bytes
}

/// By how much `pg_wal` may grow, and why. What settings keep is kept beside what is written until a checkpoint removes it.
/// Where there is more than both, or where a slot holds WAL for nobody, no checkpoint removes any: the server then needs
/// room for what it writes up to the next one at least.
fn may_grow(found: &WalDirectory, held: &HeldWal) -> (u64, String) {
    let usual = held.max_wal_bytes.max(held.min_wal_bytes) + held.kept_bytes;
    let rest = usual.saturating_sub(found.segment_bytes);
    let mut because = format!("max_wal_size is {}", mebibytes(held.max_wal_bytes));
    if held.min_wal_bytes > held.max_wal_bytes {
        because.push_str(&format!(", min_wal_size {}", mebibytes(held.min_wal_bytes)));
    }
    if held.kept_bytes > 0 {
        because.push_str(&format!(", wal_keep_size {}", mebibytes(held.kept_bytes)));
    }
    let is_held = match (rest, held.has_idle_slot) {
        (0, _) => ", and something holds more than that",
        (_, true) => ", and a slot that nobody uses holds what is written",
        (_, false) => return (rest.max(SPARE_SEGMENTS * held.segment_bytes), because),
    };
    (rest.max(held.max_wal_bytes), because + is_held)
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// A restore of the newest state would follow `newest`, which has left the timeline that the asked server goes on with.
pub(crate) fn left_behind(timeline: TimelineId, newest: &TimelineHistory) -> Option<Alarm> {
    let left = newest.switch_point(timeline)?;
    let other = newest.timeline();
    Some(Alarm {
        severity: Severity::Error,
        kind: AlarmKind::Timelines,
        layer: None,
        reason: format!(
            "the server goes on along timeline {timeline}, and a restore of the newest state would follow timeline {other}, which \
             left that one at {left}: another server's"
        ),
        lost: Some(format!(
            "what this server wrote behind {left}, unless --target-timeline {timeline} is said"
        )),
        to_do: format!(
            "when this server counts, the other one is a copy: end its backups and its archiving under this cluster's name, and \
             restore with --target-timeline {timeline}; when the other one took its place, stop this one"
        ),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::server::pg_wal::Waiting;

    #[test]
    fn a_backlog_is_a_warning_when_it_is_older_than_wal_may_take() {
        let minute = Duration::from_secs(60);
        let waiting = |ago: u64| WalDirectory {
            waiting: Waiting {
                count: 3,
                first: SystemTime::now()
                    .checked_sub(Duration::from_secs(ago))
                    .map(|since| (since, "one".to_owned())),
            },
            ..WalDirectory::default()
        };
        for found in [WalDirectory::default(), waiting(10)] {
            let verdict = backlog(&found, minute);
            assert!(matches!(verdict, ServerVerdict::Fine { .. }), "{verdict:?}");
        }
        let ServerVerdict::Wrong(alarm) = backlog(&waiting(100), minute) else {
            panic!("it is older");
        };
        let reason = &alarm.reason;
        assert!(
            reason.starts_with("3 files wait to be archived, the first since 2"),
            "{reason}"
        );
    }

    #[test]
    fn configuration_that_no_backup_has_is_lost_with_its_host() {
        let lost = |verdicts: Vec<ServerVerdict>| match &verdicts[..] {
            [ServerVerdict::Wrong(alarm)] => alarm.lost.clone(),
            verdicts => panic!("{verdicts:?}"),
        };
        let left_out = "could not read \"/etc/pg_hba.conf\", which belongs to the server's configuration, so it is not in the backup: \
             permission denied";
        let expected = "this part of the configuration, when this host is lost";
        let verdicts = configuration(Ok(vec![left_out.to_owned()]));
        assert_eq!(lost(verdicts).as_deref(), Some(expected));
        let followed = "followed the link \"conf.d\" to \"/etc/conf.d\": a restore makes an ordinary file or directory of it";
        assert_eq!(lost(files(vec![followed.to_owned()])), None);
    }

    fn setting(name: &str, value: &str, file: Option<&str>) -> RecoverySetting {
        RecoverySetting {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            file: file.map(str::to_owned),
        }
    }

    /// The reason, and what to do, when a primary has these settings.
    fn told_of(settings: &[RecoverySetting]) -> Option<(String, String)> {
        match ended_recovery(settings)? {
            ServerVerdict::Wrong(alarm) => {
                assert_eq!(alarm.kind, AlarmKind::Configuration);
                assert_eq!(alarm.severity, Severity::Warning);
                Some((alarm.reason, alarm.to_do))
            }
            verdict => panic!("{verdict:?}"),
        }
    }

    #[test]
    fn what_is_left_of_a_recovery_is_named_with_what_a_standby_makes_of_it() {
        let auto = |name, value| setting(name, value, Some("/data/postgresql.auto.conf"));
        let latest = auto("recovery_target_timeline", "latest");
        let promote = auto("recovery_target_action", "promote");
        let plain = auto("restore_command", "exec pgstrata archive-get %f \"%p\"");
        let harmless = [latest.clone(), promote.clone(), plain.clone()];
        assert_eq!(told_of(&[]), None);
        assert_eq!(told_of(&harmless), None);

        let ours = auto("restore_command", "exec pgstrata archive-get --along=1 %f");
        let target = auto("recovery_target_lsn", "0/3000000");
        let one = auto("recovery_target_timeline", "1");
        let all = [promote, target.clone(), one.clone(), ours];
        let (reason, to_do) = told_of(&all).unwrap();
        let set = "(recovery_target_lsn = '0/3000000', recovery_target_timeline = '1')";
        assert!(reason.contains(set), "{reason}");
        assert!(reason.contains("promotes itself there"), "{reason}");
        let statements = "ALTER SYSTEM RESET recovery_target_action; ALTER SYSTEM RESET recovery_target_lsn; ALTER SYSTEM RESET \
             recovery_target_timeline; ALTER SYSTEM RESET restore_command; then SELECT pg_reload_conf()";
        assert!(to_do.starts_with(statements), "{to_do}");

        let (reason, to_do) = told_of(&[target, plain]).unwrap();
        assert!(reason.contains("stops there"), "{reason}");
        assert!(!to_do.contains("restore_command"), "{to_do}");
        let (reason, _) = told_of(&[one]).unwrap();
        assert!(reason.contains("follows no timeline but"), "{reason}");
    }

    #[test]
    fn what_a_file_of_the_administrator_says_of_recovery_is_his_to_take_out() {
        let name = "recovery_target_time";
        for (file, to_do) in [
            (
                Some("/etc/postgresql.conf"),
                "take recovery_target_time out of \"/etc/postgresql.conf\";",
            ),
            (None, "ALTER SYSTEM RESET recovery_target_time;"),
        ] {
            let told = told_of(&[setting(name, "2026-11-21 09:33:05+00", file)]).unwrap();
            assert!(told.1.starts_with(to_do), "{told:?}");
        }
    }

    #[test]
    fn what_is_not_seen_of_a_target_is_not_taken_for_nothing() {
        let unseen = |name: &str| RecoverySetting {
            value: None,
            ..setting(name, "", None)
        };
        let (reason, to_do) = told_of(&[unseen("recovery_target_time")]).unwrap();
        assert!(reason.contains("is not seen before"), "{reason}");
        assert!(reason.contains("stops there"), "{reason}");
        let words =
            "or take recovery_target_time out of the other configuration files; then SELECT";
        assert!(to_do.contains(words), "{to_do}");
        let (reason, _) = told_of(&[unseen(TARGET_TIMELINE)]).unwrap();
        assert!(reason.contains("follows no timeline but"), "{reason}");

        let unknown = |name: &str| {
            unknown_of_recovery(&Ok(RecoveryLeft {
                unknown: vec![name.to_owned()],
                ..RecoveryLeft::default()
            }))
        };
        for name in ["recovery_target_xid", TARGET_TIMELINE] {
            let verdict = unknown(name);
            assert!(
                matches!(&verdict, Some(ServerVerdict::Unseen { why, .. }) if why.starts_with(name)),
                "{verdict:?}"
            );
        }
        assert_eq!(unknown(TARGET_ACTION), None);
    }

    #[test]
    fn slots_that_nobody_uses_or_that_have_lost_their_wal_are_named() {
        let slot = |name: &str, process| OwnSlot {
            name: name.to_owned(),
            temporary: false,
            process,
        };
        let verdicts = own_slots(&Ok(vec![slot("at_work", Some(1)), slot("left", None)]));
        let [
            ServerVerdict::Fine { detail, .. },
            ServerVerdict::Wrong(alarm),
        ] = &verdicts[..]
        else {
            panic!("{verdicts:?}");
        };
        assert_eq!(detail, "1 held by backups at work");
        assert!(
            alarm.reason.contains("\"left\" is used by nobody"),
            "{alarm:?}"
        );
        assert_eq!(alarm.to_do, "SELECT pg_drop_replication_slot('left')");
        let foreign = |status: &str| {
            foreign_slot(&ForeignSlot {
                name: "standby".to_owned(),
                active: false,
                wal_status: status.to_owned(),
                held_bytes: 5 << 20,
            })
        };
        assert_eq!(foreign("reserved"), None);
        for (status, said) in [
            ("extended", "holds 5 MiB of WAL"),
            (
                "unreserved",
                "is unreserved: whoever reads from it cannot go on",
            ),
            ("lost", "is lost: whoever reads from it cannot go on"),
        ] {
            let Some(ServerVerdict::Wrong(alarm)) = foreign(status) else {
                panic!("{status}");
            };
            assert!(alarm.reason.contains(said), "{alarm:?}");
            assert_eq!(alarm.kind, AlarmKind::Slots);
        }
    }

    fn held(max: u64) -> HeldWal {
        HeldWal {
            slots: Vec::new(),
            max_wal_bytes: max << 20,
            min_wal_bytes: 80 << 20,
            kept_bytes: 0,
            segment_bytes: 16 << 20,
            has_idle_slot: false,
        }
    }

    /// The severity, and what is said, when `pg_wal` holds the first and has the second left, in MiB.
    fn judged(held: &HeldWal, (holds, left): (u64, u64)) -> Option<(Severity, String)> {
        let found = WalDirectory {
            segment_bytes: holds << 20,
            free_bytes: left << 20,
            ..WalDirectory::default()
        };
        match room(&found, held) {
            ServerVerdict::Wrong(alarm) => Some((alarm.severity, alarm.reason)),
            ServerVerdict::Fine { .. } | ServerVerdict::Unseen { .. } => None,
        }
    }

    #[test]
    fn room_is_short_when_pg_wal_may_grow_by_more_than_is_left() {
        let usual = held(160);
        assert_eq!(judged(&usual, (80, 80)), None);
        let (severity, reason) = judged(&usual, (80, 79)).unwrap();
        assert_eq!(severity, Severity::Warning);
        assert!(reason.contains("max_wal_size is 160 MiB"), "{reason}");
        // The next two segments at any time.
        assert_eq!(judged(&usual, (144, 32)), None);
        assert_eq!(judged(&usual, (144, 31)).unwrap().0, Severity::Error);
    }

    #[test]
    fn what_settings_keep_beside_the_usual_needs_room_too() {
        let mut keeps = held(160);
        keeps.kept_bytes = 1024 << 20;
        assert_eq!(judged(&keeps, (160, 1024)), None);
        let (severity, reason) = judged(&keeps, (160, 8)).unwrap();
        assert_eq!(severity, Severity::Error);
        assert!(reason.contains("wal_keep_size 1024 MiB"), "{reason}");
        let small = held(64);
        assert_eq!(judged(&small, (16, 64)), None);
        let (_, reason) = judged(&small, (16, 63)).unwrap();
        assert!(reason.contains("min_wal_size 80 MiB"), "{reason}");
    }

    #[test]
    fn where_wal_is_held_there_is_room_up_to_the_next_checkpoint() {
        // Something holds more than settings allow.
        assert_eq!(judged(&held(160), (176, 160)), None);
        let (_, reason) = judged(&held(160), (176, 159)).unwrap();
        assert!(reason.contains("holds more than that"), "{reason}");
        // Less than that, and for ever.
        let mut idle = held(160);
        idle.has_idle_slot = true;
        assert_eq!(judged(&idle, (144, 160)), None);
        let (severity, reason) = judged(&idle, (144, 100)).unwrap();
        assert_eq!(severity, Severity::Warning);
        assert!(reason.contains("a slot that nobody uses"), "{reason}");
    }
}
