//! The plan of a seed's trials: a pure function of the seed.
//!
//! A plan holds choices alone: moments, numbers, kinds of damage. Their targets depend on the running trial,
//! such as the existing files and the length of a journal.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::draws::Draws;

/// Turns of a conversation with kills.
const KILL_TURNS: usize = 12;
/// Additions to memory with kills of the relayer.
const KILL_ADDITIONS: usize = 10;
/// Rounds in which two devices write concurrently.
const DEVICE_ROUNDS: usize = 4;
/// Latest kill after a turn's start. In this time, a client starts, finds its node, receives its answer and
/// stores it.
const LATEST_KILL_MS: u64 = 700;
/// Latest kill after the start of an addition to memory.
const LATEST_RELAYER_KILL_MS: u64 = 120;
/// Latest kill after a program's first start.
const LATEST_FIRST_KILL_MS: u64 = 80;
/// Silent connections: more than a server accepts at once by default.
const SILENT_CONNECTIONS: u64 = 300;
/// Clock errors of a client, in seconds.
const CLIENT_OFFSETS: [i64; 8] = [-86_400, -3_600, -300, 45, 3_600, 86_400, 40 * 86_400, 400 * 86_400];
/// Clock errors of a node, in seconds.
const NODE_OFFSETS: [i64; 6] = [-300, 3, 8, 20, 90, 3_600];

/// A kind of trial: a row of the table.
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
    /// All scenarios, in the order of the table.
    pub const ALL: [Self; 14] = [
        Self::Kills,
        Self::KillRelayer,
        Self::TwoDevices,
        Self::FullDisk,
        Self::FirstStart,
        Self::DamageClient,
        Self::DamageNode,
        Self::DamageStore,
        Self::DamageRelayer,
        Self::OlderHome,
        Self::CutJournal,
        Self::WrongClock,
        Self::ForgetfulStore,
        Self::SilentPeers,
    ];

    /// Its name on the command line and in the table.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
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

/// Damage of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileDamage {
    /// A draw that selects the folder.
    pub(super) folder: u64,
    /// A draw that selects the file.
    pub(super) file: u64,
    pub(super) change: FileChange,
}

/// A change of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileChange {
    /// One flipped bit; a draw selects it.
    Flip { at: u64 },
    /// A truncation to `kept` thousandths.
    Cut { kept: u64 },
    /// A stretch of zeros; a draw selects its start.
    Zero { at: u64 },
    /// A truncation to zero bytes.
    Empty,
}

/// A command that creates a program's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstCommand {
    Chat,
    Account,
    Node,
    Relayer,
}

/// The cause that interrupts a first start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interruption {
    FullDisk,
    Kill { after_ms: u64 },
}

/// The fault of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TrialFault {
    /// For each message, an optional kill.
    Kills(Vec<Option<Kill>>),
    /// For each round, milliseconds to an optional kill of each device.
    TwoDevices(Vec<[Option<u64>; 2]>),
    FullDisk(Program),
    FirstStart(FirstCommand, Interruption),
    Damage(Program, FileDamage),
    /// Turns before the copy, and after it.
    OlderHome(u64, u64),
    /// Turns, and the thousandths of the journal that are left.
    CutJournal(u64, u64),
    /// Seconds that a program's clock is ahead.
    WrongClock(Program, i64),
    /// Whether the store loses everything.
    ForgetfulStore(bool),
    /// Silent connections to a program.
    SilentPeers(Program, u64),
}

/// One trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trial {
    pub(super) seed: u64,
    pub(super) scenario: Scenario,
    pub(super) fault: TrialFault,
}

impl Trial {
    /// Whether the trial is of memory at a relayer, in place of a conversation at a node.
    pub(super) fn is_of_memory(&self) -> bool {
        match &self.fault {
            TrialFault::Kills(_) => self.scenario == Scenario::KillRelayer,
            TrialFault::FullDisk(program)
            | TrialFault::Damage(program, _)
            | TrialFault::SilentPeers(program, _) => *program == Program::Relayer,
            _ => false,
        }
    }
}

/// The trials of a seed: one of each scenario.
pub(super) fn plan(seed: u64) -> Vec<Trial> {
    let trial = |(lane, scenario): (usize, Scenario)| {
        let mut draws = Draws::of(seed, lane as u64);
        Trial { seed, scenario, fault: fault(scenario, &mut draws) }
    };
    Scenario::ALL.into_iter().enumerate().map(trial).collect()
}

fn fault(scenario: Scenario, draws: &mut Draws) -> TrialFault {
    match scenario {
        Scenario::Kills => TrialFault::Kills((0..KILL_TURNS).map(|_| kill(draws)).collect()),
        Scenario::KillRelayer => {
            let of_relayer = |after_ms| Kill { program: Program::Relayer, after_ms };
            let kill = |_| moment(draws, LATEST_RELAYER_KILL_MS).map(of_relayer);
            TrialFault::Kills((0..KILL_ADDITIONS).map(kill).collect())
        }
        Scenario::TwoDevices => {
            let round = |_| [moment(draws, LATEST_KILL_MS), moment(draws, LATEST_KILL_MS)];
            TrialFault::TwoDevices((0..DEVICE_ROUNDS).map(round).collect())
        }
        Scenario::FullDisk => {
            let programs = [Program::Client, Program::Node, Program::Store, Program::Relayer];
            TrialFault::FullDisk(one_of(draws, programs))
        }
        Scenario::FirstStart => first_start(draws),
        Scenario::DamageClient => TrialFault::Damage(Program::Client, damage(draws)),
        Scenario::DamageNode => TrialFault::Damage(Program::Node, damage(draws)),
        Scenario::DamageStore => TrialFault::Damage(Program::Store, damage(draws)),
        Scenario::DamageRelayer => TrialFault::Damage(Program::Relayer, damage(draws)),
        Scenario::OlderHome => TrialFault::OlderHome(1 + draws.below(3), 1 + draws.below(4)),
        Scenario::CutJournal => TrialFault::CutJournal(3 + draws.below(3), 300 + draws.below(700)),
        Scenario::WrongClock => {
            let program = one_of(draws, [Program::Client, Program::Node]);
            let offsets: &[i64] = if program == Program::Client { &CLIENT_OFFSETS } else { &NODE_OFFSETS };
            TrialFault::WrongClock(program, draws.one_of(offsets).unwrap_or_default())
        }
        Scenario::ForgetfulStore => TrialFault::ForgetfulStore(draws.below(2) == 0),
        Scenario::SilentPeers => {
            let program = one_of(draws, [Program::Store, Program::Relayer]);
            TrialFault::SilentPeers(program, SILENT_CONNECTIONS + draws.below(100))
        }
    }
}

