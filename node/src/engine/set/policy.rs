//! Decides which models are in memory: pure decisions over claims, holds and sizes, without clocks, threads
//! or engines.
//!
//! A turn *claims* a model. Once the model is in memory, the claim becomes a *hold*; a held model stays.
//! Claims are served in order. For the first claim whose model has no room, the least recently used models
//! must go. They take no new holds until then, so a stream of turns for one model never blocks another model.
//! Together, all models in memory, loading or unloading never exceed the budget.
//!
//! The caller executes the steps of [`Policy::next`] and reports their end. Times are milliseconds of any
//! monotonic clock.

/// State of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Residency {
    /// Not in memory.
    Out,
    /// Loading; its memory is reserved.
    Loading,
    /// In memory.
    In,
    /// Unloading; its memory is not free yet.
    Leaving,
}

/// A step to execute now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyStep {
    /// Load this model, then call [`Policy::loaded`] or [`Policy::failed`].
    Load(usize),
    /// Unload this model, then call [`Policy::unloaded`].
    Unload(usize),
}

/// State of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimStatus {
    /// The model is held; the claim is gone.
    Granted,
    /// The model could not be loaded; the claim is gone.
    Failed,
    /// Not yet.
    Wait,
}

/// The ID of a claim; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClaimId(u64);

#[derive(Debug)]
struct Model {
    bytes: u64,
    residency: Residency,
    holds: usize,
    used_ms: u64,
}

#[derive(Debug)]
struct Claim {
    id: ClaimId,
    model: usize,
    /// Its model failed to load during the wait.
    failed: bool,
}

/// The step for the first claim without room.
#[derive(Debug, Default)]
struct Plan {
    step: Option<PolicyStep>,
    /// Models that must go for it.
    going: Vec<usize>,
}

/// The models of a node. The number of waiting turns bounds the claims.
#[derive(Debug)]
pub(super) struct Policy {
    budget: Option<u64>,
    idle_ms: Option<u64>,
    models: Vec<Model>,
    claims: Vec<Claim>,
    next_id: u64,
}

impl Policy {
    /// All models out of memory. A model above the budget is never loaded; the caller refuses it by name
    /// before.
    pub(super) fn new(sizes: &[u64], budget: Option<u64>, idle_ms: Option<u64>) -> Self {
        let out = |bytes: &u64| Model { bytes: *bytes, residency: Residency::Out, holds: 0, used_ms: 0 };
        Self { budget, idle_ms, models: sizes.iter().map(out).collect(), claims: Vec::new(), next_id: 0 }
    }

    /// Claims a model.
    pub(super) fn claim(&mut self, model: usize) -> ClaimId {
        let id = ClaimId(self.next_id);
        self.next_id += 1;
        self.claims.push(Claim { id, model, failed: false });
        id
    }

    /// Withdraws a claim. Nothing of it is left.
    pub(super) fn withdraw(&mut self, id: ClaimId) {
        self.claims.retain(|claim| claim.id != id);
    }

    /// Checks a claim; if it is granted, holds its model.
    pub(super) fn poll(&mut self, id: ClaimId, now_ms: u64) -> ClaimStatus {
        let Some(claim) = self.claims.iter().find(|claim| claim.id == id) else {
            return ClaimStatus::Failed;
        };
        let (model, failed) = (claim.model, claim.failed);
        if failed {
            self.withdraw(id);
            return ClaimStatus::Failed;
        }
        if self.residency(model) != Residency::In || self.plan().going.contains(&model) {
            return ClaimStatus::Wait;
        }
        self.withdraw(id);
        self.hold(model, now_ms);
        ClaimStatus::Granted
    }

    /// Holds a loaded model out of turn, for a holder or for a short use. Returns whether it is loaded.
    pub(super) fn pin(&mut self, model: usize, now_ms: u64) -> bool {
        let there = self.residency(model) == Residency::In;
        if there {
            self.hold(model, now_ms);
        }
        there
    }

    fn hold(&mut self, model: usize, now_ms: u64) {
        let model = &mut self.models[model];
        model.holds += 1;
        model.used_ms = now_ms;
    }

    /// A hold ends.
    pub(super) fn release(&mut self, model: usize, now_ms: u64) {
        let model = &mut self.models[model];
        model.holds = model.holds.saturating_sub(1);
        model.used_ms = now_ms;
    }

