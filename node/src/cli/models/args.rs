//! The arguments of `baton-node models`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::{cli::ModelPlaces, models::DEFAULT_HUB};

/// The arguments.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct ModelsArgs {
    #[command(flatten)]
    pub(super) places: ModelPlaces,
    #[command(subcommand)]
    pub(super) command: ModelsCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum ModelsCommand {
    /// Fetch and check a model; only check it if it is present
    Pull(PullArgs),
    /// Add a local GGUF file to the model folder
    #[command(
        after_help = "The file is checked and hashed. Where the file system allows it, it is linked, else copied.\n\n\
        Example:\n  baton-node models add ~/downloads/Mine-7B.Q4_K_M.gguf --name mine"
    )]
    Add {
        /// File to add
        path: PathBuf,
        /// Name in the configuration and `models list` [default: the file name without .gguf]
        #[arg(long)]
        name: Option<String>,
    },
    /// List the models that can be fetched, and which are present
    List,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "A file of the hub counts with the SHA-256 that the hub states of it, and is pinned to the commit that the\n\
    revision (main unless given) is now.\n\n\
    Examples:\n  baton-node models pull smollm2-135m-instruct\n  baton-node models pull gemma3-270m --accept-licence\n  \
    baton-node models pull hf:OWNER/REPO/FILE.gguf@REVISION --name mine"
)]
pub(super) struct PullArgs {
    /// Name from `models list`, or `hf:OWNER/REPO/FILE.gguf[@REVISION]` for a file of the hub
    pub(super) name: String,
    /// Accept the model's licence without a prompt, if it requires acceptance
    #[arg(long)]
    pub(super) accept_licence: bool,
    /// With a file of the hub: local name [default: the file name without .gguf]
    #[arg(long = "name", value_name = "NAME")]
    pub(super) local_name: Option<String>,
    /// With a file of the hub: base URL of the hub
    #[arg(long, env = "HF_ENDPOINT", value_name = "URL", default_value = DEFAULT_HUB)]
    pub(super) hub: String,
}
