//! Checks of answers: the node that serves a turn says in its receipt whether earlier answers of the session are
//! the model's.
//!
//! That node reads the earlier answers anyway, as a part of its prompt, and an exact engine gives the logits of each
//! of their tokens for little more. The client names the answers in its order, and [`judge`] compares all signed
//! statements on one answer. This module does no I/O.

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, ReceiptHash};

/// An answer that the client wants checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckOrder {
    /// The receipt of the answer.
    pub receipt: ReceiptHash,
    /// The first token of the answer that the node checks, counted from 0. It checks
    /// [`CHECKED_TOKENS`](crate::limits::CHECKED_TOKENS) tokens, and hashes the logits before the first: a node that
    /// computes nothing cannot know the hash.
    pub probe: u32,
}

/// A node's statement on an answer, in its receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerCheck {
    /// As ordered.
    pub order: CheckOrder,
    /// The result.
    pub verdict: CheckVerdict,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CheckVerdict {
    /// The model gives exactly these tokens.
    Same {
        /// BLAKE3 of the logits before the probed token: f32, little-endian, in the order of token ids.
        logits: [u8; 32],
    },
    /// The model gives another token.
    Different {
        /// The first token that differs, counted from 0; the number of tokens if only the end differs.
        token: u32,
        /// As in [`CheckVerdict::Same`].
        logits: [u8; 32],
    },
    /// The answer cannot be compared.
    NotComparable(CheckGap),
}

/// Why an answer cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CheckGap {
    /// Its prompt is not the beginning of the prompt of this turn: another system text, or turns that slid out.
    Window,
    /// Its prompt had memory, which this turn's prompt does not have.
    Memory,
    /// The node computes another model, or computes it by another engine than its own.
    Model,
    /// The node's engine was busy, or refuses the prompt or the settings.
    Refused,
}

/// The conclusion from all statements on one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// No node contradicts another: this many compared the answer, and found it the same.
    Agreed(usize),
    /// Nodes contradict each other, and not enough of them agree.
    Open,
    /// At least two nodes agree, more than on any other result.
    Decided {
        /// They agree.
        witnesses: Vec<NodeId>,
        /// They contradict the witnesses.
        accused: Vec<NodeId>,
    },
}

/// Judges one answer of `author` by the verdicts of other nodes. The author's own statement counts for nothing: a node
/// that calls every answer the same would agree with every liar.
#[must_use]
pub fn judge(author: NodeId, verdicts: &[(NodeId, CheckVerdict)]) -> Judgement {
    let mut groups: Vec<(CheckVerdict, Vec<NodeId>)> = Vec::new();
    for (node, verdict) in verdicts {
        match groups.iter_mut().find(|(known, _)| known == verdict) {
            _ if matches!(verdict, CheckVerdict::NotComparable(_)) => {}
            Some((_, nodes)) => nodes.push(*node),
            None => groups.push((*verdict, vec![*node])),
        }
    }
    let says_same = |verdict: &CheckVerdict| matches!(verdict, CheckVerdict::Same { .. });
    match groups.as_slice() {
        [] => return Judgement::Agreed(0),
        [(verdict, nodes)] if says_same(verdict) => return Judgement::Agreed(nodes.len()),
        _ => {}
    }
    let most = groups.iter().map(|(_, nodes)| nodes.len()).max().unwrap_or(0);
    let mut largest =
        (0..groups.len()).filter(|at| groups.get(*at).is_some_and(|group| group.1.len() == most));
    let (Some(winner), None) = (largest.next(), largest.next()) else { return Judgement::Open };
    if most < DECIDING_WITNESSES {
        return Judgement::Open;
    }
    let (verdict, witnesses) = groups.remove(winner);
    let mut accused: Vec<NodeId> = groups.into_iter().flat_map(|(_, nodes)| nodes).collect();
    accused.extend((!says_same(&verdict)).then_some(author));
    Judgement::Decided { witnesses, accused }
}

