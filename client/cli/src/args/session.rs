//! The command line of `baton session`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{AnsweringArguments, ChatArguments, WHOLE};

/// Arguments of `baton session rekey`.
#[derive(Debug, Args)]
pub(crate) struct RekeyArguments {
    /// Session id, a prefix of it, or `last`.
    pub session: String,
    /// First message of the new session; `-` reads it from standard input [default: asked for at a terminal].
    pub text: Option<String>,
    #[command(flatten)]
    pub answering: AnsweringArguments,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
}

impl RekeyArguments {
    /// The chat that begins the new session.
    pub(crate) fn chat(&self) -> ChatArguments {
        ChatArguments {
            session: Some(self.session.clone()),
            branch: Some(WHOLE.to_owned()),
            answering: self.answering.clone(),
            ..ChatArguments::default()
        }
    }
}

/// One turn, counted from 1, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TurnChoice(pub Option<u64>);

fn turn_choice(text: &str) -> Result<TurnChoice, String> {
    match text.parse() {
        _ if text == "all" => Ok(TurnChoice(None)),
        Ok(number) if number > 0 => Ok(TurnChoice(Some(number))),
        _ => Err("the number of a turn, from 1 on, or all".to_owned()),
    }
}

/// The commands for sessions. SESSION is an id, a prefix of one, or `last`.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List the sessions of this home, or those that have all these words in their title or messages.
    #[command(aliases = ["ls", "search"])]
    List {
        /// The words, in any case.
        words: Vec<String>,
    },
    /// Show a conversation: each turn with its node, each blob with the end of its storage.
    Show {
        /// Session id, a prefix of it, or `last`.
        session: String,
        /// Show also the turns that an edit replaced.
        // Scripts of before know it as --graph.
        #[arg(long, alias = "graph")]
        all: bool,
    },
    /// Give a session a title, which only this device shows.
    Rename {
        /// Session id, a prefix of it, or `last`.
        session: String,
        /// The title [default: the beginning of the first message].
        title: Option<String>,
    },
    /// Verify every link, signature, record and blob, and their presence in the store.
    Verify {
        /// Session id, a prefix of it, or `last`; omit it with --file.
        #[arg(required_unless_present = "file")]
        session: Option<String>,
        /// Check the Walrus ID of every blob, not only of closed segments.
        #[arg(long)]
        full: bool,
        /// Restore missing or wrong blobs in the store from this machine's copy, and verify again.
        #[arg(long, conflicts_with = "file")]
        fix: bool,
        /// Exported file to verify instead, offline.
        #[arg(long, value_name = "FILE", conflicts_with = "session")]
        file: Option<PathBuf>,
    },
    /// Export a session to a file that anyone can verify. The file is as secret as the conversation.
    Export {
        /// Session id, a prefix of it, or `last`.
        session: String,
        /// Output file (created with mode 0600); `-` is standard output.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Include the root, to allow importing and continuing the session.
        #[arg(long)]
        with_root: bool,
        /// Export the memory that a relayer added to this turn, or to all, for `baton-node replay`, instead of the
        /// session, which does not contain it.
        #[arg(long, value_name = "TURN|all", conflicts_with = "with_root", value_parser = turn_choice)]
        memory: Option<TurnChoice>,
    },
    /// Import a session from an export with its root.
    Import {
        /// Exported file.
        file: PathBuf,
    },
    /// Renew blobs that expire soon; nothing else renews an idle session.
    ///
    /// Sessions in use renew themselves. Each renewal is a new PUT, which the publisher may charge for.
    /// Without a session, the command checks all sessions, as for a daily job.
    Renew {
        /// Session id, a prefix of it, or `last` [default: all sessions].
        session: Option<String>,
        /// Also renew blobs that may expire within this many days [default: less than one epoch].
        #[arg(long, value_name = "NUMBER")]
        within_days: Option<u32>,
    },
    /// Merge turns that are not here, publish the head, and show the head of each index.
    ///
    /// The turns are another device's, or this device's own if its home is an older copy or its journal lost
    /// its end. Where two devices wrote the same turn, one stays in the conversation and the other becomes a branch.
    Sync {
        /// Session id, a prefix of it, or `last`.
        session: String,
        /// Publish this device's head even if the other's turns cannot be read, as when their blobs are lost
        /// for good.
        #[arg(long)]
        over: bool,
    },
    /// Delete sessions for all devices: their 24 words open them no more.
    ///
    /// The files of this device are removed, and the head index marks the sessions as deleted.
    #[command(alias = "rm")]
    Delete {
        /// Session ids, prefixes of them, or `last`.
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
        /// Do not ask for confirmation.
        #[arg(long)]
        yes: bool,
    },
    /// Move a session to new keys, after a device or its 24 words were lost: a new session goes on, the old one is
    /// deleted.
    ///
    /// The first message of the new session repeats the conversation to a node. Once its answer is stored, the
    /// old session is deleted for all devices. Whoever has the old keys reads the old turns while the store
    /// keeps them, and nothing of the new session.
    Rekey(RekeyArguments),
    /// Show a session's 24 recovery words, or write them to a file.
    Backup {
        /// Session id, a prefix of it, or `last`.
        session: String,
        /// Output file (created with mode 0600).
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Restore a session from the store, with its 24 recovery words.
    ///
    /// Without a file, a prompt asks for the words.
    Restore {
        /// Session of this home that is damaged, or that another device continued; needs no words.
        #[arg(conflicts_with = "words_file")]
        session: Option<String>,
        /// File with the recovery words.
        #[arg(long, value_name = "FILE")]
        words_file: Option<PathBuf>,
    },
}
