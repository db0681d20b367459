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
pub(super) enum Place {
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
pub(super) enum Step {
    /// Load this model, then call [`Policy::loaded`] or [`Policy::failed`].
    Load(usize),
    /// Unload this model, then call [`Policy::unloaded`].
    Unload(usize),
}

/// State of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The model is held; the claim is gone.
    Granted,
    /// The model could not be loaded; the claim is gone.
    Failed,
    /// Not yet.
    Wait,
}

/// The ID of a claim; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
struct Model {
    bytes: u64,
    place: Place,
    holds: usize,
    used_ms: u64,
}

#[derive(Debug)]
struct Claim {
    ticket: Ticket,
    model: usize,
    /// Its model failed to load during the wait.
    failed: bool,
}

/// The step for the first claim without room.
#[derive(Debug, Default)]
struct Plan {
    step: Option<Step>,
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
    next_ticket: u64,
}

impl Policy {
    /// All models out of memory. A model above the budget is never loaded; the caller refuses it by name
    /// before.
    pub(super) fn new(sizes: &[u64], budget: Option<u64>, idle_ms: Option<u64>) -> Self {
        let out = |bytes: &u64| Model { bytes: *bytes, place: Place::Out, holds: 0, used_ms: 0 };
        Self { budget, idle_ms, models: sizes.iter().map(out).collect(), claims: Vec::new(), next_ticket: 0 }
    }

    /// Claims a model.
    pub(super) fn claim(&mut self, model: usize) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.claims.push(Claim { ticket, model, failed: false });
        ticket
    }

    /// Withdraws a claim. Nothing of it is left.
    pub(super) fn withdraw(&mut self, ticket: Ticket) {
        self.claims.retain(|claim| claim.ticket != ticket);
    }

    /// Checks a claim; if it is granted, holds its model.
    pub(super) fn poll(&mut self, ticket: Ticket, now_ms: u64) -> Answer {
        let Some(claim) = self.claims.iter().find(|claim| claim.ticket == ticket) else {
            return Answer::Failed;
        };
        let (model, failed) = (claim.model, claim.failed);
        if failed {
            self.withdraw(ticket);
            return Answer::Failed;
        }
        if self.place(model) != Place::In || self.plan().going.contains(&model) {
            return Answer::Wait;
        }
        self.withdraw(ticket);
        self.hold(model, now_ms);
        Answer::Granted
    }

    /// Holds a loaded model out of turn, for a holder or for a short use. Returns whether it is loaded.
    pub(super) fn pin(&mut self, model: usize, now_ms: u64) -> bool {
        let there = self.place(model) == Place::In;
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
        self.models[model].place = Place::In;
        self.models[model].used_ms = now_ms;
    }

    /// A model could not be loaded. Its waiting claims fail, and the next claim tries again.
    pub(super) fn failed(&mut self, model: usize) {
        self.models[model].place = Place::Out;
        for claim in self.claims.iter_mut().filter(|claim| claim.model == model) {
            claim.failed = true;
        }
    }

    /// A model is now out of memory.
    pub(super) fn unloaded(&mut self, model: usize) {
        self.models[model].place = Place::Out;
    }

    /// The next step, marked as begun. Call it again until it returns `None`.
    pub(super) fn next(&mut self, now_ms: u64) -> Option<Step> {
        let step = self.plan().step.or_else(|| self.idle(now_ms))?;
        match step {
            Step::Load(model) => self.models[model].place = Place::Loading,
            Step::Unload(model) => self.models[model].place = Place::Leaving,
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
    pub(super) fn place(&self, model: usize) -> Place {
        self.models[model].place
    }

    /// Models in memory, and the bytes of all models, including loading and unloading ones.
    pub(super) fn taken(&self) -> (usize, u64) {
        let there = self.models.iter().filter(|model| model.place == Place::In).count();
        (there, self.bytes(|place| place != Place::Out))
    }

    fn bytes(&self, counts: impl Fn(Place) -> bool) -> u64 {
        let counted = self.models.iter().filter(|model| counts(model.place));
        counted.fold(0, |sum, model| sum.saturating_add(model.bytes))
    }

    /// Whether a model is in memory without holds and claims.
    fn is_idle(&self, index: usize) -> bool {
        let model = &self.models[index];
        let wanted = self.claims.iter().any(|claim| claim.model == index);
        model.place == Place::In && model.holds == 0 && !wanted
    }

    fn idle(&self, now_ms: u64) -> Option<Step> {
        let idle_ms = self.idle_ms?;
        let over = |&model: &usize| self.models[model].used_ms.saturating_add(idle_ms) <= now_ms;
        (0..self.models.len()).filter(|&model| self.is_idle(model)).find(over).map(Step::Unload)
    }

    /// Finds the first claim that needs a step or has to wait for room.
    fn plan(&self) -> Plan {
        let mut wanted = vec![false; self.models.len()];
        for claim in self.claims.iter().filter(|claim| !claim.failed) {
            wanted[claim.model] = true;
            match self.place(claim.model) {
                Place::In | Place::Loading => {}
                // Its own memory must become free first.
                Place::Leaving => return Plan::default(),
                Place::Out => return self.make_room(self.models[claim.model].bytes, claim.model, &wanted),
            }
        }
        Plan::default()
    }

    /// Loads a model, or names the models without an earlier claim that must go.
    fn make_room(&self, bytes: u64, model: usize, wanted: &[bool]) -> Plan {
        let load = Plan { step: Some(Step::Load(model)), going: Vec::new() };
        let Some(budget) = self.budget else { return load };
        let after = self.bytes(|place| place != Place::Out).saturating_add(bytes);
        if after <= budget {
            return load;
        }
        let mut missing = after - budget;
        missing = missing.saturating_sub(self.bytes(|place| place == Place::Leaving));
        let mut others: Vec<usize> = (0..self.models.len())
            .filter(|&other| self.place(other) == Place::In && !wanted[other])
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
        plan.step = free.map(Step::Unload);
        plan
    }
}

#[cfg(test)]
mod tests;
