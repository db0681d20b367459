//! Command line of `baton-relayer`.

use std::path::PathBuf;

use baton_mesh::Multiaddr;
use clap::{Args, Parser, Subcommand};

/// Adds memory to conversations it cannot read.
#[derive(Debug, Parser)]
#[command(
    name = "baton-relayer",
    version,
    after_help = "Examples:\n  baton-relayer init\n  baton-relayer facts add \"I am allergic to peanuts\" --source \"told in May\"\n  \
                  baton-relayer run --listen /ip4/127.0.0.1/tcp/4101 --bootstrap /ip4/127.0.0.1/tcp/4001/p2p/12D3Koo...\n\n\
                  Exit codes: 0 done, 1 failed (the message says why and what to do), 2 wrong usage."
)]
pub(crate) struct Cli {
    /// Folder with the relayer's key and facts [default: ~/.local/share/baton-relayer]
    #[arg(long, global = true, env = "BATON_RELAYER_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Log level, or a tracing filter
    #[arg(long, global = true, env = "BATON_RELAYER_LOG", default_value = "info")]
    pub(crate) log: String,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make the key and an empty, signed facts file
    Init,
    /// Look at and change the facts
    #[command(subcommand)]
    Facts(FactsCommand),
    /// Serve
    Run(RunArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum FactsCommand {
    /// Add a fact at the end (the first facts matter most)
    Add {
        /// The fact
        text: String,
        /// Where it comes from
        #[arg(long, default_value = "added by hand")]
        source: String,
    },
    /// Show the facts
    List,
    /// Sign the file again after editing it by hand
    Sign,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Addresses to listen on
    #[arg(
        long,
        env = "BATON_RELAYER_LISTEN",
        value_delimiter = ',',
        default_value = "/ip4/0.0.0.0/tcp/4101"
    )]
    pub(crate) listen: Vec<Multiaddr>,
    /// Addresses of nodes to know from the start
    #[arg(long, env = "BATON_RELAYER_BOOTSTRAP", value_delimiter = ',')]
    pub(crate) bootstrap: Vec<Multiaddr>,
    /// Find nodes on the local network
    #[arg(long, env = "BATON_RELAYER_MDNS", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) mdns: bool,
    /// Facts file [default: facts.json in the data folder]
    #[arg(long, env = "BATON_RELAYER_FACTS")]
    pub(crate) facts: Option<PathBuf>,
    /// Seconds that running turns get to end at shutdown
    #[arg(long, env = "BATON_RELAYER_DRAIN_SECONDS", default_value_t = 30)]
    pub(crate) drain_seconds: u64,
    /// Print one JSON line on standard output when ready
    #[arg(long)]
    pub(crate) json: bool,
}
