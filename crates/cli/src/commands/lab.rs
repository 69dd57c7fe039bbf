//! `lab`: hands over to the program `pgstrata-lab`.
//!
//! The lab is a program of its own, so that what it measures is what users run and
//! not a build that also carries a laboratory. It replaces this process: its exit
//! codes and its handling of signals are what the caller sees.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgstrata_store::error::{Error, Kind, Result};

const PROGRAM: &str = "pgstrata-lab";

/// Becomes the lab; returns only if that fails.
pub(crate) fn become_lab(arguments: &[OsString]) -> Result<u8> {
    let program = find()?;
    let failed = Command::new(&program).args(arguments).exec();
    let what = format!("could not start \"{}\": {failed}", program.display());
    Err(Error::new(Kind::File, what))
}

/// Beside this program, where `make install` puts it, else on `PATH`.
fn find() -> Result<PathBuf> {
    let own = env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = beside.into_iter().chain(env::split_paths(&path));
    let found = directories
        .map(|directory| directory.join(PROGRAM))
        .find(|candidate| candidate.is_file());
    found.ok_or_else(|| {
        Error::new(
            Kind::NotFound,
            format!("could not find the program \"{PROGRAM}\""),
        )
        .hint("install it beside pgstrata or on PATH: \"make install\" installs both")
    })
}
