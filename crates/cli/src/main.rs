//! The program `latchwork`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    latchwork_cli::run(std::env::args_os()).into()
}
