//! Who is asking: identities from a file, from the environment, or from a program.
//!
//! An identity never stands on the command line, where other users see it.

use std::env;
use std::path::{Path, PathBuf};

use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::{
    Identities, KEY_COMMAND_TIMEOUT, from_command, from_file, keep_out_of_dumps,
};

/// The environment variable that names a file, or holds an identity.
pub(crate) const VARIABLE: &str = "PGSTRATA_IDENTITY";

const SECRET: &str = "AGE-SECRET-KEY-";

/// Where identities are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    File(PathBuf),
    Command(String),
    /// The variable holds the identity itself.
    Environment,
}

/// The first of them that says something: options, environment, configuration file.
pub(crate) fn origin(
    option: (Option<&PathBuf>, Option<&String>),
    file: (Option<&PathBuf>, Option<&String>),
) -> Result<Option<Origin>> {
    if let Some(told) = choose(option, "on the command line")? {
        return Ok(Some(told));
    }
    match env::var(VARIABLE) {
        Ok(value) if value.is_empty() => Err(Error::new(
            Kind::Usage,
            format!("the environment variable {VARIABLE} is empty"),
        )
        .hint("unset it, or let it name a file with an age identity")),
        Ok(value) if value.trim_start().starts_with(SECRET) => Ok(Some(Origin::Environment)),
        Ok(value) => Ok(Some(Origin::File(PathBuf::from(value)))),
        Err(_) => choose(file, "in the configuration file"),
    }
}

fn choose(from: (Option<&PathBuf>, Option<&String>), place: &str) -> Result<Option<Origin>> {
    match from {
        (None, None) => Ok(None),
        (Some(path), None) => {
            if path.to_string_lossy().starts_with(SECRET) {
                return Err(Error::new(Kind::Usage, format!("an identity itself stands {place}")).hint(
                    "others can read it there: make another one, put it into a file of mode 0600, and give the name of the file",
                ));
            }
            Ok(Some(Origin::File(path.clone())))
        }
        (None, Some(command)) => Ok(Some(Origin::Command(command.clone()))),
        (Some(_), Some(_)) => Err(Error::new(
            Kind::Usage,
            format!("both an identity and a key command are given {place}"),
        )
        .hint("leave one of them out")),
    }
}

/// Reads them.
pub(crate) fn read(origin: &Origin) -> Result<Identities> {
    keep_out_of_dumps();
    match origin {
        Origin::File(path) => from_file(Path::new(path)),
        Origin::Command(command) => from_command(command, KEY_COMMAND_TIMEOUT),
        Origin::Environment => {
            let text = env::var(VARIABLE).unwrap_or_default();
            Identities::parse(&text, &format!("the environment variable {VARIABLE}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_on_the_command_line_is_refused_and_not_repeated() {
        let secret = PathBuf::from("AGE-SECRET-KEY-1QQQ");
        let error = choose((Some(&secret), None), "there").unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(!error.to_string().contains("QQQ"), "{error}");
        let file = PathBuf::from("/k");
        let command = "cat /k".to_owned();
        assert!(choose((Some(&file), Some(&command)), "there").is_err());
        let found = choose((Some(&file), None), "there").unwrap();
        assert_eq!(found, Some(Origin::File(file)));
        assert_eq!(choose((None, None), "there").unwrap(), None);
    }
}
