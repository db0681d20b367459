//! The charge for a turn or an embedding request, to its grants, or else to its peer and subnet. It
//! holds the most that the work may cost, and books the work as it is done, however the work ends. Dropping it
//! returns the rest.

use std::sync::{Arc, Mutex};

use baton_proto::{
    ErrorCode, SignedObject,
    ids::{AuthHash, ModelId},
    quota::{QuotaChain, QuotaGrant, QuotaUse},
};

use crate::{
    core::{
        Core,
        accounts::{Amounts, Holder, Payer},
        guard::{Caller, Guard},
        limits::ServiceLimits,
        refusal::Refusal,
        slots::{Group, Requester},
    },
    engine::{EngineEvent, GenerateHandle},
    lock::lock,
};

/// Tokens that a turn costs at least, even if its answer has none: it costs a slot, a signature and a blob.
const MIN_TOKENS: u32 = 1;

/// Tokens of a prompt or of texts that count as one token of an answer: reading is cheaper than writing.
const READ_TOKENS: u32 = 16;

/// See the module.
pub(crate) struct Charge {
    core: Arc<Core>,
    who: Caller,
    payers: Vec<Payer>,
    granted: bool,
    /// Tokens held for the answer.
    held: u32,
    amounts: Mutex<ChargedAmounts>,
}

#[derive(Default)]
struct ChargedAmounts {
    /// Held and not yet booked.
    held: Amounts,
    /// Whether the turn is booked.
    begun: bool,
    /// Tokens booked for checks of earlier answers.
    checks: u32,
    /// Tokens of the answer that are booked.
    answer: u32,
}

impl Charge {
    /// Holds at most `most` tokens, and one turn of each payer. An hour's quota may allow fewer:
    /// [`Charge::held`] tells the number, and the answer has no more.
    pub(crate) fn take(
        core: &Arc<Core>,
        who: Caller,
        most: u32,
        chain: Option<&QuotaChain>,
    ) -> Result<Self, Refusal> {
        let now_ms = core.now_ms();
        let payers = payers(&core.limits, &core.guard(), &who, chain, now_ms);
        let held = affordable(&payers, most);
        let amounts = Amounts { turns: 1, tokens: held.into(), storage: 0 };
        lock(&core.accounts).hold(&payers, amounts, now_ms).map_err(exceeded)?;
        let amounts = Mutex::new(ChargedAmounts { held: amounts, ..ChargedAmounts::default() });
        Ok(Self { core: core.clone(), who, payers, granted: chain.is_some(), held, amounts })
    }

    /// As [`Charge::take`], for work that cannot do with fewer tokens.
    pub(crate) fn take_all(
        core: &Arc<Core>,
        who: Caller,
        tokens: u32,
        chain: Option<&QuotaChain>,
    ) -> Result<Self, Refusal> {
        let charge = Self::take(core, who, tokens, chain)?;
        // No wait makes an hour's quota larger.
        if charge.held < tokens { Err(exceeded(u32::MAX)) } else { Ok(charge) }
    }

    /// Holds storage units for the turn's blob, once.
    pub(crate) fn hold_storage(&self, units: u64) -> Result<(), Refusal> {
        self.hold(Amounts { storage: units, ..Amounts::default() })
    }

    /// Holds the cost of reading a prompt, and returns the tokens that remain for the answer. An account without
    /// room for both pays the prompt from the answer's tokens.
    pub(crate) fn hold_prompt(&self, input_tokens: u32) -> Result<u32, Refusal> {
        let cost = read_cost(input_tokens as usize);
        match self.hold(Amounts { tokens: cost.into(), ..Amounts::default() }) {
            Ok(()) => Ok(self.held),
            Err(refusal) => self.held.checked_sub(cost).filter(|left| *left > 0).ok_or(refusal),
        }
    }

    fn hold(&self, more: Amounts) -> Result<(), Refusal> {
        let mut amounts = lock(&self.amounts);
        lock(&self.core.accounts).hold(&self.payers, more, self.core.now_ms()).map_err(exceeded)?;
        amounts.held.tokens += more.tokens;
        amounts.held.storage += more.storage;
        Ok(())
    }

    /// The charged caller.
    pub(crate) fn who(&self) -> Caller {
        self.who
    }

    /// Whether the turn is under a grant.
    pub(crate) fn is_granted(&self) -> bool {
        self.granted
    }

    /// Books the turn and the tokens that it reads, once: the work begins.
    pub(crate) fn begin(&self, read_tokens: usize) {
        let mut amounts = lock(&self.amounts);
        if !std::mem::replace(&mut amounts.begun, true) {
            let tokens = read_cost(read_tokens).max(MIN_TOKENS).into();
            self.book(&mut amounts, Amounts { turns: 1, tokens, storage: 0 });
        }
    }

    /// Books the tokens that checks read in all beyond the turn's prompt, up to now.
    pub(crate) fn checked(&self, read_tokens: usize) {
        let mut amounts = lock(&self.amounts);
        let more = read_cost(read_tokens).saturating_sub(amounts.checks);
        amounts.checks += more;
        self.book(&mut amounts, Amounts { tokens: more.into(), ..Amounts::default() });
    }

