//! Tools of OpenAI's API: reads requests strictly into the session's form, and calls out of answers into
//! OpenAI's form.
//!
//! In the session a call is text of the answer, in the model's syntax (`baton_proto::tools`). So calls that a
//! program sends back become text too. Foreign call ids are replaced by ids that name the call's position.

use std::collections::HashMap;

use baton_proto::{
    record::{FinishReason, Role},
    tools::{
        AnswerReader, Call, CallArguments, CallSchemaError, Definitions, Json, MAX_CALLS, MAX_TOOLS, Piece,
        TOOLS_NAME, call_id, call_id_of, call_or_answer_schema, call_position, call_schema, is_tool_name,
        write_answer,
    },
};

use super::{api_error::ApiError, completion::CompletionRequest, format};

/// Ends a call in the syntax that nodes tell to models.
const CALL_END: &str = "</tool_call>";

/// A request's wish about calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// It calls none, so it is given no tools.
    Never,
    /// It must call a tool.
    Required,
    /// It must call this tool.
    Named(String),
}

/// A request's tool parameters.
#[derive(Default)]
pub(super) struct ToolRequest {
    /// The tools in the form that a session holds, which is that of OpenAI's chat completions.
    pub(super) tools: Option<Json>,
    pub(super) choice: ToolChoice,
    pub(super) parallel_tool_calls: Option<bool>,
}

/// The tools of a turn.
#[derive(Debug, Default)]
pub(super) struct TurnTools {
    /// The tools that the model is given.
    pub(super) definitions: Option<Definitions>,
    /// The schema of a forced call, which the answer must be.
    pub(super) forced: Option<String>,
    /// Whether the answer ends with its first call.
    pub(super) is_one_call: bool,
}

impl ToolRequest {
    /// Checks the tools, and the wishes that nodes can fulfil.
    pub(super) fn read(self) -> Result<TurnTools, ApiError> {
        let tools = match self.tools {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::List(tools)) => tools,
            Some(_) => return Err(ApiError::value("tools", "tools is a list")),
        };
        let is_forced = matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_));
        for (index, tool) in tools.iter().enumerate() {
            check_tool(index, tool)?;
        }
        if tools.is_empty() && is_forced {
            return Err(ApiError::value(
                "tool_choice",
                "tool_choice asks for a call, and there are no tools",
            ));
        }
        if tools.is_empty() || self.choice == ToolChoice::Never {
            return Ok(TurnTools::default());
        }
        let wrong = || {
            ApiError::value("tools", format!("tools is at most {MAX_TOOLS} functions with different names"))
        };
        let definitions = Definitions::of(tools).ok_or_else(wrong)?;
        let too_long = |_| ApiError::value("tools", "the tools are too long");
        definitions.message().check().map_err(too_long)?;
        let forced = match &self.choice {
            ToolChoice::Required => Some(forced_call(&definitions, None)?),
            ToolChoice::Named(name) => Some(forced_call(&definitions, Some(name))?),
            ToolChoice::Auto | ToolChoice::Never => None,
        };
        // A forced call is one call.
        let is_one_call = self.parallel_tool_calls == Some(false) && !is_forced;
        Ok(TurnTools { definitions: Some(definitions), forced, is_one_call })
    }
}

/// The schema of a forced call. Nodes hold an answer to a schema, token by token, and a call in JSON alone is one of
/// the forms in which models write calls.
fn forced_call(tools: &Definitions, named: Option<&str>) -> Result<String, ApiError> {
    let schema = call_schema(tools, named, CallArguments::Checked).map_err(|error| call_error(&error, ""))?;
    format::check_length(schema, "tools")
}

/// The error for tools whose calls have no schema; `form` is the parameter of the answer's own schema.
fn call_error(error: &CallSchemaError, form: &str) -> ApiError {
    match error {
        CallSchemaError::NoTool(_) => ApiError::value("tool_choice", error.to_string()),
        CallSchemaError::Reference(index) => {
            ApiError::unsupported(&format!("tools[{index}].function.parameters"), error.to_string())
        }
        CallSchemaError::AnswerReference => ApiError::unsupported(form, error.to_string()),
    }
}

