//! One model of a set, for the turn service. Its properties are always available; running it requires the
//! model in memory.

use std::sync::Arc;

use baton_proto::tools::Definitions;
use futures::future::{self, BoxFuture};

use super::{Hold, ModelSet};
use crate::{
    engine::{
        AnswerComparison, Constraint, Engine, EngineError, EngineInfo, GenerateHandle, GenerateJob,
        GivenAnswer, Load,
    },
    prompt::Prompt,
};

/// See the module. Shutting down one model shuts down the set.
pub(super) struct SetEngine {
    shared: Arc<ModelSet>,
    model: usize,
    /// Known since its first load.
    info: EngineInfo,
}

impl SetEngine {
    pub(super) fn new(shared: &Arc<ModelSet>, model: usize, info: EngineInfo) -> Self {
        Self { shared: shared.clone(), model, info }
    }
}

impl Engine for SetEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn hold(&self) -> BoxFuture<'_, Result<Hold, EngineError>> {
        Box::pin(self.shared.hold(self.model))
    }

    fn count(&self, prompt: &Prompt) -> Result<u32, EngineError> {
        let (engine, _hold) = self.shared.pinned(self.model)?;
        engine.count(prompt)
    }

    fn constrain(&self, schema: &str) -> Result<Constraint, EngineError> {
        let (engine, _hold) = self.shared.pinned(self.model)?;
        engine.constrain(schema)
    }

    fn constrain_calls(&self, tools: &Definitions) -> Result<Option<Constraint>, EngineError> {
        let (engine, _hold) = self.shared.pinned(self.model)?;
        engine.constrain_calls(tools)
    }

    fn load(&self) -> Load {
        let engine = self.shared.lock().engines[self.model].clone();
        engine.map(|engine| engine.load()).unwrap_or_default()
    }

    fn generate(&self, job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        // From here on the caller's hold keeps the model.
        let (engine, _hold) = self.shared.pinned(self.model)?;
        engine.generate(job)
    }

    fn check(
        &self,
        job: GenerateJob,
        answer: GivenAnswer,
    ) -> BoxFuture<'static, Result<AnswerComparison, EngineError>> {
        match self.shared.pinned(self.model) {
            Ok((engine, _hold)) => engine.check(job, answer),
            Err(error) => Box::pin(future::ready(Err(error))),
        }
    }

    fn shutdown(&self) {
        self.shared.shutdown();
    }
}

impl Drop for SetEngine {
    fn drop(&mut self) {
        self.shutdown();
    }
}
