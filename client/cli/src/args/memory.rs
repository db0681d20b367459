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
        /// What becomes of whatever else holds the old words [default: own].
        #[arg(long, value_name = "none|own|all", value_enum, conflicts_with = "keep_old")]
        others: Option<Others>,
    },
    /// Delete memories for good.
    #[command(visible_alias = "delete", after_help = FORGET_EXAMPLES)]
    Forget {
        /// The memories.
        #[arg(required_unless_present = "everything")]
        ids: Vec<String>,
        /// What becomes of whatever else holds the words [default: own].
        #[arg(long, value_name = "none|own|all", value_enum, conflicts_with = "everything")]
        others: Option<Others>,
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
        /// What becomes of whatever else holds the denied words [default: own].
        #[arg(long, value_name = "none|own|all", value_enum, requires = "deny")]
        others: Option<Others>,
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

const FORGET_EXAMPLES: &str = "\
Your own messages that say a memory go with it. An answer of the assistant that says it stays, and is named with its id.

Examples:
  baton memory forget 3f0a1b2c                  delete a memory, and your own messages that say it
  baton memory forget 3f0a1b2c --others all     delete the answers and other memories that hold its words, too
  baton memory forget 3f0a1b2c --others none    leave all of them";

/// What becomes of whatever else holds the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Others {
    /// It stays, and is named.
    None,
    /// Your own messages that say it go.
    Own,
    /// All of it goes.
    All,
}

impl Others {
    /// Its name in a request.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Own => "own",
            Self::All => "all",
        }
    }
}

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}
