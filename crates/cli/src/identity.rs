//! Who is asking: identities from a file, from the environment, or from a program.
//!
//! An identity never stands on the command line, where other users see it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::{
    self, Identities, KEY_COMMAND_TIMEOUT, from_command, from_file, holds_secret, keep_out_of_dumps,
};

/// The environment variable that names a file, or holds an identity.
pub(crate) const VARIABLE: &str = "PGSTRATA_IDENTITY";

/// Where identities are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    File(PathBuf),
    Command(String),
    /// The variable holds the identity itself.
    Environment,
}

/// To be called before anything else: a secret in the environment is there from the first moment on. Other commands
/// keep their core dumps, and whoever runs them may look at them with a debugger.
pub(crate) fn guard_environment() {
    if env::var_os(VARIABLE).is_some() {
        keep_out_of_dumps();
    }
}

/// Refuses an identity in any argument, where others see it.
pub(crate) fn refuse_in(arguments: &[OsString]) -> Result<()> {
    match arguments
        .iter()
        .any(|word| holds_secret(&word.to_string_lossy()))
    {
        false => Ok(()),
        true => Err(in_the_open("on the command line")),
    }
}

fn in_the_open(place: &str) -> Error {
    Error::new(Kind::Usage, format!("an identity itself stands {place}")).hint(
        "others can read it there: make another one, put it into a file of mode 0600, and give the name of the file",
    )
}

/// Makes an identity in a new file; answers its recipient.
pub(crate) fn generate(file: &Path) -> Result<String> {
    keep_out_of_dumps();
    keys::generate(file)
}

/// The first of them that says something: options, environment, configuration file.
pub(crate) fn origin(
    option: (Option<&PathBuf>, Option<&String>),
    file: (Option<&PathBuf>, Option<&String>),
) -> Result<Option<Origin>> {
    if let Some(told) = choose(option, "on the command line")? {
        return Ok(Some(told));
    }
    let Some(value) = env::var_os(VARIABLE) else {
        return choose(file, "in the configuration file");
    };
    match value.into_string() {
        Ok(value) if value.is_empty() => Err(Error::new(
            Kind::Usage,
            format!("the environment variable {VARIABLE} is empty"),
        )
        .hint("unset it, or let it name a file with an age identity")),
        // A file as it is, with its comments, too.
        Ok(value) if holds_secret(&value) || value.contains('\n') => Ok(Some(Origin::Environment)),
        Ok(value) => Ok(Some(Origin::File(PathBuf::from(value)))),
        Err(_) => Err(Error::new(
            Kind::Usage,
            format!("the environment variable {VARIABLE} is not UTF-8"),
        )
        .hint("give the file a name in UTF-8")),
    }
}

fn choose(from: (Option<&PathBuf>, Option<&String>), place: &str) -> Result<Option<Origin>> {
    match from {
        (None, None) => Ok(None),
        (Some(path), None) => {
            if holds_secret(&path.to_string_lossy()) {
                return Err(in_the_open(place));
            }
            in_utf8(path)?;
            Ok(Some(Origin::File(path.clone())))
        }
        (None, Some(command)) if holds_secret(command) => Err(in_the_open(place)),
        (None, Some(command)) => Ok(Some(Origin::Command(command.clone()))),
        (Some(_), Some(_)) => Err(Error::new(
            Kind::Usage,
            format!("both an identity and a key command are given {place}"),
        )
        .hint("leave one of them out")),
    }
}

/// The path as text: `restore_command` and reports can hold no other.
pub(crate) fn in_utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        let what = format!("the path \"{}\" is not UTF-8", path.display());
        Error::new(Kind::Usage, what).hint("give the file and its directories names in UTF-8")
    })
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
