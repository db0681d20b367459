//! Answers a request in the form of an API: whole, or as a stream.

use axum::response::Response;
use baton_client::TokenReport;
use futures::{Stream, StreamExt as _, stream};
use serde_json::Value;

use crate::{
    form::{
        completion::CompletionRequest,
        steps::{AcceptedAnswer, Step},
        tools::{AnswerParser, AnswerPart},
    },
    http::{
        api_error::ApiError,
        event_stream::{self, StreamForm},
        exact,
        session_header::name_session,
    },
    state::{Gateway, request_slots::RequestSlot},
    turns::answer::{MAX_SILENCE, RunningTurn, WholeAnswer, start},
};

/// Writes an answer in the form of an API. The texts that its methods return are parts of a stream, and may be empty.
pub(crate) trait AnswerWriter: Clone + Send + 'static {
    /// The form of a stream.
    const STREAM: StreamForm;

    /// Takes the names of a turn whose answer begins. Returns the beginning of a stream.
    fn begin(&mut self, running: &RunningTurn) -> String;

    /// Writes parts of the answer, with the reports of their tokens.
    fn more(&mut self, parts: Vec<AnswerPart>, reports: &[TokenReport]) -> String;

    /// Writes the end, after the last parts of the answer.
    fn end(&mut self, rest: Vec<AnswerPart>, answer: &AcceptedAnswer) -> String;

    /// Writes an error, after which nothing follows.
    fn fail(&mut self, api_error: &ApiError) -> String;

    /// The answer as a whole.
    fn whole(self, answer: &WholeAnswer) -> Value;

    /// The writer of another answer to the request, at this position. Only one API has several.
    fn another(&self, _position: usize) -> Self {
        self.clone()
    }

    /// Adds another answer to a whole one.
    fn join(_whole: &mut Value, _other: Value) {}
}

/// Runs the turn of a request, and answers it. An error that comes before the answer has a status of its own.
pub(crate) async fn respond<W: AnswerWriter>(
    gateway: &Gateway,
    slot: RequestSlot,
    request: CompletionRequest,
    mut writer: W,
) -> Result<Response, ApiError> {
    let (is_streamed, is_ephemeral) = (request.stream, request.is_ephemeral());
    let wanted = (request.more_answers > 0).then(|| request.clone());
    let mut running = start(gateway, slot, request).await?;
    let session = running.session;
    let mut others = Vec::new();
    if let Some(request) = wanted {
        for number in 1..=request.more_answers {
            gateway.count_request()?;
            let other = request.beside(running.seq, number);
            others.push((start(gateway, gateway.slot()?, other).await?, writer.another(others.len() + 1)));
        }
    }
    let named = |api_error: ApiError| if is_ephemeral { api_error } else { api_error.of(session) };
    let limit = is_streamed.then_some(MAX_SILENCE);
    let first = running.first_step(limit).await.map_err(named)?;
    let mut response = if is_streamed {
        let mut answers = vec![parts(running, first, writer).boxed()];
        for (mut running, writer) in others {
            let first = running.first_step(limit).await?;
            answers.push(parts(running, first, writer).boxed());
        }
        event_stream::respond(stream::select_all(answers), event_stream::KEEP_ALIVE, W::STREAM)
    } else {
        writer.begin(&running);
        let mut body = writer.whole(&running.whole(first).await.map_err(named)?);
        for (mut running, writer) in others {
            let first = running.first_step(limit).await?;
            W::join(&mut body, writer.whole(&running.whole(first).await?));
        }
        exact::respond(&body)
    };
    if !is_ephemeral {
        name_session(&mut response, session);
    }
    Ok(response)
}

/// The parts of a streamed answer.
fn parts<W: AnswerWriter>(
    mut running: RunningTurn,
    first: Step,
    mut writer: W,
) -> impl Stream<Item = String> + Send {
    let begin = writer.begin(&running);
    let mut parser = running.parser.take();
    let rest = running.steps(first).map(move |step| match step {
        Step::Model(_) | Step::Note(_) => String::new(),
        Step::Text(text, reports) => {
            let parts = match &mut parser {
                None => Vec::from_iter((!text.is_empty()).then_some(AnswerPart::Text(text))),
                Some(parser) => parser.push(&text),
            };
            writer.more(parts, &reports)
        }
        Step::Failed(api_error) => writer.fail(&api_error),
        Step::Done(mut answer) => {
            let rest = parser.as_mut().map(AnswerParser::finish).unwrap_or_default();
            if let Some(parser) = &parser {
                answer.finish = parser.finish_reason(answer.finish);
            }
            writer.end(rest, &answer)
        }
    });
    stream::iter([begin]).chain(rest)
}