fn first_start(draws: &mut Draws) -> TrialFault {
    let commands = [FirstCommand::Chat, FirstCommand::Account, FirstCommand::Node, FirstCommand::Relayer];
    let command = one_of(draws, commands);
    let after_ms = draws.below(LATEST_FIRST_KILL_MS);
    let how = one_of(draws, [Interruption::FullDisk, Interruption::Kill { after_ms }]);
    TrialFault::FirstStart(command, how)
}

/// Two turns of three have a kill.
fn kill(draws: &mut Draws) -> Option<Kill> {
    let programs = [Program::Client, Program::Node, Program::Store];
    let program = one_of(draws, programs);
    moment(draws, LATEST_KILL_MS).map(|after_ms| Kill { program, after_ms })
}

/// A moment, in two of three cases.
fn moment(draws: &mut Draws, latest_ms: u64) -> Option<u64> {
    let after_ms = draws.below(latest_ms);
    (draws.below(3) > 0).then_some(after_ms)
}

fn damage(draws: &mut Draws) -> FileDamage {
    let (folder, file, at) = (draws.next(), draws.next(), draws.next());
    let kept = draws.below(1000);
    let change = one_of(
        draws,
        [FileChange::Flip { at }, FileChange::Cut { kept }, FileChange::Zero { at }, FileChange::Empty],
    );
    FileDamage { folder, file, change }
}

/// Picks one of the choices; there is at least one.
fn one_of<T: Copy, const N: usize>(draws: &mut Draws, choices: [T; N]) -> T {
    const { assert!(N > 0, "there is a choice") };
    draws.one_of(&choices).unwrap_or(choices[0])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_plan_is_a_function_of_its_seed() {
        for seed in [0, 1, 7, u64::MAX] {
            assert_eq!(plan(seed), plan(seed));
            let scenarios: Vec<Scenario> = plan(seed).iter().map(|trial| trial.scenario).collect();
            assert_eq!(scenarios, Scenario::ALL);
        }
        assert_ne!(plan(1), plan(2));
    }

    #[test]
    fn many_seeds_have_every_kind_of_fault() {
        let trials: Vec<Trial> = (0..200).flat_map(plan).collect();
        let kinds = |of: fn(&TrialFault) -> Option<String>| -> BTreeSet<String> {
            trials.iter().filter_map(|trial| of(&trial.fault)).collect()
        };
        let full = kinds(|fault| match fault {
            TrialFault::FullDisk(program) => Some(format!("{program:?}")),
            _ => None,
        });
        assert_eq!(full.len(), 4, "{full:?}");
        let first = kinds(|fault| match fault {
            TrialFault::FirstStart(command, how) => {
                Some(format!("{command:?} {}", matches!(how, Interruption::FullDisk)))
            }
            _ => None,
        });
        assert_eq!(first.len(), 8, "{first:?}");
        let changes = kinds(|fault| match fault {
            TrialFault::Damage(program, FileDamage { change, .. }) => {
                let change = format!("{change:?}");
                Some(format!("{program:?} {}", change.split(' ').next().unwrap_or_default()))
            }
            _ => None,
        });
        assert_eq!(changes.len(), 16, "{changes:?}");
        let clocks = kinds(|fault| match fault {
            TrialFault::WrongClock(program, seconds) => Some(format!("{program:?} {seconds}")),
            _ => None,
        });
        assert_eq!(clocks.len(), CLIENT_OFFSETS.len() + NODE_OFFSETS.len(), "{clocks:?}");
        let victims = kinds(|fault| match fault {
            TrialFault::Kills(turns) => Some(format!("{:?}", turns.first()?.as_ref()?.program)),
            _ => None,
        });
        assert_eq!(victims.len(), 4, "{victims:?}");
    }

    #[test]
    fn moments_and_shares_are_within_their_bounds() {
        for trial in (0..300).flat_map(plan) {
            match trial.fault {
                TrialFault::Kills(turns) => {
                    assert!([KILL_TURNS, KILL_ADDITIONS].contains(&turns.len()));
                    assert!(turns.iter().flatten().all(|kill| kill.after_ms < LATEST_KILL_MS));
                }
                TrialFault::CutJournal(turns, kept) => {
                    assert!((3..=5).contains(&turns) && (300..1000).contains(&kept));
                }
                TrialFault::OlderHome(before, after) => {
                    assert!((1..=3).contains(&before) && (1..=4).contains(&after));
                }
                TrialFault::SilentPeers(_, connections) => assert!(connections >= SILENT_CONNECTIONS),
                _ => {}
            }
        }
    }
}
