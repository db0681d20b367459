//! The `baton-relayer` command.

use std::alloc::System;

use zeroizing_alloc::ZeroAlloc;

/// Wipes memory as it is freed, since it may contain a session's key.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

fn main() -> std::process::ExitCode {
    baton_relayer::main()
}