    /// Books tokens of the answer up to this number in all.
    fn made(&self, in_all: u32) {
        let mut amounts = lock(&self.amounts);
        // A proxied engine's counts are its server's.
        let more = in_all.min(self.held).saturating_sub(amounts.answer);
        amounts.answer += more;
        self.book(&mut amounts, Amounts { tokens: more.into(), ..Amounts::default() });
    }

    fn book(&self, amounts: &mut ChargedAmounts, done: Amounts) {
        lock(&self.core.accounts).book(&self.payers, done, self.core.now_ms());
        let held = &mut amounts.held;
        held.turns = held.turns.saturating_sub(done.turns);
        held.tokens = held.tokens.saturating_sub(done.tokens);
        held.storage = held.storage.saturating_sub(done.storage);
    }

    /// Records that the work was served, and books the storage units of its blob.
    pub(crate) fn served(&self, storage: u64) {
        self.book(&mut lock(&self.amounts), Amounts { storage, ..Amounts::default() });
        self.core.guard().served(&self.who, self.core.now_ms());
        if let Some(mesh) = &self.core.peers {
            mesh.mark_known(self.who.peer);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        lock(&self.core.accounts).end(&self.payers, lock(&self.amounts).held);
    }
}

/// The cost of tokens that are read, in tokens of answers.
pub(crate) fn read_cost(tokens: usize) -> u32 {
    u32::try_from(tokens.div_ceil(READ_TOKENS as usize)).unwrap_or(u32::MAX)
}

/// An engine's events, booked as they are taken. Dropping it books the tokens that the engine made and that
/// nobody took.
pub(crate) struct ChargedEvents<'a> {
    handle: GenerateHandle,
    charge: &'a Charge,
    /// Tokens of the answer that the engine only reads.
    resumed: usize,
    made: u32,
}

impl<'a> ChargedEvents<'a> {
    /// The events of a job after `resumed` tokens.
    pub(crate) fn new(handle: GenerateHandle, charge: &'a Charge, resumed: usize) -> Self {
        Self { handle, charge, resumed, made: 0 }
    }

    /// The next event, or `None` after the last. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<EngineEvent> {
        let event = self.handle.next().await;
        event.inspect(|event| self.book(event))
    }

    fn book(&mut self, event: &EngineEvent) {
        let charge = self.charge;
        match event {
            EngineEvent::Started { input_tokens } => charge.begin(*input_tokens as usize + self.resumed),
            EngineEvent::Token { ids, .. } => {
                // A proxied engine has no token IDs.
                let tokens = u32::try_from(ids.len().max(1)).unwrap_or(u32::MAX);
                self.made = self.made.saturating_add(tokens);
                charge.made(self.made);
            }
            EngineEvent::Done { stats, .. } => charge.made(self.made.max(stats.output_tokens)),
            EngineEvent::Resumed { .. } | EngineEvent::Failed(_) => {}
        }
    }
}

impl Drop for ChargedEvents<'_> {
    fn drop(&mut self) {
        self.handle.events.close();
        while let Ok(event) = self.handle.events.try_recv() {
            self.book(&event);
        }
    }
}

fn exceeded(retry_after_ms: u32) -> Refusal {
    Refusal::after(ErrorCode::QuotaExceeded, retry_after_ms)
}

/// The accounts that pay: all grants of a chain, or else the peer and its subnet. A peer that is not counted by subnet
/// pays alone.
fn payers(
    limits: &ServiceLimits,
    guard: &Guard,
    who: &Caller,
    chain: Option<&QuotaChain>,
    now_ms: u64,
) -> Vec<Payer> {
    if let Some(chain) = chain {
        let payer = |link: &SignedObject<QuotaGrant>| Payer {
            holder: Holder::grant(link.quota_hash()),
            limits: limits.grant_hour(link),
            concurrent: link.concurrent,
        };
        return chain.links().iter().map(payer).collect();
    }
    let payer = |holder, limits| Payer { holder, limits, concurrent: u16::MAX };
    let subnet = guard.pool(who, now_ms).map(|pool| payer(Holder::subnet(pool), limits.subnet_hour()));
    std::iter::once(payer(Holder::peer(who.peer), limits.peer_hour())).chain(subnet).collect()
}

/// The tokens to hold: as many as wanted, but no more than an hour has.
fn affordable(payers: &[Payer], most: u32) -> u32 {
    let hours = payers.iter().filter_map(|payer| payer.limits.tokens);
    let tokens = hours.fold(u64::from(most), u64::min);
    u32::try_from(tokens).unwrap_or(most).max(MIN_TOKENS)
}

/// Checks a turn's grant; `None` without a grant, if the node requires none.
///
/// # Errors
/// [`ErrorCode::GrantRequired`] without a grant, and those of the grant itself.
pub(crate) fn check_quota(
    core: &Core,
    used: Option<&QuotaUse>,
    model: ModelId,
    auth_hash: &AuthHash,
) -> Result<Option<QuotaChain>, ErrorCode> {
    let mut quotas = lock(&core.quotas);
    match used {
        Some(used) => quotas.check(used, (auth_hash, model), core.now_ms()).map(Some),
        None if quotas.required() => Err(ErrorCode::GrantRequired),
        None => Ok(None),
    }
}

