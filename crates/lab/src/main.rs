//! `pgstrata-lab`: the program behind `pgstrata lab`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(pgstrata_lab::commands::main(std::env::args().collect()))
}
