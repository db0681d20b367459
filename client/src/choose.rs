//! Which node serves the next attempt: a pure function of verified node records, of what happened lately, and of
//! one random number. It does no I/O and reads no clock.

use baton_proto::{
    ids::{ExchangeKey, ModelId, NodeId},
    limits::{MAX_OUTPUT_TOKENS, VERSION},
    node_record::{ModelOffer, NodeRecord},
    receipt::EngineKind,
};

/// A node that could be asked.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its verified record.
    pub record: &'a NodeRecord,
    /// Until when it is avoided because it failed lately, in milliseconds since the Unix epoch; 0 is not at all.
    pub avoid_until_ms: u64,
    /// Turns of this client that it serves now.
    pub in_flight: u32,
}

/// What a turn asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish<'a> {
    /// Name or hex id of the model, or any.
    pub model: Option<&'a str>,
    /// This node and no other.
    pub node: Option<NodeId>,
    /// Whether test engines that only repeat the message may serve.
    pub allow_echo: bool,
    /// Model of the turn before, preferred where the wish names none.
    pub last_model: Option<ModelId>,
    /// Most tokens of the answer that are wanted.
    pub output_tokens: u32,
    /// Most that the turn may cost, in millionths of the node's unit; none is no limit.
    pub max_price: Option<u64>,
    /// Nodes that already failed in this turn: asked again only when there is no other.
    pub tried: &'a [NodeId],
    /// Now, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// The node chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The node.
    pub node: NodeId,
    /// The model it is asked for.
    pub offer: ModelOffer,
    /// The exchange key to seal to.
    pub key: ExchangeKey,
    /// Most tokens that the node gives in one answer.
    pub max_output_tokens: u32,
}

/// Why no node can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// None is known.
    #[error("no node was found")]
    NoNodes,
    /// The one asked for is not among those known.
    #[error("node {0} was not found")]
    NodeUnknown(NodeId),
    /// Nodes are known, but none has a current record of a version spoken here.
    #[error("no known node has a current record")]
    NoneCurrent,
    /// Nobody serves the model.
    #[error("no node serves the model {wanted}; served are: {served}")]
    ModelUnavailable {
        /// What was asked for.
        wanted: String,
        /// Names of what is served.
        served: String,
    },
    /// Only test engines are there.
    #[error("only echo engines were found, and they are not asked unless allowed")]
    OnlyEcho,
    /// Everybody asks for more than the client pays.
    #[error(
        "the cheapest turn may cost {cheapest} millionths of the node's unit; at most {max_price} are allowed"
    )]
    TooExpensive {
        /// The lowest price that a turn with a full context could come to.
        cheapest: u64,
        /// The client's limit.
        max_price: u64,
    },
}

impl NoChoice {
    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoNodes => {
                "give one with --node /ip4/ADDRESS/tcp/PORT/p2p/ID, or start one on this network: baton-node run"
            }
            Self::NodeUnknown(_) => "give its address with --node, or see who is there: baton nodes",
            Self::NoneCurrent => "check this machine's clock, and that the nodes run",
            Self::ModelUnavailable { .. } => "see what is served: baton nodes",
            Self::OnlyEcho => "for a test, allow them with --allow-echo",
            Self::TooExpensive { .. } => {
                "ask for fewer tokens with --max-tokens, or allow more with --max-price"
            }
        }
    }
}

/// How good an offer is; lower is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    tried: bool,
    avoided_until: u64,
    engine: u8,
    other_model: bool,
}

