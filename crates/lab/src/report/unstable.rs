//! The mark of an interval that the bootstrap does not confirm: said once what it means, where it is first seen.

/// What the mark means.
pub(crate) const MEANING: &str = "~ marks an interval that the bootstrap finds wider or narrower by more than a fifth: \
                                  more blocks would settle it.";

/// Puts what the mark means behind the first part that shows it.
pub(super) fn explain<'a>(parts: impl IntoIterator<Item = &'a mut String>, meaning: &str) {
    let mut parts = parts.into_iter();
    if let Some(part) = parts.find(|part| is_marked(part)) {
        part.push_str(meaning);
    }
}

/// Whether a figure in the text has the mark: a tilde of a path or a name is none.
fn is_marked(text: &str) -> bool {
    let figure = |before: &str| before.ends_with(|c: char| c.is_ascii_digit());
    [" ~", "\u{a0}~"].iter().any(|mark| {
        let mut found = text.match_indices(mark);
        found.any(|(at, _)| figure(&text[..at]))
    })
}

#[cfg(test)]
mod tests {
    use super::explain;

    #[test]
    fn the_mark_is_explained_once_and_where_it_is_first_seen() {
        let explained = |parts: &[&str]| {
            let mut parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
            explain(&mut parts, " (why)");
            parts.concat()
        };
        assert_eq!(
            explained(&["~/a ~x", "0.5 … 1.2 ~)", "1 … 2\u{a0}~"]),
            "~/a ~x0.5 … 1.2 ~) (why)1 … 2\u{a0}~"
        );
        assert_eq!(explained(&["in ~ and ~/a ", "≈ 3"]), "in ~ and ~/a ≈ 3");
        assert_eq!(explained(&["no", "1 … 2\u{a0}~"]), "no1 … 2\u{a0}~ (why)");
    }
}
