//! Connection services: parameters under one name in `pg_service.conf`, as libpq reads it (manual, "The Connection Service
//! File"; `parseServiceInfo`, fe-connect.c).
//!
//! What a service says counts less than the connection string and more than the environment.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pgstrata_store::error::{Error, FileContext as _, Kind, Result};

use super::target::{Environment, TLS_PARAMETERS};

/// Parameters that a service may have, besides those about TLS, with libpq's variable for each.
const PARAMETERS: [(&str, &str); 11] = [
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("options", "PGOPTIONS"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
];

/// Parameters that change nothing here: the program names itself, speaks UTF-8, and does not speak GSSAPI.
pub(super) const WITHOUT_EFFECT: [&str; 6] = [
    "application_name",
    "client_encoding",
    "fallback_application_name",
    "gsslib",
    "keepalives_count",
    "krbsrvname",
];

/// The directory of the file that is for all users, where Debian's packages have it.
const OF_ALL_USERS: &str = "/etc/postgresql-common";

/// What a service says, by the variable that each parameter has.
pub(super) type Service = BTreeMap<&'static str, String>;

/// The service that the connection string has `given`, or `PGSERVICE`; nothing when none is named.
///
/// # Errors
/// `Usage` when it is not there, or its file cannot be read.
pub(super) fn service(
    given: &BTreeMap<String, String>,
    environment: Environment<'_>,
) -> Result<Service> {
    let told = |parameter: &str, variable: &str| {
        let given = given.get(parameter).filter(|value| !value.is_empty());
        given.cloned().or_else(|| environment(variable))
    };
    let Some(name) = told("service", "PGSERVICE") else {
        return Ok(Service::new());
    };
    if let Some(file) = told("servicefile", "PGSERVICEFILE").map(PathBuf::from) {
        let text = read(&file)?.ok_or_else(|| {
            let what = format!("the service file \"{}\" does not exist", file.display());
            Error::new(Kind::Usage, what)
        })?;
        let found = of_file(&file, &text, &name)?;
        return found.ok_or_else(|| unknown(&name, &[file]));
    }
    let own = environment("HOME").map(|home| Path::new(&home).join(".pg_service.conf"));
    let directory = environment("PGSYSCONFDIR").unwrap_or_else(|| OF_ALL_USERS.to_owned());
    let of_all = Path::new(&directory).join("pg_service.conf");
    let files: Vec<PathBuf> = own.into_iter().chain([of_all]).collect();
    for file in &files {
        let Some(text) = read(file)? else { continue };
        if let Some(found) = of_file(file, &text, &name)? {
            return Ok(found);
        }
    }
    Err(unknown(&name, &files))
}

fn read(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text
            .context(|| format!("could not read the service file \"{}\"", file.display()))
            .map(Some),
    }
}

fn unknown(name: &str, files: &[PathBuf]) -> Error {
    let files: Vec<String> = files
        .iter()
        .map(|file| format!("\"{}\"", file.display()))
        .collect();
    let what = format!(
        "there is no connection service \"{name}\" in {}",
        files.join(" or ")
    );
    Error::new(Kind::Usage, what).hint("PGSERVICEFILE names another file")
}

/// The service `name` in the `text` of `file`. Of a parameter that is there twice the first counts.
fn of_file(file: &Path, text: &str, name: &str) -> Result<Option<Service>> {
    let mut found: Option<Service> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            let rest = section.strip_prefix(name);
            found = rest
                .is_some_and(|rest| rest.starts_with(']'))
                .then(Service::new);
            continue;
        }
        let Some(service) = &mut found else { continue };
        let mistake = |why: &str| {
            let what = format!("line {number} of \"{}\" {why}", file.display());
            Error::new(Kind::Usage, what).hint("libpq's manual, \"The Connection Service File\"")
        };
        let (parameter, value) = line
            .split_once('=')
            .ok_or_else(|| mistake("is no parameter with a value"))?;
        if WITHOUT_EFFECT.contains(&parameter) {
            continue;
        }
        let mut known = PARAMETERS.iter().chain(&TLS_PARAMETERS);
        let (_, variable) = known
            .find(|(known, _)| *known == parameter)
            .ok_or_else(|| {
                mistake("has a parameter that a service may not have, or that is not known here")
            })?;
        service.entry(variable).or_insert_with(|| value.to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# ours\nhost=nobody\n[production]\n  host=one.example\nport=6000 \nhost=two\nsslmode=verify-full\n\
        application_name=x\n\n[other]\nhost=three\nbad\n";

    fn look(pairs: &[(&str, &str)]) -> Result<Service> {
        let given = BTreeMap::new();
        let environment = |name: &str| {
            let mut pairs = pairs.iter();
            let found = pairs.find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        service(&given, &environment)
    }

    #[test]
    fn a_service_is_read_as_libpq_reads_it() {
        let found = of_file(Path::new("f"), FILE, "production")
            .unwrap()
            .unwrap();
        let pairs: Vec<(&str, &str)> = found.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let expected = [
            ("PGHOST", "one.example"),
            ("PGPORT", "6000"),
            ("PGSSLMODE", "verify-full"),
        ];
        assert_eq!(pairs, expected);
        assert_eq!(of_file(Path::new("f"), FILE, "product").unwrap(), None);
        let bad = of_file(Path::new("f"), FILE, "other").unwrap_err();
        assert_eq!(bad.kind(), Kind::Usage);
        assert!(bad.to_string().contains("line 12 of \"f\""), "{bad}");
        for bad in ["[a]\nservice=b", "[a]\nhost = b", "[a]\nldap://x"] {
            assert!(of_file(Path::new("f"), bad, "a").is_err(), "{bad}");
        }
    }

    #[test]
    fn a_service_is_looked_for_where_libpq_looks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display().to_string();
        let there = directory.path().join("pg_service.conf");
        assert_eq!(look(&[("HOME", &path)]).unwrap(), Service::new());
        let named = [
            ("PGSERVICE", "one"),
            ("HOME", &path),
            ("PGSYSCONFDIR", &path),
        ];
        let error = look(&named).unwrap_err();
        assert!(error.to_string().contains("no connection service \"one\""));
        fs::write(&there, "[one]\nhost=of-all\n[two]\nhost=of-all\n").unwrap();
        assert_eq!(look(&named).unwrap()["PGHOST"], "of-all");
        let own = directory.path().join(".pg_service.conf");
        fs::write(&own, "[one]\nhost=own\n").unwrap();
        assert_eq!(look(&named).unwrap()["PGHOST"], "own");
        let two = [&[("PGSERVICE", "two")], &named[1..]].concat();
        assert_eq!(look(&two).unwrap()["PGHOST"], "of-all");
        let missing = directory.path().join("missing").display().to_string();
        let file = [&named[..], &[("PGSERVICEFILE", &missing)]].concat();
        let error = look(&file).unwrap_err();
        assert!(error.to_string().contains("does not exist"), "{error}");
    }
}
