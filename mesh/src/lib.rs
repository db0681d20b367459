//! The libp2p swarm shared by every Baton role.
