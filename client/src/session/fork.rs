//! Decides which of two chains of one session wins. Pure, and the same on every device that sees both.
//!
//! At the first seq that differs, the lower authorisation hash wins, then the lower link hash; a chain that
//! continues the other wins over it. That is a dictionary order in which the longer word precedes its prefix,
//! so it is total. Whichever pairs of devices meet, in any order, all end with the same chain. Lengths, times
//! and the order of publication do not matter. The client signs the authorisation, so no node chooses a winner
//! by the fields that it fills in.

use baton_proto::{
    SignedObject,
    ids::{AuthHash, LinkHash},
    link::Link,
};

/// A link as the rule compares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChainLink {
    /// The client's authorisation of its turn.
    auth: AuthHash,
    /// The link itself; decides between two links of one authorisation.
    hash: LinkHash,
}

impl From<&SignedObject<Link>> for ChainLink {
    fn from(link: &SignedObject<Link>) -> Self {
        Self { auth: link.auth_hash, hash: link.link_hash() }
    }
}

/// The links of a chain from some seq on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForkChain {
    /// Seq of the first link; 0 except in a compacted log.
    pub(crate) first: u64,
    /// The hash that the first link continues.
    pub(crate) prev: LinkHash,
    /// The links, oldest first.
    pub(crate) links: Vec<ChainLink>,
}

impl ForkChain {
    /// The link at a seq; none outside.
    fn at(&self, seq: u64) -> Option<ChainLink> {
        self.links.get(usize::try_from(seq.checked_sub(self.first)?).ok()?).copied()
    }

    /// The hash of the link at a seq, or the hash that the first link continues; none outside.
    fn hash_at(&self, seq: u64) -> Option<LinkHash> {
        if seq.checked_add(1) == Some(self.first) {
            return Some(self.prev);
        }
        self.at(seq).map(|link| link.hash)
    }

    fn next_seq(&self) -> u64 {
        self.first + self.links.len() as u64
    }
}

/// The relation of two chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merge {
    /// They are equal, or ours continues theirs: nothing to merge.
    Ours,
    /// Theirs continues ours from this seq on.
    Behind {
        /// The first turn that is missing here.
        from: u64,
    },
    /// They differ, and ours wins.
    Win {
        /// The first seq that differs.
        at: u64,
    },
    /// They differ, and theirs wins.
    Lose {
        /// The first seq that differs.
        at: u64,
    },
    /// They differ before the first turn that is here.
    TooOld,
}

/// Compares our chain with another chain of the same session.
pub(crate) fn merge(ours: &ForkChain, theirs: &ForkChain) -> Merge {
    let first = ours.first.max(theirs.first);
    // The hash before the first compared turn must be the same; for seq 0 it is the genesis, which the id
    // binds.
    if let Some(before) = first.checked_sub(1)
        && let (Some(a), Some(b)) = (ours.hash_at(before), theirs.hash_at(before))
        && a != b
    {
        return Merge::TooOld;
    }
    for seq in first.. {
        match (ours.at(seq), theirs.at(seq)) {
            (Some(a), Some(b)) if a.hash == b.hash => {}
            (Some(a), Some(b)) if a < b => return Merge::Win { at: seq },
            (Some(_), Some(_)) => return Merge::Lose { at: seq },
            (None, Some(_)) if seq >= ours.next_seq() => return Merge::Behind { from: seq },
            _ => break,
        }
    }
    Merge::Ours
}

#[cfg(test)]
mod tests {
    use std::{cmp::Ordering, collections::BTreeSet};

    use super::*;

    fn hash(of: &[u8]) -> LinkHash {
        LinkHash(*blake3::hash(of).as_bytes())
    }

    /// A chain whose links hash their predecessor, as real links do.
    fn chain(turns: &[u32]) -> ForkChain {
        let prev = hash(b"genesis");
        let mut last = prev;
        let links = turns.iter().map(|turn| {
            last = hash(&[&last.0[..], &turn.to_le_bytes()].concat());
            let auth = AuthHash(hash(&[&last.0[..], b"auth"].concat()).0);
            ChainLink { auth, hash: last }
        });
        ForkChain { first: 0, prev, links: links.collect() }
    }

    /// The same chain after log compaction.
    fn compacted(chain: &ForkChain, first: u64) -> ForkChain {
        let from = usize::try_from(first).unwrap();
        ForkChain { first, prev: chain.links[from - 1].hash, links: chain.links[from..].to_vec() }
    }

    /// A generator that is the same everywhere.
    struct SeededRng(u64);

