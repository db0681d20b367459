//! How long a client waits.

use std::time::Duration;

/// How long the client waits for nodes and stores.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For the first usable node to appear.
    pub discovery: Duration,
    /// For a substream to open, and for the reply to a short request.
    pub open: Duration,
    /// For a node to admit or refuse a turn, before it is asked whether it still works on it.
    pub admit: Duration,
    /// The most between two events of a reply before the node is asked whether it still works on the turn.
    pub idle: Duration,
    /// The least time for a first token, once the node has admitted the turn and its queue is empty. It is
    /// long enough for a node that fetches a history over a slow line. A long prompt, or a node known to
    /// begin later, gets more. A node that says that it still works on the turn is waited for, unless another
    /// is likely faster; see [`reply`](Self::reply) for the most.
    pub first_token: Duration,
    /// The least time without a token in the middle of an answer before another node is asked to continue it.
    /// A slow node has three times the interval of its latest tokens.
    pub stall: Duration,
    /// For a whole reply, including the wait in the node's queue; each requested token adds half a second.
    pub reply: Duration,
    /// For a node to embed a batch of texts, including the wait in its queue.
    pub embed: Duration,
    /// How long the author of a turn is alone responsible for storing it, before the client stores it too.
    pub author_stores: Duration,
    /// Between two checks for a blob that the store reports missing. The servers of a store may not all have
    /// it yet, and a second put is paid again.
    pub second_look: Duration,
    /// For a head index to answer; all are queried at once.
    pub heads: Duration,
    /// The most that a turn waits for a precautionary look at the head indexes, so that a silent index does not
    /// delay it.
    pub first_look: Duration,
    /// Delay before a failed store or publication is retried in the background; doubled up to five minutes
    /// while it fails.
    pub store_retry: Duration,
}

/// Time per allowed token, added to the limit of a whole reply: slower engines are useless.
const REPLY_PER_TOKEN: Duration = Duration::from_millis(500);

impl Timeouts {
    /// For the whole reply to a turn that allows this many tokens.
    pub(crate) fn reply_to(&self, max_output_tokens: u32) -> Duration {
        self.reply + REPLY_PER_TOKEN * max_output_tokens
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            discovery: Duration::from_secs(5),
            open: Duration::from_secs(10),
            admit: Duration::from_secs(60),
            idle: Duration::from_secs(180),
            first_token: Duration::from_secs(10),
            stall: Duration::from_secs(2),
            reply: Duration::from_secs(30 * 60),
            // A little more than a node's own limit.
            embed: Duration::from_secs(95),
            author_stores: Duration::from_millis(baton_proto::limits::AUTHOR_STORES_ALONE_MS),
            second_look: Duration::from_secs(3),
            heads: Duration::from_secs(5),
            first_look: Duration::from_secs(1),
            store_retry: Duration::from_secs(5),
        }
    }
}
