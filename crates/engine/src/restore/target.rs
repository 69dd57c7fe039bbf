//! Where recovery shall stop: what the user asks for, checked and named.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::{Disambiguation, OffsetConflict, TimeZone};
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_store::error::{Error, Kind, Result};

/// How far the restored server recovers, and as what it comes up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the end of the archive, then promote to a new timeline.
    Default,
    /// To the first consistent state: the end of the backup.
    Immediate,
    /// To a point in time.
    Time(Timestamp),
    /// To the end of a transaction, epoch included or not.
    Xid(u64),
    /// To a position in the WAL.
    Lsn(Lsn),
    /// To a restore point made by `pg_create_restore_point`.
    Name(String),
    /// For ever: the server comes up as a standby.
    Standby,
    /// No recovery settings: the backup's own WAL lies in `pg_wal`, the timeline goes on.
    None,
}

impl Target {
    /// Reads a target as the command line spells it: `kind` is the type, `value` what `--target` says.
    ///
    /// # Errors
    /// When the type is unknown, or the value is missing, superfluous or malformed.
    pub fn parse(kind: &str, value: Option<&str>) -> Result<Self> {
        let plain = |target: Self| match value {
            None => Ok(target),
            Some(value) => Err(Error::new(
                Kind::Usage,
                format!(
                    "a restore of type {kind} takes no target, but --target \"{value}\" was given"
                ),
            )
            .hint("say what it is: --target-type time, xid, lsn or name")),
        };
        let needed = || {
            value
                .filter(|value| !value.trim().is_empty())
                .ok_or_else(|| {
                    Error::new(
                        Kind::Usage,
                        format!("a restore of type {kind} needs a target"),
                    )
                })
        };
        match kind {
            "default" => plain(Self::Default),
            "immediate" => plain(Self::Immediate),
            "standby" => plain(Self::Standby),
            "none" => plain(Self::None),
            "time" => Ok(Self::Time(parse_time(needed()?, own_zone)?)),
            "xid" => Ok(Self::Xid(parse_xid(needed()?)?)),
            "lsn" => Ok(Self::Lsn(needed()?.trim().parse().map_err(usage)?)),
            "name" => parse_name(needed()?),
            _ => Err(Error::new(
                Kind::Usage,
                format!(
                    "unknown restore type \"{kind}\": use default, immediate, time, xid, lsn, name, standby or none"
                ),
            )),
        }
    }

    /// The type, as the command line spells it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Immediate => "immediate",
            Self::Time(_) => "time",
            Self::Xid(_) => "xid",
            Self::Lsn(_) => "lsn",
            Self::Name(_) => "name",
            Self::Standby => "standby",
            Self::None => "none",
        }
    }

    /// The value that goes with the type, as PostgreSQL reads it.
    #[must_use]
    pub fn value(&self) -> Option<String> {
        match self {
            Self::Time(time) => Some(postgres_time(*time)),
            Self::Xid(xid) => Some(xid.to_string()),
            Self::Lsn(lsn) => Some(lsn.to_string()),
            Self::Name(name) => Some(name.clone()),
            Self::Default | Self::Immediate | Self::Standby | Self::None => None,
        }
    }

    /// Whether the server itself looks for the newest timeline, and follows it.
    #[must_use]
    pub fn follows_latest(&self, timeline: Option<TimelineChoice>) -> bool {
        match (self, timeline) {
            (_, Some(TimelineChoice::Current | TimelineChoice::Number(_))) => false,
            (Self::Default | Self::Standby, _) => true,
            (Self::Immediate, timeline) => timeline.is_some(),
            _ => false,
        }
    }

    /// Whether the server stops recovery at a target, so that inclusion and action mean something.
    #[must_use]
    pub fn has_stop_point(&self) -> bool {
        self.value().is_some() || *self == Self::Immediate
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the end of the archive"),
            Self::Immediate => f.write_str("the end of the backup"),
            Self::Time(time) => write!(f, "time {}", postgres_time(*time)),
            Self::Xid(xid) => write!(f, "transaction {xid}"),
            Self::Lsn(lsn) => write!(f, "LSN {lsn}"),
            Self::Name(name) => write!(f, "restore point \"{name}\""),
            Self::Standby => f.write_str("standby"),
            Self::None => f.write_str("the backup itself"),
        }
    }
}

/// Which timeline recovery follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelineChoice {
    /// The newest one in the archive that descends from the layer's.
    Latest,
    /// The layer's own.
    Current,
    /// This one.
    Number(TimelineId),
}

