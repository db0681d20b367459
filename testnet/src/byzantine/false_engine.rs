//! Engines that compute another answer than they claim: the receipts are valid, and only a second computation
//! shows the lie.

use std::{future::ready, sync::Arc};

use baton_keys::secret::random_bytes;
use baton_node::{
    engine::{
        AnswerComparison, Constraint, Engine, EngineError, EngineInfo, GenerateHandle, GenerateJob,
        GivenAnswer, Load,
    },
    prompt::{Prompt, Role},
};
use futures::future::BoxFuture;
use serde::Serialize;

/// Added to the client's seed by an engine that ignores it.
const OTHER_SEED: u64 = 0x5eed;

/// A lie about a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineLie {
    /// Computes another file of the same model: with coarser weights.
    SwapsFile,
    /// Omits the earlier turns, and says that it read them.
    CutsWindow,
    /// Draws tokens by another seed.
    IgnoresSeed,
    /// Computes a model with fewer layers.
    SmallerModel,
    /// Calls every answer that it checks the same, and computes nothing.
    SaysSame,
    /// Calls every answer that it checks another one, and computes nothing.
    SaysDifferent,
}

impl EngineLie {
    /// All lies.
    pub const ALL: [Self; 6] = [
        Self::SwapsFile,
        Self::CutsWindow,
        Self::IgnoresSeed,
        Self::SmallerModel,
        Self::SaysSame,
        Self::SaysDifferent,
    ];
}

/// An engine that claims to be another one.
pub struct FalseEngine {
    claimed: EngineInfo,
    inner: Arc<dyn Engine>,
    lie: EngineLie,
}

impl FalseEngine {
    /// An engine with the properties of `claimed` that computes with `inner`. The lies about files and models
    /// need another model in `inner`.
    #[must_use]
    pub fn new(claimed: &EngineInfo, inner: Arc<dyn Engine>, lie: EngineLie) -> Self {
        Self { claimed: claimed.clone(), inner, lie }
    }
}

impl std::fmt::Debug for FalseEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FalseEngine({:?})", self.lie)
    }
}

impl Engine for FalseEngine {
    fn info(&self) -> &EngineInfo {
        &self.claimed
    }

    fn count(&self, prompt: &Prompt) -> Result<u32, EngineError> {
        self.inner.count(prompt)
    }

    fn constrain(&self, schema: &str) -> Result<Constraint, EngineError> {
        self.inner.constrain(schema)
    }

    fn load(&self) -> Load {
        self.inner.load()
    }

    fn generate(&self, mut job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        match self.lie {
            EngineLie::SwapsFile
            | EngineLie::SmallerModel
            | EngineLie::SaysSame
            | EngineLie::SaysDifferent => {}
            EngineLie::IgnoresSeed => job.sampling.seed = job.sampling.seed.wrapping_add(OTHER_SEED),
            EngineLie::CutsWindow => job.prompt = without_history(&job.prompt),
        }
        self.inner.generate(job)
    }

    fn check(
        &self,
        job: GenerateJob,
        answer: GivenAnswer,
    ) -> BoxFuture<'static, Result<AnswerComparison, EngineError>> {
        let differs_at = match self.lie {
            EngineLie::SaysSame => None,
            EngineLie::SaysDifferent => Some(0),
            // They compute, with the wrong weights, or with the right seed and the whole window.
            _ => return self.inner.check(job, answer),
        };
        Box::pin(ready(Ok(AnswerComparison { differs_at, logits: random_bytes(), computed: 0 })))
    }

    fn shutdown(&self) {
        self.inner.shutdown();
    }
}

/// The prompt with its system text and its last message alone.
fn without_history(prompt: &Prompt) -> Prompt {
    let messages = prompt.messages();
    let system = messages.iter().filter(|message| message.role == Role::System);
    let last = messages.iter().next_back().filter(|message| message.role != Role::System);
    Prompt::new(system.chain(last).cloned().collect())
}
