//! Two devices, one session: takes in what another device wrote, and says again what lost its place to it.
//!
//! Which chain counts is [`crate::fork`]'s to decide, by the links alone. What follows here is in steps, each in the journal
//! before the next: the other device's turns take their place in one entry list, the own ones that lost wait by number,
//! and each is a turn like any other when it is said again. A kill between any two of them is taken up by the next call.

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, Signed,
    chain::VerifiedSegment,
    ids::{LinkHash, NodeId, SessionId},
    receipt::Receipt,
    record::Message,
};

use crate::{
    attempt::{self, Events},
    client::Client,
    error::ClientError,
    event::{ResumeOptions, TurnEvent, TurnOutcome},
    fork::{Chain, Merge, merge},
    head::{FIRST_LOOK, FoundHead, HeadStatus, Publish},
    heads::IndexStanding,
    journal::Keeper,
    session::Session,
    state::{Entry, Fate, State},
    transfer,
};

/// Something that has to do with other devices of the session. Its text says it to a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The head index has more turns; they are here now.
    CaughtUp {
        /// How many.
        turns: u64,
        /// How many of them this very device wrote and had lost. The others are another device's.
        own: u64,
    },
    /// Another device wrote in the same place.
    Forked {
        /// The first turn that differs.
        at: u64,
        /// Whether this device's turns keep their place. Otherwise they follow the other's, said again.
        won: bool,
        /// How many turns lose theirs.
        turns: u64,
        /// How many turns of the other chain this very device wrote and had lost: then it is no other device's, and stays.
        own: u64,
    },
    /// A turn that lost its place was said again.
    Moved(Box<MovedTurn>),
    /// The head index showed less than it took; this device's head is published again.
    ShownLess,
    /// The head index could not be compared, or not acted on; the turn goes on without.
    NotCompared {
        /// Why.
        reason: String,
    },
}

impl std::fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let many = |turns: u64| if turns == 1 { "1 turn".to_owned() } else { format!("{turns} turns") };
        match self {
            Self::CaughtUp { turns, own: 0 } => {
                write!(f, "another device went on with this session; took in {} of it", many(*turns))
            }
            Self::CaughtUp { turns, own } if turns == own => write!(
                f,
                "this home is an older copy, or its journal lost its end: took in {} from the store that this device \
                 itself wrote",
                many(*turns)
            ),
            Self::CaughtUp { turns, own } => write!(
                f,
                "this home is an older copy, or its journal lost its end: took in {} from the store, {own} of which this \
                 device itself wrote",
                many(*turns)
            ),
            Self::Forked { at, turns, own, .. } if *own > 0 => write!(
                f,
                "this home is an older copy, or its journal lost its end: {} that this device itself wrote from turn {at} \
                 on come back, and {} that it wrote since is said again after them",
                many(*own),
                many(*turns)
            ),
            Self::Forked { at, won: true, turns, .. } => write!(
                f,
                "another device also wrote turn {at}; by the rule this device's turns stay, and the other says its {} \
                 again after them",
                many(*turns)
            ),
            Self::Forked { at, won: false, turns, .. } => write!(
                f,
                "another device also wrote turn {at}; by the rule its turns stay, and this device says its {} again \
                 after them",
                many(*turns)
            ),
            Self::Moved(moved) => write!(f, "turn {} is turn {} now, said again", moved.from, moved.to),
            Self::ShownLess => f.write_str(
                "the head index showed an older head than it took, or none: this device's head is published again",
            ),
            Self::NotCompared { reason } => {
                write!(f, "this session was not compared with the head index: {reason}")
            }
        }
    }
}

/// A turn that was said again, after another device's took its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedTurn {
    /// The place that it had.
    pub from: u64,
    /// The place that it has.
    pub to: u64,
    /// What was said.
    pub messages: Vec<Message>,
    /// The answer that it had.
    pub first_answer: String,
    /// The answer that it has.
    pub answer: String,
    /// The node that answered now.
    pub node: NodeId,
}

/// A turn that is in the chain no longer, since another device's has its place. It stays readable here.
#[derive(Debug, Clone)]
pub struct DisplacedTurn {
    /// The place that it had.
    pub seq: u64,
    /// Its link.
    pub link_hash: LinkHash,
    /// What was said, with the answer last.
    pub messages: Vec<Message>,
    /// The node that served it.
    pub node: NodeId,
    /// What that node claims; absent for another device's turn.
    pub receipt: Option<Signed<Receipt>>,
    /// What became of it.
    pub fate: TurnFate,
}

