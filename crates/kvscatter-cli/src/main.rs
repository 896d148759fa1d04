//! The program `kvscatter`.

use std::process::ExitCode;

use kvscatter_cli::Host;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    ExitCode::from(kvscatter_cli::run(&arguments, &Host::Program))
}
