//! Where the server is: a conninfo string, completed from libpq's service file and environment.
//!
//! `tokio-postgres` reads conninfo strings and URLs but neither services, nor the `PG*` environment variables, nor the
//! password file; a DBA expects them all. Of TLS it knows the least, so that is read by `ServerAddress`.

use std::env;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use pgstrata_pgdata::LockFile;
use pgstrata_store::error::{Error, Kind, Result};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, TargetSessionAttrs};

use super::control::read_lock_file;
use super::parameters;
use super::service::{WITHOUT_EFFECT, service};
use super::target::{Environment, ServerAddress, TLS_PARAMETERS};

/// A local server answers at once; ten seconds are for a network that loses packets, and for a machine that is busy.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Directories in which PostgreSQL's packages and its sources put their sockets.
const SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// How to reach the server: `conninfo` (`host=/run/postgresql user=backup`, or a URL; may be empty), completed from the service
/// that it or `PGSERVICE` names, from `PGHOST`, `PGHOSTADDR`, `PGPORT`, `PGUSER`, `PGDATABASE`, `PGPASSWORD`, `PGPASSFILE`,
/// `PGCONNECT_TIMEOUT`, `PGOPTIONS`, `PGTARGETSESSIONATTRS`, `PGLOADBALANCEHOSTS`, those about TLS, and libpq's defaults.
#[derive(Clone, Debug, Default)]
pub struct ConnectionOptions {
    /// Connection string; what it does not say comes from the environment.
    pub conninfo: String,
}

impl ConnectionOptions {
    /// The server that runs on `data_directory`, by its `postmaster.pid`; `None` when none runs there.
    #[must_use]
    pub fn of_directory(data_directory: &Path) -> Option<Self> {
        of_lock_file(&read_lock_file(data_directory)?)
    }

    /// The server, with all that is known of it. Reads the files that TLS needs.
    ///
    /// # Errors
    /// When the conninfo string or a variable makes no sense, or such a file cannot be used.
    pub(super) fn target(&self) -> Result<ServerAddress> {
        target_of(&self.conninfo, &|name| {
            env::var(name).ok().filter(|value| !value.is_empty())
        })
    }
}

/// By its socket, or else by the address on which it listens.
fn of_lock_file(says: &LockFile) -> Option<ConnectionOptions> {
    let port = says.port?;
    let directory = says
        .socket_directory
        .as_ref()
        .map(|path| path.display().to_string());
    let host = directory.or_else(|| says.address.clone())?;
    let host = match host.as_str() {
        "*" | "0.0.0.0" | "::" => "localhost",
        host => host,
    };
    let quoted = host.replace('\\', "\\\\").replace('\'', "\\'");
    Some(ConnectionOptions {
        conninfo: format!("host='{quoted}' port={port}"),
    })
}

fn target_of(conninfo: &str, environment: Environment<'_>) -> Result<ServerAddress> {
    let names = TLS_PARAMETERS.iter().map(|(name, _)| *name);
    let own = ["passfile", "service", "servicefile"];
    let names: Vec<&str> = names.chain(own).chain(WITHOUT_EFFECT).collect();
    let (rest, taken) = parameters::take(conninfo, &names);
    let service = service(&taken, environment)?;
    let named = |name: &str| match (name, taken.get("passfile")) {
        ("PGPASSFILE", Some(file)) if !file.is_empty() => Some(file.clone()),
        _ => {
            let of_service = service.get(name).filter(|value| !value.is_empty());
            of_service.cloned().or_else(|| environment(name))
        }
    };
    ServerAddress::new(complete(&rest, &named)?, &taken, &named)
}