/// What became of a displaced turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnFate {
    /// It waits to be said again.
    Waits,
    /// It was said again and is this turn now.
    Moved {
        /// Its place.
        to: u64,
    },
    /// It is not said again: given up, or replaced by a later one.
    LeftOut,
    /// It is another device's, which has not said it again as far as is known here.
    Theirs,
}

/// What [`Client::reconcile`] did.
#[derive(Debug, Clone)]
pub struct Reconciled {
    /// What the head index had to this device's head, or what came to be of it.
    pub status: HeadStatus,
    /// Turns of other devices that were taken in.
    pub caught_up: u64,
    /// A fork that was found: the first turn that differs, and whether this device's turns kept their place.
    pub fork: Option<(u64, bool)>,
    /// Turns of this device that were said again.
    pub moved: Vec<MovedTurn>,
    /// What each head index showed.
    pub indexes: Vec<IndexStanding>,
}

/// How far a comparison may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Takes in what continues this device's turns; a fork is an error.
    CatchUp,
    /// Settles a fork too.
    Settle,
}

/// What a comparison took in.
struct TakenIn {
    status: HeadStatus,
    caught_up: u64,
    fork: Option<(u64, bool)>,
}

/// Which of the messages that wait are said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// All, the pending one too.
    All,
    /// Those that are said again.
    Moved,
}

/// What was said of it.
#[derive(Default)]
pub(crate) struct Said {
    moved: Vec<MovedTurn>,
    /// The last message that was new.
    pub(crate) last: Option<TurnOutcome>,
}

/// The displaced turn that the pending one says again.
struct Again {
    from: u64,
    messages: Vec<Message>,
    first_answer: String,
}

impl Client {
    /// Brings a session together with what its other devices wrote: takes in their turns, settles a fork by the rule, says
    /// this device's displaced turns again, and publishes the head. A device that is alone loses nothing by it.
    ///
    /// Cancel safe: what was done is in the journal, and the next call goes on from there.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while a turn runs; [`ClientError::Deleted`]; [`ClientError::Store`] when no index answers, or the other device's blobs cannot be read;
    /// the chain's codes where they do not verify; as [`Client::turn`] where a turn cannot be said again, which stays
    /// waiting.
    pub async fn reconcile(
        &self,
        id: SessionId,
        options: &ResumeOptions,
        mut on_event: impl FnMut(TurnEvent) + Send,
    ) -> Result<Reconciled, ClientError> {
        let session = self.opened(id).await?;
        let _permit = session.begin()?;
        let taken = match Box::pin(self.take_in(&session, Mode::Settle, Duration::MAX, &mut on_event)).await {
            // The index lost it, or withholds it: what it took is published above what it shows.
            Err(ClientError::Protocol(ErrorCode::RollbackDetected)) => {
                on_event(TurnEvent::Devices(DeviceEvent::ShownLess));
                TakenIn { status: HeadStatus::Unpublished, caught_up: 0, fork: None }
            }
            taken => taken?,
        };
        let said = Box::pin(self.say_waiting(&session, options, Waits::Moved, &mut on_event)).await?;
        self.ensure_head_id(&session).await?;
        let published = self.publish_head(&session, Publish::Head).await;
        if let Err(error) = &published {
            // It is done: what is left is offered again in the background.
            let reason = error.to_string();
            on_event(TurnEvent::Devices(DeviceEvent::NotCompared { reason }));
        }
        let TakenIn { status, caught_up, fork } = taken;
        let status = if published.is_ok() && session.read(|state| state.last().is_some()) {
            HeadStatus::Current
        } else {
            status
        };
        Ok(Reconciled { status, caught_up, fork, moved: said.moved, indexes: session.standings() })
    }

    /// Publishes this device's head over another device's that cannot be taken in, because its blobs are gone for good:
    /// without it nothing that is said here could be found from the root again. That device, should it come back, sees both
    /// chains and settles them by the rule.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while a turn runs, [`ClientError::Deleted`], [`ClientError::Store`].
    pub async fn publish_over(&self, id: SessionId) -> Result<(), ClientError> {
        let session = self.opened(id).await?;
        let _permit = session.begin()?;
        self.ensure_head_id(&session).await?;
        self.publish_head(&session, Publish::Over).await?;
        session.compared(&Ok(()));
        Ok(())
    }

