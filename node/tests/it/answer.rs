//! The answer of any engine with token IDs, read to its end.

use baton_node::engine::{EngineError, EngineEvent, FinishReason, GenerateHandle, GenerateStats};
use baton_proto::wire::TokenLogprob;

#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    pub ids: Vec<u32>,
    pub text: String,
    pub finish: FinishReason,
    pub stats: GenerateStats,
    /// Ends of events, in tokens and bytes.
    pub cuts: Vec<(usize, usize)>,
    /// Reports on each token, if requested: the token and alternatives.
    pub reports: Vec<Vec<TokenLogprob>>,
}

/// Reads a job to its end and checks the rules of every stream.
pub(crate) async fn read(mut handle: GenerateHandle, resumed: usize) -> Result<Answer, EngineError> {
    let (mut ids, mut text, mut cuts, mut input) = (Vec::new(), String::new(), Vec::new(), None);
    let mut reports = Vec::new();
    loop {
        match handle.next().await.expect("a last event always comes") {
            EngineEvent::Started { input_tokens } => input = Some(input_tokens),
            // Other tests check the prefix's text; here only the tokens after it count.
            EngineEvent::Resumed { .. } => assert!(resumed > 0 && ids.is_empty()),
            EngineEvent::Token { index, ids: more, text: piece, logprobs } => {
                assert_eq!(index as usize, resumed + ids.len(), "no token twice, none missing");
                let each = logprobs.len() / more.len().max(1);
                assert_eq!(logprobs.len(), each * more.len());
                reports.extend(logprobs.chunks(each.max(1)).map(<[_]>::to_vec));
                ids.extend(more);
                text += &piece;
                cuts.push((ids.len(), text.len()));
            }
            EngineEvent::Done { finish, stats } => {
                assert!(handle.next().await.is_none());
                assert_eq!(Some(stats.input_tokens), input);
                if finish != FinishReason::Cancelled {
                    assert_eq!(stats.output_tokens as usize, ids.len());
                }
                return Ok(Answer { ids, text, finish, stats, cuts, reports });
            }
            EngineEvent::Failed(error) => return Err(error),
        }
    }
}
