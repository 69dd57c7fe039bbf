//! Keeps secrets out of everything the lab writes.

/// Words whose value is a secret, in `key=value`, `key: value` or `--key value`.
const SECRET_KEYS: [&str; 8] = [
    "password",
    "passwd",
    "secret_access_key",
    "secret_key",
    "secret",
    "token",
    "passphrase",
    "account_key",
];

const STARS: &str = "***";

/// The text with every secret it recognises replaced by stars.
#[must_use]
pub fn mask(text: &str) -> String {
    mask_keys(&mask_url(text))
}

/// `scheme://user:secret@host` keeps all but the secret.
fn mask_url(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after
            .find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '\'' | '"'))
            .unwrap_or(after.len());
        let (authority, tail) = after.split_at(end);
        match authority
            .rsplit_once('@')
            .and_then(|(user, host)| Some((user.split_once(':')?.0, host)))
        {
            Some((user, host)) => {
                out.push_str(user);
                out.push(':');
                out.push_str(STARS);
                out.push('@');
                out.push_str(host);
            }
            None => out.push_str(authority),
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

fn mask_keys(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    let mut at = 0;
    while let Some((start, length)) = next_key(&lower, at) {
        at = start + length;
        let Some(value) = value_range(text, at) else {
            continue;
        };
        out.push_str(&text[copied..value.start]);
        out.push_str(STARS);
        copied = value.end;
        at = value.end;
    }
    out.push_str(&text[copied..]);
    out
}

fn next_key(lower: &str, from: usize) -> Option<(usize, usize)> {
    SECRET_KEYS
        .iter()
        .filter_map(|key| Some((lower[from..].find(key)? + from, key.len())))
        .min_by_key(|(start, length)| (*start, usize::MAX - length))
}

/// Where the value after a key lies: past `=`, `:` or blanks, quotes respected.
fn value_range(text: &str, key_end: usize) -> Option<std::ops::Range<usize>> {
    let rest = &text[key_end..];
    let trimmed = rest.trim_start_matches(['"', ' ']);
    let start = match trimmed.chars().next()? {
        '=' | ':' => {
            let after = trimmed[1..].trim_start();
            text.len() - after.len()
        }
        // `--password value`, but not a sentence about passwords.
        _ if rest.starts_with(' ') && text[..key_end].contains("--") => {
            text.len() - rest.trim_start().len()
        }
        _ => return None,
    };
    let value = &text[start..];
    let end = match value.chars().next()? {
        quote @ ('\'' | '"') => value[1..].find(quote).map_or(value.len(), |i| i + 2),
        _ => value
            .find(|c: char| c.is_whitespace() || matches!(c, '&' | ',' | ';' | '\'' | '"'))
            .unwrap_or(value.len()),
    };
    (end > 0).then_some(start..start + end)
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn secrets_do_not_pass() {
        for (text, masked) in [
            (
                "host=db password=tiger user=a",
                "host=db password=*** user=a",
            ),
            (
                "host=db password = 'ti ger' user=a",
                "host=db password = *** user=a",
            ),
            (
                "postgres://scott:tiger@db:5432/x",
                "postgres://scott:***@db:5432/x",
            ),
            (
                "postgres://scott@db/x?password=tiger&a=b",
                "postgres://scott@db/x?password=***&a=b",
            ),
            ("PGPASSWORD=tiger cp %p /x", "PGPASSWORD=*** cp %p /x"),
            (
                "AWS_SECRET_ACCESS_KEY=abc/def wal-g push %p",
                "AWS_SECRET_ACCESS_KEY=*** wal-g push %p",
            ),
            ("push --token tiger %p", "push --token *** %p"),
            ("{\"password\": \"tiger\"}", "{\"password\": ***}"),
        ] {
            assert_eq!(mask(text), masked);
        }
    }

    #[test]
    fn words_without_values_stay() {
        for text in [
            "scram password auth",
            "no secret here",
            "",
            "a://b",
            "password",
        ] {
            assert_eq!(mask(text), text);
        }
    }
}
