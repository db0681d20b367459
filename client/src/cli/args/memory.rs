//! `baton memory`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Where in memory.
#[derive(Debug, Default, Clone, Args)]
pub struct PlaceArguments {
    /// The project [default: the shared pool of no project].
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// The session.
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
    /// The persona.
    #[arg(long, value_name = "NAME")]
    pub persona: Option<String>,
}

/// What to do with memories. ID is one that `baton memory list` shows.
#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// List memories, newest first.
    List {
        /// Only those with all these words.
        words: Vec<String>,
        #[command(flatten)]
        place: PlaceArguments,
        /// Of all projects and sessions.
        #[arg(long)]
        all: bool,
        /// Only those that wait for consent.
        #[arg(long)]
        pending: bool,
        /// Most of them.
        #[arg(long, value_name = "NUMBER", default_value_t = 50)]
        limit: u32,
    },
    /// Search as a turn would, with scores.
    Search {
        /// What to look for.
        query: String,
        #[command(flatten)]
        place: PlaceArguments,
        /// full, neutral_and_relationship, relationship_only, neutral_only, insights_only or none.
        #[arg(long, value_name = "NAME")]
        scope: Option<String>,
        /// Most of them.
        #[arg(long, value_name = "NUMBER", default_value_t = 6)]
        limit: u32,
    },
    /// Remember a fact.
    Add {
        /// The fact, in one sentence.
        text: String,
        #[command(flatten)]
        place: PlaceArguments,
        /// Between you and the persona, instead of known to all of them.
        #[arg(long)]
        relationship: bool,
    },
    /// Change a memory's text.
    Edit {
        /// The memory.
        id: String,
        /// The new text.
        text: String,
        /// Keep the old text as history.
        #[arg(long)]
        keep_old: bool,
    },
    /// Delete memories for good.
    Forget {
        /// The memories.
        #[arg(required_unless_present = "everything")]
        ids: Vec<String>,
        /// All of the account's, with their keys.
        #[arg(long, conflicts_with = "ids")]
        everything: bool,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
    /// Write all memories to a file, in the clear and signed.
    Export {
        /// The file (made with mode 0600); `-` is standard output.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        place: PlaceArguments,
    },
    /// Take in an export.
    Import {
        /// The file.
        file: PathBuf,
    },
    /// Show what waits for your consent, or decide.
    Consent {
        /// Keep this one; may be repeated.
        #[arg(long, value_name = "ID")]
        grant: Vec<String>,
        /// Delete this one; may be repeated.
        #[arg(long, value_name = "ID")]
        deny: Vec<String>,
    },
    /// Show what has been learned about you.
    Profile {
        #[command(flatten)]
        place: PlaceArguments,
    },
    /// Show, or decide, how memory is made of what you say.
    #[command(after_help = SETTINGS_EXAMPLES)]
    Settings {
        /// Whether nodes of strangers may read exchanges, to find out what to keep of them.
        #[arg(long, value_name = "on|off", value_enum)]
        extract_through_nodes: Option<Switch>,
    },
    /// List the projects.
    Projects,
    /// List the sessions that memory knows.
    Sessions,
}

const SETTINGS_EXAMPLES: &str = "\
Examples:
  baton memory settings --relayer-url https://relayer.example
  baton memory settings --extract-through-nodes on       nodes read the words of exchanges, and not whose they are
  baton memory settings --extract-through-nodes off      from the next exchange on";

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}
