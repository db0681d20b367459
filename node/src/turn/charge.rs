//! The charge for a turn or an embedding request, to its grants, or else to its peer and subnet. Dropping it
//! returns the unused part.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use baton_mesh::Subnet;
use baton_proto::{
    ErrorCode,
    ids::{AuthHash, ModelId, QuotaHash},
    quota::{QuotaChain, QuotaUse},
};

use crate::{
    core::{
        Core,
        guard::Caller,
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
    UnknownPeers(Option<(Subnet, bool)>),
    Grants(Vec<QuotaHash>),
}

impl Charge {
    /// Reserves `held` tokens, the maximum of the answer, and one turn of each grant.
    pub(crate) fn take(
        core: &Arc<Core>,
        who: Caller,
        held: u32,
        chain: Option<&QuotaChain>,
    ) -> Result<Self, Refusal> {
        let now_ms = core.now_ms();
        let from = match chain {
            Some(chain) => {
                let taken = lock(&core.quotas).take(chain, held.into(), now_ms);
                From::Grants(taken.map_err(|(code, retry_after_ms)| Refusal { code, retry_after_ms })?)
            }
            None => {
                let pool = core.guard().hold_tokens(&who, held.into(), now_ms);
                let refused = |retry_after_ms| Refusal { code: ErrorCode::QuotaExceeded, retry_after_ms };
                From::UnknownPeers(pool.map_err(refused)?)
            }
        };
        let (used, served) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(Self { core: core.clone(), who, held, used, served, from })
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
            From::UnknownPeers(pool) => self.core.guard().return_tokens(&self.who, *pool, unused),
            From::Grants(taken) => {
                lock(&self.core.quotas).give_back(taken, unused, !self.served.load(Relaxed));
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