    /// Turns that are in the chain no longer, since another device's have their place; oldest first.
    ///
    /// # Errors
    /// As [`Client::session`].
    pub async fn displaced(&self, id: SessionId) -> Result<Vec<DisplacedTurn>, ClientError> {
        let session = self.opened(id).await?;
        Ok(session.read(|state| {
            let displaced = state.moves.displaced().iter();
            displaced.filter_map(|one| describe(state, one)).collect()
        }))
    }

    /// Whether a turn looks at the head index first although no other device is known: the home may be an older copy of
    /// itself. A guest comes anew with every request; what it published needs no look.
    fn is_look_due(&self, session: &Session, now_ms: u64) -> bool {
        let is_guest = matches!(self.inner.keeper, Keeper::Log(_));
        session.is_look_due(now_ms) && !(is_guest && session.read(State::is_published))
    }

    /// What comes before a turn: a look at the head index where one is due, another device may be writing, or something is
    /// left to be said again.
    /// An index that is away, or shows less than it should, does not hold up the turn.
    pub(crate) async fn reconcile_before(
        &self,
        session: &Arc<Session>,
        options: &ResumeOptions,
        events: &mut Events<'_>,
    ) -> Result<(), ClientError> {
        let now = self.now_ms();
        let wanted =
            session.is_diverged() || session.read(|state| state.is_shared(now) || state.moves_wait());
        let wait = match (wanted, self.is_look_due(session, now)) {
            (true, _) => Duration::MAX,
            // This device may have lost turns that it wrote: to find out is worth a moment.
            (false, true) => FIRST_LOOK,
            (false, false) => return Ok(()),
        };
        if !options.reconcile {
            return Ok(());
        }
        match Box::pin(self.take_in(session, Mode::Settle, wait, events)).await {
            Ok(_) => Ok(()),
            Err(error @ (ClientError::Deleted | ClientError::TaskEnded | ClientError::Closed)) => Err(error),
            Err(error @ (ClientError::File { .. } | ClientError::Log { .. })) => Err(error),
            Err(error) => {
                let reason = error.to_string();
                events(TurnEvent::Devices(DeviceEvent::NotCompared { reason }));
                Ok(())
            }
        }
    }

    /// Appends the turns of another device to a session that is their prefix.
    pub(crate) async fn take_over(&self, id: SessionId) -> Result<SessionId, ClientError> {
        let session = self.opened(id).await?;
        let _permit = session.begin()?;
        if session.read(State::has_unsaid) {
            return Err(ClientError::PendingTurn);
        }
        Box::pin(self.take_in(&session, Mode::CatchUp, Duration::MAX, &mut |_| {})).await?;
        Ok(id)
    }

