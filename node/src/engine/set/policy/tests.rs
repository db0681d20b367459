use proptest::prelude::*;

use super::*;

/// A policy with its loader.
struct Bench {
    policy: Policy,
    now_ms: u64,
}

impl Bench {
    fn new(sizes: &[u64], budget: u64) -> Self {
        Self { policy: Policy::new(sizes, Some(budget), Some(1000)), now_ms: 0 }
    }

    /// Executes all due steps at once, and returns them.
    fn settle(&mut self) -> Vec<PolicyStep> {
        let mut done = Vec::new();
        while let Some(step) = self.policy.next(self.now_ms) {
            match step {
                PolicyStep::Load(model) => self.policy.loaded(model, self.now_ms),
                PolicyStep::Unload(model) => self.policy.unloaded(model),
            }
            done.push(step);
        }
        done
    }

    fn poll(&mut self, id: ClaimId) -> ClaimStatus {
        self.policy.poll(id, self.now_ms)
    }

    /// Claims a model and holds it.
    fn take(&mut self, model: usize) -> Vec<PolicyStep> {
        self.now_ms += 1;
        let id = self.policy.claim(model);
        let steps = self.settle();
        assert_eq!(self.poll(id), ClaimStatus::Granted);
        steps
    }

    /// Claims, holds and releases a model.
    fn use_once(&mut self, model: usize) -> Vec<PolicyStep> {
        let steps = self.take(model);
        self.policy.release(model, self.now_ms);
        steps
    }
}

#[test]
fn the_one_used_longest_ago_makes_room_and_no_more_than_needed() {
    let mut bench = Bench::new(&[40, 40, 40, 80], 100);
    assert_eq!(bench.use_once(0), [PolicyStep::Load(0)]);
    assert_eq!(bench.use_once(1), [PolicyStep::Load(1)]);
    assert_eq!(bench.use_once(0), []);
    assert_eq!(bench.use_once(2), [PolicyStep::Unload(1), PolicyStep::Load(2)]);
    assert_eq!(bench.use_once(3), [PolicyStep::Unload(0), PolicyStep::Unload(2), PolicyStep::Load(3)]);
    assert_eq!(bench.policy.taken(), (1, 80));
}

#[test]
fn without_a_budget_everything_stays_until_it_is_idle() {
    let mut bench = Bench { policy: Policy::new(&[u64::MAX, u64::MAX], None, Some(1000)), now_ms: 0 };
    bench.use_once(0);
    bench.now_ms = 600;
    bench.take(1);
    assert_eq!(bench.policy.next_idle_ms(), Some(1001));
    bench.now_ms = 1000;
    assert_eq!(bench.settle(), []);
    bench.now_ms = 1001;
    assert_eq!(bench.settle(), [PolicyStep::Unload(0)]);
    // A held model is never idle, however long.
    bench.now_ms = 1_000_000;
    assert_eq!((bench.policy.next_idle_ms(), bench.settle()), (None, Vec::new()));
    bench.policy.release(1, bench.now_ms);
    assert_eq!(bench.policy.next_idle_ms(), Some(1_001_000));
}

#[test]
fn a_held_model_stays_and_takes_no_new_holds_while_another_waits_for_its_room() {
    let mut bench = Bench::new(&[60, 60], 100);
    bench.take(0);
    let second = bench.policy.claim(1);
    assert_eq!((bench.settle(), bench.poll(second)), (Vec::new(), ClaimStatus::Wait));
    // A later turn for the leaving model waits behind, and does not keep it.
    let third = bench.policy.claim(0);
    assert_eq!(bench.poll(third), ClaimStatus::Wait);
    // A holder may hold it once more.
    assert!(bench.policy.pin(0, bench.now_ms));
    bench.policy.release(0, bench.now_ms);
    assert_eq!(bench.settle(), []);
    bench.policy.release(0, bench.now_ms);
    assert_eq!(bench.settle(), [PolicyStep::Unload(0), PolicyStep::Load(1)]);
    assert_eq!((bench.poll(second), bench.poll(third)), (ClaimStatus::Granted, ClaimStatus::Wait));
    bench.policy.release(1, bench.now_ms);
    assert_eq!(bench.settle(), [PolicyStep::Unload(1), PolicyStep::Load(0)]);
    assert_eq!(bench.poll(third), ClaimStatus::Granted);
}

