//! Values of options, as people write them.

use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};

/// More workers than this only wait for each other.
const MOST_JOBS: usize = 256;

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("expected a number, 1 or more".to_owned()),
    }
}

pub(crate) fn parse_jobs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(jobs) if (1..=MOST_JOBS).contains(&jobs) => Ok(jobs),
        _ => Err(format!("expected a number from 1 to {MOST_JOBS}")),
    }
}

/// `14d`, `2w`, `36h`, `1d 12h`, a day having 24 hours; of a number alone the unit is days.
pub(crate) fn parse_span(text: &str) -> Result<SignedDuration, String> {
    match parse_span_or_none(text)? {
        span if span > SignedDuration::ZERO => Ok(span),
        _ => Err("expected more than no time at all".to_owned()),
    }
}

/// The same, or no time at all.
pub(crate) fn parse_span_or_none(text: &str) -> Result<SignedDuration, String> {
    let wrong = || "expected a time with its unit, such as 14d, 2w or 36h".to_owned();
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(wrong());
    }
    let text = match text.bytes().all(|c| c.is_ascii_digit()) {
        true => format!("{text}d"),
        false => text.to_owned(),
    };
    match in_units(&text).filter(|span| !span.is_negative()) {
        Some(span) => Ok(span),
        None => Err(wrong()),
    }
}

/// Numbers with their units, a day having 24 hours; `None` for anything else.
fn in_units(text: &str) -> Option<SignedDuration> {
    let span: Span = text.parse().ok()?;
    span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()
}

/// A moment, or the last second of a day in UTC; of the last days that there are the last moment.
pub(crate) fn parse_until(text: &str) -> Result<Timestamp, String> {
    let wrong =
        || "expected a day such as 2027-01-31, or a moment such as 2027-01-31T12:00:00Z".to_owned();
    // A name of a zone would be passed over.
    if text.contains('[') {
        return Err(wrong());
    }
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Ok(moment);
    }
    // A time without its offset from UTC would be read as a day.
    if text.contains(':') || text.contains(['T', 't', ' ']) {
        return Err(wrong());
    }
    let day: Date = text.parse().map_err(|_| wrong())?;
    let last = day.at(23, 59, 59, 0).to_zoned(TimeZone::UTC);
    match last {
        Ok(last) => Ok(last.timestamp()),
        Err(_) => Timestamp::from_second(Timestamp::MAX.as_second()).map_err(|_| wrong()),
    }
}

/// Whole days: `30d`, `4w`; a number alone is of days.
pub(crate) fn parse_days(text: &str) -> Result<u32, String> {
    let wrong = || "expected days from 1 to 36500, such as 30d or 4w".to_owned();
    let hours = parse_span(text).map_err(|_| wrong())?.as_secs();
    let days = u32::try_from(hours / 86_400).map_err(|_| wrong())?;
    let is_whole = hours % 86_400 == 0 && (1..=36_500).contains(&days);
    is_whole.then_some(days).ok_or_else(wrong)
}

/// A moment. Whether it has passed is not asked: this host's clock may be behind.
pub(crate) fn parse_moment(text: &str) -> Result<Timestamp, String> {
    let wrong =
        || "expected a moment with its offset from UTC, such as 2026-11-21T09:33:05Z".to_owned();
    // A name of a zone would be passed over, even one that contradicts the offset.
    if text.contains('[') {
        return Err(wrong());
    }
    text.parse().map_err(|_| wrong())
}

/// `30s`, `10m`, `1h 30m`; a number alone could be of any unit.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a duration with its unit, such as 30s, 10m, 2h or 8d".to_owned();
    if text.is_empty() || !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(wrong());
    }
    let duration = in_units(text).ok_or_else(wrong)?;
    Duration::try_from(duration).map_err(|_| wrong())
}

pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// `OLD=NEW` with one `=`, as pg_basebackup has it: one that belongs to a path is written `\=`.
pub(crate) fn tablespace_mapping(text: &str) -> Result<(String, String), String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let character = match character {
            '=' => {
                parts.push(String::new());
                continue;
            }
            '\\' => characters.next_if_eq(&'=').unwrap_or('\\'),
            other => other,
        };
        if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    match &parts[..] {
        [from, to] if !from.is_empty() && !to.is_empty() => Ok((from.clone(), to.clone())),
        [_, _, _, ..] => Err(r"expected one =; write \= for one that is part of a path".to_owned()),
        _ => Err("expected OLD=NEW, OLD being an OID or a directory".to_owned()),
    }
}

