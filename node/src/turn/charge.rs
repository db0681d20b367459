//! The charge for a turn or an embedding request, to its grants, or else to its peer and subnet. Dropping it
//! returns the unused part.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use baton_proto::{
    ErrorCode,
    ids::{AuthHash, ModelId},
    quota::{QuotaChain, QuotaUse},
};

use crate::{
    core::{
        Core,
        guard::{Caller, HeldTokens},
        quotas::HeldQuota,
        refusal::Refusal,
        slots::{Group, Requester},
    },
    lock::lock,
};

/// See the module.
pub(crate) struct Charge {
    core: Arc<Core>,
    who: Caller,
    /// Reserved tokens.
    held: u32,
    /// Tokens of the answer.
    used: AtomicU32,
    served: AtomicBool,
    from: From,
}

/// The charged account.
enum From {
    UnknownPeers(HeldTokens),
    Grants(HeldQuota),
}

impl Charge {
    /// Reserves at most `most` tokens, and one turn of each grant. An hour's quota may allow fewer:
    /// [`Charge::held`] tells the number, and the answer has no more.
    pub(crate) fn take(
        core: &Arc<Core>,
        who: Caller,
        most: u32,
        chain: Option<&QuotaChain>,
    ) -> Result<Self, Refusal> {
        let now_ms = core.now_ms();
        let (from, held) = match chain {
            Some(chain) => {
                let held = lock(&core.quotas).take(chain, most.into(), now_ms);
                let held = held.map_err(|(code, retry_after_ms)| Refusal { code, retry_after_ms })?;
                let tokens = held.tokens;
                (From::Grants(held), tokens)
            }
            None => {
                let held = core.guard().hold_tokens(&who, most.into(), now_ms);
                let refused = |retry_after_ms| Refusal { code: ErrorCode::QuotaExceeded, retry_after_ms };
                let held = held.map_err(refused)?;
                (From::UnknownPeers(held), held.tokens)
            }
        };
        // Never more than `most`.
        let held = u32::try_from(held).unwrap_or(most);
        let (used, served) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(Self { core: core.clone(), who, held, used, served, from })
    }

    /// As [`Charge::take`], for work that cannot do with fewer tokens.
    pub(crate) fn take_all(
        core: &Arc<Core>,
        who: Caller,
        tokens: u32,
        chain: Option<&QuotaChain>,
    ) -> Result<Self, Refusal> {
        let charge = Self::take(core, who, tokens, chain)?;
        if charge.held < tokens {
            // No wait makes an hour's quota larger.
            return Err(Refusal { code: ErrorCode::QuotaExceeded, retry_after_ms: u32::MAX });
        }
        Ok(charge)
    }

    /// Reserved tokens: the answer has no more.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// The charged caller.
    pub(crate) fn who(&self) -> Caller {
        self.who
    }

    /// Records that the turn was served, with this number of tokens.
    pub(crate) fn served(&self, tokens: u32) {
        self.used.store(tokens, Relaxed);
        self.served.store(true, Relaxed);
        self.core.guard().served(&self.who, self.core.now_ms());
        if let Some(mesh) = &self.core.peers {
            mesh.mark_known(self.who.peer);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let unused = u64::from(self.held.saturating_sub(self.used.load(Relaxed)));
        match &self.from {
            From::UnknownPeers(held) => self.core.guard().return_tokens(&self.who, *held, unused),
            From::Grants(held) => {
                lock(&self.core.quotas).give_back(held, unused, !self.served.load(Relaxed));
            }
        }
    }
}

/// Checks a turn's grant; `None` without a grant, if the node requires none.
pub(crate) fn check_quota(
    core: &Core,
    used: Option<&QuotaUse>,
    model: ModelId,
    auth_hash: &AuthHash,
) -> Result<Option<QuotaChain>, ErrorCode> {
    let mut quotas = lock(&core.quotas);
    match used {
        Some(used) => quotas.check(used, (auth_hash, model), core.now_ms()).map(Some),
        None if quotas.required() => Err(ErrorCode::QuotaExceeded),
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