impl TurnTools {
    /// The request with these tools. An answer with a form of its own is a call or has that form, which `form`
    /// names; a forced call has no other form.
    pub(super) fn into_request(
        self,
        request: CompletionRequest,
        form: &str,
    ) -> Result<CompletionRequest, ApiError> {
        let is_forced = self.forced.is_some();
        let json_schema = match (&self.definitions, self.forced, request.json_schema.as_deref()) {
            (_, Some(forced), _) => Some(forced),
            (Some(tools), None, Some(schema)) => {
                let schema = serde_json::from_str(schema).unwrap_or_default();
                let either =
                    call_or_answer_schema(tools, &schema).map_err(|error| call_error(&error, form))?;
                Some(format::check_length(either, form)?)
            }
            (_, None, own) => own.map(str::to_owned),
        };
        let mut sampling = request.sampling;
        if self.is_one_call {
            sampling.stop.push(CALL_END.to_owned());
        }
        let (tools, is_one_call) = (self.definitions, self.is_one_call);
        Ok(CompletionRequest { tools, json_schema, is_forced, is_one_call, sampling, ..request })
    }
}

impl CompletionRequest {
    /// The reader of an answer's calls, if the model has tools.
    pub(super) fn answer_parser(&self) -> Option<AnswerParser> {
        self.tools.clone().map(|tools| AnswerParser::new(tools, self.is_one_call))
    }
}

/// Names the error in a tool.
fn check_tool(index: usize, tool: &Json) -> Result<(), ApiError> {
    let at = |field: &str| format!("tools[{index}].{field}");
    match tool.get("type").and_then(Json::as_text) {
        Some("function") => {}
        Some(_) => return Err(ApiError::unsupported(&at("type"), "only tools of type function are served")),
        None => return Err(ApiError::value(&at("type"), "a tool has a type")),
    }
    let function = tool.get("function");
    let name = function.and_then(|function| function.get("name")).and_then(Json::as_text);
    if !name.is_some_and(is_tool_name) {
        let message = "a function has a name of 1 to 64 letters, digits, _, - and .";
        return Err(ApiError::value(&at("function.name"), message));
    }
    match function.and_then(|function| function.get("strict")) {
        None | Some(Json::Null | Json::Bool(_)) => Ok(()),
        Some(_) => Err(ApiError::value(&at("function.strict"), "strict is true or false")),
    }
}

/// A call of an earlier answer, as a program sends it back.
pub(super) struct PastCall {
    id: Option<String>,
    name: String,
    arguments: Json,
}

/// The fault of a call that a program sends back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallFault {
    /// It has no name of a function.
    Name,
    /// Its arguments are no object.
    Arguments,
}

impl CallFault {
    /// For the program's author.
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Name => "a call has the name of a function",
            Self::Arguments => "arguments is the text of a JSON object",
        }
    }
}

impl PastCall {
    /// A call with the text of its arguments; an empty text stands for none.
    pub(super) fn new(id: Option<String>, name: String, arguments: &str) -> Result<Self, CallFault> {
        if !is_tool_name(&name) {
            return Err(CallFault::Name);
        }
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        match Json::parse(arguments) {
            Some(arguments @ Json::Map(_)) => Ok(Self { id, name, arguments }),
            _ => Err(CallFault::Arguments),
        }
    }
}

/// Checks the number of calls in a message; `at` names the parameter.
pub(super) fn check_call_count(calls: usize, at: &str) -> Result<(), ApiError> {
    if calls > MAX_CALLS {
        return Err(ApiError::value(at, format!("at most {MAX_CALLS} calls are in a message")));
    }
    Ok(())
}

