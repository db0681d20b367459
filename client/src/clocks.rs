//! Finds the wrong clock from others' times: those that nodes sign, those that they refuse, and the dates of
//! the stores' answers. Pure; the times are parameters.
//!
//! A node alone shows that two clocks differ, but not which is wrong. If a store agrees with this machine,
//! the node's clock is wrong. If a store, or several nodes, agree against this machine, its clock is wrong.

use baton_proto::{
    ErrorCode,
    ids::NodeId,
    limits::{MAX_AUTH_LIFETIME_MS, MAX_CLOCK_SKEW_MS},
    node_record::OutOfTime,
    store::StoreTime,
};

/// The wrong clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongClock {
    /// This machine's.
    Here,
    /// A node's.
    Node(NodeId),
    /// This machine's or this node's: there was no other clock to compare.
    HereOrNode(NodeId),
}

/// Two clocks that differ by more than the protocol allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockDifference {
    /// The wrong clock.
    pub wrong: WrongClock,
    /// Whether that clock is ahead; in doubt, whether this machine's is.
    pub ahead: bool,
    /// The difference in milliseconds.
    pub by_ms: u64,
    /// Whether the difference may be larger.
    pub at_least: bool,
    /// The owner of the clock it was compared with.
    pub compared: String,
}

impl ClockDifference {
    /// The next step for the user.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self.wrong {
            WrongClock::Here => {
                "check this machine's clock: switch on time synchronisation (such as timedatectl set-ntp true), then try again"
            }
            WrongClock::Node(_) => {
                "use another node with --node, or tell its operator: baton-node doctor shows it"
            }
            WrongClock::HereOrNode(_) => {
                "check this machine's clock first: switch on time synchronisation (such as timedatectl set-ntp true); if it is \
                 right, use another node"
            }
        }
    }
}

impl std::fmt::Display for ClockDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = format!("{} {}", if self.at_least { "at least" } else { "about" }, span(self.by_ms));
        let direction = if self.ahead { "ahead of" } else { "behind" };
        let compared = &self.compared;
        match self.wrong {
            WrongClock::Here => write!(f, "this machine's clock is {by} {direction} that of {compared}"),
            WrongClock::Node(node) => {
                write!(
                    f,
                    "the clock of node {node} is {by} {direction} this machine's, which agrees with that of {compared}"
                )
            }
            WrongClock::HereOrNode(node) => {
                write!(
                    f,
                    "this machine's clock is {by} {direction} that of node {node}, and no other could be compared"
                )
            }
        }
    }
}

/// A length of time, rounded down to the two largest units that matter.
fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, _, _) => format!("{days} d {hours} h"),
    }
}

/// A node's time that does not fit this machine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeTime {
    pub(crate) node: NodeId,
    /// How its own record, or its answer, is out of time here.
    pub(crate) out: OutOfTime,
}

impl NodeTime {
    /// The conclusion from a refusal of a freshly signed authorisation.
    pub(crate) fn of_refusal(node: NodeId, code: ErrorCode) -> Option<Self> {
        let out = match code {
            // It expired there, so the node's clock is later by its whole lifetime.
            ErrorCode::Expired => OutOfTime::NotBegun { by_ms: MAX_AUTH_LIFETIME_MS },
            ErrorCode::NotYetValid => OutOfTime::RanOut { by_ms: MAX_CLOCK_SKEW_MS },
            _ => return None,
        };
        Some(Self { node, out })
    }

    /// Whether this machine's clock is ahead of the node's, and the least difference.
    fn difference(&self) -> (bool, u64) {
        match self.out {
            OutOfTime::NotBegun { by_ms } => (false, by_ms),
            OutOfTime::RanOut { by_ms } => (true, by_ms),
        }
    }
}

