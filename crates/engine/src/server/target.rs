//! A server to connect to: what the connection string and libpq's environment say, and the connecting.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgstrata_store::error::{Error, Kind, Result};
use rustls::{SupportedProtocolVersion, version};
use tokio_postgres::config::{ChannelBinding, Host, SslMode as WireMode, SslNegotiation};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Connection, Socket};

use super::revocation::RevocationFiles;
use super::tls::{Connector, MaybeTls, NamedFile, SslMode, TlsOptions, TrustRoot};

/// What is known of the environment; empty values are as good as none.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Parameters about TLS, which [`ServerAddress`] reads itself, with libpq's variable for each.
pub(super) const TLS_PARAMETERS: [(&str, &str); 14] = [
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcrl", "PGSSLCRL"),
    ("sslcrldir", "PGSSLCRLDIR"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    // Nobody compresses any more; libpq takes the word, and does nothing.
    ("sslcompression", "PGSSLCOMPRESSION"),
    ("gssencmode", "PGGSSENCMODE"),
    ("require_auth", "PGREQUIREAUTH"),
    ("requirepeer", "PGREQUIREPEER"),
];

/// Versions of TLS that libpq knows, and whether they are newer than 1.2. Older ones than that nobody speaks here.
const TLS_VERSIONS: [(&str, u8); 4] =
    [("TLSv1", 0), ("TLSv1.1", 1), ("TLSv1.2", 2), ("TLSv1.3", 3)];

/// A server, and how to speak with it.
pub(super) struct ServerAddress {
    pub(super) config: Config,
    mode: SslMode,
    connector: Connector,
}

/// A connection and what drives it.
pub(super) type Connected = (Client, Connection<Socket, MaybeTls>);

impl ServerAddress {
    /// The server of `config`, whose parameters about TLS are `given` or in the environment.
    pub(super) fn new(
        mut config: Config,
        given: &BTreeMap<String, String>,
        environment: Environment<'_>,
    ) -> Result<Self> {
        let settings = TlsSettings { given, environment };
        settings.refuse_what_is_not_kept()?;
        let options = settings.tls_options()?;
        config.channel_binding(settings.channel_binding()?);
        config.ssl_negotiation(settings.negotiation(options.mode)?);
        let by_socket = |host: &Host| matches!(host, Host::Unix(_));
        let is_local =
            config.get_hostaddrs().is_empty() && config.get_hosts().iter().all(by_socket);
        if is_local {
            // As in libpq, sslmode says nothing about sockets.
            return Ok(Self {
                config,
                mode: SslMode::Disable,
                connector: Connector::off(),
            });
        }
        Ok(Self {
            config,
            mode: options.mode,
            connector: options.connector()?,
        })
    }

    /// For a request to cancel, which goes the way of the connection.
    pub(super) fn connector(&self) -> Connector {
        self.connector.clone()
    }

    /// Connects, with and without TLS in the order that the mode has.
    pub(super) async fn connect(&self) -> std::result::Result<Connected, tokio_postgres::Error> {
        match self.mode {
            SslMode::Disable => self.attempt(WireMode::Disable).await,
            SslMode::Allow => match self.attempt(WireMode::Disable).await {
                Err(plain) if is_turned_away(&plain) => {
                    let encrypted = self.attempt(WireMode::Require).await;
                    encrypted.map_err(|error| if is_without_tls(&error) { plain } else { error })
                }
                other => other,
            },
            SslMode::Prefer => match self.attempt(WireMode::Prefer).await {
                Err(error) if is_turned_away(&error) || is_of_tls(&error) => {
                    self.attempt(WireMode::Disable).await.map_err(|_| error)
                }
                other => other,
            },
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
                self.attempt(WireMode::Require).await
            }
        }
    }

    /// Waits for a part of the start of a connection. As in libpq `connect_timeout` bounds that, and not the socket alone: a
    /// server that was stopped, or a proxy whose server is gone, takes a connection and says nothing.
    ///
    /// # Errors
    /// `Kind::Server` when the server does not answer in time.
    pub(super) async fn within<T>(
        &self,
        act: &str,
        asked: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(limit) = self.patience() else {
            return asked.await;
        };
        let answered = tokio::time::timeout(limit, asked).await;
        answered.unwrap_or_else(|_| {
            let what = format!("{act}: it has not answered within {} s", limit.as_secs());
            Err(Error::new(Kind::Server, what).hint(
                "is the server stopped, or its machine overloaded? connect_timeout or PGCONNECT_TIMEOUT sets how many seconds \
                 are waited",
            ))
        })
    }

    /// The time for each address that there may be, since those before the last may take all of theirs. None is for ever.
    fn patience(&self) -> Option<Duration> {
        let each = self.config.get_connect_timeout()?;
        let addresses = self.config.get_hostaddrs().len();
        let count = match (addresses, self.config.get_hosts()) {
            (0, hosts) => hosts.iter().map(most_addresses).sum(),
            (addresses, _) => u32::try_from(addresses).unwrap_or(u32::MAX),
        };
        Some(each.saturating_mul(count.max(1)))
    }

    async fn attempt(
        &self,
        mode: WireMode,
    ) -> std::result::Result<Connected, tokio_postgres::Error> {
        let mut config = self.config.clone();
        config.ssl_mode(mode);
        if config.get_hosts().is_empty() {
            // TLS wants a name, and an address is one.
            for address in self.config.get_hostaddrs() {
                config.host(address.to_string());
            }
        }
        config.connect(self.connector.clone()).await
    }
}

