//! Where words go: results to standard output, progress to standard error.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::measure::result::Experiment;
use crate::report::analysis::{self, Analysis};
use crate::report::{csv, files, html, terminal};

/// Says something about progress.
pub fn tell(words: &str) {
    // Nobody to tell is no reason to stop.
    let _ = writeln!(std::io::stderr().lock(), "{words}");
}

/// Prints a result.
///
/// # Errors
/// Fails when standard output is closed.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| {
            if text.ends_with('\n') {
                Ok(())
            } else {
                out.write_all(b"\n")
            }
        })
        .and_then(|()| out.flush())
        .context("could not write to standard output")
}

/// Colours only where somebody sees them, did not refuse them, and has a terminal that understands them.
#[must_use]
pub fn style(ascii: bool) -> terminal::Style {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let understood = std::env::var_os("TERM").is_some_and(|v| !v.is_empty() && v != "dumb");
    terminal::Style {
        ascii,
        colour: understood && !refused && std::io::stdout().is_terminal(),
    }
}

/// Saves an experiment, writes its report, prints its findings; returns the exit code.
///
/// # Errors
/// Fails when a file cannot be written.
pub fn deliver(experiment: &Experiment, out: &Path, ascii: bool) -> Result<u8> {
    experiment.save(out)?;
    experiment.save_environment(out)?;
    let analysis = analysis::analyse(experiment);
    let values = out.join("runs.csv");
    std::fs::write(&values, csv::render(experiment))
        .with_context(|| format!("could not write \"{}\"", values.display()))?;
    // The last of the files, since it links to those that there are.
    let page = out.join("report.html");
    write_page(experiment, &analysis, out, &page)?;
    let mut text = terminal::render(experiment, &analysis, style(ascii));
    text.push_str(&format!("report      {}\n", page.display()));
    print(&text)?;
    Ok(code(experiment, &analysis))
}

/// Writes the page of the experiment in `result`, its file or directory; links lead from the page to the files there.
///
/// # Errors
/// Fails when the page cannot be written.
pub fn write_page(
    experiment: &Experiment,
    analysis: &Analysis,
    result: &Path,
    page: &Path,
) -> Result<()> {
    let links = files::links(result, page);
    std::fs::write(page, html::render_with(experiment, analysis, &links))
        .with_context(|| format!("could not write \"{}\"", page.display()))
}

/// The exit code of an experiment.
#[must_use]
pub fn code(experiment: &Experiment, analysis: &Analysis) -> u8 {
    match &experiment.interrupted {
        Some(_) if crate::interrupt::requested() => 130,
        Some(_) => 5,
        None if analysis.is_blocked() => 4,
        None => 0,
    }
}
