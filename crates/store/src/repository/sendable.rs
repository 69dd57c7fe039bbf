//! What can be part of a request.
//!
//! The store's client takes for granted that it can, and panics when it builds a request of what cannot. So all that people say
//! and that goes into one is looked at before. No value is shown that may be a secret.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::{HeaderValue, Uri};

use crate::error::{Error, Kind, Result};

/// Refuses what stands in a header and cannot. `what` is the name of the option.
///
/// # Errors
/// `Usage` then.
pub(super) fn require_header(what: &str, value: Option<&str>) -> Result<()> {
    if value.is_none_or(|value| HeaderValue::from_str(value).is_ok()) {
        return Ok(());
    }
    let message = format!("the repository's {what} holds a character that no request can carry");
    Err(Error::new(Kind::Usage, message).hint(
        "it is most often a line end: take it out of the option, the file or the variable of the environment that says it",
    ))
}

/// Refuses an address to which no request can go. `what` is the name of the option.
///
/// # Errors
/// `Usage` then.
pub(super) fn require_address(what: &str, address: Option<&str>) -> Result<()> {
    let Some(address) = address.filter(|address| !is_address(address)) else {
        return Ok(());
    };
    // A user, a signature or the value of another option may be a secret.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".:/-_[]".contains(c);
    let shown = match address.chars().all(is_plain) {
        true => format!(" \"{address}\""),
        false => String::new(),
    };
    let message = format!("the repository's {what}{shown} is no address of a host");
    let whole = format!("https://{address}");
    let hint = match !shown.is_empty() && is_address(&whole) {
        true => format!("write {whole}, or begin it with http:// where the network is trusted"),
        false => "an address is written like https://minio:9000; leave out the option, or unset the variable, to have the default"
            .to_owned(),
    };
    Err(Error::new(Kind::Usage, message).hint(hint))
}

/// Refuses what stands between two slashes of an address and cannot. `what` is the name of the option.
///
/// # Errors
/// `Usage` then.
pub(super) fn require_part(what: &str, part: Option<&str>) -> Result<()> {
    let stands = |part: &&str| {
        let path = format!("/{part}");
        let parsed = path.parse::<Uri>();
        part.is_ascii() && parsed.is_ok_and(|parsed| parsed.path() == path)
    };
    match part.filter(|part| !stands(part)) {
        Some(part) => Err(no_part(what, part)),
        None => Ok(()),
    }
}

/// Refuses what is part of the name of a host and cannot. `what` is the name of the option.
///
/// # Errors
/// `Usage` then.
pub(super) fn require_part_of_host(what: &str, part: &str) -> Result<()> {
    match is_host(&format!("{part}.com")) {
        true => Ok(()),
        false => Err(no_part(what, part)),
    }
}

fn no_part(what: &str, part: &str) -> Error {
    let message = format!("the repository's {what} {part:?} cannot be part of an address");
    Error::new(Kind::Usage, message).hint("use letters, digits, hyphens and dots")
}

/// Whether requests can go there.
fn is_address(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else {
        return false;
    };
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let place = uri.authority().map(|authority| authority.as_str());
    // What stands before it names a user.
    let place = place.and_then(|place| place.rsplit('@').next());
    is_http && place.is_some_and(is_place)
}

/// Whether that is a host, and perhaps a port.
fn is_place(place: &str) -> bool {
    let bracketed = place.strip_prefix('[');
    let (is_known, rest) = match bracketed.and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host.parse::<Ipv6Addr>().is_ok(), rest),
        None => {
            let (host, rest) = place.split_at(place.find(':').unwrap_or(place.len()));
            (is_host(host), rest)
        }
    };
    is_known && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Whether that names a host, or is its address. Whoever reads URLs takes every name for an address that ends with a number.
fn is_host(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_in_label = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_in_label);
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x");
    match is_number {
        true => name.parse::<Ipv4Addr>().is_ok(),
        false => name.split('.').all(is_label),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_a_host_and_perhaps_a_port() {
        for address in [
            "https://s3.example.com",
            "HTTPS://s3.example.com./path/",
            "http://minio_1:9000",
            "http://127.0.0.1:9000",
            "http://[::1]:9000/x",
            "https://user:word@minio",
            "https://x--y.0x-z.example",
        ] {
            assert!(is_address(address), "{address}");
            require_address("endpoint", Some(address)).unwrap();
        }
        for none in [
            "",
            "/",
            "minio",
            "minio:9000",
            "minio.example.com",
            "s3.example.com/path",
            "ftp://minio",
            "https:minio",
            "https://",
            "https:///bucket",
            "https://:9000",
            "https://user@",
            "https://min io",
            "https://minio\n",
            "https://minio:",
            "https://minio:+80",
            "https://minio:99999",
            "https://minio:9000:9000",
            "https://min..io",
            "https://min%69o",
            "https://1.2.3",
            "https://minio.256",
            "https://1.2.3.0x4",
            "https://[::1",
            "https://[::g]",
            "https://[fe80::1%25lo]",
        ] {
            assert!(!is_address(none), "{none}");
            let error = require_address("endpoint", Some(none)).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{none}");
        }
        require_address("endpoint", None).unwrap();
    }

    #[test]
    fn an_address_without_a_scheme_is_shown_with_one_and_a_secret_is_not() {
        let told = |address| {
            let error = require_address("endpoint", Some(address)).unwrap_err();
            format!("{error}; {}", error.hint_text().unwrap())
        };
        let plain = told("minio:9000");
        assert!(plain.contains("\"minio:9000\""), "{plain}");
        assert!(plain.contains("write https://minio:9000,"), "{plain}");
        for secret in ["user:hidden@minio", "minio/?sig=hidden", "hidden\n"] {
            let told = told(secret);
            assert!(!told.contains("hidden"), "{told}");
            assert!(told.contains("like https://minio:9000"), "{told}");
        }
    }

    #[test]
    fn a_header_takes_what_can_be_printed() {
        for value in ["", "AKIA/+=", "a b", "a\tb"] {
            require_header("session_token", Some(value)).unwrap();
        }
        require_header("session_token", None).unwrap();
        for value in ["hidden\n", "\nhidden", "hid\u{0}den", "\u{7f}"] {
            let error = require_header("session_token", Some(value)).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{value:?}");
            assert!(!error.to_string().contains("hid"), "{error}");
        }
    }

    #[test]
    fn a_bucket_is_one_part_of_a_path_and_a_region_one_of_a_host() {
        for part in ["b", "My_bucket.of-2026", "$web", "tenant:bucket"] {
            require_part("bucket", Some(part)).unwrap();
        }
        require_part("tenant_id", None).unwrap();
        for none in ["a b", "a\n", "a?b", "a#b", "a<b", "b\u{fc}cket"] {
            let error = require_part("bucket", Some(none)).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{none:?}");
        }
        for (region, is_one) in [("eu-west-1", true), ("eu west", false), ("", false)] {
            let required = require_part_of_host("region", region);
            assert_eq!(required.is_ok(), is_one, "{region}");
        }
    }
}