    impl SeededRng {
        fn below(&mut self, limit: u64) -> u64 {
            // Knuth's MMIX generator; its high bits are good enough for choices.
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    #[test]
    fn a_chain_that_goes_on_is_caught_up_with_and_one_that_ends_changes_nothing() {
        let (short, long) = (chain(&[1, 2]), chain(&[1, 2, 3, 4]));
        assert_eq!(merge(&short, &long), Merge::Behind { from: 2 });
        assert_eq!(merge(&long, &short), Merge::Ours);
        assert_eq!(merge(&long, &long), Merge::Ours);
        assert_eq!(merge(&chain(&[]), &long), Merge::Behind { from: 0 });
        assert_eq!(merge(&chain(&[]), &chain(&[])), Merge::Ours);
    }

    #[test]
    fn the_lower_authorisation_at_the_first_difference_wins_however_long_the_other_is() {
        let (one, other) = (chain(&[1, 2]), chain(&[1, 3]));
        let (winner, loser) = if one.links[1] < other.links[1] { (2, 3) } else { (3, 2) };
        let winner = chain(&[1, winner]);
        let longer = chain(&[1, loser, 9, 9, 9]);
        assert_eq!(merge(&winner, &longer), Merge::Win { at: 1 });
        assert_eq!(merge(&longer, &winner), Merge::Lose { at: 1 });
    }

    #[test]
    fn a_node_cannot_choose_the_winner_by_the_hash_of_its_link() {
        let (ours, honest) = (chain(&[1, 2]), chain(&[1, 3]));
        let wins = merge(&ours, &honest);
        // A node tries times and signatures until its link's hash is the lowest of all, or the highest.
        for ground in [[0; 32], [0xff; 32]] {
            let mut theirs = honest.clone();
            theirs.links[1].hash = LinkHash(ground);
            assert_eq!(merge(&ours, &theirs), wins);
        }
        // Of two links under one authorisation, every device takes the same.
        let (mut low, mut high) = (ours.clone(), ours);
        (low.links[1].hash, high.links[1].hash) = (LinkHash([1; 32]), LinkHash([2; 32]));
        assert_eq!(merge(&low, &high), Merge::Win { at: 1 });
        assert_eq!(merge(&high, &low), Merge::Lose { at: 1 });
    }

    #[test]
    fn a_compacted_log_is_compared_from_its_first_turn() {
        let (ours, theirs) = (chain(&[1, 2, 3, 4]), chain(&[1, 2, 3, 4, 5]));
        let ours = compacted(&ours, 3);
        assert_eq!(merge(&ours, &theirs), Merge::Behind { from: 4 });
        assert_eq!(merge(&ours, &chain(&[1, 2])), Merge::Ours, "an older head of the same chain");
        assert_eq!(merge(&ours, &chain(&[1, 7, 3, 4, 5])), Merge::TooOld);
        let other = chain(&[1, 2, 3, 6, 7]);
        let expected =
            if ours.links[0] < other.links[3] { Merge::Win { at: 3 } } else { Merge::Lose { at: 3 } };
        assert_eq!(merge(&ours, &other), expected);
    }

    /// The order that the rule makes of chains: the winner comes first.
    fn order(one: &ForkChain, other: &ForkChain) -> Ordering {
        match merge(one, other) {
            Merge::Win { .. } => Ordering::Less,
            Merge::Lose { .. } | Merge::Behind { .. } => Ordering::Greater,
            Merge::Ours if one == other => Ordering::Equal,
            Merge::Ours => Ordering::Less,
            Merge::TooOld => unreachable!("no log was compacted"),
        }
    }

    #[test]
    fn the_rule_is_a_total_order_of_chains() {
        for seed in 0..400 {
            let mut draw = SeededRng(seed);
            let devices = 2 + draw.below(5);
            // Few different turns, so that common beginnings, equal chains and early forks all come up.
            let chains: Vec<Vec<u32>> = (0..devices)
                .map(|_| (0..draw.below(6)).map(|_| u32::try_from(draw.below(2)).unwrap()).collect())
                .collect();
            for one in &chains {
                for other in &chains {
                    let (one, other) = (chain(one), chain(other));
                    assert_eq!(order(&one, &other), order(&other, &one).reverse(), "seed {seed}");
                    for third in &chains {
                        let third = chain(third);
                        let rises = order(&one, &other).is_le() && order(&other, &third).is_le();
                        assert!(!rises || order(&one, &third).is_le(), "seed {seed}");
                    }
                }
            }
        }
    }

    /// A device of the simulation: its chain, and the turns of its branches.
    #[derive(Clone, PartialEq, Debug)]
    struct Device {
        chain: Vec<u32>,
        beside: BTreeSet<u32>,
    }

    #[test]
    fn every_turn_is_there_once_in_the_end_however_devices_write_and_meet() {
        for seed in 0..400 {
            let mut draw = SeededRng(seed * 77 + 5);
            let number = 2 + draw.below(3);
            let begun = Device { chain: vec![0], beside: BTreeSet::new() };
            let mut devices = vec![begun; usize::try_from(number).unwrap()];
            let mut written = 1;
            for _ in 0..24 {
                let mut one = || usize::try_from(draw.below(number)).unwrap();
                let (device, other) = (one(), one());
                if device == other {
                    devices[device].chain.push(written);
                    written += 1;
                } else {
                    look_at(&mut devices, device, other);
                }
            }
            for _ in 0..2 {
                for device in 0..devices.len() {
                    (0..devices.len()).for_each(|other| look_at(&mut devices, device, other));
                }
            }
            assert!(devices.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: it settles");
            let mut said = devices[0].chain.clone();
            said.extend(&devices[0].beside);
            said.sort_unstable();
            assert_eq!(said, (0..written).collect::<Vec<_>>(), "seed {seed}: none is lost, none is twice");
        }
    }

    /// A device sees another's head: the winner is its chain, the other turns are a branch.
    fn look_at(devices: &mut [Device], device: usize, other: usize) {
        let theirs = devices[other].clone();
        let ours = &mut devices[device];
        let mut lost = match merge(&chain(&ours.chain), &chain(&theirs.chain)) {
            Merge::Behind { .. } => {
                ours.chain = theirs.chain;
                Vec::new()
            }
            Merge::Lose { at } => {
                let lost = ours.chain.split_off(usize::try_from(at).unwrap());
                ours.chain = theirs.chain;
                lost
            }
            Merge::Win { at } => theirs.chain[usize::try_from(at).unwrap()..].to_vec(),
            Merge::Ours => Vec::new(),
            Merge::TooOld => unreachable!("no log was compacted"),
        };
        lost.extend(theirs.beside);
        ours.beside.extend(lost);
    }
}