fn complete(conninfo: &str, environment: Environment<'_>) -> Result<Config> {
    let mut config = Config::from_str(conninfo).map_err(|error| {
        let cause = std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), ToString::to_string);
        Error::new(
            Kind::Usage,
            format!("could not read the connection string: {cause}"),
        )
        .hint("write it as libpq does, for example \"host=/run/postgresql port=5432 user=backup\"")
    })?;
    if config.get_ports().is_empty() {
        config.port(port(environment)?);
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        add_hosts(&mut config, environment)?;
    }
    if config.get_user().is_none() {
        let names = [
            environment("PGUSER"),
            environment("USER"),
            environment("LOGNAME"),
        ];
        if let Some(user) = names.into_iter().flatten().next() {
            config.user(user);
        }
    }
    if config.get_dbname().is_none() {
        // libpq would take the user's name; a role for backups rarely owns a database.
        config.dbname(environment("PGDATABASE").unwrap_or_else(|| "postgres".to_owned()));
    }
    if config.get_password().is_none()
        && let Some(password) =
            environment("PGPASSWORD").or_else(|| stored_password(&config, environment))
    {
        config.password(password);
    }
    add_habits(&mut config, environment)?;
    Ok(config)
}

/// How a session begins, and how long somebody waits for it.
fn add_habits(config: &mut Config, environment: Environment<'_>) -> Result<()> {
    if config.get_options().is_none()
        && let Some(options) = environment("PGOPTIONS")
    {
        config.options(options);
    }
    if config.get_connect_timeout().is_none() {
        let variable = "PGCONNECT_TIMEOUT";
        match environment(variable) {
            None => drop(config.connect_timeout(CONNECT_TIMEOUT)),
            Some(text) => {
                let seconds: i64 = text
                    .trim()
                    .parse()
                    .map_err(|_| senseless(variable, &text, "a number of seconds"))?;
                // As in libpq, nothing and less than nothing is for ever.
                if let Some(seconds) = u64::try_from(seconds).ok().filter(|some| *some > 0) {
                    config.connect_timeout(Duration::from_secs(seconds));
                }
            }
        }
    }
    if config.get_target_session_attrs() == TargetSessionAttrs::Any
        && let Some(wanted) = chosen("PGTARGETSESSIONATTRS", &SESSIONS, environment)?
    {
        config.target_session_attrs(wanted);
    }
    if config.get_load_balance_hosts() == LoadBalanceHosts::Disable
        && let Some(wanted) = chosen("PGLOADBALANCEHOSTS", &ORDERS, environment)?
    {
        config.load_balance_hosts(wanted);
    }
    Ok(())
}

const SESSIONS: [(&str, TargetSessionAttrs); 3] = [
    ("any", TargetSessionAttrs::Any),
    ("read-write", TargetSessionAttrs::ReadWrite),
    ("read-only", TargetSessionAttrs::ReadOnly),
];

const ORDERS: [(&str, LoadBalanceHosts); 2] = [
    ("disable", LoadBalanceHosts::Disable),
    ("random", LoadBalanceHosts::Random),
];

/// What a variable chooses of what is `known`, if it is set.
fn chosen<T: Copy>(
    variable: &str,
    known: &[(&str, T)],
    environment: Environment<'_>,
) -> Result<Option<T>> {
    let Some(text) = environment(variable) else {
        return Ok(None);
    };
    let names = known.iter().map(|(name, _)| *name);
    let found = known.iter().find(|(name, _)| *name == text);
    found.map(|(_, choice)| Some(*choice)).ok_or_else(|| {
        let names: Vec<&str> = names.collect();
        senseless(variable, &text, &names.join(" or "))
    })
}

fn senseless(variable: &str, text: &str, known: &str) -> Error {
    let what = format!("{variable} is \"{text}\", which is not known here");
    Error::new(Kind::Usage, what).hint(format!("use {known}"))
}

fn port(environment: Environment<'_>) -> Result<u16> {
    match environment("PGPORT") {
        None => Ok(5432),
        Some(text) => text.parse().map_err(|_| {
            Error::new(
                Kind::Usage,
                format!("PGPORT is \"{text}\", which is not a port number"),
            )
        }),
    }
}

