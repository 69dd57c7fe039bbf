//! Which ends of a command are explained by what was done to it.
//!
//! A command that fails must say why, with the code for it. Whatever is not explained is a finding. Success
//! needs no explanation here: what it promised is looked at later.

use super::program::{Disturbance, Outcome};

const USAGE: i32 = 2;
const BUG: i32 = 101;
const INTERRUPTED: i32 = 130;
const SIGNAL_KILL: i32 = 9;
const SIGNAL_TERMINATE: i32 = 15;

/// A reason for which a command may fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Excuse {
    /// The codes that this reason has.
    pub(super) codes: &'static [i32],
    /// Words of which one stands in the error, in lower case; none: the code says all.
    pub(super) words: &'static [&'static str],
}

/// An excuse of one code.
pub(super) const fn excuse(codes: &'static [i32], words: &'static [&'static str]) -> Excuse {
    Excuse { codes, words }
}

/// The server crashed while it was backed up.
pub(super) const CRASHED: Excuse = excuse(&[16, 17, 18], &[]);

/// The store fails, or denies.
pub(super) const STORE: Excuse = excuse(&[15], &[]);

/// Descriptors or the size of files are limited.
pub(super) const LIMITED: Excuse = excuse(
    &[15, 16, 17],
    &[
        "too many open files",
        "file too large",
        "no space",
        "limit",
        "resource temporarily unavailable",
    ],
);

/// The repository has WAL of another history under the names to come, because the server was set back.
pub(super) const OTHER_HISTORY: Excuse =
    excuse(&[11, 13], &["history", "other contents", "differ"]);

/// Something keeps `archive-get` from an answer, which then must not be "the archive ends here".
pub(super) const NO_ANSWER: Excuse = excuse(&[255], &[]);

/// `check` says what is wrong where it prints the rest.
pub(super) const CHECK_FAILED: Excuse = excuse(&[13], &[]);

/// The disk is full.
pub(super) const FULL: Excuse = excuse(&[13, 15, 17], &["no space", "bytes free"]);

/// Another command is at work, or seems to be.
pub(super) const BUSY: Excuse = excuse(&[12], &[]);

/// Why this end is a finding; nothing when it is not.
pub(super) fn finding(outcome: &Outcome, excuses: &[Excuse]) -> Option<String> {
    let told = |what: &str| {
        Some(format!(
            "\"{}\" {what}: {}",
            outcome.words.join(" "),
            outcome.complaint()
        ))
    };
    if outcome.hung {
        return told("did not end");
    }
    let Some(code) = outcome.code else {
        // Before it has set itself up, a command ends by the signal that asks it to.
        return match (outcome.signal, outcome.disturbed) {
            (Some(SIGNAL_KILL), Some(Disturbance::Kill)) => None,
            (Some(SIGNAL_TERMINATE), Some(Disturbance::Terminate)) => None,
            _ => told(&format!("was ended by {}", outcome.end())),
        };
    };
    match code {
        0 => return None,
        BUG => return told("has a bug (exit code 101)"),
        USAGE => return told("calls the run's own words wrong (exit code 2)"),
        INTERRUPTED if outcome.disturbed == Some(Disturbance::Terminate) => return None,
        _ => {}
    }
    // Warnings and hints explain nothing.
    let error = outcome.complaint().to_lowercase();
    let explains = |excuse: &Excuse| {
        let said = excuse.words.iter().any(|word| error.contains(word));
        excuse.codes.contains(&code) && (said || excuse.words.is_empty())
    };
    if !excuses.iter().any(explains) {
        return told(&format!("ended with {code}, which nothing explains"));
    }
    if outcome.stderr.trim().is_empty() && outcome.stdout.trim().is_empty() {
        return told(&format!("ended with {code} and said nothing"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: Option<i32>, signal: Option<i32>, stderr: &str) -> Outcome {
        Outcome {
            words: vec!["backup".to_owned()],
            code,
            signal,
            hung: false,
            disturbed: None,
            stdout: String::new(),
            stderr: stderr.to_owned(),
            seconds: 0.1,
        }
    }

    #[test]
    fn a_failure_without_a_reason_is_a_finding() {
        assert_eq!(finding(&ended(Some(0), None, ""), &[]), None);
        let failed = ended(Some(15), None, "error: could not reach the repository");
        let found = finding(&failed, &[]).unwrap();
        assert!(found.contains("15, which nothing explains"), "{found}");
        assert!(found.contains("could not reach"), "{found}");
        assert_eq!(finding(&failed, &[STORE]), None);
        assert!(finding(&failed, &[CRASHED]).is_some());
    }

    #[test]
    fn a_reason_has_its_words() {
        let full = ended(
            Some(17),
            None,
            "error: could not write \"x\": No space left",
        );
        assert_eq!(finding(&full, &[FULL]), None);
        let other = ended(
            Some(17),
            None,
            "error: could not write \"x\": is a directory",
        );
        assert!(finding(&other, &[FULL]).is_some());
        let warned = "warning: no space left for the log\nerror: could not write \"x\"\nhint: is there no space?";
        assert!(finding(&ended(Some(17), None, warned), &[FULL]).is_some());
        assert!(finding(&ended(Some(12), None, " "), &[BUSY]).is_some());
    }

    #[test]
    fn bugs_and_hangs_have_no_excuse() {
        let all = [
            CRASHED,
            STORE,
            LIMITED,
            FULL,
            BUSY,
            excuse(&[2, 101, 130], &[]),
        ];
        assert!(finding(&ended(Some(101), None, "panicked"), &all).is_some());
        assert!(finding(&ended(Some(2), None, "error: usage"), &all).is_some());
        let mut hung = ended(None, Some(9), "");
        hung.disturbed = Some(Disturbance::Kill);
        assert_eq!(finding(&hung, &[]), None);
        hung.hung = true;
        assert!(finding(&hung, &all).is_some());
    }

    #[test]
    fn a_signal_is_explained_by_who_sent_it() {
        let killed = ended(None, Some(9), "");
        assert!(finding(&killed, &[]).is_some());
        let aborted = Outcome {
            disturbed: Some(Disturbance::Kill),
            ..ended(None, Some(6), "")
        };
        assert!(finding(&aborted, &[]).is_some());
        let asked = Outcome {
            disturbed: Some(Disturbance::Terminate),
            ..ended(Some(130), None, "error: interrupted")
        };
        assert_eq!(finding(&asked, &[]), None);
        assert!(finding(&ended(Some(130), None, "error"), &[]).is_some());
    }
}
