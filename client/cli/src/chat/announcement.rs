//! The nodes that may answer, which are announced before the first message of a conversation.

use crate::{out::Out, settings::Settings};

/// The nodes that may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnsweringNodes {
    /// All that answer on the local network.
    LocalNetwork,
    /// This many named ones.
    Named(usize),
    /// The named ones, and others that they introduce.
    Introduced,
}

impl AnsweringNodes {
    /// Those of the settings.
    pub(crate) fn of(settings: &Settings) -> Self {
        match settings.options.node().len() {
            0 => Self::LocalNetwork,
            _ if settings.options.discover() => Self::Introduced,
            nodes => Self::Named(nodes),
        }
    }

    /// Says which nodes may answer.
    pub(crate) fn announce(self, out: &Out) {
        match self {
            Self::LocalNetwork => out.warn(
                "No node is named, so nodes of the local network answer, and read what you send. Name others: --node",
            ),
            Self::Named(1) => out.note("Your named node answers, and no other."),
            Self::Named(nodes) => out.note(&format!("Your {nodes} named nodes answer, and no others.")),
            Self::Introduced => out.warn(
                "Nodes that your named nodes introduce may answer, and read what you send. The named ones alone: \
                 --discover=false",
            ),
        }
    }
}