    /// Compares with the head index and takes in what it has and this device has not; each index is asked for at most
    /// `wait`. The caller has leave to change the chain.
    async fn take_in(
        &self,
        session: &Arc<Session>,
        mode: Mode,
        wait: Duration,
        events: &mut Events<'_>,
    ) -> Result<TakenIn, ClientError> {
        let (seen, compared) = self.look_and_compare(session, wait).await?;
        match (compared, &seen.found) {
            (Ok(status), _) => {
                self.spawn_repair_of_indexes(&seen.look);
                Ok(TakenIn { status, caught_up: 0, fork: None })
            }
            (Err(error), Some(found)) if error.is_divergence() => {
                let merged = Box::pin(self.merge(session, mode, found, events)).await;
                // Where theirs cannot be read, they are still in the way.
                if merged.as_ref().err().is_none_or(ClientError::is_divergence) {
                    session.compared(&merged);
                }
                merged
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Fetches and verifies another device's chain, and settles which of the two counts.
    async fn merge(
        &self,
        session: &Arc<Session>,
        mode: Mode,
        found: &FoundHead,
        events: &mut Events<'_>,
    ) -> Result<TakenIn, ClientError> {
        let root = session.read(|state| state.root.clone());
        let segments = self.fetch_chain(&root, found, Some(session)).await?;
        let ours = session.read(State::chain);
        let theirs = chain_of(&ours, &segments);
        let ends = theirs.links.len() as u64;
        let links = || segments.iter().flat_map(|segment| &segment.turns).map(|turn| &turn.link);
        let own = session.read(|state| state.lost_turns(links()));
        let decided = match merge(&ours, &theirs) {
            // No other device holds what this one wrote and has lost; it was acknowledged, and no lot is drawn over it.
            Merge::Win { at } if own > 0 => Merge::Lose { at },
            decided => decided,
        };
        let (caught_up, fork) = match decided {
            Merge::Ours => (0, None),
            Merge::Behind { from } => {
                self.adopt(session, found, &segments, from).await?;
                let turns = ends.saturating_sub(from);
                events(TurnEvent::Devices(DeviceEvent::CaughtUp { turns, own }));
                (turns, None)
            }
            Merge::Lose { at } if mode == Mode::Settle => {
                let turns = ours.first + ours.links.len() as u64 - at;
                self.adopt(session, found, &segments, at).await?;
                events(TurnEvent::Devices(DeviceEvent::Forked { at, won: false, turns, own }));
                (ends.saturating_sub(at), Some((at, false)))
            }
            Merge::Win { at } if mode == Mode::Settle => {
                self.keep_theirs(session, found, &segments, at).await?;
                let turns = ends.saturating_sub(at);
                events(TurnEvent::Devices(DeviceEvent::Forked { at, won: true, turns, own }));
                (0, Some((at, true)))
            }
            Merge::Lose { .. } | Merge::Win { .. } | Merge::TooOld => {
                return Err(ErrorCode::ForkDetected.into());
            }
        };
        let status =
            if fork.is_some_and(|(_, won)| won) { HeadStatus::Unpublished } else { HeadStatus::Current };
        Ok(TakenIn { status, caught_up, fork })
    }

    /// Puts another device's turns from this seq on into the chain. Own ones there, and a message that was not answered,
    /// wait to be said after them.
    async fn adopt(
        &self,
        session: &Arc<Session>,
        found: &FoundHead,
        segments: &[VerifiedSegment],
        at: u64,
    ) -> Result<(), ClientError> {
        let first =
            segments.partition_point(|segment| segment.turns.last().is_none_or(|turn| turn.link.seq < at));
        let (root, displaces, attempts) = session.read(|state| {
            let displaces = state.next_seq() > at || state.pending.is_some();
            (state.root.clone(), displaces, attempt::open_attempts(state))
        });
        let newer = segments.get(first..).unwrap_or_default();
        let mut entries = transfer::entries(&root, newer, &Default::default(), self.now_ms())?;
        entries.retain(|entry| entry.seq().is_none_or(|seq| seq >= at));
        if displaces {
            // First, so that a write that is cut off leaves a chain that is merely behind.
            entries.insert(0, Entry::Rebase { at });
        }
        entries.push(found.entry());
        self.record_alone(session, entries).await?;
        self.spawn_aborts(session, attempts, None);
        Ok(())
    }

    /// Keeps another device's turns that lost readable, until it says them again.
    async fn keep_theirs(
        &self,
        session: &Arc<Session>,
        found: &FoundHead,
        segments: &[VerifiedSegment],
        at: u64,
    ) -> Result<(), ClientError> {
        let mut entries = Vec::new();
        for segment in segments {
            let lost = segment.turns.iter().zip(&segment.segment.entries);
            let lost = lost.filter(|(turn, _)| turn.link.seq >= at);
            entries.extend(lost.map(|(_, entry)| Entry::Kept(Box::new(entry.clone()))));
        }
        // Its number is what the next record of ours goes above.
        entries.push(found.entry());
        self.record_alone(session, entries).await
    }

    /// Records what changes the chain while no background task computes or stores something of a turn by its seq.
    async fn record_alone(&self, session: &Arc<Session>, entries: Vec<Entry>) -> Result<(), ClientError> {
        let signals = session.read(|state| state.signals.clone());
        let ended = |_| ClientError::TaskEnded;
        let _heads = session.heads.acquire().await.map_err(ended)?;
        let _puts = signals.puts.acquire().await.map_err(ended)?;
        let _ids = session.ids.acquire().await.map_err(ended)?;
        session.record(entries).await
    }

    /// Says what waits, in its order, and finishes what is pending.
    pub(crate) async fn say_waiting(
        &self,
        session: &Arc<Session>,
        options: &ResumeOptions,
        which: Waits,
        events: &mut Events<'_>,
    ) -> Result<Said, ClientError> {
        // Neither a hint nor memory was meant for what is said again.
        let quiet = ResumeOptions { hint: None, memory: None, ..options.clone() };
        let mut said = Said::default();
        let mut settled = false;
        loop {
            let next = session.read(|state| {
                let next = state.next_waiting().filter(|next| which == Waits::All || next.of.is_some());
                next.map(|next| Entry::Moving {
                    number: next.number,
                    turn_id: state.next_turn_id(&next.turn.turn_id),
                })
            });
            if let Some(moving) = next {
                session.record(vec![moving]).await?;
            }
            let pending = session.read(|state| state.pending.as_ref().map(|_| again(state)));
            let result = match &pending {
                None => return Ok(said),
                Some(None) if which == Waits::Moved => return Ok(said),
                Some(None) => Box::pin(self.finish_pending(session, options, events)).await,
                Some(Some(_)) => Box::pin(self.finish_pending(session, &quiet, &mut |_| {})).await,
            };
            match (result, pending) {
                (Ok(outcome), Some(Some(again))) => {
                    let moved = again.said(&outcome);
                    events(TurnEvent::Devices(DeviceEvent::Moved(Box::new(moved.clone()))));
                    said.moved.push(moved);
                }
                (Ok(outcome), _) => said.last = Some(outcome),
                // A node, or the index, knew a newer head in the middle of it.
                (Err(error), _) if error.is_divergence() && options.reconcile && !settled => {
                    settled = true;
                    Box::pin(self.take_in(session, Mode::Settle, Duration::MAX, events)).await?;
                }
                (Err(error), _) => return Err(error),
            }
        }
    }
}

impl Again {
    fn said(self, outcome: &TurnOutcome) -> MovedTurn {
        MovedTurn {
            from: self.from,
            to: outcome.seq,
            messages: self.messages,
            first_answer: self.first_answer,
            answer: outcome.text.clone(),
            node: outcome.node,
        }
    }
}

/// What the pending turn says again, if it does.
fn again(state: &State) -> Option<Again> {
    let displaced = state.pending_moves()?;
    let record = displaced.turn.record.as_ref()?;
    Some(Again {
        from: displaced.turn.link.seq,
        messages: state.pending.as_ref()?.turn.messages.clone(),
        first_answer: record.answer().unwrap_or_default().to_owned(),
    })
}

fn describe(state: &State, one: &crate::state::Displaced) -> Option<DisplacedTurn> {
    let record = one.turn.record.as_ref()?;
    let link_hash = one.turn.link.link_hash();
    let fate = match one.fate {
        Fate::Waits => TurnFate::Waits,
        Fate::LeftOut => TurnFate::LeftOut,
        Fate::Moved(to) => moved_to(state, to).map_or(TurnFate::Waits, |to| TurnFate::Moved { to }),
        // Its device draws another turn id; what tells is that the same is said later on.
        Fate::Theirs => {
            let new = |messages: &[Message]| messages.split_last().map(|(_, new)| new.to_vec());
            let wanted = new(&record.messages);
            let mut later = state.history.iter().filter(|turn| turn.link.seq > one.turn.link.seq);
            let found =
                later.find(|turn| turn.record.as_ref().is_some_and(|record| new(&record.messages) == wanted));
            found.map_or(TurnFate::Theirs, |turn| TurnFate::Moved { to: turn.link.seq })
        }
    };
    let messages = record.messages.clone();
    Some(DisplacedTurn {
        seq: one.turn.link.seq,
        link_hash,
        messages,
        node: one.turn.link.author,
        receipt: one.receipt.clone(),
        fate,
    })
}

/// Where a turn is that was said again, perhaps more than once.
fn moved_to(state: &State, mut link: LinkHash) -> Option<u64> {
    // Each step goes to a turn that was accepted later.
    for _ in 0..=state.moves.displaced().len() {
        if let Some(turn) = state.history.iter().rev().find(|turn| turn.link.link_hash() == link) {
            return Some(turn.link.seq);
        }
        match state.moves.find(&link)?.fate {
            Fate::Moved(next) => link = next,
            Fate::Waits | Fate::LeftOut | Fate::Theirs => return None,
        }
    }
    None
}

/// The links of verified segments, which begin with the genesis.
fn chain_of(ours: &Chain, segments: &[VerifiedSegment]) -> Chain {
    let turns = || segments.iter().flat_map(|segment| &segment.turns);
    let prev = turns().next().map_or(ours.prev, |turn| turn.link.prev_link);
    Chain { first: 0, prev, links: turns().map(|turn| turn.link.link_hash()).collect() }
}
