//! The `baton-testnet` command.

fn main() -> std::process::ExitCode {
    baton_testnet::main()
}