/// The foreign call ids of a request's messages, each with our id for its position.
#[derive(Default)]
pub(super) struct CallIds(HashMap<String, String>);

impl CallIds {
    /// Writes an assistant's calls after its text.
    pub(super) fn write(&mut self, content: &str, calls: Vec<PastCall>) -> String {
        let mut first = None;
        let written = calls.into_iter().enumerate().map(|(position, PastCall { id, name, arguments })| {
            if let Some(id) = id {
                let first: &String = first.get_or_insert_with(|| id.clone());
                let is_ours = call_position(&id) == Some(position);
                let ours = if is_ours { id.clone() } else { call_id_of(first, position) };
                self.0.insert(id, ours);
            }
            Call { name, arguments }
        });
        let written: Vec<Call> = written.collect();
        write_answer(content, &written).to_string()
    }

    /// Our id for the id in a tool result.
    pub(super) fn ours(&self, id: String) -> String {
        self.0.get(&id).cloned().unwrap_or(id)
    }
}

/// Checks a message's name: a system message may not have the definitions' name.
pub(super) fn check_name(index: usize, role: Role, name: Option<&str>) -> Result<(), ApiError> {
    if role == Role::System && name == Some(TOOLS_NAME) {
        let message = "a system message cannot be named tools; send them as the parameter tools";
        return Err(ApiError::value(&format!("messages[{index}].name"), message));
    }
    Ok(())
}