#[derive(Debug, Clone)]
enum Event {
    Claim(usize),
    Withdraw(usize),
    Poll(usize),
    Release(usize),
    Next,
    Done(usize, bool),
    Later(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (0..4usize).prop_map(Event::Claim),
        1 => (0..8usize).prop_map(Event::Withdraw),
        4 => (0..8usize).prop_map(Event::Poll),
        3 => (0..8usize).prop_map(Event::Release),
        4 => Just(Event::Next),
        3 => (0..4usize, any::<bool>()).prop_map(|(step, well)| Event::Done(step, well)),
        1 => (0..2000u64).prop_map(Event::Later),
    ];
    prop::collection::vec(event, 0..200)
}

/// A caller's claims, holds and begun steps.
#[derive(Default)]
struct Caller {
    claims: Vec<(ClaimId, usize)>,
    holds: Vec<usize>,
    begun: Vec<PolicyStep>,
}

fn check(policy: &Policy, caller: &Caller, budget: Option<u64>) {
    let taken = policy.bytes(|residency| residency != Residency::Out);
    assert!(budget.is_none_or(|budget| taken <= budget), "{taken} bytes of {budget:?}");
    for (index, model) in policy.models.iter().enumerate() {
        let held = caller.holds.iter().filter(|held| **held == index).count();
        assert_eq!(model.holds, held);
        assert!(
            held == 0 || model.residency == Residency::In,
            "model {index} is held and {:?}",
            model.residency
        );
    }
    assert_eq!(policy.claims.len(), caller.claims.len());
}

fn poll(policy: &mut Policy, caller: &mut Caller, at: usize, now_ms: u64) {
    let (id, model) = caller.claims[at];
    match policy.poll(id, now_ms) {
        ClaimStatus::Granted => caller.holds.push(model),
        ClaimStatus::Failed => {}
        ClaimStatus::Wait => return,
    }
    caller.claims.remove(at);
}

fn done(policy: &mut Policy, step: PolicyStep, well: bool, now_ms: u64) {
    match step {
        PolicyStep::Load(model) if well => policy.loaded(model, now_ms),
        PolicyStep::Load(model) => policy.failed(model),
        PolicyStep::Unload(model) => policy.unloaded(model),
    }
}

proptest! {
    /// For any events in any order: the budget holds, held models stay, and withdrawn claims leave nothing
    /// behind. Then, once holds end and loads succeed, every claim is granted.
    #[test]
    fn the_budget_holds_and_nobody_waits_for_ever(
        sizes in prop::collection::vec(1..100u64, 4),
        spare in 0..150u64,
        bounded in any::<bool>(),
        idle in prop::option::of(1..3000u64),
        events in events(),
    ) {
        let budget = bounded.then(|| sizes.iter().max().unwrap() + spare);
        let mut policy = Policy::new(&sizes, budget, idle);
        let (mut caller, mut now_ms) = (Caller::default(), 0);
        for event in events {
            match event {
                Event::Claim(model) => caller.claims.push((policy.claim(model), model)),
                Event::Withdraw(at) if at < caller.claims.len() => policy.withdraw(caller.claims.remove(at).0),
                Event::Poll(at) if at < caller.claims.len() => poll(&mut policy, &mut caller, at, now_ms),
                Event::Release(at) if at < caller.holds.len() => {
                    policy.release(caller.holds.remove(at), now_ms);
                }
                Event::Next => caller.begun.extend(policy.next(now_ms)),
                Event::Done(at, well) if at < caller.begun.len() => {
                    done(&mut policy, caller.begun.remove(at), well, now_ms);
                }
                Event::Later(more) => now_ms += more,
                _ => {}
            }
            check(&policy, &caller, budget);
        }
        // From here on all callers behave; the remaining claims are those without failure.
        let mut rounds = 0;
        while !caller.claims.is_empty() {
            prop_assert!(rounds < 2000, "{policy:?}");
            rounds += 1;
            for held in std::mem::take(&mut caller.holds) {
                policy.release(held, now_ms);
            }
            caller.begun.extend(policy.next(now_ms));
            if !caller.begun.is_empty() {
                done(&mut policy, caller.begun.remove(0), true, now_ms);
            }
            for at in (0..caller.claims.len()).rev() {
                poll(&mut policy, &mut caller, at, now_ms);
            }
            check(&policy, &caller, budget);
        }
        for held in caller.holds {
            policy.release(held, now_ms);
        }
        prop_assert!(policy.claims.is_empty() && policy.models.iter().all(|model| model.holds == 0));
    }
}
