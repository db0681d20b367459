//! The charge for a turn or an embedding request, to its grants, or else to its subnet. It holds the most that the work may
//! cost, and counts the work as it is done. Dropping it returns the rest, however the work ended.

use std::sync::Arc;

use baton_limits::Key;
use baton_mesh::Caller;
use baton_proto::{
    ErrorCode, SignedObject,
    ids::{AuthHash, ModelId},
    right::{QuotaUse, Right, RightChain},
};
use parking_lot::Mutex;

use crate::{
    core::{
        Core,
        accounts::{Amounts, Holder, Payer},
        limits::ServiceLimits,
        refusal::Refusal,
    },
    engine::{EngineEvent, GenerateHandle},
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
    held: Amounts,
    /// The part of these that is used. A turn is used once it begins.
    used: Amounts,
    /// Tokens for checks of earlier answers among the used ones.
    checks: u32,
    /// Tokens of the answer among the used ones.
    answer: u32,
}

impl Charge {
    /// Holds at most `most` tokens, and one turn of each payer. An hour's quota may allow fewer:
    /// [`Charge::held`] tells the number, and the answer has no more.
    pub(crate) fn take(
        core: &Arc<Core>,
        who: Caller,
        most: u32,
        chain: Option<&RightChain>,
    ) -> Result<Self, Refusal> {
        let payers = payers(&core.limits, &who, chain);
        let held = affordable(&payers, most);
        let amounts = Amounts { turns: 1, tokens: held.into(), storage: 0 };
        core.accounts.lock().hold(&payers, amounts, core.now_ms()).map_err(exceeded)?;
        let amounts = Mutex::new(ChargedAmounts { held: amounts, ..ChargedAmounts::default() });
        Ok(Self { core: core.clone(), who, payers, granted: chain.is_some(), held, amounts })
    }

    /// As [`Charge::take`], for work that cannot do with fewer tokens.
    pub(crate) fn take_all(
        core: &Arc<Core>,
        who: Caller,
        tokens: u32,
        chain: Option<&RightChain>,
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
        let mut amounts = self.amounts.lock();
        self.core.accounts.lock().hold(&self.payers, more, self.core.now_ms()).map_err(exceeded)?;
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

    /// Counts the turn and the tokens that it reads, once: the work begins.
    pub(crate) fn begin(&self, read_tokens: usize) {
        let mut amounts = self.amounts.lock();
        if amounts.used.turns == 0 {
            amounts.used.turns = 1;
            amounts.used.tokens += u64::from(read_cost(read_tokens).max(MIN_TOKENS));
        }
    }

    /// Counts the tokens that checks read in all beyond the turn's prompt, up to now.
    pub(crate) fn checked(&self, read_tokens: usize) {
        let more = read_cost(read_tokens).saturating_sub(self.amounts.lock().checks);
        // Without room for them, they are paid from the answer's tokens.
        let _ = self.hold(Amounts { tokens: more.into(), ..Amounts::default() });
        let mut amounts = self.amounts.lock();
        amounts.checks += more;
        amounts.used.tokens += u64::from(more);
    }

    /// Counts tokens of the answer up to this number in all.
    fn made(&self, in_all: u32) {
        let mut amounts = self.amounts.lock();
        // A proxied engine's counts are its server's.
        let more = in_all.min(self.held).saturating_sub(amounts.answer);
        amounts.answer += more;
        amounts.used.tokens += u64::from(more);
    }

    /// Records that the work was served, and counts the storage units of its blob.
    pub(crate) fn served(&self, storage: u64) {
        self.amounts.lock().used.storage += storage;
        self.core.defence.served(&self.who);
        if let (Some(mesh), Some(subnet)) = (&self.core.peers, self.who.subnet) {
            mesh.trust(subnet);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let amounts = self.amounts.lock();
        self.core.accounts.lock().end(&self.payers, amounts.held.without(amounts.used));
    }
}

/// The cost of tokens that are read, in tokens of answers.
pub(crate) fn read_cost(tokens: usize) -> u32 {
    u32::try_from(tokens.div_ceil(READ_TOKENS as usize)).unwrap_or(u32::MAX)
}

/// An engine's events, counted as they are taken. Dropping it counts the tokens that the engine made and that nobody
/// took.
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
        event.inspect(|event| self.count(event))
    }

