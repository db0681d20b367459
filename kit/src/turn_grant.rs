//! The options of a grant of turns. Its issuer begins with defaults, and a holder with the grant that is narrowed.

use baton_proto::{
    ids::{ModelId, NodeId, PublicKey},
    right::{Right, RightScope},
};
use clap::Args;

const HOUR_MS: u64 = 3_600_000;

/// A grant of turns as the command line describes it.
#[derive(Args, Clone, Debug)]
pub struct TurnGrant {
    /// Public key of the user, as their `baton grants` shows it
    #[arg(long, value_name = "KEY")]
    pub holder: PublicKey,
    /// Turns an hour at each node
    #[arg(long, value_name = "NUMBER")]
    turns: Option<u32>,
    /// Tokens an hour at each node; 16 tokens that are read count as one
    #[arg(long, value_name = "NUMBER")]
    tokens: Option<u64>,
    /// Concurrent turns at each node
    #[arg(long, value_name = "NUMBER")]
    concurrent: Option<u16>,
    /// Validity in hours from now
    #[arg(long, value_name = "NUMBER")]
    hours: Option<u64>,
    /// How many times the grant may be narrowed for others, 0 to 3
    #[arg(long, value_name = "NUMBER")]
    depth: Option<u8>,
    /// Node where the grant counts; may be repeated
    #[arg(long, value_name = "ID")]
    node_id: Vec<NodeId>,
    /// Model that the grant covers; may be repeated
    #[arg(long, value_name = "ID")]
    model_id: Vec<ModelId>,
}

impl TurnGrant {
    /// Writes the given values into a right; its others stay.
    pub fn fill(&self, right: &mut Right, now_ms: u64) {
        right.holder = self.holder;
        if let Some(hours) = self.hours {
            right.until_ms = now_ms.saturating_add(hours.saturating_mul(HOUR_MS));
        }
        if !self.node_id.is_empty() {
            right.places = self.node_id.iter().map(NodeId::public_key).collect();
        }
        if let RightScope::Turns(quota) = &mut right.scope {
            quota.turns_per_hour = self.turns.unwrap_or(quota.turns_per_hour);
            quota.tokens_per_hour = self.tokens.unwrap_or(quota.tokens_per_hour);
            quota.concurrent = self.concurrent.unwrap_or(quota.concurrent);
            if !self.model_id.is_empty() {
                quota.models.clone_from(&self.model_id);
            }
        }
        right.depth = self.depth.unwrap_or(right.depth);
    }
}