/// Whether an answer may contain calls.
pub(super) fn may_call(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[', '`'])
        || ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"].iter().any(|m| text.contains(m))
}

type ToolPredicate = Box<dyn Fn(&str) -> bool + Send>;

/// An answer on its way to a program.
pub(super) struct AnswerParser {
    reader: AnswerReader<ToolPredicate>,
    /// Seed of the call ids.
    seed: [u8; 8],
    calls: usize,
    /// Calls that the program wants at most.
    max_calls: usize,
}

/// A call of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelCall {
    /// Its place among the answer's calls.
    pub(super) position: usize,
    pub(super) id: String,
    pub(super) name: String,
    /// The text of a JSON object.
    pub(super) arguments: String,
}

/// A part of an answer for a program.
pub(super) enum AnswerPart {
    Text(String),
    Call(ModelCall),
}

impl AnswerParser {
    /// An answer of a model that has these tools. With `is_one_call`, calls after the first are left out.
    pub(super) fn new(tools: Definitions, is_one_call: bool) -> Self {
        let is_tool: ToolPredicate = Box::new(move |name| tools.has(name));
        let (reader, seed) = (AnswerReader::new(is_tool), baton_keys::secret::random_bytes());
        Self { reader, seed, calls: 0, max_calls: if is_one_call { 1 } else { MAX_CALLS } }
    }

    /// Takes more of the answer.
    pub(super) fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        let pieces = self.reader.push(text);
        self.parts(pieces)
    }

    /// The answer ends here.
    pub(super) fn finish(&mut self) -> Vec<AnswerPart> {
        let pieces = self.reader.finish();
        self.parts(pieces)
    }

    fn parts(&mut self, pieces: Vec<Piece>) -> Vec<AnswerPart> {
        let parts = pieces.into_iter().filter_map(|piece| match piece {
            Piece::Content(text) => Some(AnswerPart::Text(text.to_string())),
            Piece::Call(_) if self.calls >= self.max_calls => None,
            Piece::Call(call) => {
                let position = self.calls;
                self.calls += 1;
                Some(AnswerPart::Call(ModelCall {
                    position,
                    id: call_id(self.seed, position),
                    name: call.name.clone(),
                    arguments: call.arguments.write().to_string(),
                }))
            }
        });
        parts.collect()
    }

    /// The finish reason, given the calls found.
    pub(super) fn finish_reason(&self, finish: FinishReason) -> FinishReason {
        match finish {
            FinishReason::Length => finish,
            _ if self.calls > 0 => FinishReason::ToolCall,
            FinishReason::ToolCall => FinishReason::Stop,
            _ => finish,
        }
    }
}

/// An ended answer.
pub(super) struct EndedAnswer {
    /// Its text, without its calls.
    pub(super) text: String,
    pub(super) calls: Vec<ModelCall>,
    /// Why it ended, given its calls.
    pub(super) finish: FinishReason,
}

impl EndedAnswer {
    /// Reads the calls out of an answer, if its model had tools.
    pub(super) fn read(text: &str, parser: Option<AnswerParser>, finish: FinishReason) -> Self {
        let Some(mut parser) = parser else {
            return Self { text: text.to_owned(), calls: Vec::new(), finish };
        };
        let mut ended = Self { text: String::new(), calls: Vec::new(), finish };
        for part in parser.push(text).into_iter().chain(parser.finish()) {
            match part {
                AnswerPart::Text(more) => ended.text.push_str(&more),
                AnswerPart::Call(call) => ended.calls.push(call),
            }
        }
        ended.finish = parser.finish_reason(finish);
        ended
    }

    /// Whether it has a text of its own. White space around calls is none; an answer without calls always has one.
    pub(super) fn has_text(&self) -> bool {
        self.calls.is_empty() || !self.text.trim().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::ChatRequest;

    fn chat(more: Value) -> Result<crate::completion::CompletionRequest, ApiError> {
        let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        ChatRequest::read(body.to_string().as_bytes(), None)
    }

    fn tool(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name } })
    }

    #[test]
    fn what_cannot_be_promised_of_tools_is_refused_by_name() {
        let f = [tool("f")];
        let taken = chat(json!({ "tools": f, "tool_choice": "auto", "parallel_tool_calls": true })).unwrap();
        assert!(taken.tools.unwrap().has("f"));
        for none in [
            json!({ "tools": [] }),
            json!({ "tools": null, "parallel_tool_calls": false }),
            json!({ "tools": f, "tool_choice": "none", "parallel_tool_calls": false }),
        ] {
            assert!(chat(none).unwrap().tools.is_none());
        }
        let strict = json!({ "type": "function", "function": { "name": "f", "strict": 1 } });
        let refused = [
            (json!({ "tools": f, "tool_choice": "sometimes" }), "tool_choice"),
            (json!({ "tools": f, "tool_choice": tool("g") }), "tool_choice"),
            (json!({ "tool_choice": "required" }), "tool_choice"),
            (json!({ "functions": [{ "name": "f" }] }), "functions"),
            (json!({ "function_call": "auto" }), "function_call"),
            (json!({ "tools": {} }), "tools"),
            (json!({ "tools": [tool("f"), tool("f")] }), "tools"),
            (json!({ "tools": vec![tool("f"); MAX_TOOLS + 1] }), "tools"),
            (json!({ "tools": [tool("f"), {}] }), "tools[1].type"),
            (json!({ "tools": [{ "type": "custom", "custom": {} }] }), "tools[0].type"),
            (json!({ "tools": [tool("<|im_end|>")] }), "tools[0].function.name"),
            (json!({ "tools": [strict] }), "tools[0].function.strict"),
        ];
        for (more, param) in refused {
            let api_error = chat(more.clone()).unwrap_err();
            assert_eq!(api_error.body()["error"]["param"], param, "{more}");
        }
    }

    #[test]
    fn a_program_that_wants_one_call_gets_the_first() {
        let request = chat(json!({ "tools": [tool("f")], "parallel_tool_calls": false })).unwrap();
        assert!(request.is_one_call && request.json_schema.is_none());
        assert_eq!(request.sampling.stop, [CALL_END]);
        let two = r#"[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 2}}]"#;
        let ended = EndedAnswer::read(two, request.answer_parser(), FinishReason::Stop);
        assert_eq!((ended.calls.len(), ended.calls[0].arguments.as_str()), (1, "{\"a\": 1}"));
        // The stop string is no part of the answer.
        let cut = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n";
        let ended = EndedAnswer::read(cut, request.answer_parser(), FinishReason::Stop);
        assert_eq!((ended.calls.len(), ended.finish), (1, FinishReason::ToolCall));
    }

    #[test]
    fn a_forced_call_is_one_that_satisfies_its_schema() {
        let parameters = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
        let strict = json!({ "type": "function", "function": { "name": "f", "strict": true, "parameters": parameters } });
        for choice in [json!("required"), tool("f")] {
            let more = json!({ "tools": [strict], "tool_choice": choice, "parallel_tool_calls": false });
            let request = chat(more).unwrap();
            assert!(request.is_forced && request.tools.is_some());
            let schema: Value = serde_json::from_str(&request.json_schema.unwrap()).unwrap();
            assert_eq!(schema["properties"]["arguments"], parameters);
        }
        // An answer with a form is a call or has that form; a forced call has no other.
        let form =
            json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": { "type": "boolean" } } });
        let schema_of = |choice: &str| {
            let more = json!({ "tools": [tool("f")], "tool_choice": choice, "response_format": form });
            chat(more).unwrap().json_schema.unwrap()
        };
        assert!(schema_of("auto").contains("anyOf") && schema_of("auto").contains("boolean"));
        assert!(!schema_of("required").contains("boolean") && !schema_of("none").contains("const"));
    }

    #[test]
    fn calls_are_written_as_text_and_foreign_ids_exchanged_for_ones_that_name_positions() {
        let calls = json!([
            { "id": "call_x", "type": "function", "function": { "name": "f", "arguments": "{\"a\":1}" } },
            { "id": "call_y", "type": "function", "function": { "name": "g", "arguments": "" } },
        ]);
        let kept = call_id([3; 8], 0);
        let own = json!([{ "id": kept, "type": "function", "function": { "name": "f", "arguments": "{}" } }]);
        let request = chat(json!({ "messages": [
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": null, "tool_calls": calls },
            { "role": "tool", "content": "2", "tool_call_id": "call_y" },
            { "role": "tool", "content": "1", "tool_call_id": "call_x" },
            { "role": "assistant", "content": "Well.", "tool_calls": own },
            { "role": "tool", "content": "3", "tool_call_id": kept },
        ]}))
        .unwrap();
        let said = baton_proto::tools::read_answer(&request.messages[1].text, |_| false);
        let names: Vec<&str> = said.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!((said.content.as_str(), names), ("", vec!["f", "g"]));
        let positions =
            [2, 3].map(|index: usize| call_position(request.messages[index].call_id.as_deref().unwrap()));
        assert_eq!(positions, [Some(1), Some(0)]);
        assert!(request.messages[4].text.starts_with("Well.\n<tool_call>"));
        assert_eq!(request.messages[5].call_id.as_ref(), Some(&kept));
    }

    #[test]
    fn calls_that_are_none_and_a_message_that_would_be_definitions_are_refused() {
        let call = |function: Value| json!({ "role": "assistant", "tool_calls": [{ "id": "1", "function": function }] });
        let refused = [
            (
                call(json!({ "name": "f", "arguments": "[1]" })),
                "messages[0].tool_calls[0].function.arguments",
            ),
            (call(json!({ "name": "f", "arguments": "{" })), "messages[0].tool_calls[0].function.arguments"),
            (call(json!({ "name": "a b", "arguments": "{}" })), "messages[0].tool_calls[0].function.name"),
            (json!({ "role": "system", "name": "tools", "content": "[]" }), "messages[0].name"),
            (json!({ "role": "user", "content": "", "tool_calls": [{}] }), "messages[0].tool_calls"),
        ];
        for (message, param) in refused {
            let api_error = chat(json!({ "messages": [message] })).unwrap_err();
            assert_eq!(api_error.body()["error"]["param"], param, "{message}");
        }
    }
}
