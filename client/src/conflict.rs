//! Two chains of one session whose merge waits for the owner's decision, and the limits of a merge without one.
//! Pure.

use std::fmt;

use baton_proto::ids::LinkHash;
use serde::{Deserialize, Serialize};

/// Most turns of other devices that a merge displaces without the owner's consent: about as many as a person
/// writes while an index is away.
pub const MAX_DISPLACED_UNASKED: u64 = 3;
/// Most turns that this device sends again without the owner's consent: each of them may cost money.
pub const MAX_REPLAYS_UNASKED: u64 = 16;

/// Two chains of one session whose owner decides which one stays. Until then this device displaces no turn, and
/// publishes nothing over the other chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainConflict {
    /// The first turn that differs.
    pub at: u64,
    /// Turns of the chain here from that one on.
    pub ours: u64,
    /// Turns of the other chain from that one on.
    pub theirs: u64,
    /// Turns of other devices that the fork rule alone would take out of the chain.
    pub displaced: u64,
    /// Most turns that this device sends again if it takes the other chain.
    pub replays: u64,
    /// Most that these turns cost, in millionths of the node's unit.
    pub highest_price: u64,
    /// The last links of both chains: a decision is about these.
    pub(crate) heads: ChainHeads,
}

/// The last links of two chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChainHeads {
    pub(crate) ours: LinkHash,
    pub(crate) theirs: LinkHash,
}

/// One of two chains of a session, as its owner names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainSide {
    /// The chain here. The other's turns leave it; they stay readable here.
    Ours,
    /// The chain in the head index. This device sends its displaced turns again after it.
    Theirs,
}

/// The turns that one of two chains loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DisplacedCount {
    /// Turns of other devices.
    pub(crate) of_others: u64,
    /// Among them: turns of devices without a lease.
    pub(crate) of_absent: u64,
    /// Turns that this device sends again.
    pub(crate) replays: u64,
}

impl DisplacedCount {
    /// Whether the loss needs the owner's consent.
    pub(crate) fn needs_consent(&self) -> bool {
        self.of_others > MAX_DISPLACED_UNASKED || self.of_absent > 0 || self.replays > MAX_REPLAYS_UNASKED
    }
}

impl fmt::Display for ChainConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |turns: u64| if turns == 1 { "1 turn".to_owned() } else { format!("{turns} turns") };
        write!(f, "diverged at turn {}: ", self.at + 1)?;
        if self.displaced > 0 {
            write!(f, "{} of another device would leave the chain", many(self.displaced))
        } else {
            let (turns, price) = (many(self.replays), self.highest_price);
            write!(f, "{turns} would be sent again, for at most {price} millionths of a node's unit")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_turns_of_a_present_device_are_displaced_unasked_and_no_others() {
        let few =
            DisplacedCount { of_others: MAX_DISPLACED_UNASKED, of_absent: 0, replays: MAX_REPLAYS_UNASKED };
        assert!(!few.needs_consent());
        assert!(DisplacedCount { of_others: MAX_DISPLACED_UNASKED + 1, ..few }.needs_consent());
        assert!(DisplacedCount { of_others: 1, of_absent: 1, replays: 0 }.needs_consent());
        assert!(DisplacedCount { replays: MAX_REPLAYS_UNASKED + 1, ..few }.needs_consent());
    }

    #[test]
    fn a_conflict_says_what_would_leave_the_chain_or_what_would_be_paid() {
        let heads = ChainHeads { ours: LinkHash([1; 32]), theirs: LinkHash([2; 32]) };
        let displaces = ChainConflict {
            at: 5,
            ours: 1,
            theirs: 194,
            displaced: 194,
            replays: 1,
            highest_price: 7,
            heads,
        };
        let text = "diverged at turn 6: 194 turns of another device would leave the chain";
        assert_eq!(displaces.to_string(), text);
        let replays = ChainConflict { displaced: 0, replays: 20, ..displaces };
        let text =
            "diverged at turn 6: 20 turns would be sent again, for at most 7 millionths of a node's unit";
        assert_eq!(replays.to_string(), text);
    }
}
