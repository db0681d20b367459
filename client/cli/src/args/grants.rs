//! The command line of `baton grants`.

use std::path::PathBuf;

use baton_proto::ids::{ModelId, NodeId, PublicKey};
use clap::{Args, Subcommand};

pub(super) const GRANTS_EXAMPLES: &str = "\
Examples:
  baton grants                                               your key, and the grant in use
  baton grants alice.grant                                   what a file grants
  baton grants use alice.grant                               from now on, each turn comes under it
  baton grants attenuate --holder KEY --turns 10 > bob.grant";

/// Arguments of `baton grants`.
#[derive(Debug, Args)]
pub(crate) struct GrantsArguments {
    /// The grant command [default: show your public key for grants, and the grant in use].
    #[command(subcommand)]
    pub command: Option<GrantsCommand>,
    /// File of a grant, delegation or invitation to show instead, after a check of its signatures.
    pub file: Option<PathBuf>,
}

/// The commands for quota grants.
#[derive(Debug, Subcommand)]
pub(crate) enum GrantsCommand {
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
    /// Public key of the new holder, as their `baton grants` shows it.
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
}