/// Chooses a node; among equally good ones at random, in proportion to their free slots. `random` must be
/// uniformly distributed.
///
/// # Errors
/// [`NoChoice`], naming the first condition that nobody meets.
pub fn choose(candidates: &[Candidate<'_>], wish: &Wish<'_>, random: u64) -> Result<Choice, NoChoice> {
    if candidates.is_empty() {
        return Err(wish.node.map_or(NoChoice::NoNodes, NoChoice::NodeUnknown));
    }
    let wanted = |candidate: &&Candidate<'_>| wish.node.is_none_or(|node| node == candidate.record.node);
    let named: Vec<_> = candidates.iter().filter(wanted).collect();
    if named.is_empty() {
        return Err(wish.node.map_or(NoChoice::NoNodes, NoChoice::NodeUnknown));
    }
    let current: Vec<_> = named
        .into_iter()
        .filter(|candidate| candidate.record.versions.contains(&VERSION))
        .filter_map(|candidate| Some((candidate, candidate.record.current_key(wish.now_ms).ok()?)))
        .collect();
    if current.is_empty() {
        return Err(NoChoice::NoneCurrent);
    }
    let offers: Vec<_> = current
        .iter()
        .flat_map(|(candidate, key)| {
            candidate.record.models.iter().map(move |offer| (*candidate, *key, offer))
        })
        .collect();
    let fitting: Vec<_> = offers.iter().filter(|(_, _, offer)| is_wanted(offer, wish.model)).collect();
    let allowed: Vec<_> =
        fitting.iter().filter(|(_, _, offer)| wish.allow_echo || offer.engine != EngineKind::Echo).collect();
    let Some(cheapest) = allowed.iter().map(|(candidate, _, offer)| price(candidate, offer, wish)).min()
    else {
        return Err(nothing_fits(
            fitting.is_empty(),
            &offers.iter().map(|(_, _, o)| *o).collect::<Vec<_>>(),
            wish,
        ));
    };
    let affordable: Vec<_> = allowed
        .into_iter()
        .filter(|(candidate, _, offer)| price(candidate, offer, wish) <= wish.max_price.unwrap_or(u64::MAX))
        .map(|(candidate, key, offer)| (rank(candidate, offer, wish), *candidate, *key, *offer))
        .collect();
    let Some(best) = affordable.iter().map(|(rank, ..)| *rank).min() else {
        return Err(NoChoice::TooExpensive { cheapest, max_price: wish.max_price.unwrap_or(u64::MAX) });
    };
    let equals: Vec<_> = affordable.iter().filter(|(rank, ..)| *rank == best).collect();
    let weight = |candidate: &Candidate<'_>| {
        u64::from(candidate.record.limits.slots.clamp(1, 1024)) * 1024
            / u64::from(candidate.in_flight.saturating_add(1))
    };
    let total: u64 = equals.iter().map(|(_, candidate, ..)| weight(candidate).max(1)).sum();
    let mut point = random % total.max(1);
    for (_, candidate, key, offer) in &equals {
        let share = weight(candidate).max(1);
        if point < share {
            return Ok(Choice {
                node: candidate.record.node,
                offer: (*offer).clone(),
                key: *key,
                max_output_tokens: candidate.record.limits.max_output_tokens,
            });
        }
        point -= share;
    }
    Err(NoChoice::NoNodes)
}

/// Tokens of an answer at a node that allows so many; 0 says nothing.
pub(crate) fn output_cap(wanted: u32, allowed: u32) -> u32 {
    let allowed = if allowed == 0 { MAX_OUTPUT_TOKENS } else { allowed };
    wanted.min(allowed).min(MAX_OUTPUT_TOKENS)
}

/// The most that a turn can cost at the offered prices: a full context and a full answer.
pub(crate) fn highest_price(offer: &ModelOffer, output_tokens: u32) -> u64 {
    let input = u64::from(offer.context_tokens).saturating_mul(offer.input_price);
    let output = u64::from(output_tokens).saturating_mul(offer.output_price);
    input.saturating_add(output).div_ceil(1000)
}

fn price(candidate: &Candidate<'_>, offer: &ModelOffer, wish: &Wish<'_>) -> u64 {
    highest_price(offer, output_cap(wish.output_tokens, candidate.record.limits.max_output_tokens))
}

fn is_wanted(offer: &ModelOffer, model: Option<&str>) -> bool {
    model.is_none_or(|model| offer.name == model || offer.model.to_string() == model)
}

fn rank(candidate: &Candidate<'_>, offer: &ModelOffer, wish: &Wish<'_>) -> Rank {
    let avoided = candidate.avoid_until_ms > wish.now_ms;
    Rank {
        tried: wish.tried.contains(&candidate.record.node),
        avoided_until: if avoided { candidate.avoid_until_ms } else { 0 },
        engine: match offer.engine {
            EngineKind::Native => 0,
            EngineKind::Proxied => 1,
            EngineKind::Echo => 2,
        },
        other_model: wish.model.is_none() && wish.last_model.is_some_and(|last| last != offer.model),
    }
}

