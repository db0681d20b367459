//! The `baton` command: see the library of the same package.

use std::process::ExitCode;

fn main() -> ExitCode {
    baton_cli::main()
}