    fn count(&mut self, event: &EngineEvent) {
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
            self.count(&event);
        }
    }
}

fn exceeded(retry_after_ms: u32) -> Refusal {
    Refusal::after(ErrorCode::QuotaExceeded, retry_after_ms)
}

/// The accounts that pay: all grants of a chain, or else the subnet. A peer of the operator's own networks pays nothing.
fn payers(limits: &ServiceLimits, who: &Caller, chain: Option<&RightChain>) -> Vec<Payer> {
    if let Some(chain) = chain {
        let payer = |link: &SignedObject<Right>| {
            let quota = link.quota()?;
            let (holder, rates) = (Holder::grant(link.right_hash()), ServiceLimits::grant_hour(quota));
            Some(Payer { holder, rates, concurrent: quota.concurrent })
        };
        return chain.links().iter().filter_map(payer).collect();
    }
    let payer =
        |subnet| Payer { holder: Holder::subnet(subnet), rates: limits.subnet_hour(), concurrent: u16::MAX };
    who.subnet.map(payer).into_iter().collect()
}

/// The tokens to hold: as many as wanted, but no more than an hour has.
fn affordable(payers: &[Payer], most: u32) -> u32 {
    let hours = payers.iter().filter_map(|payer| payer.rates[1]);
    let tokens = hours.fold(u64::from(most), |most, hour| most.min(hour.burst()));
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
) -> Result<Option<RightChain>, ErrorCode> {
    let mut quotas = core.quotas.lock();
    match used {
        Some(used) => quotas.check(used, (auth_hash, model), core.now_ms()).map(Some),
        None if quotas.required() => Err(ErrorCode::GrantRequired),
        None => Ok(None),
    }
}

/// The key that a turn counts to where it waits. All grants narrowed from an issuer's grant share its slots.
pub(crate) fn payer(who: &Caller, chain: Option<&RightChain>) -> Key {
    match chain.and_then(|chain| chain.links().first()) {
        Some(grant) => Key::Grant(grant.right_hash().0),
        None => Key::of(who.subnet),
    }
}

#[cfg(test)]
mod tests {
    use baton_limits::Subnet;
    use baton_proto::ids::NodeId;

    use super::*;
    use crate::core::{
        accounts::Accounts,
        quotas::fixtures::{chain, grant},
    };

    fn of(links: &[&SignedObject<Right>]) -> Vec<Payer> {
        let who = Caller { peer: NodeId([1; 32]), subnet: None };
        payers(&ServiceLimits::default(), &who, Some(&chain(links)))
    }

    fn turn(accounts: &mut Accounts, payers: &[Payer], most: u32, used: u32) -> Result<u32, u32> {
        let held = affordable(payers, most);
        accounts.hold(payers, Amounts { turns: 1, tokens: held.into(), storage: 0 }, 10)?;
        let used = used.min(held);
        accounts.end(payers, Amounts { turns: 0, tokens: (held - used).into(), storage: 0 });
        Ok(used)
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
    fn a_turn_without_a_grant_counts_at_its_subnet_and_one_of_the_own_networks_nowhere() {
        let limits = ServiceLimits::default();
        for subnet in [Some(Subnet::V4([203, 0, 113])), None] {
            let paying = payers(&limits, &Caller { peer: NodeId([1; 32]), subnet }, None);
            let holders: Vec<Holder> = paying.iter().map(|payer| payer.holder).collect();
            assert_eq!(holders, subnet.map(Holder::subnet).into_iter().collect::<Vec<_>>());
            assert_eq!(affordable(&paying, 0), 1, "a turn costs a token at least");
        }
    }
}