/// How many addresses a host may have: a name mostly has one of IPv6 and one of IPv4.
fn most_addresses(host: &Host) -> u32 {
    match host {
        Host::Tcp(name) if name.parse::<IpAddr>().is_err() => 2,
        Host::Tcp(_) | Host::Unix(_) => 1,
    }
}

/// Whether TLS could not be agreed on.
pub(super) fn is_of_tls(error: &tokio_postgres::Error) -> bool {
    error.to_string().contains("TLS handshake")
}

/// Whether the server, or this one of its ports, has no TLS.
pub(super) fn is_without_tls(error: &tokio_postgres::Error) -> bool {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    is_of_tls(error) && cause.is_some_and(|cause| cause.contains("does not support TLS"))
}

/// Whether `pg_hba.conf` has no place for this connection, and may have one for the other kind.
fn is_turned_away(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
}

/// The parameters and their environment.
struct TlsSettings<'a> {
    given: &'a BTreeMap<String, String>,
    environment: Environment<'a>,
}

impl TlsSettings<'_> {
    /// The value of a parameter, and what says so.
    fn value(&self, parameter: &'static str) -> Option<(String, &'static str)> {
        let given = self.given.get(parameter).filter(|value| !value.is_empty());
        if let Some(given) = given {
            return Some((given.clone(), parameter));
        }
        let (_, variable) = TLS_PARAMETERS.iter().find(|(name, _)| *name == parameter)?;
        (self.environment)(variable).map(|value| (value, *variable))
    }

    fn tls_options(&self) -> Result<TlsOptions> {
        let mode = self.value("sslmode").or_else(|| self.demand());
        let mode = mode
            .map(|(text, from)| SslMode::parse(&text, from))
            .transpose()?;
        let root = match self.value("sslrootcert") {
            Some((text, _)) if text == "system" => TrustRoot::System,
            _ => TrustRoot::File(self.file("sslrootcert", "root.crt")),
        };
        let mode = match (mode, &root) {
            (Some(SslMode::VerifyFull) | None, TrustRoot::System) => SslMode::VerifyFull,
            (Some(_), TrustRoot::System) => {
                let what = "sslrootcert is system, and sslmode does not ask for the host's name";
                let hint = "use sslmode=verify-full: anybody can have a certificate that this machine trusts";
                return Err(Error::new(Kind::Usage, what).hint(hint));
            }
            (mode, TrustRoot::File(_)) => mode.unwrap_or(SslMode::Prefer),
        };
        Ok(TlsOptions {
            mode,
            root,
            revoked: self.revocation_files(),
            certificate: self.file("sslcert", "postgresql.crt"),
            key: self.file("sslkey", "postgresql.key"),
            versions: self.versions()?,
        })
    }

    /// What libpq makes of its oldest variable about TLS (fe-connect.c, `conninfo_add_defaults`).
    fn demand(&self) -> Option<(String, &'static str)> {
        let variable = "PGREQUIRESSL";
        let demand = (self.environment)(variable)?;
        demand
            .starts_with('1')
            .then(|| ("require".to_owned(), variable))
    }

    /// Which versions of TLS may be spoken.
    fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>> {
        let least = self.version("ssl_min_protocol_version")?.unwrap_or(2);
        let most = self.version("ssl_max_protocol_version")?.unwrap_or(3);
        let spoken = [(2, &version::TLS12), (3, &version::TLS13)].into_iter();
        let allowed = spoken.filter(|(number, _)| (least..=most).contains(number));
        let allowed: Vec<_> = allowed.map(|(_, version)| version).collect();
        match allowed.is_empty() {
            false => Ok(allowed),
            true => Err(Error::new(
                Kind::Usage,
                "no version of TLS is left between ssl_min_protocol_version and ssl_max_protocol_version",
            )
            .hint("TLSv1.2 and TLSv1.3 are spoken here")),
        }
    }

    fn version(&self, parameter: &'static str) -> Result<Option<u8>> {
        let Some((text, from)) = self.value(parameter) else {
            return Ok(None);
        };
        let mut known = TLS_VERSIONS.iter();
        let found = known.find(|(name, _)| name.eq_ignore_ascii_case(&text));
        found.map(|(_, number)| Some(*number)).ok_or_else(|| {
            let names = TLS_VERSIONS.map(|(name, _)| name).join(", ");
            let what = format!("{from} is \"{text}\", which is not a version of TLS");
            Error::new(Kind::Usage, what).hint(format!("use one of: {names}"))
        })
    }

    /// What somebody demands and nobody here would see to must not be passed over.
    fn refuse_what_is_not_kept(&self) -> Result<()> {
        if let Some((text, from)) = self.value("gssencmode")
            && !matches!(text.as_str(), "disable" | "prefer")
        {
            let what = format!("{from} is \"{text}\", and this program does not speak GSSAPI");
            let hint = "use gssencmode=disable, and sslmode=verify-full for a connection that nobody can read";
            return Err(Error::new(Kind::Usage, what).hint(hint));
        }
        if let Some((text, from)) = self.value("require_auth") {
            let what = format!(
                "{from} is \"{text}\", and this program cannot hold a server to a way to authenticate"
            );
            let hint = "use sslmode=verify-full, or channel_binding=require, with which only scram-sha-256 will do";
            return Err(Error::new(Kind::Usage, what).hint(hint));
        }
        if let Some((text, from)) = self.value("requirepeer") {
            let what = format!(
                "{from} is \"{text}\", and this program does not ask whose a server's socket is"
            );
            let hint = "use a socket in a directory in which nobody but that user may create files";
            return Err(Error::new(Kind::Usage, what).hint(hint));
        }
        Ok(())
    }

    /// Without any name, the file that libpq looks for.
    fn revocation_files(&self) -> RevocationFiles {
        let directory = self.value("sslcrldir").map(|(path, _)| PathBuf::from(path));
        let file = self.file("sslcrl", "root.crl");
        RevocationFiles {
            file: (!file.is_default || directory.is_none()).then_some(file),
            directory,
        }
    }

    /// The file that `parameter` names, or the one in `~/.postgresql`.
    fn file(&self, parameter: &'static str, default: &str) -> NamedFile {
        if let Some((path, _)) = self.value(parameter) {
            return NamedFile {
                path: PathBuf::from(path),
                is_default: false,
            };
        }
        let home = (self.environment)("HOME").unwrap_or_default();
        NamedFile {
            path: Path::new(&home).join(".postgresql").join(default),
            is_default: true,
        }
    }

    fn channel_binding(&self) -> Result<ChannelBinding> {
        let Some((text, from)) = self.value("channel_binding") else {
            return Ok(ChannelBinding::Prefer);
        };
        match text.as_str() {
            "disable" => Ok(ChannelBinding::Disable),
            "prefer" => Ok(ChannelBinding::Prefer),
            "require" => Ok(ChannelBinding::Require),
            _ => {
                let what = format!("{from} is \"{text}\", which is not a use of channel binding");
                Err(Error::new(Kind::Usage, what).hint("use one of: disable, prefer, require"))
            }
        }
    }

    fn negotiation(&self, mode: SslMode) -> Result<SslNegotiation> {
        let Some((text, from)) = self.value("sslnegotiation") else {
            return Ok(SslNegotiation::Postgres);
        };
        match text.as_str() {
            "postgres" => Ok(SslNegotiation::Postgres),
            "direct" if mode >= SslMode::Require => Ok(SslNegotiation::Direct),
            "direct" => {
                let what = format!("{from} is direct, and sslmode does not ask for TLS");
                Err(Error::new(Kind::Usage, what)
                    .hint("use sslmode=require, verify-ca or verify-full"))
            }
            _ => {
                let what = format!("{from} is \"{text}\", which is no way to agree on TLS");
                Err(Error::new(Kind::Usage, what).hint("use one of: postgres, direct"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(given: &[(&str, &str)], variables: &[(&str, &str)]) -> Result<TlsOptions> {
        let owned = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = pairs.iter();
            pairs
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        let (given, variables) = (owned(given), owned(variables));
        let environment = |name: &str| variables.get(name).cloned();
        let settings = TlsSettings {
            given: &given,
            environment: &environment,
        };
        settings.refuse_what_is_not_kept()?;
        settings.channel_binding()?;
        let options = settings.tls_options()?;
        settings.negotiation(options.mode)?;
        Ok(options)
    }

    #[test]
    fn parameters_of_tls_are_completed_from_the_environment() {
        let variables = [
            ("PGSSLMODE", "verify-ca"),
            ("PGSSLROOTCERT", "/ca"),
            ("PGSSLCERT", "/own"),
            ("PGSSLCRLDIR", "/lists"),
            ("HOME", "/home/carol"),
        ];
        let read = options(&[("sslmode", "require")], &variables).unwrap();
        assert_eq!(read.mode, SslMode::Require);
        let named = |path: &str, is_default| NamedFile {
            path: PathBuf::from(path),
            is_default,
        };
        assert_eq!(read.root, TrustRoot::File(named("/ca", false)));
        assert_eq!(read.certificate, named("/own", false));
        assert_eq!(read.revoked.file, None);
        assert_eq!(read.revoked.directory, Some(PathBuf::from("/lists")));
        let alone = options(&[], &[("HOME", "/home/carol")]).unwrap().revoked;
        let default = named("/home/carol/.postgresql/root.crl", true);
        assert_eq!(alone.file, Some(default));
        assert!(!alone.are_named());
        assert_eq!(
            read.key,
            named("/home/carol/.postgresql/postgresql.key", true)
        );
        assert_eq!(options(&[], &variables).unwrap().mode, SslMode::VerifyCa);
        assert_eq!(options(&[], &[]).unwrap().mode, SslMode::Prefer);
    }

    #[test]
    fn bounds_of_versions_hold_and_words_that_mean_nothing_here_are_taken() {
        let count = |given: &[(&str, &str)]| options(given, &[]).unwrap().versions.len();
        assert_eq!(count(&[]), 2);
        assert_eq!(count(&[("ssl_min_protocol_version", "TLSv1")]), 2);
        let newest = [("ssl_min_protocol_version", "tlsv1.3")];
        let read = options(&newest, &[]).unwrap().versions;
        assert_eq!(read, [&version::TLS13]);
        let older = [("ssl_max_protocol_version", "TLSv1.2")];
        assert_eq!(options(&older, &[]).unwrap().versions, [&version::TLS12]);
        assert_eq!(
            count(&[("gssencmode", "prefer"), ("sslcompression", "1")]),
            2
        );
    }

    #[test]
    fn the_machines_roots_are_for_verified_names_alone() {
        let system = ("sslrootcert", "system");
        assert_eq!(options(&[system], &[]).unwrap().mode, SslMode::VerifyFull);
        for weak in ["disable", "allow", "prefer", "require", "verify-ca"] {
            let error = options(&[system, ("sslmode", weak)], &[]).unwrap_err();
            assert!(
                error
                    .hint_text()
                    .is_some_and(|hint| hint.contains("verify-full"))
            );
        }
    }

    #[test]
    fn values_that_mean_nothing_are_named_with_their_source() {
        for (given, variables, words) in [
            (vec![("sslmode", "yes")], vec![], "sslmode is \"yes\""),
            (vec![], vec![("PGSSLMODE", "on")], "PGSSLMODE is \"on\""),
            (
                vec![("channel_binding", "1")],
                vec![],
                "channel_binding is \"1\"",
            ),
            (
                vec![],
                vec![("PGCHANNELBINDING", "x")],
                "PGCHANNELBINDING is \"x\"",
            ),
            (
                vec![("sslnegotiation", "no")],
                vec![],
                "sslnegotiation is \"no\"",
            ),
            (
                vec![("sslnegotiation", "direct")],
                vec![],
                "sslnegotiation is direct",
            ),
            (
                vec![],
                vec![("PGSSLMINPROTOCOLVERSION", "SSLv3")],
                "PGSSLMINPROTOCOLVERSION is \"SSLv3\"",
            ),
            (
                vec![("ssl_max_protocol_version", "TLSv1.1")],
                vec![],
                "no version of TLS is left",
            ),
            (
                vec![("gssencmode", "require")],
                vec![],
                "gssencmode is \"require\"",
            ),
            (
                vec![],
                vec![("PGREQUIREAUTH", "!password")],
                "PGREQUIREAUTH is \"!password\"",
            ),
        ] {
            let error = options(&given, &variables).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage);
            assert!(error.to_string().starts_with(words), "{error}");
            assert!(error.hint_text().is_some());
        }
    }

    #[test]
    fn each_address_has_the_time_of_a_connection() {
        let seconds = |conninfo: &str| {
            let config: Config = conninfo.parse().unwrap();
            let address = ServerAddress::new(config, &BTreeMap::new(), &|_| None).unwrap();
            address.patience().map(|limit| limit.as_secs())
        };
        assert_eq!(seconds("host=/tmp connect_timeout=3"), Some(3));
        assert_eq!(seconds("host=192.0.2.7 connect_timeout=3"), Some(3));
        assert_eq!(seconds("host=a,/tmp connect_timeout=3"), Some(9));
        let both = "host=a,b hostaddr=192.0.2.7,192.0.2.8 connect_timeout=3";
        assert_eq!(seconds(both), Some(6));
        assert_eq!(seconds("host=/tmp"), None);
    }
}
