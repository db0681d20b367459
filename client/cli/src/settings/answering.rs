//! The nodes that may answer, which are announced before a message.

use std::path::PathBuf;

use super::Settings;

/// File in the home folder that notes which nodes were announced before a message.
const ANNOUNCEMENT_MARK: &str = "local-network.noted";

/// The nodes that may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnsweringNodes {
    /// Any of the local network, because none is named.
    LocalNetwork,
    /// This many named ones.
    Named(usize),
    /// The named ones, and others that they introduce.
    Introduced,
}

impl AnsweringNodes {
    /// The kind in the file that notes the announcement; named nodes are no news after the first conversation.
    pub(crate) fn kind(self) -> Option<&'static str> {
        match self {
            Self::LocalNetwork => Some(""),
            Self::Named(_) => None,
            Self::Introduced => Some("introduced"),
        }
    }
}

impl Settings {
    /// The nodes that may answer.
    pub(crate) fn answering_nodes(&self) -> AnsweringNodes {
        match self.nodes.len() {
            0 => AnsweringNodes::LocalNetwork,
            _ if self.discover => AnsweringNodes::Introduced,
            nodes => AnsweringNodes::Named(nodes),
        }
    }

    /// The file that notes which nodes were announced.
    pub(crate) fn announcement_mark(&self) -> PathBuf {
        self.home.join(ANNOUNCEMENT_MARK)
    }

    /// Whether the home has a conversation.
    pub(crate) fn has_conversations(&self) -> bool {
        std::fs::read_dir(self.home.join("sessions")).is_ok_and(|mut files| files.next().is_some())
    }
}
