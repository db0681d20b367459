//! The nodes that may answer, which are announced before a message until one has answered.

use std::path::PathBuf;

use baton_keys::files::replace_private;

use crate::{out::Out, settings::Settings};

/// File in the home folder that notes which nodes were announced before a message.
const MARK: &str = "local-network.noted";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnsweringNodes {
    LocalNetwork,
    Named(usize),
    /// The named ones, and others that they introduce.
    Introduced,
}

impl AnsweringNodes {
    /// The kind in the file of the mark; named nodes are no news after the first conversation.
    fn kind(self) -> Option<&'static str> {
        match self {
            Self::LocalNetwork => Some(""),
            Self::Named(_) => None,
            Self::Introduced => Some("introduced"),
        }
    }
}

/// The announcement of the nodes that may answer.
#[derive(Debug, Clone)]
pub(crate) struct NodesAnnouncement {
    nodes: AnsweringNodes,
    mark: PathBuf,
    /// Whether the home had a conversation at the start.
    has_conversations: bool,
}

impl NodesAnnouncement {
    /// Of the nodes that the settings name.
    pub(crate) fn of(settings: &Settings) -> Self {
        let nodes = match settings.named_nodes() {
            0 => AnsweringNodes::LocalNetwork,
            _ if settings.options.discover() => AnsweringNodes::Introduced,
            nodes => AnsweringNodes::Named(nodes),
        };
        let sessions = std::fs::read_dir(settings.home().join("sessions"));
        Self {
            nodes,
            mark: settings.home().join(MARK),
            has_conversations: sessions.is_ok_and(|mut files| files.next().is_some()),
        }
    }

    /// Says which nodes may answer, until one has.
    pub(crate) fn announce(&self, out: &Out) {
        if self.is_heeded() {
            return;
        }
        match self.nodes {
            AnsweringNodes::LocalNetwork => {
                out.warn(
                    "No node is named, so nodes of the local network answer. They read what you send them.",
                );
                out.note(
                    "  Name others with --node, or in the settings file. This is said until a node has answered.",
                );
            }
            AnsweringNodes::Named(1) => out.note("Your named node answers, and no other."),
            AnsweringNodes::Named(nodes) => {
                out.note(&format!("Your {nodes} named nodes answer, and no others."))
            }
            AnsweringNodes::Introduced => {
                out.warn("Nodes that your named nodes introduce may answer. They read what you send them.");
                out.note(
                    "  Keep to the named ones with --discover=false. This is said until a node has answered.",
                );
            }
        }
    }

    /// Notes that a node answered after the announcement.
    pub(crate) fn note_answer(&self) {
        if let Some(kind) = self.nodes.kind().filter(|_| !self.is_heeded()) {
            // Without the mark it is said again.
            let _ = replace_private(&self.mark, kind.as_bytes());
        }
    }

    /// Whether these nodes were announced, and one has answered since.
    fn is_heeded(&self) -> bool {
        let noted = || std::fs::read_to_string(&self.mark).ok();
        self.nodes.kind().map_or(self.has_conversations, |kind| noted().is_some_and(|noted| noted == kind))
    }
}
