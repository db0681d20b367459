//! The Baton relayer: memory at dispatch, on turns it cannot read.

fn main() {}