fn nothing_fits(none_named: bool, offers: &[&ModelOffer], wish: &Wish<'_>) -> NoChoice {
    match wish.model {
        Some(wanted) if none_named => {
            let mut served: Vec<&str> = offers.iter().map(|offer| offer.name.as_str()).collect();
            served.sort_unstable();
            served.dedup();
            let served = if served.is_empty() { "none".to_owned() } else { served.join(", ") };
            NoChoice::ModelUnavailable { wanted: wanted.to_owned(), served }
        }
        _ if offers.is_empty() => {
            NoChoice::ModelUnavailable { wanted: "any".to_owned(), served: "none".to_owned() }
        }
        _ => NoChoice::OnlyEcho,
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::node_record::{KeyWindow, NodeLimits};

    use super::*;

    const NOW: u64 = 1_000_000;

    fn offer(name: &str, engine: EngineKind) -> ModelOffer {
        let model = ModelId([u8::try_from(name.len()).unwrap(); 32]);
        ModelOffer {
            model,
            name: name.to_owned(),
            engine,
            context_tokens: 2048,
            input_price: 0,
            output_price: 0,
        }
    }

    fn record(id: u8, offers: &[(&str, EngineKind)]) -> NodeRecord {
        NodeRecord {
            version: 1,
            node: NodeId([id; 32]),
            sequence: 1,
            addresses: Vec::new(),
            keys: vec![KeyWindow { key: ExchangeKey([id; 32]), from_ms: 0, until_ms: NOW + 1000 }],
            models: offers.iter().map(|(name, engine)| offer(name, *engine)).collect(),
            limits: NodeLimits { slots: 2, queue: 2, turns_per_minute: 60, max_output_tokens: 512 },
            versions: vec![1],
            software: "test".to_owned(),
            issued_ms: 0,
            expires_ms: NOW + 1000,
        }
    }

    fn candidate(record: &NodeRecord) -> Candidate<'_> {
        Candidate { record, avoid_until_ms: 0, in_flight: 0 }
    }

    fn wish() -> Wish<'static> {
        Wish { now_ms: NOW, ..Wish::default() }
    }

    /// Nodes chosen over many random numbers.
    fn chosen(candidates: &[Candidate<'_>], wish: &Wish<'_>) -> Vec<u8> {
        let step = u64::MAX / 97;
        let mut nodes: Vec<u8> =
            (0..97).map(|index| choose(candidates, wish, index * step).unwrap().node.0[0]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    #[test]
    fn refuses_by_the_first_condition_nobody_meets() {
        let native = record(1, &[("small", EngineKind::Native)]);
        let echo = record(2, &[("echo", EngineKind::Echo)]);
        let mut stale = record(3, &[("small", EngineKind::Native)]);
        stale.expires_ms = NOW - 1;
        let mut future = record(4, &[("small", EngineKind::Native)]);
        future.versions = vec![9];
        let elsewhere = NodeId([9; 32]);
        let cases: Vec<(Vec<&NodeRecord>, Wish<'_>, NoChoice)> = vec![
            (vec![], wish(), NoChoice::NoNodes),
            (vec![], Wish { node: Some(elsewhere), ..wish() }, NoChoice::NodeUnknown(elsewhere)),
            (vec![&native], Wish { node: Some(elsewhere), ..wish() }, NoChoice::NodeUnknown(elsewhere)),
            (vec![&stale], wish(), NoChoice::NoneCurrent),
            (vec![&future], wish(), NoChoice::NoneCurrent),
            (vec![&echo], wish(), NoChoice::OnlyEcho),
            (vec![&echo], Wish { model: Some("echo"), ..wish() }, NoChoice::OnlyEcho),
            (
                vec![&native, &echo],
                Wish { model: Some("large"), ..wish() },
                NoChoice::ModelUnavailable { wanted: "large".to_owned(), served: "echo, small".to_owned() },
            ),
        ];
        for (records, wish, expected) in cases {
            let candidates: Vec<_> = records.iter().map(|record| candidate(record)).collect();
            assert_eq!(choose(&candidates, &wish, 7), Err(expected));
        }
    }

    #[test]
    fn prefers_native_then_the_last_model_and_spreads_over_equals() {
        let (first, second) =
            (record(1, &[("small", EngineKind::Native)]), record(2, &[("small", EngineKind::Native)]));
        let large = record(3, &[("larger", EngineKind::Native)]);
        let proxied = record(4, &[("small", EngineKind::Proxied)]);
        let echo = record(5, &[("small", EngineKind::Echo)]);
        let all = [&first, &second, &large, &proxied, &echo].map(candidate);
        assert_eq!(chosen(&all, &wish()), [1, 2, 3]);
        let last_model = Some(ModelId([6; 32]));
        assert_eq!(chosen(&all, &Wish { last_model, ..wish() }), [3]);
        assert_eq!(chosen(&all, &Wish { last_model, model: Some("small"), ..wish() }), [1, 2]);
        assert_eq!(chosen(&all[3..], &wish()), [4]);
        assert_eq!(chosen(&all[4..], &Wish { allow_echo: true, ..wish() }), [5]);
        assert_eq!(chosen(&all, &Wish { allow_echo: true, node: Some(NodeId([5; 32])), ..wish() }), [5]);
    }

    #[test]
    fn asks_no_node_that_may_cost_more_than_is_paid() {
        let mut dear = record(1, &[("small", EngineKind::Native)]);
        // A context of 2048 tokens and 100 tokens of answer.
        (dear.models[0].input_price, dear.models[0].output_price) = (1000, 10_000);
        let free = record(2, &[("small", EngineKind::Native)]);
        let both = [candidate(&dear), candidate(&free)];
        let limited = |max_price| Wish { output_tokens: 100, max_price: Some(max_price), ..wish() };
        assert_eq!(chosen(&both, &limited(3048)), [1, 2]);
        assert_eq!(chosen(&both, &limited(3047)), [2]);
        assert_eq!(chosen(&both, &limited(0)), [2]);
        assert_eq!(chosen(&both[..1], &wish()), [1], "without a limit");
        let refused = choose(&both[..1], &limited(3047), 7).unwrap_err();
        assert_eq!(refused, NoChoice::TooExpensive { cheapest: 3048, max_price: 3047 });
        assert!(refused.to_string().contains("3047"), "{refused}");
    }

    #[test]
    fn asks_failed_nodes_only_when_there_is_no_other() {
        let (first, second) =
            (record(1, &[("small", EngineKind::Native)]), record(2, &[("small", EngineKind::Native)]));
        let avoided = Candidate { avoid_until_ms: NOW + 5, ..candidate(&first) };
        let longer = Candidate { avoid_until_ms: NOW + 9, ..candidate(&second) };
        assert_eq!(chosen(&[avoided, candidate(&second)], &wish()), [2]);
        assert_eq!(chosen(&[avoided, longer], &wish()), [1], "the one that is free again soonest");
        let over = Candidate { avoid_until_ms: NOW, ..candidate(&first) };
        assert_eq!(chosen(&[over, candidate(&second)], &wish()), [1, 2]);
        let tried = [NodeId([1; 32])];
        let wish = Wish { tried: &tried, ..wish() };
        assert_eq!(chosen(&[candidate(&first), longer], &wish), [2]);
        assert_eq!(chosen(&[candidate(&first)], &wish), [1]);
    }

    #[test]
    fn load_follows_free_slots() {
        let (first, second) =
            (record(1, &[("small", EngineKind::Native)]), record(2, &[("small", EngineKind::Native)]));
        let busy = Candidate { in_flight: 9, ..candidate(&first) };
        let both = [busy, candidate(&second)];
        let total = 1100;
        let first_count = (0..total)
            .filter(|index| choose(&both, &wish(), *index * 2).unwrap().node == NodeId([1; 32]))
            .count();
        assert!(first_count > 0 && first_count < 300, "{first_count} of {total}");
    }
}
