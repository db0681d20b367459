//! The command line of `baton grants`.

use std::path::PathBuf;

use baton_kit::turn_grant::TurnGrant;
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
    /// Narrow the grant in use for another user's key. Omitted limits stay unchanged.
    Attenuate(TurnGrant),
}
