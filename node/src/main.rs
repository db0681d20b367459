//! The Baton inference daemon.

/// The system allocator keeps freed memory when thousands of connections, streams and turns a second move
/// between threads.
#[cfg(all(target_os = "linux", feature = "allocator"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    baton_node::main()
}
