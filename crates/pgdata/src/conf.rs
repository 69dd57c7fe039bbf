//! PostgreSQL's configuration files: what they set, and which other files they name.
//!
//! `postgresql.conf` has one setting in a line, as `guc-file.l` reads it. `pg_hba.conf` and `pg_ident.conf` have fields of
//! tokens, as `hba.c` reads them. Nothing is refused here: what the server would not understand sets and names nothing.

use std::ops::Range;

/// A setting of `postgresql.conf`, or an include.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its line, without the end.
    pub line: Range<usize>,
    /// In lower case.
    pub name: String,
    /// Without quotes.
    pub value: Vec<u8>,
}

/// How a file is named by another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mention {
    /// It must be there.
    File,
    /// It may be there.
    FileIfExists,
    /// A directory: every file whose name ends in `.conf` and does not begin with a dot.
    Directory,
    /// `@file` in `pg_hba.conf`: a list of names.
    List,
}

impl Mention {
    /// What the name of a setting, or the first word of a line of `pg_hba.conf`, makes of the word that follows.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        match word {
            "include" => Some(Self::File),
            "include_if_exists" => Some(Self::FileIfExists),
            "include_dir" => Some(Self::Directory),
            _ => None,
        }
    }
}

/// A file that `pg_hba.conf` or `pg_ident.conf` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Where it stands, quotes and `@` included.
    pub span: Range<usize>,
    /// How it is named.
    pub mention: Mention,
    /// Without quotes.
    pub path: Vec<u8>,
}

/// The lines of `text`, without their ends.
fn lines(text: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = 0;
    text.split(|&byte| byte == b'\n').map(move |line| {
        let range = start..start + line.len();
        start = range.end + 1;
        range
    })
}

/// All settings of a file like `postgresql.conf`, in their order.
#[must_use]
pub fn settings(text: &[u8]) -> Vec<Setting> {
    let setting = |line: Range<usize>| {
        let (name, value) = setting(&text[line.clone()])?;
        Some(Setting { line, name, value })
    };
    lines(text).filter_map(setting).collect()
}

/// The parameter that a line names, as it is spelt there, even when its value is empty; `None` for comments and blank lines.
/// The server takes names for the same in capitals and without.
#[must_use]
pub fn spelling(line: &[u8]) -> Option<String> {
    let (name, _) = named(line)?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// The name with which a line begins, and the rest of it.
fn named(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.trim_ascii_start();
    let in_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_$.".contains(byte) || *byte > 127;
    let end = line.iter().position(|byte| !in_name(byte));
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let begins = name.first().is_some_and(|byte| !byte.is_ascii_digit());
    begins.then_some((name, rest))
}

fn setting(line: &[u8]) -> Option<(String, Vec<u8>)> {
    let (name, rest) = named(line)?;
    let rest = rest.trim_ascii_start();
    let rest = rest.strip_prefix(b"=").unwrap_or(rest).trim_ascii_start();
    let value = match rest.strip_prefix(b"'") {
        Some(quoted) => unquoted(quoted)?,
        None => {
            let ends = |byte: &u8| byte.is_ascii_whitespace() || b"#'".contains(byte);
            let end = rest.iter().position(ends).unwrap_or(rest.len());
            rest[..end].to_vec()
        }
    };
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    (!value.is_empty()).then_some((name, value))
}

/// A value up to its closing quote, as `DeescapeQuotedString()` makes it.
fn unquoted(text: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let mut at = 0;
    loop {
        match (text.get(at)?, text.get(at + 1)) {
            (b'\'', Some(b'\'')) => {
                value.push(b'\'');
                at += 2;
            }
            (b'\'', _) => return Some(value),
            (b'\\', Some(b'0'..=b'7')) => {
                let octal = text[at + 1..].iter().take(3);
                let octal: Vec<u8> = octal
                    .take_while(|byte| (b'0'..=b'7').contains(byte))
                    .map(|byte| byte - b'0')
                    .collect();
                let number = octal
                    .iter()
                    .fold(0_u8, |sum, digit| sum.wrapping_mul(8).wrapping_add(*digit));
                value.push(number);
                at += 1 + octal.len();
            }
            (b'\\', Some(escaped)) => {
                value.push(match escaped {
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    other => *other,
                });
                at += 2;
            }
            (byte, _) => {
                value.push(*byte);
                at += 1;
            }
        }
    }
}

/// A value between single quotes, as `postgresql.conf` has it.
#[must_use]
pub fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "''"))
}

