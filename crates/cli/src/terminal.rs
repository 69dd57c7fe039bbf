//! What the terminal on standard error can do, and what its user wants of it.

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};

/// Whether colours are wanted and understood: <https://no-color.org>.
pub(crate) fn has_colours() -> bool {
    io::stderr().is_terminal() && colours(env::var_os("NO_COLOR"), env::var_os("TERM"))
}

/// Whether a line can be drawn again, as a progress bar is.
pub(crate) fn can_redraw() -> bool {
    io::stderr().is_terminal() && redraws(env::var_os("TERM"))
}

fn colours(no_color: Option<impl AsRef<OsStr>>, term: Option<impl AsRef<OsStr>>) -> bool {
    let refused = no_color.is_some_and(|value| !value.as_ref().is_empty());
    !refused && redraws(term)
}

fn redraws(term: Option<impl AsRef<OsStr>>) -> bool {
    term.is_some_and(|term| term.as_ref() != "dumb" && !term.as_ref().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSET: Option<&str> = None;

    #[test]
    fn no_color_and_dumb_terminals_are_honoured() {
        assert!(colours(UNSET, Some("xterm")));
        assert!(colours(Some(""), Some("xterm")));
        assert!(!colours(Some("1"), Some("xterm")));
        assert!(!colours(UNSET, Some("dumb")));
        assert!(!colours(UNSET, UNSET));
        assert!(redraws(Some("xterm")));
        assert!(!redraws(Some("dumb")));
    }
}