/// Nodes with the same result that decide against others. One alone may be the liar.
pub const DECIDING_WITNESSES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId([number; 32])
    }

    /// The author is node 0, and the verdicts are of nodes 1, 2 and so on.
    fn judged(verdicts: &[CheckVerdict]) -> Judgement {
        let verdicts: Vec<_> = (1..).map(node).zip(verdicts.iter().copied()).collect();
        judge(node(0), &verdicts)
    }

    fn decided(witnesses: &[u8], accused: &[u8]) -> Judgement {
        let nodes = |numbers: &[u8]| numbers.iter().copied().map(node).collect();
        Judgement::Decided { witnesses: nodes(witnesses), accused: nodes(accused) }
    }

    #[test]
    fn two_nodes_that_agree_decide_against_the_author_or_a_verifier() {
        let (same, forged) = (CheckVerdict::Same { logits: [1; 32] }, CheckVerdict::Same { logits: [2; 32] });
        let other = CheckVerdict::Different { token: 3, logits: [1; 32] };
        let later = CheckVerdict::Different { token: 4, logits: [1; 32] };
        let gap = CheckVerdict::NotComparable(CheckGap::Window);
        for (verdicts, expected) in [
            (&[][..], Judgement::Agreed(0)),
            (&[gap, gap], Judgement::Agreed(0)),
            (&[same, gap, same], Judgement::Agreed(2)),
            (&[other], Judgement::Open),
            (&[other, gap], Judgement::Open),
            (&[other, other], decided(&[1, 2], &[0])),
            (&[other, same], Judgement::Open),
            (&[same, other], Judgement::Open),
            (&[other, same, same], decided(&[2, 3], &[1])),
            (&[other, later], Judgement::Open),
            (&[other, later, same], Judgement::Open),
            (&[other, later, same, same], decided(&[3, 4], &[1, 2])),
            (&[other, later, later], decided(&[2, 3], &[1, 0])),
            (&[same, forged], Judgement::Open),
            (&[same, forged, same], decided(&[1, 3], &[2])),
            (&[forged, same, same], decided(&[2, 3], &[1])),
            (&[forged, other, other], decided(&[2, 3], &[1, 0])),
            (&[same, other, other, same], Judgement::Open),
        ] {
            assert_eq!(judged(verdicts), expected, "{verdicts:?}");
        }
    }

    #[test]
    fn no_honest_node_in_10_000_is_accused_and_liars_that_do_not_agree_are() {
        // A linear congruential generator: the same cases each time.
        let mut state = 0x5eed_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut honest, mut accused_liars, mut open) = (0, 0, 0);
        while honest < 10_000 {
            // A third of the nodes lie: as authors, as verifiers, or as both at times.
            let is_liar: Vec<bool> = (0..7).map(|_| draw(3) == 0).collect();
            let lied = is_liar[0] && draw(2) == 0;
            let logits = [u8::try_from(draw(256)).unwrap(); 32];
            let truth = if lied {
                CheckVerdict::Different { token: u32::try_from(draw(40)).unwrap(), logits }
            } else {
                CheckVerdict::Same { logits }
            };
            let mut verdicts = Vec::new();
            let judgement = loop {
                let number = verdicts.len() + 1;
                let forged: [u8; 32] = std::array::from_fn(|_| u8::try_from(draw(256)).unwrap());
                let verdict = match draw(4) {
                    _ if !is_liar[number] => truth,
                    0 => truth,
                    1 => CheckVerdict::Same { logits: forged },
                    2 => CheckVerdict::NotComparable(CheckGap::Refused),
                    _ => CheckVerdict::Different { token: u32::try_from(draw(40)).unwrap(), logits: forged },
                };
                verdicts.push((node(u8::try_from(number).unwrap()), verdict));
                match judge(node(0), &verdicts) {
                    Judgement::Decided { accused, .. } => break accused,
                    _ if number == 6 => break Vec::new(),
                    _ => {}
                }
            };
            open += usize::from(judgement.is_empty());
            for accused in judgement {
                assert!(is_liar[usize::from(accused.0[0])], "{is_liar:?}: {verdicts:?}");
                accused_liars += 1;
            }
            honest += is_liar.iter().filter(|liar| !**liar).count();
        }
        assert!(accused_liars > 500 && open > 0, "{accused_liars} liars, {open} without a decision");
    }
}
