//! Who comes first when the machine is busy.

use std::time::Duration;

use clap::{Args, ValueEnum};
use pgstrata_engine::priority::{Impact, SessionShare};
use pgstrata_store::courtesy::Rests;

/// Of the commands that have time.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct ImpactArgs {
    /// Choose who comes first when the machine is busy [default: auto]
    ///
    /// With auto and low the work leaves processors and disk to everybody else, above all to the server, and what it reads
    /// of a data directory leaves the page cache as it was (Linux 6.14 and later). On an idle machine it is as fast as with none.
    #[arg(long, env = "PGSTRATA_IMPACT", value_enum, value_name = "IMPACT")]
    pub(crate) impact: Option<ImpactLevel>,
}

/// What a command takes from those who use the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImpactLevel {
    /// Use only processor and disk time that nobody else wants, however long that takes; a backup spreads its checkpoint
    Low,
    /// The same, but go on slowly on a machine that is never idle, and spread the checkpoint only where users would feel it
    #[default]
    Auto,
    /// Use all that is available; a backup has its checkpoint made at once
    None,
}

impl ImpactLevel {
    /// How a thread rests between two pieces of work of some 128 KiB.
    pub(crate) fn rests(self) -> Rests {
        match self {
            // A MiB a second is left.
            Self::Low => Rests {
                longest: Duration::from_millis(100),
                in_vain: true,
            },
            // Some 80 MiB a second are left on a machine that is never idle: eight hours for two TiB.
            Self::Auto => Rests {
                longest: Duration::from_millis(5),
                in_vain: false,
            },
            Self::None => Rests::NONE,
        }
    }

    /// The share among other sessions, where this process leads one. A backup with auto sees when it gets too little.
    pub(crate) fn session_share(self, is_backup: bool) -> Option<SessionShare> {
        match self {
            Self::Low => Some(SessionShare::Smallest),
            Self::Auto if is_backup => Some(SessionShare::Smallest),
            Self::Auto => Some(SessionShare::Small),
            Self::None => None,
        }
    }
}

impl From<ImpactLevel> for Impact {
    fn from(level: ImpactLevel) -> Self {
        match level {
            ImpactLevel::Low => Self::Low,
            ImpactLevel::Auto => Self::Auto,
            ImpactLevel::None => Self::None,
        }
    }
}
