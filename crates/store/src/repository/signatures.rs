//! What signs a request stays out of every message and log.
//!
//! Some stores repeat in their answers the URL or the headers that they were to judge, with a session token in it. Values that
//! we were given are hidden wherever they stand (`Secrets`); what a machine's role gives is known by its name alone.

use std::ops::Range;

/// What is as good as a key for a while, as it stands before its value in a URL, among headers and in answers that repeat them.
const SIGNING: &[&str] = &[
    "security-token",
    "signature",
    "signatureprovided",
    "token-0",
    " sig",
    "&sig",
    "?sig",
    ";sig",
    "%26sig",
    "%3fsig",
];

/// What stands between.
const IS: &[&str] = &["=", ": ", ":", ">", "%3d", "%3a"];

/// The text without them.
pub(super) fn without_signatures(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let (mut shown, mut from) = (String::with_capacity(text.len()), 0);
    while let Some(value) = signature_in(&lower, from) {
        shown.push_str(&text[from..value.start]);
        shown.push_str("***");
        from = value.end;
    }
    shown.push_str(&text[from..]);
    shown
}

/// Where the first of them is, in small letters, from there on.
fn signature_in(lower: &str, from: usize) -> Option<Range<usize>> {
    let named = SIGNING.iter().flat_map(|name| {
        let found = lower[from..].match_indices(name);
        found.map(|(at, name)| from + at + name.len())
    });
    let values = named.filter_map(|at| {
        let is = IS.iter().find(|is| lower[at..].starts_with(**is))?;
        let start = at + is.len();
        let ends = |c: char| c.is_whitespace() || "&<>\"'(),;".contains(c);
        let length = lower[start..].find(ends);
        let end = length.map_or(lower.len(), |length| start + length);
        (end > start).then_some(start..end)
    });
    values.min_by_key(|value| value.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_repeats_of_a_signature_is_not_shown() {
        for (said, shown) in [
            (
                "GET /b?X-Amz-Security-Token=IQo%2Fx%3D&amp;X-Amz-Signature=0fa&versions <x>",
                "GET /b?X-Amz-Security-Token=***&amp;X-Amz-Signature=***&versions <x>",
            ),
            (
                "x-amz-security-token:IQo/x= x-amz-date:1",
                "x-amz-security-token:*** x-amz-date:1",
            ),
            (
                "u=X-Amz-Security-Token%3DIQo%252Fx%26a",
                "u=X-Amz-Security-Token%3D***",
            ),
            ("<Token-0>IQo/x=</Token-0>", "<Token-0>***</Token-0>"),
            ("/c?sv=1&sig=ab%3D&se=2", "/c?sv=1&sig=***&se=2"),
            (
                "x-amz-security-token: IQo/x= signature; design=1",
                "x-amz-security-token: *** signature; design=1",
            ),
        ] {
            assert_eq!(without_signatures(said), shown);
        }
    }
}