/// `0.5%` or `0.5` as millionths: 5000.
pub(crate) fn parse_percent(text: &str) -> Result<u32, String> {
    let wrong = || "expected a percentage such as 1% or 0.05, at most 100".to_owned();
    let number = text.strip_suffix('%').unwrap_or(text);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if fraction.is_empty() || fraction.len() > 4 {
        return Err(wrong());
    }
    let digits = format!("{whole}{fraction:0<4}");
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) || whole.is_empty() {
        return Err(wrong());
    }
    digits
        .parse()
        .ok()
        .filter(|share| (1..=1_000_000).contains(share))
        .ok_or_else(wrong)
}

/// `64M` and the like: K, M, G, T are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..]
        .trim()
        .trim_end_matches(['B', 'b'])
        .trim_end_matches('i');
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("unknown unit \"{unit}\": use K, M, G or T")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "expected a number such as 64M".to_owned())?;
    number
        .checked_mul(1 << shift)
        .filter(|&n| n > 0)
        .ok_or_else(|| "out of range".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert!(parse_size("0").is_err());
        assert!(parse_size("5X").is_err());
        assert!(parse_size("").is_err());
        assert!(parse_size("99999999999T").is_err());
    }

    #[test]
    fn directories_of_tablespaces_may_have_equals_signs() {
        let pair = |from: &str, to: &str| Ok((from.to_owned(), to.to_owned()));
        assert_eq!(tablespace_mapping("16390=/b"), pair("16390", "/b"));
        assert_eq!(tablespace_mapping(r"/a\=1=/b\=2"), pair("/a=1", "/b=2"));
        assert_eq!(tablespace_mapping(r"/a\b=/c\"), pair(r"/a\b", r"/c\"));
        for wrong in ["", "/a", "=/b", "/a=", r"/a\=/b", "/a=/b=/c", "=="] {
            assert!(tablespace_mapping(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("8d"), Ok(Duration::from_hours(8 * 24)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        for wrong in [
            "",
            "30",
            "s",
            "-1s",
            "1s ago",
            "soon",
            "5x",
            "99999999999999999999s",
        ] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_have_units_and_days_are_one() {
        let hours = |hours| Ok(SignedDuration::from_hours(hours));
        assert_eq!(parse_span("14d"), hours(14 * 24));
        assert_eq!(parse_span("14"), hours(14 * 24));
        assert_eq!(parse_span("2w"), hours(14 * 24));
        assert_eq!(parse_span("36h"), hours(36));
        assert_eq!(parse_span("1d 12h"), hours(36));
        assert_eq!(parse_span_or_none("0d"), hours(0));
        for wrong in [
            "",
            "0",
            "0d",
            "-1d",
            "1d ago",
            "2mo",
            "1y",
            "x",
            "99999999999999999999d",
        ] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
        let end = "2027-01-31T23:59:59Z".parse().unwrap();
        assert_eq!(parse_until("2027-01-31"), Ok(end));
        assert_eq!(parse_until("2027-01-31T23:59:59Z"), Ok(end));
        let last = parse_until("9999-12-31").unwrap();
        assert!(last.to_string().starts_with("9999-12-30T2"), "{last}");
        for wrong in [
            "",
            "soon",
            "2027-02-30",
            "31.01.2027",
            "2027-01-31T00:00:00",
            "2027-01-31 00:00",
            "20270131T00",
            "2027-01-31[America/Los_Angeles]",
            "2027-01-31T00:00:00+00[Asia/Tokyo]",
        ] {
            assert!(parse_until(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn locks_last_whole_days() {
        assert_eq!(parse_days("30d"), Ok(30));
        assert_eq!(parse_days("2w"), Ok(14));
        for wrong in ["", "0d", "36h", "200000d", "-1d", "x"] {
            assert!(parse_days(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn moments_have_an_offset() {
        let moment = "2026-01-31T11:00:00Z".parse().unwrap();
        for text in ["2026-01-31T11:00:00Z", "2026-01-31 12:00:00+01"] {
            assert_eq!(parse_moment(text), Ok(moment), "{text}");
        }
        for wrong in [
            "",
            "yesterday",
            "2026-01-31 11:00:00",
            "2026-01-31 11:00:00+00[Asia/Tokyo]",
        ] {
            assert!(parse_moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn workers_are_counted_from_1_to_256() {
        assert_eq!(parse_jobs("1"), Ok(1));
        assert_eq!(parse_jobs("256"), Ok(256));
        for wrong in ["0", "-1", "257", "", "x"] {
            assert!(parse_jobs(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn percentages_are_exact_to_a_millionth() {
        assert_eq!(parse_percent("1%"), Ok(10_000));
        assert_eq!(parse_percent("0.0001"), Ok(1));
        assert_eq!(parse_percent("12.5%"), Ok(125_000));
        assert_eq!(parse_percent("100"), Ok(1_000_000));
        for wrong in ["", "0", "%", "101%", "-1", "1.00001", "a", ".5", "5."] {
            assert!(parse_percent(wrong).is_err(), "{wrong}");
        }
    }
}