/// The requester of a slot, with its group.
pub(crate) fn requester(core: &Core, who: &Caller, chain: Option<&QuotaChain>) -> Requester {
    let group = match (chain.and_then(|chain| chain.links().first()), who.subnet) {
        // The issuer's grant: all grants narrowed from it share its slots.
        (Some(grant), _) => Group::Grant(grant.quota_hash()),
        (None, Some(subnet)) => Group::Subnet(subnet),
        (None, None) => Group::Peer(who.peer),
    };
    let unknown = chain.is_none() && core.guard().queues_as_unknown(who, core.now_ms());
    Requester { peer: who.peer, group, unknown }
}

#[cfg(test)]
mod tests {
    use baton_mesh::{Origin, Subnet};
    use baton_proto::ids::NodeId;

    use super::*;
    use crate::core::{accounts::Accounts, quotas::fixtures::grant};

    fn of(chain: &[&SignedObject<QuotaGrant>]) -> Vec<Payer> {
        let bytes: Vec<_> = chain.iter().map(|link| link.bytes().clone()).collect();
        let chain = QuotaChain::verify_form(&bytes).unwrap();
        let limits = ServiceLimits::default();
        let who = Caller { peer: NodeId([1; 32]), subnet: None };
        payers(&limits, &Guard::new(&limits.guard()), &who, Some(&chain), 0)
    }

    fn turn(accounts: &mut Accounts, payers: &[Payer], most: u32, used: u32) -> Result<u32, u32> {
        let held = affordable(payers, most);
        accounts.hold(payers, Amounts { turns: 1, tokens: held.into(), storage: 0 }, 10)?;
        let used = used.min(held);
        accounts.book(payers, Amounts { turns: 1, tokens: used.into(), storage: 0 }, 10);
        accounts.end(payers, Amounts { turns: 0, tokens: (held - used).into(), storage: 0 });
        Ok(used)
    }

    #[test]
    fn reading_counts_for_less_than_writing() {
        assert_eq!([0, 1, 16, 17].map(read_cost), [0, 1, 1, 2]);
    }

    #[test]
    fn a_turn_counts_at_every_grant_of_its_chain() {
        let first = grant(None, 1, (3, 1000));
        let second = grant(Some(&first), 2, (2, 1000));
        let (of_first, of_second) = (of(&[&first]), of(&[&first, &second]));
        let mut accounts = Accounts::default();
        for payers in [&of_second, &of_first, &of_second] {
            assert_eq!(turn(&mut accounts, payers, 100, 10), Ok(10));
        }
        assert!(turn(&mut accounts, &of_first, 100, 10).is_err(), "three turns of the first were used");
        assert!(turn(&mut accounts, &of_second, 100, 10).is_err(), "and two of the second");
    }

    #[test]
    fn a_small_grant_is_a_limit_and_a_grant_of_nothing_allows_nothing() {
        let small = of(&[&grant(None, 1, (100, 1000))]);
        let mut accounts = Accounts::default();
        // Three quarters of the longest answer, which is far more than the grant has.
        let served: u32 = (0..10).filter_map(|_| turn(&mut accounts, &small, 4096, 3000).ok()).sum();
        assert_eq!(served, 1000);
        for nothing in [(100, 0), (0, 1000)] {
            let payers = of(&[&grant(None, 1, nothing)]);
            assert_eq!(turn(&mut Accounts::default(), &payers, 0, 0), Err(u32::MAX));
        }
    }

    #[test]
    fn a_peer_without_a_grant_pays_with_its_subnet_and_one_of_the_own_networks_pays_alone() {
        let own_networks = vec!["192.168.1.0/24".parse().unwrap()].into();
        let limits = ServiceLimits { own_networks, ..ServiceLimits::default() };
        let guard = Guard::new(&limits.guard());
        let caller = |ip: [u8; 4]| guard.caller(NodeId([1; 32]), Origin::Direct(ip.into()));
        let peer = Holder::peer(NodeId([1; 32]));
        let subnet = |prefix| Holder::subnet((Subnet::V4(prefix), false));
        for (ip, expected) in [
            ([203, 0, 113, 9], vec![peer, subnet([203, 0, 113])]),
            ([127, 3, 2, 1], vec![peer, subnet([127, 0, 0])]),
            ([192, 168, 2, 1], vec![peer, subnet([192, 168, 2])]),
            ([192, 168, 1, 1], vec![peer]),
        ] {
            let paying = payers(&limits, &guard, &caller(ip), None, 0);
            let holders: Vec<Holder> = paying.iter().map(|payer| payer.holder).collect();
            assert_eq!(holders, expected, "{ip:?}");
            assert_eq!(affordable(&paying, 0), 1, "a turn costs a token at least");
        }
    }
}
