//! The Baton inference daemon.

fn main() {}
