//! A whole Baton network in one command: demo, faults, bench.

fn main() {}
