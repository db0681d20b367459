//! Opens a set: loads every model once, so that the node knows its properties and announces only working
//! models.

use std::{collections::HashMap, sync::Arc, thread};

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::{ClockMs, Member, ModelSet, SetLimits, SetObserver, SetState, member::SetEngine, policy::Policy};
use crate::engine::{Engine, EngineError, EngineInfo};

/// Why a set cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetError {
    /// A model that exceeds the whole budget.
    #[error(
        "the model {name} takes about {needed_mb} MB, and model_memory_mb is {budget_mb}: raise it, choose a smaller model, or \
         lower kv_mb"
    )]
    NeverFits {
        /// Its name.
        name: String,
        /// The megabytes it needs.
        needed_mb: u64,
        /// The megabytes of the budget.
        budget_mb: u64,
    },
    /// A model cannot be loaded.
    #[error("cannot load the model {name}")]
    Load {
        /// Its name.
        name: String,
        /// The cause.
        #[source]
        error: EngineError,
    },
    /// Two names of the same model.
    #[error("the models {first} and {second} are the same file: offer it once")]
    Same {
        /// One name.
        first: String,
        /// The other.
        second: String,
    },
    /// The thread for idle models cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// Opens a set. Loads each model once, one at a time within the budget, to learn its properties and test it.
/// Models that fit together, in their order, stay in memory. Returns an engine for each. Blocking.
///
/// # Errors
/// [`SetError`], with the model's name.
pub(crate) fn open(
    members: Vec<Member>,
    limits: SetLimits,
    clock: ClockMs,
    observer: Arc<dyn SetObserver>,
) -> Result<Vec<Arc<dyn Engine>>, SetError> {
    let budget = limits.budget_bytes;
    if let Some(budget) = budget
        && let Some(large) = members.iter().find(|member| member.bytes > budget)
    {
        let (needed_mb, budget_mb) = (large.bytes.div_ceil(1 << 20), budget >> 20);
        return Err(SetError::NeverFits { name: large.name.clone(), needed_mb, budget_mb });
    }
    let stays = stays(&members, budget);
    let mut opened: Vec<Option<OpenedModel>> = members.iter().map(|_| None).collect();
    // Models that do not stay come first, so that memory never exceeds the budget.
    for keep in [false, true] {
        for (index, member) in members.iter().enumerate().filter(|(index, _)| stays[*index] == keep) {
            let load = |error| SetError::Load { name: member.name.clone(), error };
            let engine = (member.load)().map_err(load)?;
            let info = engine.info().clone();
            if !keep {
                engine.shutdown();
            }
            opened[index] = Some((info, keep.then_some(engine)));
        }
    }
    let (infos, engines): (Vec<_>, Vec<_>) = opened.into_iter().flatten().unzip();
    for (index, later) in infos.iter().enumerate() {
        if let Some(first) = infos[..index].iter().position(|first| first.model_id == later.model_id) {
            let (first, second) = (members[first].name.clone(), members[index].name.clone());
            return Err(SetError::Same { first, second });
        }
    }
    let sizes: Vec<u64> = members.iter().map(|member| member.bytes).collect();
    let idle_ms = limits.idle.map(|idle| u64::try_from(idle.as_millis()).unwrap_or(u64::MAX));
    let mut policy = Policy::new(&sizes, budget, idle_ms);
    for (index, engine) in engines.iter().enumerate() {
        if engine.is_some() {
            policy.loaded(index, clock());
        }
    }
    let state = SetState { policy, engines, failures: HashMap::new(), working: 0, closed: false };
    let shared = Arc::new(ModelSet {
        identities: infos.iter().map(|info| info.model_id).collect(),
        members,
        state: Mutex::new(state),
        changed: watch::Sender::new(()),
        woken: Condvar::new(),
        limits,
        clock,
        observer,
        idler: Mutex::new(None),
    });
    if idle_ms.is_some() {
        let idling = shared.clone();
        let spawned = thread::Builder::new().name("model-idle".to_owned()).spawn(move || idling.idle());
        let idler = spawned.map_err(SetError::Thread)?;
        *shared.idler.lock() = Some(idler);
    }
    shared.tell();
    let engine = |(index, info)| Arc::new(SetEngine::new(&shared, index, info)) as Arc<dyn Engine>;
    Ok(infos.into_iter().enumerate().map(engine).collect())
}

/// A model's properties, and its engine if it stays in memory.
type OpenedModel = (EngineInfo, Option<Arc<dyn Engine>>);

/// For each model, whether it fits beside the earlier ones that fit.
fn stays(members: &[Member], budget: Option<u64>) -> Vec<bool> {
    let mut taken = 0u64;
    let fits = |member: &Member| {
        let after = taken.saturating_add(member.bytes);
        let fits = budget.is_none_or(|budget| after <= budget);
        if fits {
            taken = after;
        }
        fits
    };
    members.iter().map(fits).collect()
}
