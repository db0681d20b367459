//! Identities, the session key schedule, sealing and key files of Baton.

pub mod ids;
