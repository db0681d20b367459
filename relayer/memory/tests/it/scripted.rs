//! A language model whose answers a test scripts.

use std::sync::{Arc, Mutex};

use baton_memory::{
    extraction::{Complete, ModelError, ModelWriter, PromptMessage},
    model::Text,
};
use futures::future::BoxFuture;

/// Answers each prompt by the script, and keeps what it was shown.
pub(crate) struct ScriptedModel {
    answer: Box<dyn Fn(&str) -> String + Send + Sync>,
    pub(crate) shown: Mutex<Vec<PromptMessage>>,
}

impl ScriptedModel {
    pub(crate) fn new(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { answer: Box::new(answer), shown: Mutex::default() })
    }

    /// A model with one answer to everything.
    pub(crate) fn saying(answer: &str) -> Arc<Self> {
        let answer = answer.to_owned();
        Self::new(move |_| answer.clone())
    }

    pub(crate) fn writer(self: &Arc<Self>) -> ModelWriter {
        ModelWriter::new(self.clone())
    }

    /// Messages that it was shown.
    pub(crate) fn asked(&self) -> usize {
        self.shown.lock().unwrap().len()
    }

    /// Whether it was shown some words.
    pub(crate) fn saw(&self, words: &str) -> bool {
        self.shown.lock().unwrap().iter().any(|message| message.text.contains(words))
    }
}

impl Complete for ScriptedModel {
    fn complete<'a>(
        &'a self,
        messages: &'a [PromptMessage],
        _: u32,
    ) -> BoxFuture<'a, Result<Text, ModelError>> {
        self.shown.lock().unwrap().extend_from_slice(messages);
        let prompt: String = messages.iter().map(|message| message.text.to_string()).collect();
        let answer = (self.answer)(&prompt);
        Box::pin(async move { Ok(answer.into()) })
    }
}
