//! Connection strings as libpq reads them: parameters that `tokio-postgres` does not know are taken out; words are listed,
//! and written.
//!
//! libpq has two notations: `key = 'value'` words, and URLs whose query holds the parameters. What is
//! not taken stays as it is, so that mistakes in it are still found by whoever reads the rest.

use std::collections::BTreeMap;
use std::ops::Range;

/// The connection string without the parameters `names`, and their values. The last value of a name counts.
pub(super) fn take(conninfo: &str, names: &[&str]) -> (String, BTreeMap<String, String>) {
    let is_url = ["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| conninfo.starts_with(scheme));
    if is_url {
        take_of_url(conninfo, names)
    } else {
        take_of_words(conninfo, names)
    }
}

fn take_of_url(url: &str, names: &[&str]) -> (String, BTreeMap<String, String>) {
    let mut taken = BTreeMap::new();
    let Some((place, query)) = place_and_query(url) else {
        return (url.to_owned(), taken);
    };
    let mut kept = Vec::new();
    for parameter in query.split('&') {
        let pair = parameter.split_once('=');
        let pair = pair.and_then(|(key, value)| Some((decoded(key)?, decoded(value)?)));
        match pair {
            Some((key, value)) if names.contains(&key.as_str()) => {
                taken.insert(key, value);
            }
            // `tokio-postgres` takes any @ for the end of user and password.
            _ => kept.push(parameter.replace('@', "%40")),
        }
    }
    match kept.is_empty() {
        true => (place.to_owned(), taken),
        false => (format!("{place}?{}", kept.join("&")), taken),
    }
}

/// What stands before and after the `?` of a URL. A password may hold one too: libpq reads up to the
/// first `@` or `/` and takes what ends with `@` as user and password (`conninfo_uri_parse_options`, fe-connect.c).
fn place_and_query(url: &str) -> Option<(&str, &str)> {
    let authority = url.find("//").map_or(0, |at| at + 2);
    let after_scheme = url.get(authority..)?;
    let ends = after_scheme.find(['@', '/']);
    let login = ends.filter(|at| {
        after_scheme
            .get(*at..)
            .is_some_and(|rest| rest.starts_with('@'))
    });
    let searched = authority + login.unwrap_or_default();
    let mark = searched + url.get(searched..)?.find('?')?;
    Some((url.get(..mark)?, url.get(mark + 1..)?))
}

/// `%41` is `A`; `None` when that is no text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = std::str::from_utf8(&digits).ok()?;
                u8::from_str_radix(digits, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The keywords of `conninfo` with their values, in order; `None` when it is no list of `key = value`.
pub(super) fn words(conninfo: &str) -> Option<Vec<(String, String)>> {
    let (mut found, mut done) = (Vec::new(), 0);
    while let Some(word) = next_word(conninfo, done) {
        if word.key.is_empty() || word.key.contains(char::is_whitespace) {
            return None;
        }
        found.push((word.key.to_owned(), word.value));
        done = word.place.end;
    }
    let rest = conninfo.get(done..)?;
    rest.trim().is_empty().then_some(found)
}

/// A connection string of these keywords and values.
pub(super) fn written<'a>(words: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let quote = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
    words
        .map(|(name, value)| format!("{name}='{}'", quote(value)))
        .collect::<Vec<_>>()
        .join(" ")
}

fn take_of_words(conninfo: &str, names: &[&str]) -> (String, BTreeMap<String, String>) {
    let mut taken = BTreeMap::new();
    let mut kept = String::new();
    let mut done = 0;
    while let Some(word) = next_word(conninfo, done).filter(|word| !word.is_cut) {
        if names.contains(&word.key) {
            kept.push_str(conninfo.get(done..word.place.start).unwrap_or_default());
            // Else what follows a closing quote at once could be read as a URL.
            kept.push(' ');
            taken.insert(word.key.to_owned(), word.value);
        } else {
            kept.push_str(conninfo.get(done..word.place.end).unwrap_or_default());
        }
        done = word.place.end;
    }
    kept.push_str(conninfo.get(done..).unwrap_or_default());
    (kept, taken)
}

struct Word<'a> {
    key: &'a str,
    value: String,
    /// From the key's first byte to behind the value.
    place: Range<usize>,
    /// It ends with a backslash, which libpq passes over.
    is_cut: bool,
}