fn add_hosts(config: &mut Config, environment: Environment<'_>) -> Result<()> {
    let (hosts, addresses) = (environment("PGHOST"), environment("PGHOSTADDR"));
    for address in addresses.iter().flat_map(|addresses| addresses.split(',')) {
        let address: IpAddr = address.parse().map_err(|_| {
            let what = format!("PGHOSTADDR has \"{address}\", which is not an address");
            Error::new(Kind::Usage, what).hint("a name belongs in PGHOST")
        })?;
        config.hostaddr(address);
    }
    for host in hosts.iter().flat_map(|hosts| hosts.split(',')) {
        config.host(host);
    }
    if hosts.is_some() || addresses.is_some() {
        return Ok(());
    }
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let has_socket = |directory: &&str| {
        Path::new(directory)
            .join(format!(".s.PGSQL.{port}"))
            .exists()
    };
    match SOCKET_DIRECTORIES.iter().copied().find(has_socket) {
        Some(directory) => config.host(directory),
        None => config.host(SOCKET_DIRECTORIES[0]),
    };
    Ok(())
}

/// The password for this connection in libpq's password file.
fn stored_password(config: &Config, environment: Environment<'_>) -> Option<String> {
    let path = match environment("PGPASSFILE") {
        Some(path) => PathBuf::from(path),
        None => Path::new(&environment("HOME")?).join(".pgpass"),
    };
    let mode = fs::metadata(&path).ok()?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "ignoring the password file: others may read it, its mode should be 0600");
        return None;
    }
    let text = fs::read_to_string(&path).ok()?;
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let wanted = |host: String| {
        let database = config.get_dbname().unwrap_or_default().to_owned();
        let user = config.get_user().unwrap_or_default().to_owned();
        [host, port.to_string(), database, user]
    };
    let mut names = names_in_password_file(config).into_iter().map(wanted);
    names.find_map(|wanted| {
        let mut lines = text.lines();
        lines.find_map(|line| password_of_line(line, &wanted))
    })
}

/// By which names the password file may know the host, the first that has a line first. In libpq (`passwordFromFile`) a
/// socket is `localhost` in its own default directory, and has the directory's name in any other; packages disagree
/// about that default, and about the names of one directory, so the other name is taken where the file does not have the first.
fn names_in_password_file(config: &Config) -> Vec<String> {
    let local = "localhost".to_owned();
    match config.get_hosts().first() {
        Some(Host::Tcp(name)) => vec![name.clone()],
        Some(Host::Unix(path)) => {
            let is_default = SOCKET_DIRECTORIES.iter().any(|one| Path::new(one) == path);
            let directory = path.display().to_string();
            match is_default {
                true => vec![local, directory],
                false => vec![directory, local],
            }
        }
        None => {
            let address = config.get_hostaddrs().first();
            vec![address.map_or(local, ToString::to_string)]
        }
    }
}

/// `host:port:database:user:password`; `*` matches all, `\` takes the next character as it is.
fn password_of_line(line: &str, wanted: &[String; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut()?.extend(characters.next()),
            other => fields.last_mut()?.push(other),
        }
    }
    let matches = |(field, value): (&String, &String)| field == "*" || field == value;
    let password = fields.get(4)?.clone();
    fields.iter().zip(wanted).all(matches).then_some(password)
}

