//! Which models are in memory: pure decisions over claims, holds and sizes, without clocks, threads or engines.
//!
//! Whoever needs a model *claims* it. A claim is granted as a *hold* once the model is in memory; a model that is held stays.
//! Claims are served in their order: for the first one whose model has no room, the models used longest ago must go, and take
//! no new holds meanwhile, so that no stream of turns for one model keeps another out. The bytes of all models that are in
//! memory, on their way in, or on their way out, are never above the budget.
//!
//! The caller does what [`Policy::next`] says and tells when that is done. Times are milliseconds of any clock that does not
//! go back.

/// Where a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Not in memory.
    Out,
    /// Being loaded; its room is taken.
    Loading,
    /// In memory.
    In,
    /// Being unloaded; its room is not free yet.
    Leaving,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Load this model, then tell [`Policy::loaded`] or [`Policy::failed`].
    Load(usize),
    /// Unload this model, then tell [`Policy::unloaded`].
    Unload(usize),
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The model is held; the claim is no more.
    Granted,
    /// The model could not be loaded; the claim is no more.
    Failed,
    /// Not yet.
    Wait,
}

/// The name of a claim; none is given twice.
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
    /// Its model could not be loaded while it waited.
    failed: bool,
}

/// What the first claim without room makes necessary.
#[derive(Debug, Default)]
struct Plan {
    step: Option<Step>,
    /// Models that must go for it.
    going: Vec<usize>,
}

/// The models of a node. Claims are bounded by the turns that may wait.
#[derive(Debug)]
pub(super) struct Policy {
    budget: Option<u64>,
    idle_ms: Option<u64>,
    models: Vec<Model>,
    claims: Vec<Claim>,
    next_ticket: u64,
}

impl Policy {
    /// All models out of memory. A model above the budget is never loaded; the caller refuses it by name before.
    pub(super) fn new(sizes: &[u64], budget: Option<u64>, idle_ms: Option<u64>) -> Self {
        let out = |bytes: &u64| Model { bytes: *bytes, place: Place::Out, holds: 0, used_ms: 0 };
        Self { budget, idle_ms, models: sizes.iter().map(out).collect(), claims: Vec::new(), next_ticket: 0 }
    }

    /// Wants a model.
    pub(super) fn claim(&mut self, model: usize) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.claims.push(Claim { ticket, model, failed: false });
        ticket
    }

    /// Does not want it any more. Nothing of the claim is left.
    pub(super) fn withdraw(&mut self, ticket: Ticket) {
        self.claims.retain(|claim| claim.ticket != ticket);
    }

    /// Whether a claim is granted, and if so, holds its model.
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

    /// Holds a model that is in memory, out of turn: for whoever holds it already, or needs it for a moment. Returns whether
    /// it is there.
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

    /// A model is in memory now.
    pub(super) fn loaded(&mut self, model: usize, now_ms: u64) {
        self.models[model].place = Place::In;
        self.models[model].used_ms = now_ms;
    }

    /// A model could not be loaded: whoever waits for it learns so, and the next claim tries again.
    pub(super) fn failed(&mut self, model: usize) {
        self.models[model].place = Place::Out;
        for claim in self.claims.iter_mut().filter(|claim| claim.model == model) {
            claim.failed = true;
        }
    }

    /// A model is out of memory now.
    pub(super) fn unloaded(&mut self, model: usize) {
        self.models[model].place = Place::Out;
    }

    /// What is to be done now, which is noted as begun. To be asked again until there is nothing.
    pub(super) fn next(&mut self, now_ms: u64) -> Option<Step> {
        let step = self.plan().step.or_else(|| self.idle(now_ms))?;
        match step {
            Step::Load(model) => self.models[model].place = Place::Loading,
            Step::Unload(model) => self.models[model].place = Place::Leaving,
        }
        Some(step)
    }

    /// When a model will have been idle for too long, if nothing happens before.
    pub(super) fn next_idle_ms(&self) -> Option<u64> {
        let idle_ms = self.idle_ms?;
        (0..self.models.len())
            .filter(|&model| self.is_idle(model))
            .map(|model| self.models[model].used_ms.saturating_add(idle_ms))
            .min()
    }

    /// Where a model is.
    pub(super) fn place(&self, model: usize) -> Place {
        self.models[model].place
    }

    /// Models in memory, and the bytes that all take, on their way in or out too.
    pub(super) fn taken(&self) -> (usize, u64) {
        let there = self.models.iter().filter(|model| model.place == Place::In).count();
        (there, self.bytes(|place| place != Place::Out))
    }

    fn bytes(&self, counts: impl Fn(Place) -> bool) -> u64 {
        let counted = self.models.iter().filter(|model| counts(model.place));
        counted.fold(0, |sum, model| sum.saturating_add(model.bytes))
    }

    /// In memory, and nobody holds or wants it.
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

    /// Goes through the claims in their order up to the first one that needs something done or has to wait for room.
    fn plan(&self) -> Plan {
        let mut wanted = vec![false; self.models.len()];
        for claim in self.claims.iter().filter(|claim| !claim.failed) {
            wanted[claim.model] = true;
            match self.place(claim.model) {
                Place::In | Place::Loading => {}
                // Its own room comes free first.
                Place::Leaving => return Plan::default(),
                Place::Out => return self.make_room(self.models[claim.model].bytes, claim.model, &wanted),
            }
        }
        Plan::default()
    }

    /// Lets a model in, or says which of those that nobody wanted before it must go.
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