/// The next `key = value`; `None` where there is none, or none that is written as it should be.
fn next_word(conninfo: &str, from: usize) -> Option<Word<'_>> {
    let rest = conninfo.get(from..)?;
    let start = from + (rest.len() - rest.trim_start().len());
    let text = conninfo.get(start..)?;
    let (key, after) = text.split_once('=')?;
    let value = after.trim_start();
    let begins = conninfo.len() - value.len();
    let is_quoted = value.starts_with('\'');
    let mut characters = value.char_indices().skip(usize::from(is_quoted));
    let mut read = String::new();
    let mut length = value.len();
    let mut is_closed = !is_quoted;
    let mut is_cut = false;
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some((_, escaped)) => read.push(escaped),
                None => is_cut = true,
            },
            '\'' if is_quoted => {
                (length, is_closed) = (at + 1, true);
                break;
            }
            space if space.is_whitespace() && !is_quoted => {
                length = at;
                break;
            }
            other => read.push(other),
        }
    }
    is_closed.then(|| Word {
        key: key.trim_end(),
        value: read,
        place: start..begins + length,
        is_cut,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(conninfo: &str) -> (String, Vec<(String, String)>) {
        let (rest, taken) = take(conninfo, &["sslmode", "sslrootcert"]);
        (rest.trim().to_owned(), taken.into_iter().collect())
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn a_conninfo_is_read_as_libpq_reads_it() {
        let text = "user=replicator password = 'it\\'s \\\\ here' host=/run/x\\ y  port=5433 sslcompression=0 gssencmode=prefer";
        let found = words(text).unwrap();
        let value = |name: &str| found.iter().find(|(key, _)| key == name).unwrap().1.clone();
        assert_eq!(value("user"), "replicator");
        assert_eq!(value("password"), "it's \\ here");
        assert_eq!(value("host"), "/run/x y");
        assert_eq!(value("gssencmode"), "prefer");
        assert_eq!(words(" "), Some(Vec::new()));
        let cut = words("host=a port=1\\").unwrap();
        assert_eq!(cut, [pair("host", "a"), pair("port", "1")]);
        for text in ["host", "postgres://host/db", "host='open", "a b=c"] {
            assert_eq!(words(text), None, "{text}");
        }
        let again = written(
            found
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str())),
        );
        assert_eq!(words(&again).unwrap(), found);
    }

    #[test]
    fn words_are_taken_as_libpq_reads_them() {
        let (rest, found) =
            taken("host=a sslmode = 'verify-full'  sslrootcert='/it\\'s here' user=b");
        assert_eq!(
            rest.split_whitespace().collect::<Vec<_>>(),
            ["host=a", "user=b"]
        );
        assert_eq!(
            found,
            [
                pair("sslmode", "verify-full"),
                pair("sslrootcert", "/it's here")
            ]
        );
        let (rest, found) = taken("password='sslmode=disable' sslmode=require");
        assert_eq!(rest, "password='sslmode=disable'");
        assert_eq!(found, [pair("sslmode", "require")]);
        assert_eq!(taken("sslmode=a sslmode=b").1, [pair("sslmode", "b")]);
        let (rest, _) = take("sslmode=''postgres://?sslmode", &["sslmode"]);
        assert_eq!(rest, " postgres://?sslmode");
    }

    #[test]
    fn parameters_of_a_url_are_taken_and_decoded() {
        let url =
            "postgresql://u@h:1,i:2/db?sslmode=require&application_name=x&sslrootcert=%2Froot%20ca";
        let (rest, found) = taken(url);
        assert_eq!(rest, "postgresql://u@h:1,i:2/db?application_name=x");
        assert_eq!(
            found,
            [pair("sslmode", "require"), pair("sslrootcert", "/root ca")]
        );
        assert_eq!(taken("postgres://h?sslmode=allow").0, "postgres://h");
        assert_eq!(
            taken("postgres://h/db"),
            ("postgres://h/db".to_owned(), vec![])
        );
        let (rest, found) = taken("postgres://u:p?&w@h/db?sslmod%65=require&user=me@there");
        assert_eq!(rest, "postgres://u:p?&w@h/db?user=me%40there");
        assert_eq!(found, [pair("sslmode", "require")]);
    }

    #[test]
    fn what_is_written_badly_stays_for_the_reader_of_the_rest() {
        for bad in ["sslmode", "sslmode='open", "host=a sslmode=x\\", ""] {
            let (rest, _) = taken(bad);
            assert_eq!(rest, bad);
        }
        for bad in ["postgres://h?sslmode=%zz", "postgres://h?sslmode"] {
            assert_eq!(taken(bad), (bad.to_owned(), vec![]));
        }
    }
}