impl FromStr for TimelineChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "latest" => Ok(Self::Latest),
            "current" => Ok(Self::Current),
            _ => parse_timeline(text).map(Self::Number).ok_or_else(|| {
                Error::new(
                    Kind::Usage,
                    format!(
                        "invalid timeline \"{text}\": use latest, current, or a number (decimal, or hexadecimal with 0x)"
                    ),
                )
            }),
        }
    }
}

impl fmt::Display for TimelineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Current => f.write_str("current"),
            Self::Number(timeline) => timeline.fmt(f),
        }
    }
}

/// What the server does when it has reached the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetAction {
    /// Wait, open for reading; `pg_wal_replay_resume()` promotes.
    #[default]
    Pause,
    /// Open for writing on a new timeline.
    Promote,
    /// Stop.
    Shutdown,
}

impl TargetAction {
    /// The word PostgreSQL knows it by.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Promote => "promote",
            Self::Shutdown => "shutdown",
        }
    }
}

impl FromStr for TargetAction {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "pause" => Ok(Self::Pause),
            "promote" => Ok(Self::Promote),
            "shutdown" => Ok(Self::Shutdown),
            _ => Err(Error::new(
                Kind::Usage,
                format!("invalid target action \"{text}\": use pause, promote or shutdown"),
            )),
        }
    }
}

/// A time as PostgreSQL reads it without regard to its `timezone` and `datestyle`.
fn postgres_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S%.6f+00").to_string()
}

/// Reads a time with its zone in brackets; what the zone's clocks show never or twice needs an offset that settles it.
const ZONED: DateTimeParser = DateTimeParser::new()
    .disambiguation(Disambiguation::Reject)
    .offset_conflict(OffsetConflict::Reject);

/// A time with an offset, with a zone in brackets, or one on the clock of this machine's time zone. Parts of a
/// microsecond are cut, as PostgreSQL has none.
fn parse_time(
    text: &str,
    own_zone: impl FnOnce() -> std::result::Result<TimeZone, String>,
) -> Result<Timestamp> {
    let text = text.trim();
    let wrong = |why: String| {
        Error::new(Kind::Usage, format!("invalid time \"{text}\": {why}"))
            .hint("Write it like 2026-11-21 09:33:05.25+00, with a zone like 2026-11-21 18:33:05[Asia/Tokyo], or with neither for the time zone of this machine.")
    };
    let time = match text.parse::<Timestamp>() {
        // Parsers of other types pass over what is in brackets.
        _ if text.contains('[') => {
            let zoned = ZONED.parse_zoned(text).map_err(|e| wrong(e.to_string()))?;
            zoned.timestamp()
        }
        Ok(time) => time,
        Err(_) => {
            let civil: DateTime = text.parse().map_err(|_| {
                wrong("expected a date, a time and perhaps an offset from UTC".to_owned())
            })?;
            let zone = own_zone().map_err(wrong)?;
            let zoned = zone.to_ambiguous_zoned(civil).unambiguous();
            zoned.map_err(|e| wrong(e.to_string()))?.timestamp()
        }
    };
    Timestamp::from_microsecond(time.as_microsecond()).map_err(|e| wrong(e.to_string()))
}

/// The time zone of this machine. One that TZ names and nobody knows is not taken for UTC: the restore would end hours off.
fn own_zone() -> std::result::Result<TimeZone, String> {
    match (std::env::var_os("TZ"), TimeZone::try_system()) {
        (_, Ok(zone)) => Ok(zone),
        (Some(name), Err(_)) if !name.is_empty() => Err(format!(
            "it has no offset from UTC, and the time zone of this machine, TZ={}, is not known",
            name.display()
        )),
        _ => Ok(TimeZone::system()),
    }
}

fn parse_xid(text: &str) -> Result<u64> {
    let xid = text.trim().parse::<u64>().ok();
    // 0, 1 and 2 are the invalid, the bootstrap and the frozen transaction.
    xid.filter(|xid| xid & 0xFFFF_FFFF >= 3).ok_or_else(|| {
        Error::new(
            Kind::Usage,
            format!("invalid transaction ID \"{text}\": expected a decimal number from 3"),
        )
    })
}

fn parse_name(text: &str) -> Result<Target> {
    // MAXFNAMELEN, with its final zero byte: pg_create_restore_point refuses longer ones.
    let valid = text.len() < 64 && !text.contains(['\n', '\r', '\0']);
    if valid {
        return Ok(Target::Name(text.to_owned()));
    }
    Err(Error::new(
        Kind::Usage,
        format!("invalid restore point name {text:?}: expected at most 63 bytes on one line"),
    ))
}

