//! The Baton inference daemon.

fn main() -> std::process::ExitCode {
    baton_node::cli::main()
}
