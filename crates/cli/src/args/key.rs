//! `key`, and what `init` says of keys.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pgstrata_layer::epoch::KeyRole;
use pgstrata_store::error::Result;
use pgstrata_store::keys::{self, Recipients};

/// Who opens what is sealed.
#[derive(Debug, Clone, Args)]
pub(crate) struct RecipientArgs {
    /// Let this age recipient read everything: restore, merge, decide who else may; may be repeated [default: none]
    #[arg(long, value_name = "age1...")]
    pub(crate) recipient: Vec<String>,

    /// Let this age recipient make backups, and read what that needs: no page, no WAL; may be repeated [default: none]
    #[arg(long, value_name = "age1...")]
    pub(crate) writer: Vec<String>,

    /// Let this age recipient expire layers, and read what that needs: no page, no WAL; may be repeated [default: none]
    #[arg(long, value_name = "age1...")]
    pub(crate) keeper: Vec<String>,
}

impl RecipientArgs {
    /// Each once in each role.
    pub(crate) fn recipients(&self) -> Result<Recipients> {
        let mut all = Vec::new();
        for (role, named) in [
            (KeyRole::Reader, &self.recipient),
            (KeyRole::Writer, &self.writer),
            (KeyRole::Keeper, &self.keeper),
        ] {
            for one in named {
                let one = (role, keys::recipient(one)?);
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        Ok(Recipients { all })
    }
}

/// `key`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make an age identity, write it into a new file of mode 0600, and print its recipient
    ///
    /// age-keygen makes the same kind of file.
    Generate {
        /// The file to be made
        file: PathBuf,
    },

    /// Show who opens what, and what the identity at hand opens
    ///
    /// Exit code 0: it opens something, and no single person's loss would lose everything; 3: there is a warning;
    /// 14: keys are damaged or lost.
    Check,

    /// Let more recipients in
    ///
    /// A reader can read what is sealed from the current epoch on; "pgstrata key reseal" lets him into older ones.
    /// The command needs the identity of a reader.
    Add(RecipientArgs),

    /// Begin a new epoch without a recipient
    ///
    /// He cannot read what is sealed from then on. He can read what was sealed before, for ever: take a full backup at once
    /// and expire the old ones. Backups and merges that run meanwhile are refused at their end. The command needs the identity of a reader.
    Remove {
        /// The recipient that is left out, age1...
        recipient: String,
    },

    /// Begin a new epoch, with new keys, for the recipients of the current one
    ///
    /// Backups and merges that run meanwhile are refused at their end.
    /// The command needs the identity of a reader.
    Rotate,

    /// Let a reader of the current epoch into every other
    ///
    /// "pgstrata key add --recipient" makes somebody a reader of the current one.
    /// The command needs the identity of a reader of every epoch.
    Reseal {
        /// The reader's recipient, age1...
        recipient: String,
    },
}
