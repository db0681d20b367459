//! A client's knowledge of nodes, for its user: explanations of the choice, clocks, names of models.

use baton_proto::ids::{ModelId, SessionId};

use crate::{
    client::Client,
    clocks::ClockDifference,
    error::ClientError,
    event::{DEFAULT_OUTPUT_TOKENS, ResumeOptions},
    network::{choose::Wish, nodes::NodeExplanation},
};

impl Client {
    /// Explains for each known node why it would be chosen for a turn or not, ordered by id. With a session,
    /// for its next turn.
    ///
    /// # Errors
    /// As [`Client::session`], if a session is named.
    pub async fn explain(
        &self,
        session: Option<SessionId>,
        options: &ResumeOptions,
    ) -> Result<Vec<NodeExplanation>, ClientError> {
        let mut wish = Wish {
            model: options.model.as_deref(),
            node: options.node,
            allow_echo: options.allow_echo,
            output_tokens: DEFAULT_OUTPUT_TOKENS,
            max_price: Some(self.inner.config.max_price),
            now_ms: self.now_ms(),
            ..Wish::default()
        };
        if let Some(id) = session {
            let session = self.open_session(id).await?;
            (wish.last_model, wish.warm) = session.read(|state| {
                let last = state.last().and_then(|(_, meta)| Some(meta.receipt.as_ref()?.model));
                (last, self.warm_node(state))
            });
        }
        Ok(self.inner.directory.explain(&wish).await)
    }

    /// The wrong clock, if every node that answers gives a record that is out of time by this machine's.
    pub async fn clock_difference(&self) -> Option<ClockDifference> {
        self.inner.directory.clock_difference(None).await
    }

    /// The name of a model that served a turn of this home, as its node said.
    #[must_use]
    pub fn model_name(&self, model: ModelId) -> Option<String> {
        self.inner.directory.model_name(model)
    }
}
