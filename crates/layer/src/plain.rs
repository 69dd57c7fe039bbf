//! Text of others, as people may see it: who can write into the repository must not command their terminal, forge a line, or
//! make a word read as another.

use std::borrow::Cow;

/// Whether a character only stands there: it is no control character, ends no line, and does not turn the direction of what
/// stands behind it (`Bidi_Control` of Unicode).
#[must_use]
pub fn is_plain(character: char) -> bool {
    !character.is_control() && !ends_line(character) && !turns_text(character)
}

/// Whether a character makes what stands behind it read as something else.
#[must_use]
pub fn turns_text(character: char) -> bool {
    matches!(character, '\u{061C}' | '\u{200E}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// U+2028 and U+2029, which are no control characters.
fn ends_line(character: char) -> bool {
    matches!(character, '\u{2028}'..='\u{2029}')
}

/// The text on one line: what is not plain stands there as in Rust, `\n` or `\u{202e}`.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    plain_but(text, &[])
}

/// The same, but for some characters that stay.
#[must_use]
pub fn plain_but<'t>(text: &'t str, stay: &[char]) -> Cow<'t, str> {
    let passes = |character: char| is_plain(character) || stay.contains(&character);
    if text.chars().all(passes) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match passes(character) {
            true => shown.push(character),
            false => shown.extend(character.escape_default()),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_a_terminal_or_turns_text_is_shown_and_every_script_stays() {
        for (text, shown) in [
            ("до обновления", "до обновления"),
            ("לפני השדרוג", "לפני השדרוג"),
            ("a\\b\"c", "a\\b\"c"),
            ("host\nerror: all is lost", "host\\nerror: all is lost"),
            ("\u{1b}[2J\u{7}\r", "\\u{1b}[2J\\u{7}\\r"),
            ("\u{9b}2J", "\\u{9b}2J"),
            (
                "a\u{202e}b\u{2066}\u{2028}",
                "a\\u{202e}b\\u{2066}\\u{2028}",
            ),
        ] {
            assert_eq!(plain(text), shown);
        }
        assert_eq!(plain_but("a\nb\tc\u{7}", &['\n']), "a\nb\\tc\\u{7}");
    }
}