/// Decides which clock is wrong, if any. Nodes count only by their own answers: a record from others may be
/// old.
pub(crate) fn judge(here_ms: u64, stores: &[StoreTime], nodes: &[NodeTime]) -> Option<ClockDifference> {
    let off = |store: &StoreTime| {
        let by_ms = here_ms.abs_diff(store.unix_ms);
        (by_ms > MAX_CLOCK_SKEW_MS.saturating_add(store.margin_ms))
            .then_some((here_ms > store.unix_ms, by_ms))
    };
    if let Some(right) = stores.iter().find(|store| off(store).is_none()) {
        let (ahead, by_ms) = nodes.first()?.difference();
        return Some(ClockDifference {
            wrong: WrongClock::Node(nodes.first()?.node),
            ahead: !ahead,
            by_ms,
            at_least: true,
            compared: right.name.clone(),
        });
    }
    let of_stores: Vec<(bool, u64)> = stores.iter().filter_map(off).collect();
    let of_nodes: Vec<(bool, u64)> = nodes.iter().map(NodeTime::difference).collect();
    let (found, at_least) = if of_stores.is_empty() { (&of_nodes, true) } else { (&of_stores, false) };
    let (ahead, _) = *found.first()?;
    if found.iter().any(|(other, _)| *other != ahead) {
        return None;
    }
    // Each is a minimum, so the largest is nearest. Of exact ones any will do.
    let by_ms = found.iter().map(|(_, by_ms)| *by_ms).max()?;
    let (wrong, compared) = match (stores, nodes) {
        ([store, ..], _) => (WrongClock::Here, store.name.clone()),
        ([], [one]) => (WrongClock::HereOrNode(one.node), one.node.to_string()),
        ([], several) => (WrongClock::Here, format!("{} nodes", several.len())),
    };
    Some(ClockDifference { wrong, ahead, by_ms, at_least, compared })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;
    const MINUTE: u64 = 60_000;
    const DAY: u64 = 24 * 60 * MINUTE;

    fn store(name: &str, unix_ms: u64) -> StoreTime {
        StoreTime { name: name.to_owned(), unix_ms, margin_ms: 1000 }
    }

    fn early(number: u8, by_ms: u64) -> NodeTime {
        NodeTime { node: NodeId([number; 32]), out: OutOfTime::NotBegun { by_ms } }
    }

    fn late(number: u8, by_ms: u64) -> NodeTime {
        NodeTime { node: NodeId([number; 32]), out: OutOfTime::RanOut { by_ms } }
    }

    fn judged(stores: &[StoreTime], nodes: &[NodeTime]) -> Option<(WrongClock, bool, u64)> {
        judge(NOW, stores, nodes).map(|found| (found.wrong, found.ahead, found.by_ms))
    }

    #[test]
    fn a_store_that_agrees_makes_it_the_nodes_clock_and_one_that_does_not_this_machines() {
        let node = NodeId([1; 32]);
        let right = store("http://s", NOW + 20_000);
        assert_eq!(
            judged(std::slice::from_ref(&right), &[early(1, 90_000)]),
            Some((WrongClock::Node(node), true, 90_000))
        );
        assert_eq!(
            judged(std::slice::from_ref(&right), &[late(1, DAY)]),
            Some((WrongClock::Node(node), false, DAY))
        );
        for (there, ahead) in [(NOW + 5 * MINUTE, false), (NOW - 40 * DAY, true)] {
            let by = NOW.abs_diff(there);
            let nodes = if ahead { late(1, 1) } else { early(1, 1) };
            assert_eq!(judged(&[store("http://s", there)], &[nodes]), Some((WrongClock::Here, ahead, by)));
            // A second store that agrees clears this machine.
            let both = [store("http://s", there), right.clone()];
            assert_eq!(judged(&both, &[nodes]).map(|found| found.0), Some(WrongClock::Node(node)));
        }
        assert_eq!(judged(&[right], &[]), None);
    }

    #[test]
    fn nodes_that_agree_are_believed_and_one_alone_or_those_that_differ_are_not() {
        let one = WrongClock::HereOrNode(NodeId([1; 32]));
        assert_eq!(judged(&[], &[early(1, DAY)]), Some((one, false, DAY)));
        let both = [late(1, DAY), late(2, 2 * DAY)];
        assert_eq!(judged(&[], &both), Some((WrongClock::Here, true, 2 * DAY)));
        assert_eq!(judged(&[], &[late(1, DAY), early(2, DAY)]), None);
        assert_eq!(judged(&[store("a", 1), store("b", NOW * 2)], &[late(1, DAY)]), None);
        assert_eq!(judged(&[], &[]), None);
    }

    #[test]
    fn says_which_clock_by_how_much_and_what_to_do() {
        let found = judge(NOW, &[store("http://s", NOW + 3_723_000)], &[]).unwrap();
        assert_eq!(found.to_string(), "this machine's clock is about 1 h 2 min behind that of http://s");
        assert!(found.hint().contains("check this machine's clock"));
        let refused = NodeTime::of_refusal(NodeId([1; 32]), ErrorCode::NotYetValid).unwrap();
        let found = judge(NOW, &[store("http://s", NOW)], &[refused]).unwrap();
        assert!(
            found
                .to_string()
                .contains("is at least 30 s behind this machine's, which agrees with that of http://s")
        );
        assert!(found.hint().contains("operator"));
        let found = judge(NOW, &[], &[late(1, 400 * DAY)]).unwrap();
        assert!(
            found
                .to_string()
                .starts_with("this machine's clock is at least 400 d 0 h ahead of that of node 0101")
        );
        assert!(found.hint().contains("check this machine's clock"));
        assert_eq!(NodeTime::of_refusal(NodeId([1; 32]), ErrorCode::Busy), None);
    }
}
