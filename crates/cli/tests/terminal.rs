//! Colours: on a terminal whose user wants them, and nowhere else.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::path::Path;

use pgstrata_testbed::cluster::{Cluster, Major};
use support::{Stage, Store};

/// Runs its arguments with a terminal for all three streams, and copies what is shown there.
const ON_A_TERMINAL: &str =
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/// What the command shows on a terminal of that kind, and what the environment says of colours.
fn shown(stage: &Stage, term: &str, no_color: Option<&str>, arguments: &[&str]) -> String {
    let mut python = stage.cluster.command_as_server_user(Path::new("python3"));
    python.args(["-c", ON_A_TERMINAL]).arg(&stage.program);
    python.args(arguments).env("TERM", term);
    // What else decides: a terminal of continuous integration is taken for one with colours.
    for decides in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
        python.env_remove(decides);
    }
    python.envs(no_color.map(|value| ("NO_COLOR", value)));
    let output = python.output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The text without its colours, and how many there are. A bar is drawn with other sequences.
fn parted(text: &str) -> (String, usize) {
    let mut plain = String::new();
    let mut colours = 0;
    for (number, part) in text.split("\u{1b}[").enumerate() {
        let end = part.find(|c: char| c != ';' && !c.is_ascii_digit());
        match end.filter(|&end| number > 0 && part[end..].starts_with('m')) {
            Some(end) => {
                colours += 1;
                plain.push_str(&part[end + 1..]);
            }
            None if number > 0 => plain.extend(["\u{1b}[", part]),
            None => plain.push_str(part),
        }
    }
    (plain, colours)
}

#[test]
fn a_terminal_has_colours_unless_its_user_wants_none() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.pgdata();
    let at = ["--repo", &stage.repository, "--cluster", "main"];
    let backup = ["backup", "-D", &pgdata, "--impact", "none"];
    let backup = [&at[..], &backup].concat();
    for (command, word) in [
        (&["--help"][..], "Usage:"),
        (&["infoo"], "unrecognized subcommand"),
        (&backup, "the backup has stopped"),
    ] {
        let see = |term, no_color| parted(&shown(&stage, term, no_color, command));
        let (text, colours) = see("xterm", None);
        assert!(text.contains(word), "{text}");
        assert!(colours > 2, "{command:?}: {text}");
        assert!(see("xterm", Some("")).1 > 2, "{command:?}");
        for (term, no_color) in [("xterm", Some("1")), ("dumb", None)] {
            let (text, colours) = see(term, no_color);
            assert!(text.contains(word), "{text}");
            assert_eq!(colours, 0, "{command:?}, {term}, {no_color:?}: {text}");
        }
        let output = stage
            .command(command)
            .env("TERM", "xterm")
            .output()
            .unwrap();
        let streams = [output.stdout, output.stderr].concat();
        assert!(!streams.contains(&0x1b), "{command:?}, no terminal");
    }
}