/// Where a configuration leads to, for messages: never the password.
#[must_use]
pub(super) fn describe(config: &Config) -> String {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        })
        .chain(config.get_hostaddrs().iter().map(ToString::to_string))
        .collect();
    let ports: Vec<String> = config.get_ports().iter().map(ToString::to_string).collect();
    format!("\"{}\" port {}", hosts.join(","), ports.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_tells_where_the_server_listens() {
        let of = |text: &str| of_lock_file(&LockFile::parse(text.as_bytes()));
        let conninfo = |text| of(text).map(|options| options.conninfo);
        let both = "42\n/data\n1790000000\n5433\n/run/it's here\nlocalhost\n  1 2\nready\n";
        assert_eq!(conninfo(both).unwrap(), "host='/run/it\\'s here' port=5433");
        let target = of(both).unwrap().target().unwrap();
        assert_eq!(target.config.get_ports(), [5433]);
        let no_socket = "42\n/data\n1790000000\n5433\n\n*\n";
        assert_eq!(conninfo(no_socket).unwrap(), "host='localhost' port=5433");
        assert_eq!(conninfo("42\n/data\n"), None);
    }

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn the_environment_completes_what_conninfo_leaves_open() {
        let environment = |name: &str| {
            Some(match name {
                "PGHOST" => "/somewhere".to_owned(),
                "PGPORT" => "6000".to_owned(),
                "PGUSER" => "carol".to_owned(),
                "PGPASSWORD" => "secret".to_owned(),
                _ => return None,
            })
        };
        let config = complete("user=backup", &environment).unwrap();
        assert_eq!(config.get_user(), Some("backup"));
        assert_eq!(config.get_ports(), [6000]);
        assert_eq!(config.get_hosts(), [Host::Unix("/somewhere".into())]);
        assert_eq!(config.get_dbname(), Some("postgres"));
        assert_eq!(config.get_password(), Some(&b"secret"[..]));
        assert_eq!(describe(&config), "\"/somewhere\" port 6000");
    }

    #[test]
    fn a_service_stands_between_conninfo_and_environment() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("services");
        let services = "[one]\nhost=db.example\nhostaddr=192.0.2.7\nport=6001\nuser=carol\noptions=-c x.y=1\nsslmode=disable\n";
        fs::write(&file, services).unwrap();
        let environment = |name: &str| {
            Some(match name {
                "PGSERVICEFILE" => file.display().to_string(),
                "PGHOST" => "elsewhere".to_owned(),
                "PGDATABASE" => "mine".to_owned(),
                "PGCONNECT_TIMEOUT" => "3".to_owned(),
                _ => return None,
            })
        };
        let conninfos = [
            "service=one user=backup client_encoding=UTF8",
            "postgres://backup@?service=one",
        ];
        for conninfo in conninfos {
            let config = target_of(conninfo, &environment).unwrap().config;
            assert_eq!(config.get_hosts(), [Host::Tcp("db.example".to_owned())]);
            assert_eq!(
                config.get_hostaddrs(),
                ["192.0.2.7".parse::<IpAddr>().unwrap()]
            );
            assert_eq!(config.get_ports(), [6001]);
            assert_eq!(config.get_user(), Some("backup"));
            assert_eq!(config.get_options(), Some("-c x.y=1"));
            assert_eq!(config.get_dbname(), Some("mine"));
            assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        }
        let unknown = target_of("service=two", &environment).err().unwrap();
        assert_eq!(unknown.kind(), Kind::Usage);
    }

    #[test]
    fn a_senseless_conninfo_is_a_usage_error() {
        assert_eq!(
            complete("port=many", &none).unwrap_err().kind(),
            Kind::Usage
        );
        assert_eq!(
            complete("colour=red", &none).unwrap_err().kind(),
            Kind::Usage
        );
    }

    #[test]
    fn the_password_file_is_read_as_libpq_reads_it() {
        let wanted = [
            "localhost".to_owned(),
            "5432".to_owned(),
            "postgres".to_owned(),
            "a:b".to_owned(),
        ];
        assert_eq!(
            password_of_line("*:*:*:a\\:b:x:y\\\\z", &wanted).as_deref(),
            Some("x:y\\z")
        );
        assert_eq!(password_of_line("localhost:5433:*:*:no", &wanted), None);
        assert_eq!(password_of_line("# *:*:*:*:no", &wanted), None);
        assert_eq!(password_of_line("*:*", &wanted), None);
    }

    #[test]
    fn a_socket_has_the_name_of_its_directory_in_the_password_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("passwords");
        let lines = "localhost:*:*:*:first\n/some/where:*:*:*:second\n192.0.2.7:*:*:*:third\n";
        fs::write(&file, lines).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let environment = |name: &str| (name == "PGPASSFILE").then(|| file.display().to_string());
        for (conninfo, expected) in [
            ("host=/some/where", "second"),
            ("host=/var/run/postgresql", "first"),
            ("host=/run/postgresql", "first"),
            ("hostaddr=192.0.2.7", "third"),
        ] {
            let config = complete(conninfo, &environment).unwrap();
            let found = config.get_password().map(String::from_utf8_lossy);
            assert_eq!(found.as_deref(), Some(expected), "{conninfo}");
        }
    }
}
