//! The plan: which act comes next, in the situation that there is. Nothing here does anything.

use super::chance::Chance;

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Rows, tables, indexes, databases, prepared transactions
    Statements,
    /// The configuration is rewritten
    Settings,
    /// What the server holds is kept as a moment of truth
    Moment,
    /// WAL is switched and archived
    Seal,
    /// The server ends and comes back
    Crash,
    /// The server runs without the tracker, or a tool changes its files while it is stopped
    Interlude,
    /// A backup, with something going on beside it
    Backup,
    /// Something that is owed is restored and compared
    Judge,
    /// The repository is read to its last page
    Verify,
    /// Layers are merged
    Merge,
    /// Layers and WAL expire
    Expire,
    /// Somebody destroys objects, which come back
    Rescue,
    /// A layer is pinned, or a pin taken out
    Pin,
    /// The repository is copied
    Copy,
    /// Who reads a sealed cluster changes
    Keys,
    /// A restored copy goes on in the place of the server
    Promote,
    /// The server's directory goes back in place
    InPlace,
    /// The server's directories are kept aside
    Snapshot,
    /// They are put back
    Revert,
    /// A copy is promoted, and lives beside its original
    Fork,
    /// The steps that follow are those of the other one of the two
    Turn,
    /// One of the two ends, and the other one goes on
    Part,
    /// A command meets a store that fails or denies
    Store,
    /// A command meets a limit of the operating system
    Limit,
    /// A restore meets a full disk
    FullDisk,
    /// A command meets a full repository
    FullRepository,
    /// A command is killed or held
    Trouble,
    /// The archiver's commands are killed or held, or their network fails
    Archiver,
}

impl Act {
    /// Its name in the log.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Statements => "sql",
            Self::Settings => "settings",
            Self::Moment => "moment",
            Self::Seal => "seal",
            Self::Crash => "crash",
            Self::Interlude => "interlude",
            Self::Backup => "backup",
            Self::Judge => "judge",
            Self::Verify => "verify",
            Self::Merge => "merge",
            Self::Expire => "expire",
            Self::Rescue => "rescue",
            Self::Pin => "pin",
            Self::Copy => "copy",
            Self::Keys => "keys",
            Self::Promote => "promote",
            Self::InPlace => "in place",
            Self::Snapshot => "snapshot",
            Self::Revert => "revert",
            Self::Fork => "fork",
            Self::Turn => "turn",
            Self::Part => "part",
            Self::Store => "store",
            Self::Limit => "limit",
            Self::FullDisk => "full disk",
            Self::FullRepository => "full repo",
            Self::Trouble => "trouble",
            Self::Archiver => "archiver",
        }
    }
}

/// What there is, as far as it matters for what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Situation {
    pub(super) step: u64,
    pub(super) layers: usize,
    pub(super) owed: usize,
    pub(super) archives: bool,
    pub(super) has_snapshot: bool,
    /// Whether a second server of the cluster lives beside the first one.
    pub(super) has_sibling: bool,
    pub(super) has_network: bool,
    /// Whether the cluster is encrypted.
    pub(super) is_sealed: bool,
    /// Whether the repository has a disk of its own.
    pub(super) has_disk: bool,
    /// Whether the repository's bucket keeps versions.
    pub(super) has_versions: bool,
    /// Whether the server has changed since the last moment.
    pub(super) is_stirred: bool,
}

/// A run begins with something to lose.
const OPENING: [Act; 4] = [Act::Statements, Act::Backup, Act::Statements, Act::Moment];

/// Chooses the next act.
pub(super) fn next(chance: &mut Chance, now: Situation) -> Act {
    let opening = usize::try_from(now.step)
        .ok()
        .and_then(|step| step.checked_sub(1));
    if let Some(act) = opening.and_then(|at| OPENING.get(at))
        && (*act != Act::Moment || now.archives)
    {
        return *act;
    }
    chance.weighted(&weights(now)).unwrap_or(Act::Statements)
}

/// How often each act is chosen.
fn weights(now: Situation) -> Vec<(Act, u64)> {
    let when = |possible: bool, weight: u64| if possible { weight } else { 0 };
    vec![
        (Act::Statements, if now.is_stirred { 16 } else { 40 }),
        (Act::Settings, 3),
        (
            Act::Moment,
            when(now.archives, if now.is_stirred { 16 } else { 2 }),
        ),
        (Act::Seal, when(now.archives, 2)),
        (Act::Crash, 6),
        (Act::Interlude, when(now.layers > 0, 2)),
        (Act::Backup, if now.layers == 0 { 60 } else { 20 }),
        (Act::Judge, when(now.owed > 0, 8)),
        (Act::Verify, when(now.layers > 0, 1)),
        (Act::Merge, when(now.layers > 2, 4)),
        // Of two servers each has a branch to keep.
        (
            Act::Expire,
            when(now.layers > 3, if now.has_sibling { 9 } else { 4 }),
        ),
        (Act::Rescue, when(now.has_versions && now.layers > 0, 7)),
        (Act::Pin, when(now.layers > 1, 2)),
        (Act::Copy, when(now.layers > 0, 3)),
        (Act::Keys, when(now.is_sealed, 6)),
        (Act::Promote, when(now.owed > 0, 3)),
        (Act::InPlace, when(now.owed > 0, 4)),
        (Act::Snapshot, 2),
        (Act::Revert, when(now.has_snapshot, 4)),
        (
            Act::Fork,
            when(now.archives && now.owed > 0 && !now.has_sibling, 5),
        ),
        (Act::Turn, when(now.has_sibling, 20)),
        (Act::Part, when(now.has_sibling, 4)),
        (Act::Store, when(now.has_network, 8)),
        (Act::Limit, when(now.layers > 0, 3)),
        (Act::FullDisk, when(now.owed > 0, 1)),
        (Act::FullRepository, when(now.has_disk && now.layers > 0, 4)),
        (Act::Trouble, when(now.layers > 0, 7)),
        (Act::Archiver, when(now.archives && now.layers > 0, 6)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: Situation = Situation {
        step: 10,
        layers: 0,
        owed: 0,
        archives: false,
        has_snapshot: false,
        has_sibling: false,
        has_network: false,
        is_sealed: false,
        has_disk: false,
        has_versions: false,
        is_stirred: true,
    };

    #[test]
    fn what_is_not_possible_is_not_chosen() {
        let mut chance = Chance::of_step(5, 5);
        for _ in 0..500 {
            let act = next(&mut chance, EMPTY);
            let impossible = [
                Act::Moment,
                Act::Judge,
                Act::Merge,
                Act::Rescue,
                Act::Pin,
                Act::Copy,
                Act::Keys,
                Act::Promote,
                Act::InPlace,
                Act::Revert,
                Act::Fork,
                Act::Turn,
                Act::Part,
                Act::Store,
                Act::FullRepository,
                Act::Archiver,
            ];
            assert!(!impossible.contains(&act), "{act:?}");
        }
    }

    #[test]
    fn a_run_begins_with_something_to_lose() {
        let now = |step| Situation {
            step,
            archives: true,
            ..EMPTY
        };
        let mut chance = Chance::of_step(5, 5);
        assert_eq!(next(&mut chance, now(1)), Act::Statements);
        assert_eq!(next(&mut chance, now(2)), Act::Backup);
        assert_eq!(next(&mut chance, now(4)), Act::Moment);
    }
}
