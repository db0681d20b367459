//! `logprobs`: log probabilities of an answer's tokens, in the two shapes of OpenAI's API.

use baton_proto::limits::MAX_LOGPROBS;
use serde_json::{Value, json};

use crate::{
    form::fields::{BodyFields, with},
    http::api_error::ApiError,
};
use baton_client::{LikelyToken, TokenReport};

/// The requested number of alternatives for each token; zero reports the tokens alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogprobsRequest {
    alternatives: u8,
}

impl LogprobsRequest {
    /// From a chat request: `logprobs` enables them, `top_logprobs` counts alternatives.
    pub(crate) fn of_chat(fields: &mut BodyFields) -> Result<Option<Self>, ApiError> {
        let logprobs = fields.flag("logprobs")?.unwrap_or(false);
        let alternatives = fields.whole("top_logprobs", 0..=MAX_LOGPROBS)?.unwrap_or(0);
        if !logprobs && alternatives > 0 {
            return Err(ApiError::value("top_logprobs", "top_logprobs needs logprobs to be true"));
        }
        Ok(logprobs.then_some(Self { alternatives }))
    }

    /// From a text request: `logprobs` counts alternatives.
    pub(crate) fn of_text(fields: &mut BodyFields) -> Result<Option<Self>, ApiError> {
        if fields.peek("logprobs") == Some(&Value::Bool(false)) {
            // As in a chat.
            fields.take("logprobs");
        }
        let alternatives = fields.whole("logprobs", 0..=MAX_LOGPROBS)?;
        Ok(alternatives.map(|alternatives| Self { alternatives }))
    }

    /// The number to request from a node: nodes report at least one alternative.
    pub(crate) fn requested_alternatives(self) -> u8 {
        self.alternatives.max(1)
    }

    fn likeliest<'a>(&self, report: &'a TokenReport) -> impl Iterator<Item = &'a LikelyToken> + use<'a> {
        report.likeliest.iter().take(self.alternatives.into())
    }

    /// As `choices[].logprobs` of a chat.
    pub(crate) fn chat(&self, reports: &[TokenReport]) -> Value {
        let content = reports.iter().map(|report| {
            let top: Vec<Value> = self.likeliest(report).map(token_json).collect();
            with(token_json(&report.token), json!({ "top_logprobs": top }))
        });
        json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
    }

    /// As `choices[].logprobs` of a text. `offset` counts the characters before it, and advances.
    pub(crate) fn text(&self, reports: &[TokenReport], offset: &mut usize) -> Value {
        let mut offsets = Vec::with_capacity(reports.len());
        for report in reports {
            offsets.push(*offset);
            // Counts characters that begin here: a token may hold only the rest of a character.
            *offset += report.token.bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        }
        let top = |report: &TokenReport| {
            let all = self.likeliest(report).chain([&report.token]);
            Value::Object(all.map(|token| (token_text(token), json!(token.logprob))).collect())
        };
        let top: Option<Vec<Value>> = (self.alternatives > 0).then(|| reports.iter().map(top).collect());
        json!({
            "tokens": reports.iter().map(|report| token_text(&report.token)).collect::<Vec<_>>(),
            "token_logprobs": reports.iter().map(|report| report.token.logprob).collect::<Vec<_>>(),
            "top_logprobs": top,
            "text_offset": offsets,
        })
    }
}

fn token_json(token: &LikelyToken) -> Value {
    let bytes = (!token.bytes.is_empty()).then_some(&token.bytes);
    json!({ "token": token_text(token), "logprob": token.logprob, "bytes": bytes })
}

/// A token's text. A token that is not whole characters is written as its bytes, as in OpenAI's API.
fn token_text(token: &LikelyToken) -> String {
    match std::str::from_utf8(&token.bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("bytes:{}", token.bytes.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, bytes: &[u8], logprob: f64) -> LikelyToken {
        LikelyToken { id, bytes: bytes.to_vec(), logprob }
    }

    fn reports() -> Vec<TokenReport> {
        let first = token(1, "né".as_bytes(), -0.125);
        let other = token(9, b"", -2.5);
        let half = token(2, b"\xe2\x9b", 0.0);
        vec![
            TokenReport { token: first.clone(), likeliest: vec![first, other] },
            TokenReport { token: half.clone(), likeliest: vec![half.clone(), half] },
            TokenReport { token: token(3, b"\xb5", -1.0), likeliest: Vec::new() },
        ]
    }

    fn read(chat: bool, body: Value) -> Result<Option<u8>, ApiError> {
        let mut fields = BodyFields::of(body, String::new())?;
        let wanted =
            if chat { LogprobsRequest::of_chat(&mut fields) } else { LogprobsRequest::of_text(&mut fields) };
        assert!(wanted.is_err() || fields.rest().is_empty());
        wanted.map(|wanted| wanted.map(|wanted| wanted.alternatives))
    }

    #[test]
    fn both_forms_say_how_many() {
        for (chat, body, expected) in [
            (true, json!({}), Some(None)),
            (true, json!({ "logprobs": false, "top_logprobs": 0 }), Some(None)),
            (true, json!({ "logprobs": null, "top_logprobs": null }), Some(None)),
            (true, json!({ "logprobs": true }), Some(Some(0))),
            (true, json!({ "logprobs": true, "top_logprobs": 20 }), Some(Some(20))),
            (true, json!({ "top_logprobs": 1 }), None),
            (true, json!({ "logprobs": true, "top_logprobs": 21 }), None),
            (false, json!({}), Some(None)),
            (false, json!({ "logprobs": 0 }), Some(Some(0))),
            (false, json!({ "logprobs": false }), Some(None)),
            (false, json!({ "logprobs": true }), None),
            (false, json!({ "logprobs": -1 }), None),
        ] {
            assert_eq!(read(chat, body.clone()).ok(), expected, "{body}");
        }
        let requested = [0, 7].map(|alternatives| LogprobsRequest { alternatives }.requested_alternatives());
        assert_eq!(requested, [1, 7]);
    }

    #[test]
    fn each_form_has_its_shape() {
        let chat = LogprobsRequest { alternatives: 1 }.chat(&reports());
        let likely = json!({ "token": "né", "logprob": -0.125, "bytes": [110, 195, 169] });
        let mut first = likely.clone();
        first["top_logprobs"] = json!([likely]);
        assert_eq!(chat["content"][0], first);
        assert_eq!(chat["content"][1]["token"], "bytes:\\xe2\\x9b");
        assert_eq!(chat["content"][2]["top_logprobs"], json!([]));
        let nobody = LogprobsRequest { alternatives: 2 }.chat(&reports());
        assert_eq!(
            nobody["content"][0]["top_logprobs"][1],
            json!({ "token": "", "logprob": -2.5, "bytes": null })
        );
        let mut offset = 5;
        let text = LogprobsRequest { alternatives: 1 }.text(&reports(), &mut offset);
        assert_eq!(text["tokens"], json!(["né", "bytes:\\xe2\\x9b", "bytes:\\xb5"]));
        assert_eq!((&text["text_offset"], offset), (&json!([5, 7, 8]), 8));
        assert_eq!(text["token_logprobs"], json!([-0.125, 0.0, -1.0]));
        assert_eq!(text["top_logprobs"][0], json!({ "né": -0.125 }));
        assert_eq!(LogprobsRequest { alternatives: 0 }.text(&reports(), &mut 0)["top_logprobs"], Value::Null);
    }
}