fn parse_timeline(text: &str) -> Option<TimelineId> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
        None => text.parse().ok()?,
    };
    (number > 0).then(|| TimelineId::new(number))
}

fn usage(error: pgstrata_pgdata::Error) -> Error {
    Error::new(Kind::Usage, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> String {
        postgres_time(parse_time(text, || Ok(TimeZone::UTC)).unwrap())
    }

    #[test]
    fn times_are_read_with_any_offset_and_written_in_utc() {
        assert_eq!(
            time("2026-11-21 09:33:05+00"),
            "2026-11-21 09:33:05.000000+00"
        );
        assert_eq!(
            time("2026-11-21 09:33:05.25+05:30"),
            "2026-11-21 04:03:05.250000+00"
        );
        assert_eq!(
            time("2026-11-21T09:33:05Z"),
            "2026-11-21 09:33:05.000000+00"
        );
        assert_eq!(
            time("2026-11-21 09:33:05.1234567+00"),
            "2026-11-21 09:33:05.123456+00"
        );
    }

    #[test]
    fn a_zone_that_nobody_knows_matters_to_times_without_offset_alone() {
        let unknown = || Err("TZ=Nowhere".to_owned());
        assert!(parse_time("2026-11-21 09:33:05+00", unknown).is_ok());
        assert!(parse_time("2026-11-21 09:33:05[Asia/Tokyo]", unknown).is_ok());
        let error = parse_time("2026-11-21 09:33:05", unknown).unwrap_err();
        assert!(error.to_string().contains("TZ=Nowhere"), "{error}");
    }

    #[test]
    fn a_time_without_offset_is_in_the_given_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let time = parse_time("2026-11-21 09:33:05", || Ok(zone)).unwrap();
        assert_eq!(postgres_time(time), "2026-11-21 07:33:05.000000+00");
    }

    #[test]
    fn a_zone_in_brackets_is_the_zone_of_the_time() {
        for (text, utc) in [
            ("2026-11-21 09:33:05[Asia/Tokyo]", "2026-11-21 00:33:05"),
            ("2026-11-21T09:33:05+09[Asia/Tokyo]", "2026-11-21 00:33:05"),
            ("2026-11-21 00:33:05Z[Asia/Tokyo]", "2026-11-21 00:33:05"),
            // Clocks show this twice; the offset says which is meant.
            (
                "2026-10-25 02:30:00+02[Europe/Berlin]",
                "2026-10-25 00:30:00",
            ),
            (
                "2026-10-25 02:30:00+01[Europe/Berlin]",
                "2026-10-25 01:30:00",
            ),
        ] {
            assert_eq!(time(text), format!("{utc}.000000+00"), "{text}");
        }
    }

    #[test]
    fn a_zone_that_does_not_settle_the_time_is_refused() {
        for text in [
            "2026-11-21 09:33:05[Asia/Atlantis]",
            "2026-11-21 09:33:05[",
            "2026-11-21 09:33:05[u-ca=gregory]",
            "2026-11-21 09:33:05+08[Asia/Tokyo]",
            // Clocks never show the one, and show the other twice.
            "2026-03-29 02:30:00[Europe/Berlin]",
            "2026-10-25 02:30:00[Europe/Berlin]",
        ] {
            let error = parse_time(text, || Ok(TimeZone::UTC)).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{text}: {error}");
        }
    }

    #[test]
    fn targets_that_mean_nothing_are_refused() {
        for (kind, value) in [
            ("time", Some("yesterday")),
            ("time", None),
            ("xid", Some("2")),
            ("xid", Some("0x10")),
            ("lsn", Some("12")),
            ("name", Some("a\nb")),
            ("default", Some("x")),
            ("immediate", Some("0/1")),
            ("sometime", None),
        ] {
            let error = Target::parse(kind, value).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{kind} {value:?}: {error}");
        }
    }

    #[test]
    fn timelines_are_words_or_numbers() {
        assert_eq!(
            "latest".parse::<TimelineChoice>().unwrap(),
            TimelineChoice::Latest
        );
        let ten = TimelineChoice::Number(TimelineId::new(10));
        assert_eq!("10".parse::<TimelineChoice>().unwrap(), ten);
        assert_eq!("0xA".parse::<TimelineChoice>().unwrap(), ten);
        assert!("0".parse::<TimelineChoice>().is_err());
        assert!("-1".parse::<TimelineChoice>().is_err());
    }
}