/// The files that a file like `pg_hba.conf` names.
#[must_use]
pub fn tokens(text: &[u8]) -> Vec<Token> {
    let mut found = Vec::new();
    // The first word of the line, the number of its fields so far, and whether the next word belongs to the last one.
    let mut first: Option<Vec<u8>> = None;
    let (mut fields, mut joins) = (0, false);
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\n' => {
                (first, fields, joins) = (None, 0, false);
                at += 1;
            }
            // The next line goes on with this one.
            b'\\' if text.get(at + 1) == Some(&b'\n') => at += 2,
            b'#' => at = end_of_line(text, at),
            b',' => {
                joins = true;
                at += 1;
            }
            _ if byte.is_ascii_whitespace() => at += 1,
            _ => {
                let (end, word) = word(text, at);
                if !joins {
                    fields += 1;
                }
                joins = false;
                let included = first.as_deref().and_then(|word| {
                    let word = str::from_utf8(word).ok()?;
                    Mention::of_word(word).filter(|_| fields == 2)
                });
                let token = |mention, path: &[u8]| Token {
                    span: at..end,
                    mention,
                    path: path.to_vec(),
                };
                match (included, word.as_slice()) {
                    (Some(mention), path) => found.push(token(mention, path)),
                    (None, [b'@', path @ ..]) if byte == b'@' && !path.is_empty() => {
                        found.push(token(Mention::List, path));
                    }
                    _ => {}
                }
                first.get_or_insert(word);
                at = end;
            }
        }
    }
    found
}

fn end_of_line(text: &[u8], at: usize) -> usize {
    let rest = &text[at..];
    at + rest
        .iter()
        .position(|&byte| byte == b'\n')
        .unwrap_or(rest.len())
}

/// The word that begins at `at`: where it ends, and what it is without quotes.
fn word(text: &[u8], mut at: usize) -> (usize, Vec<u8>) {
    let mut word = Vec::new();
    let mut in_quotes = false;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\n' => break,
            b'"' => {
                // A quote in quotes is written twice.
                if !in_quotes && text.get(at.wrapping_sub(1)) == Some(&b'"') {
                    word.push(b'"');
                }
                in_quotes = !in_quotes;
            }
            b',' | b'#' if !in_quotes => break,
            _ if byte.is_ascii_whitespace() && !in_quotes => break,
            _ => word.push(byte),
        }
        at += 1;
    }
    (at, word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<(String, String)> {
        let settings = settings(text.as_bytes()).into_iter();
        settings
            .map(|one| (one.name, String::from_utf8(one.value).unwrap()))
            .collect()
    }

    #[test]
    fn a_line_sets_what_the_server_reads_in_it() {
        let text = "# data_directory = 'no'\n  Data_Directory = '/var/lib/it''s' # yes\nport=5433\ninclude 'a b.conf'\n\
                    include_dir = conf.d\n\nbroken\nopen = 'x\nshared_buffers 128MB\npath = 'a\\\\b\\101\\t'\nempty = ''";
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            names(text),
            [
                pair("data_directory", "/var/lib/it's"),
                pair("port", "5433"),
                pair("include", "a b.conf"),
                pair("include_dir", "conf.d"),
                pair("shared_buffers", "128MB"),
                pair("path", "a\\bA\t"),
            ]
        );
        let all = settings(text.as_bytes());
        assert_eq!(&text[all[1].line.clone()], "port=5433");
        for value in ["it's", "a\\b", "plain"] {
            let line = format!("x = {}", quoted(value));
            assert_eq!(names(&line), [pair("x", value)]);
        }
    }

    #[test]
    fn a_line_names_its_parameter_as_it_is_spelt_there() {
        for (line, spelt) in [
            ("  Recovery_Target_Time='x'", Some("Recovery_Target_Time")),
            ("recovery_target_time''", Some("recovery_target_time")),
            ("RECOVERY_TARGET = ''\r", Some("RECOVERY_TARGET")),
            ("include_dir", Some("include_dir")),
            ("", None),
            ("   ", None),
            ("# recovery_target = 'immediate'", None),
            ("'x'", None),
            ("1x = 1", None),
        ] {
            assert_eq!(spelling(line.as_bytes()).as_deref(), spelt, "{line:?}");
        }
    }

    #[test]
    fn tokens_name_the_files_that_the_server_would_read() {
        let text = "# include no\nlocal all @admins,\"@quoted\",@\"more people\" peer\ninclude hba/extra.conf\n\
                    include_dir \"hba dir\" # x\nhost include all 0/0 trust\nhost all \\\n @late all trust\ninclude_if_exists a,b\n";
        let found: Vec<(Mention, String, &str)> = tokens(text.as_bytes())
            .into_iter()
            .map(|token| {
                let path = String::from_utf8(token.path).unwrap();
                (token.mention, path, &text[token.span])
            })
            .collect();
        let list = Mention::List;
        assert_eq!(
            found,
            [
                (list, "admins".to_owned(), "@admins"),
                (list, "more people".to_owned(), "@\"more people\""),
                (Mention::File, "hba/extra.conf".to_owned(), "hba/extra.conf"),
                (Mention::Directory, "hba dir".to_owned(), "\"hba dir\""),
                (list, "late".to_owned(), "@late"),
                (Mention::FileIfExists, "a".to_owned(), "a"),
                (Mention::FileIfExists, "b".to_owned(), "b"),
            ]
        );
    }

    #[test]
    fn no_bytes_are_too_strange() {
        let text: Vec<u8> = (0..=255).chain(b"'\\\"@,#\n".iter().copied()).collect();
        for start in 0..text.len() {
            let mut piece = text[start..].to_vec();
            let by = (start % 7).min(piece.len());
            piece.rotate_left(by);
            for found in settings(&piece) {
                assert!(found.line.end <= piece.len());
            }
            for found in tokens(&piece) {
                assert!(found.span.end <= piece.len());
            }
        }
    }
}
