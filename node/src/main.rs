//! The Baton inference daemon.

/// Thousands of connections, streams and turns a second, each in another thread than the last, leave the system's allocator
/// with memory that it does not give back.
#[cfg(all(target_os = "linux", feature = "allocator"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    baton_node::cli::main()
}
