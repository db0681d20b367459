//! The command line of `baton grants`.

use std::path::PathBuf;

use baton_proto::ids::{ModelId, NodeId, PublicKey};
use clap::{Args, Subcommand};

/// The commands for quota grants.
#[derive(Debug, Subcommand)]
pub(crate) enum GrantsCommand {
    /// Show your public key for grants; create the key if missing.
    Key,
    /// Show a grant and check its signatures.
    Show {
        /// File with the grant [default: the grant in use].
        file: Option<PathBuf>,
    },
    /// Use a grant from now on.
    Use {
        /// File with the grant.
        file: PathBuf,
    },
    /// Narrow the grant in use for another user's key.
    Attenuate(NarrowArguments),
}

/// Arguments of `baton grants attenuate`. Omitted limits stay unchanged.
#[derive(Debug, Args)]
pub(crate) struct NarrowArguments {
    /// Public key of the new holder, as their `baton grants key` shows it.
    #[arg(long, value_name = "KEY")]
    pub holder: PublicKey,
    /// Turns an hour.
    #[arg(long, value_name = "NUMBER")]
    pub turns: Option<u32>,
    /// Tokens an hour.
    #[arg(long, value_name = "NUMBER")]
    pub tokens: Option<u64>,
    /// Concurrent turns.
    #[arg(long, value_name = "NUMBER")]
    pub concurrent: Option<u16>,
    /// Validity in hours from now.
    #[arg(long, value_name = "NUMBER")]
    pub hours: Option<u64>,
    /// Node where the grant counts; may be repeated.
    #[arg(long, value_name = "ID")]
    pub node_id: Vec<NodeId>,
    /// Model that the grant covers; may be repeated.
    #[arg(long, value_name = "ID")]
    pub model_id: Vec<ModelId>,
    /// How many times the grant may be narrowed further.
    #[arg(long, value_name = "NUMBER")]
    pub depth: Option<u8>,
    /// Output file (created with mode 0600) [default: standard output].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}
