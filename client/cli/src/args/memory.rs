//! `baton memory`.

use std::path::PathBuf;

use clap::{
    Args, Subcommand,
    builder::{BoolishValueParser, PossibleValuesParser},
};

/// The context in memory.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct ContextArguments {
    /// Project [default: the shared pool of no project].
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// Session.
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
    /// Persona.
    #[arg(long, value_name = "NAME")]
    pub persona: Option<String>,
}

/// Arguments of `baton memory`.
#[derive(Debug, Args)]
#[command(after_help = SETTINGS_EXAMPLES)]
pub(crate) struct MemoryCommands {
    /// The memory command [default: show the settings, the projects and the sessions].
    #[command(subcommand)]
    pub command: Option<MemoryCommand>,
    /// Allow nodes of unknown operators to read exchanges, to select memories from them.
    #[arg(long, value_name = "on|off", value_parser = BoolishValueParser::new())]
    pub extract_through_nodes: Option<bool>,
}

/// The commands for memories. ID is an id from `baton memory list`, or its beginning.
#[derive(Debug, Subcommand)]
pub(crate) enum MemoryCommand {
    /// List memories, newest first.
    #[command(alias = "ls")]
    List {
        /// Only memories with all these words.
        words: Vec<String>,
        #[command(flatten)]
        context: ContextArguments,
        /// Include all projects and sessions, and show which project a memory is of.
        #[arg(long)]
        all: bool,
        /// Only memories of this kind.
        #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS))]
        kind: Option<String>,
        /// Maximum number of memories.
        #[arg(long, value_name = "NUMBER", default_value_t = 50)]
        limit: u32,
    },
    /// Search memories as a turn would, and show scores; without a text, show your profile, which each turn gets.
    Search {
        /// Search text.
        query: Option<String>,
        #[command(flatten)]
        context: ContextArguments,
        /// Maximum number of memories.
        #[arg(long, value_name = "NUMBER", default_value_t = 6)]
        limit: u32,
    },
    /// Add a fact.
    Add {
        /// Fact, in one sentence.
        text: String,
        #[command(flatten)]
        context: ContextArguments,
        /// Keep the fact between you and the persona, instead of sharing it with all personas.
        #[arg(long)]
        relationship: bool,
    },
    /// Change a memory's text.
    Edit {
        /// Id of the memory, or its beginning.
        id: String,
        /// New text.
        text: String,
        /// Keep the old text as history.
        #[arg(long)]
        keep_old: bool,
        /// Treatment of other holders of the old words: delete none, your own messages, or all [default: own].
        #[arg(long, value_name = "none|own|all", value_parser = PossibleValuesParser::new(OTHERS), conflicts_with = "keep_old")]
        others: Option<String>,
    },
    /// Delete memories permanently.
    #[command(alias = "forget", after_help = DELETE_EXAMPLES)]
    Delete(DeleteArguments),
    /// Export all memories to a file, signed but not encrypted.
    Export {
        /// Output file (created with mode 0600); `-` is standard output.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        context: ContextArguments,
    },
    /// Import memories from an export.
    Import {
        /// Exported file.
        file: PathBuf,
    },
    /// Keep memories that wait for your consent, or list them; baton memory delete denies it.
    Consent {
        /// Ids of the memories to keep, or their beginnings.
        ids: Vec<String>,
    },
    /// Redeem an invitation of the relayer's operator, so that the relayer serves this account.
    Redeem {
        /// Invitation, a line that begins with baton-right-1:
        invitation: String,
    },
    /// Serve memory's tools to an agent on this machine, over standard input and output (Model Context Protocol).
    ///
    /// An agent's configuration names the command `baton memory mcp --relayer https://relayer.example`.
    Mcp,
}

const SETTINGS_EXAMPLES: &str = "\
Examples:
  baton memory --relayer https://relayer.example     settings, projects and sessions
  baton memory list --all
  baton memory search \"what may I eat?\"
  baton memory --extract-through-nodes on            nodes read the words of exchanges, and not whose they are
  baton memory --extract-through-nodes off           from the next exchange on";

const DELETE_EXAMPLES: &str = "\
Your own messages that say a memory go with it. An answer of the assistant that says it stays, and is named with its id.

Examples:
  baton memory delete 3f0a1b2c                  delete a memory, and your own messages that say it
  baton memory delete 3f0a1b2c --others all     delete the answers and other memories that hold its words, too
  baton memory delete 3f0a1b2c --others none    leave all of them
  baton memory delete --project anna            delete all memories of a project, after a question
  baton memory delete --kind episode --yes      delete the messages outside of projects, and keep the facts";

/// Kinds of memories: messages word for word, facts, the things that facts name, and summaries of older messages.
const KINDS: [&str; 4] = ["episode", "fact", "entity", "summary"];
/// Other holders of words that are deleted with them: none, your own messages, or all.
const OTHERS: [&str; 3] = ["none", "own", "all"];

/// Arguments of `baton memory delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArguments {
    /// Ids of the memories, or their beginnings.
    #[arg(required_unless_present_any = ["everything", "project", "kind"])]
    pub ids: Vec<String>,
    /// Delete all memories of this project.
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    pub project: Option<String>,
    /// Delete all memories of this kind: of the project, or else of the shared pool of no project.
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS), conflicts_with = "ids")]
    pub kind: Option<String>,
    /// Treatment of other holders of the words: delete none, your own messages, or all [default: own].
    #[arg(long, value_name = "none|own|all", value_parser = PossibleValuesParser::new(OTHERS), conflicts_with = "everything")]
    pub others: Option<String>,
    /// Delete all of the account's memories, with their keys.
    #[arg(long, conflicts_with_all = ["ids", "project", "kind"])]
    pub everything: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
}
