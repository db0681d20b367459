//! The scenarios of trials. A trial draws its moments, numbers and kinds of damage from its seed alone. Their targets depend
//! on the running trial, such as the existing files and the length of a journal.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::draws::Draws;

/// A kind of trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// `kill -9` of client, node and store at random moments of turns
    Kills,
    /// `kill -9` of the relayer at random moments of additions to memory
    KillRelayer,
    /// Two devices write one session concurrently, and are killed meanwhile
    TwoDevices,
    /// The disk of client, node, store or relayer is full for a while
    FullDisk,
    /// A first start on a full disk, or with a kill, and then a second start
    FirstStart,
    /// A file of the client's home is flipped, cut, zeroed or emptied
    DamageClient,
    /// The same in the node's folder
    DamageNode,
    /// The same in the store's folder
    DamageStore,
    /// The same in the relayer's folder
    DamageRelayer,
    /// An older copy of the client's home is restored, and then a turn is sent
    OlderHome,
    /// The client's journal loses its end, and then a turn is sent
    CutJournal,
    /// The clock of client or node is wrong for a while
    WrongClock,
    /// The store loses blobs that it was paid for
    ForgetfulStore,
    /// Silent connections occupy store or relayer
    SilentPeers,
}

impl Scenario {
    /// Its name on the command line and in the report.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The programs of which a trial draws one. With the relayer, the trial is of memory in place of a conversation.
    pub(super) fn programs(self) -> &'static [Program] {
        use Program::{Client, Node, Relayer, Store};
        match self {
            Self::FullDisk => &[Client, Node, Store, Relayer],
            Self::FirstStart => &[Client, Node, Relayer],
            Self::WrongClock => &[Client, Node],
            Self::SilentPeers => &[Store, Relayer],
            Self::KillRelayer | Self::DamageRelayer => &[Relayer],
            Self::DamageNode => &[Node],
            Self::DamageStore | Self::ForgetfulStore => &[Store],
            Self::Kills | Self::TwoDevices | Self::DamageClient | Self::OlderHome | Self::CutJournal => {
                &[Client]
            }
        }
    }
}

/// The program that a fault targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Client,
    Node,
    Store,
    Relayer,
}

/// A kill during a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kill {
    pub(super) program: Program,
    /// Milliseconds from the turn's start.
    pub(super) after_ms: u64,
}

impl Kill {
    /// A kill of one of the programs, in two of three cases.
    pub(super) fn draw(draws: &mut Draws, programs: &[Program], latest_ms: u64) -> Option<Self> {
        let (program, after_ms) = (draws.one_of(programs)?, draws.below(latest_ms));
        (draws.below(3) > 0).then_some(Self { program, after_ms })
    }
}
