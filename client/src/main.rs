//! The Baton client: library and the baton command.

fn main() {}
