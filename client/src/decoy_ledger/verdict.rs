//! The verdict on a decoy: the first answer in which nodes contradict each other, and which of them is alone.
//! Pure.

use baton_proto::contradiction::{AnswerComparison, DECIDING_WITNESSES, SignedAnswer, compare};

/// One node's answers, oldest first.
pub(crate) type Answers<'a> = Vec<SignedAnswer<'a>>;

/// The verdict on the answers of several nodes. Nodes are numbered by their position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DecoyVerdict {
    /// No two of them contradict each other.
    Agreed,
    /// At least two nodes gave the same answer, and others contradict it.
    Decided {
        /// The position of the answer.
        turn: usize,
        /// The nodes with the same answer.
        witnesses: Vec<usize>,
        /// The nodes that contradict it.
        liars: Vec<usize>,
    },
    /// Two nodes contradict each other, and no third decides.
    Open {
        /// The position of the answer.
        turn: usize,
        /// The two nodes.
        pair: (usize, usize),
    },
}

/// Judges the answers of several nodes to the same messages.
pub(crate) fn judge(nodes: &[Answers<'_>]) -> DecoyVerdict {
    let longest = nodes.iter().map(Vec::len).max().unwrap_or(0);
    for turn in 0..longest {
        let Some(pair) = contradicting_pair(nodes, turn) else { continue };
        let members: Vec<usize> =
            (0..nodes.len()).filter(|member| had_same_request(nodes, pair.0, *member, turn)).collect();
        let with = |member: usize, wanted: AnswerComparison| -> Vec<usize> {
            let like = |other: &usize| compared(nodes, member, *other, turn) == Some(wanted);
            members.iter().copied().filter(like).collect()
        };
        let groups: Vec<Vec<usize>> =
            members.iter().map(|member| with(*member, AnswerComparison::Same)).collect();
        let most = groups.iter().map(Vec::len).max().unwrap_or(0);
        let mut largest: Vec<Vec<usize>> = groups.into_iter().filter(|group| group.len() == most).collect();
        largest.sort_unstable();
        largest.dedup();
        return match largest.as_slice() {
            [witnesses] if most >= DECIDING_WITNESSES => {
                let liars = witnesses.first().map(|first| with(*first, AnswerComparison::Different));
                DecoyVerdict::Decided { turn, witnesses: witnesses.clone(), liars: liars.unwrap_or_default() }
            }
            _ => DecoyVerdict::Open { turn, pair },
        };
    }
    DecoyVerdict::Agreed
}

/// Two nodes that contradict each other in this turn, after the same answers before it.
fn contradicting_pair(nodes: &[Answers<'_>], turn: usize) -> Option<(usize, usize)> {
    let pairs = (0..nodes.len()).flat_map(|one| (one + 1..nodes.len()).map(move |other| (one, other)));
    pairs.into_iter().find(|(one, other)| {
        had_same_request(nodes, *one, *other, turn)
            && compared(nodes, *one, *other, turn) == Some(AnswerComparison::Different)
    })
}

/// Whether both nodes answered this turn, after the same answers before it.
fn had_same_request(nodes: &[Answers<'_>], one: usize, other: usize, turn: usize) -> bool {
    let before = |node: usize| nodes.get(node).filter(|answers| answers.len() > turn)?.get(..turn);
    match (before(one), before(other)) {
        (Some(one), Some(other)) => one.iter().zip(other).all(|(one, other)| one.text == other.text),
        _ => false,
    }
}

fn compared(nodes: &[Answers<'_>], one: usize, other: usize, turn: usize) -> Option<AnswerComparison> {
    Some(compare(*nodes.get(one)?.get(turn)?, *nodes.get(other)?.get(turn)?))
}

#[cfg(test)]
mod tests {
    use baton_proto::record::FinishReason;

    use super::*;

    fn answers(texts: &[&'static str]) -> Answers<'static> {
        let answer = |text: &&'static str| {
            let (text, finish) = match text.strip_suffix('…') {
                Some(text) => (text, FinishReason::Length),
                None => (*text, FinishReason::Stop),
            };
            SignedAnswer { text, finish, tokens: u32::try_from(text.len()).unwrap() }
        };
        texts.iter().map(answer).collect()
    }

    fn judged(nodes: &[&[&'static str]]) -> DecoyVerdict {
        judge(&nodes.iter().map(|texts| answers(texts)).collect::<Vec<_>>())
    }

    fn decided(turn: usize, witnesses: &[usize], liars: &[usize]) -> DecoyVerdict {
        DecoyVerdict::Decided { turn, witnesses: witnesses.to_vec(), liars: liars.to_vec() }
    }

    #[test]
    fn equal_cut_and_missing_answers_are_no_contradiction() {
        for nodes in [
            &[&["a", "b"][..], &["a", "b"]][..],
            &[&["a", "b"], &["a"]],
            &[&[], &["a"]],
            &[&["long answer"], &["long…"]],
            // After a cut answer, the next request is another one.
            &[&["long answer", "b"], &["long…", "c"]],
            &[],
        ] {
            assert_eq!(judged(nodes), DecoyVerdict::Agreed, "{nodes:?}");
        }
    }

    #[test]
    fn two_nodes_leave_it_open_and_a_third_decides() {
        assert_eq!(judged(&[&["a", "b"], &["a", "c"]]), DecoyVerdict::Open { turn: 1, pair: (0, 1) });
        assert_eq!(judged(&[&["a", "b"], &["a", "c"], &["a", "c"]]), decided(1, &[1, 2], &[0]));
        assert_eq!(judged(&[&["a", "b"], &["a", "c"], &["a", "b"]]), decided(1, &[0, 2], &[1]));
        let open = judged(&[&["a", "b"], &["a", "c"], &["a", "d"]]);
        assert_eq!(open, DecoyVerdict::Open { turn: 1, pair: (0, 1) }, "three nodes, three answers");
        let four: [&[&str]; 4] = [&["a", "b"], &["a", "c"], &["a", "d"], &["a", "c"]];
        assert_eq!(judged(&four), decided(1, &[1, 3], &[0, 2]));
        let tied: [&[&str]; 4] = [&["a", "b"], &["a", "c"], &["a", "b"], &["a", "c"]];
        assert_eq!(judged(&tied), DecoyVerdict::Open { turn: 1, pair: (0, 1) }, "two against two");
    }

    #[test]
    fn the_first_contradiction_counts_and_a_cut_answer_accuses_nobody() {
        assert_eq!(judged(&[&["a", "b"], &["x", "b"], &["a", "b"]]), decided(0, &[0, 2], &[1]));
        // The third node contradicts both in an earlier answer.
        assert_eq!(judged(&[&["a", "b"], &["a", "c"], &["x", "y"]]), decided(0, &[0, 1], &[2]));
        let cut: [&[&str]; 4] = [&["long answer"], &["other"], &["long…"], &["long answer"]];
        assert_eq!(judged(&cut), decided(0, &[0, 3], &[1]));
    }
}