    /// A model is now in memory.
    pub(super) fn loaded(&mut self, model: usize, now_ms: u64) {
        self.models[model].residency = Residency::In;
        self.models[model].used_ms = now_ms;
    }

    /// A model could not be loaded. Its waiting claims fail, and the next claim tries again.
    pub(super) fn failed(&mut self, model: usize) {
        self.models[model].residency = Residency::Out;
        for claim in self.claims.iter_mut().filter(|claim| claim.model == model) {
            claim.failed = true;
        }
    }

    /// A model is now out of memory.
    pub(super) fn unloaded(&mut self, model: usize) {
        self.models[model].residency = Residency::Out;
    }

    /// The next step, marked as begun. Call it again until it returns `None`.
    pub(super) fn next(&mut self, now_ms: u64) -> Option<PolicyStep> {
        let step = self.plan().step.or_else(|| self.idle(now_ms))?;
        match step {
            PolicyStep::Load(model) => self.models[model].residency = Residency::Loading,
            PolicyStep::Unload(model) => self.models[model].residency = Residency::Leaving,
        }
        Some(step)
    }

    /// When the next model will have been idle for too long, if nothing else happens.
    pub(super) fn next_idle_ms(&self) -> Option<u64> {
        let idle_ms = self.idle_ms?;
        (0..self.models.len())
            .filter(|&model| self.is_idle(model))
            .map(|model| self.models[model].used_ms.saturating_add(idle_ms))
            .min()
    }

    /// State of a model.
    pub(super) fn residency(&self, model: usize) -> Residency {
        self.models[model].residency
    }

    /// Models in memory, and the bytes of all models, including loading and unloading ones.
    pub(super) fn taken(&self) -> (usize, u64) {
        let there = self.models.iter().filter(|model| model.residency == Residency::In).count();
        (there, self.bytes(|residency| residency != Residency::Out))
    }

    fn bytes(&self, counts: impl Fn(Residency) -> bool) -> u64 {
        let counted = self.models.iter().filter(|model| counts(model.residency));
        counted.fold(0, |sum, model| sum.saturating_add(model.bytes))
    }

    /// Whether a model is in memory without holds and claims.
    fn is_idle(&self, index: usize) -> bool {
        let model = &self.models[index];
        let wanted = self.claims.iter().any(|claim| claim.model == index);
        model.residency == Residency::In && model.holds == 0 && !wanted
    }

    fn idle(&self, now_ms: u64) -> Option<PolicyStep> {
        let idle_ms = self.idle_ms?;
        let over = |&model: &usize| self.models[model].used_ms.saturating_add(idle_ms) <= now_ms;
        (0..self.models.len()).filter(|&model| self.is_idle(model)).find(over).map(PolicyStep::Unload)
    }

    /// Finds the first claim that needs a step or has to wait for room.
    fn plan(&self) -> Plan {
        let mut wanted = vec![false; self.models.len()];
        for claim in self.claims.iter().filter(|claim| !claim.failed) {
            wanted[claim.model] = true;
            match self.residency(claim.model) {
                Residency::In | Residency::Loading => {}
                // Its own memory must become free first.
                Residency::Leaving => return Plan::default(),
                Residency::Out => {
                    return self.make_room(self.models[claim.model].bytes, claim.model, &wanted);
                }
            }
        }
        Plan::default()
    }

    /// Loads a model, or names the models without an earlier claim that must go.
    fn make_room(&self, bytes: u64, model: usize, wanted: &[bool]) -> Plan {
        let load = Plan { step: Some(PolicyStep::Load(model)), going: Vec::new() };
        let Some(budget) = self.budget else { return load };
        let after = self.bytes(|residency| residency != Residency::Out).saturating_add(bytes);
        if after <= budget {
            return load;
        }
        let mut missing = after - budget;
        missing = missing.saturating_sub(self.bytes(|residency| residency == Residency::Leaving));
        let mut others: Vec<usize> = (0..self.models.len())
            .filter(|&other| self.residency(other) == Residency::In && !wanted[other])
            .collect();
        others.sort_by_key(|&other| (self.models[other].holds > 0, self.models[other].used_ms));
        let mut plan = Plan::default();
        for other in others {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(self.models[other].bytes);
            plan.going.push(other);
        }
        let free = plan.going.iter().copied().find(|&other| self.models[other].holds == 0);
        plan.step = free.map(PolicyStep::Unload);
        plan
    }
}

#[cfg(test)]
mod tests;
