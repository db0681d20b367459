//! Tools of OpenAI's API: reads requests strictly into the session's form, and calls out of answers into
//! OpenAI's form.
//!
//! In the session a call is text of the answer, in the model's syntax (`baton_proto::tools`). So calls that a
//! program sends back become text too. Foreign call ids are replaced by ids that name the call's position.

use std::collections::HashMap;

use baton_proto::{
    record::FinishReason,
    tools::{
        AnswerReader, Call, CallArguments, CallSchemaError, Definitions, Json, MAX_CALLS, MAX_TOOLS, Piece,
        call_id, call_id_of, call_or_answer_schema, call_position, call_schema, is_tool_name, write_answer,
        write_call,
    },
};
use serde_json::Value;

use crate::{
    form::{
        completion::CompletionRequest,
        fields::{BodyFields, without_nulls},
        format,
    },
    http::{api_error::ApiError, exact},
};

/// Ends a call in the syntax that nodes tell to models.
const CALL_END: &str = "</tool_call>";
/// The part of a written call that follows its arguments, and that a cut call lacks.
const CUT_END: &str = "}\n</tool_call>";

/// A request's wish about calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
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
pub(crate) struct ToolRequest {
    /// The tools in the form that a session holds, which is that of OpenAI's chat completions.
    pub(crate) tools: Vec<Value>,
    pub(crate) choice: ToolChoice,
    pub(crate) parallel_tool_calls: Option<bool>,
}

impl ToolRequest {
    /// Gives a request these tools, and the schema that its answer must satisfy for them: that of a forced call, or
    /// that of a call or the request's own form.
    pub(crate) fn apply(self, mut request: CompletionRequest) -> Result<CompletionRequest, ApiError> {
        let is_forced = matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_));
        let Some(tools) = definitions(self.tools)? else {
            if is_forced {
                let message = "tool_choice asks for a call, and there are no tools";
                return Err(ApiError::value("tool_choice", message));
            }
            return Ok(request);
        };
        let forced = |name| call_schema(&tools, name, CallArguments::Checked).map(Some);
        let schema = match (&self.choice, &request.json_schema) {
            (ToolChoice::Never, _) => return Ok(request),
            (ToolChoice::Required, _) => forced(None),
            (ToolChoice::Named(name), _) => forced(Some(name.as_str())),
            (ToolChoice::Auto, None) => Ok(None),
            (ToolChoice::Auto, Some(form)) => {
                call_or_answer_schema(&tools, Json::parse(form).unwrap_or(Json::Null)).map(Some)
            }
        };
        let schema = schema.map_err(|error| call_error(&error))?;
        request.json_schema = schema.map(|schema| format::check_length(schema, "tools")).transpose()?;
        request.is_forced = is_forced;
        // A forced call is one call.
        request.is_one_call = self.parallel_tool_calls == Some(false) && !is_forced;
        if request.is_one_call {
            request.sampling.stop.push(CALL_END.to_owned());
        }
        request.tools = Some(tools);
        Ok(request)
    }
}

/// Checks the definitions of tools; none if there are no tools.
fn definitions(tools: Vec<Value>) -> Result<Option<Definitions>, ApiError> {
    if tools.is_empty() {
        return Ok(None);
    }
    let tools: Vec<Value> = tools.into_iter().map(without_nulls).collect();
    for (index, tool) in tools.iter().enumerate() {
        check_tool(BodyFields::of(tool.clone(), format!("tools[{index}]"))?)?;
    }
    let wrong = || format!("tools is at most {MAX_TOOLS} functions with different names");
    let definitions = Definitions::parse(&exact::write(&Value::Array(tools)));
    let definitions = definitions.ok_or_else(|| ApiError::value("tools", wrong()))?;
    definitions.message().check().map_err(|_| ApiError::value("tools", "the tools are too long"))?;
    Ok(Some(definitions))
}

/// The error for tools whose calls have no schema. Nodes hold an answer to a schema, token by token, and a call in JSON
/// alone is one of the forms in which models write calls.
fn call_error(error: &CallSchemaError) -> ApiError {
    match error {
        CallSchemaError::NoTool(_) => ApiError::value("tool_choice", error.to_string()),
        CallSchemaError::Reference(index) => {
            ApiError::unsupported(&format!("tools[{index}].function.parameters"), error.to_string())
        }
        CallSchemaError::AnswerReference => ApiError::unsupported(format::NAME, error.to_string()),
    }
}

impl CompletionRequest {
    /// The reader of an answer's calls, if the model has tools.
    pub(crate) fn answer_parser(&self) -> Option<AnswerParser> {
        self.tools.clone().map(|tools| AnswerParser::new(tools, self.is_one_call, self.is_forced))
    }
}

/// Names the error in a tool.
fn check_tool(mut tool: BodyFields) -> Result<(), ApiError> {
    match tool.text("type")?.as_deref() {
        Some("function") => {}
        Some(_) => {
            return Err(ApiError::unsupported(&tool.at("type"), "only tools of type function are served"));
        }
        None => return Err(ApiError::value(&tool.at("type"), "a tool has a type")),
    }
    let mut function = tool.part("function")?;
    if !function.text("name")?.is_some_and(|name| is_tool_name(&name)) {
        let message = "a function has a name of 1 to 64 letters, digits, _, - and .";
        return Err(ApiError::value(&function.at("name"), message));
    }
    function.flag("strict").map(drop)
}

/// A call of an earlier answer, as a program sends it back.
pub(crate) struct PastCall {
    id: Option<String>,
    name: String,
    /// If a limit cut them, their text.
    arguments: Result<Json, String>,
}

impl PastCall {
    /// Takes a call out of its object, whose arguments have this name: an object, or the text of one. An empty text
    /// stands for none, and a limit may have cut the text.
    pub(crate) fn take(
        fields: &mut BodyFields,
        id: Option<String>,
        arguments: &str,
    ) -> Result<Self, ApiError> {
        let name = fields.text("name")?.unwrap_or_default();
        if !is_tool_name(&name) {
            return Err(ApiError::value(&fields.at("name"), "a call has the name of a function"));
        }
        let text = match fields.take(arguments) {
            Some(Value::String(text)) if !text.trim().is_empty() => text,
            None | Some(Value::String(_)) => "{}".to_owned(),
            Some(value) => exact::write(&value),
        };
        match Json::parse(&text) {
            Some(map @ Json::Map(_)) => Ok(Self { id, name, arguments: Ok(map) }),
            None if text.starts_with('{') => Ok(Self { id, name, arguments: Err(text) }),
            _ => {
                let message = format!("{arguments} is a JSON object, or its text");
                Err(ApiError::value(&fields.at(arguments), message))
            }
        }
    }
}

/// The foreign call ids of a request's messages, each with our id for its position.
#[derive(Default)]
pub(crate) struct CallIds(HashMap<String, String>);

impl CallIds {
    /// Writes an assistant's calls after its text; `at` is the path of the calls.
    pub(crate) fn write(
        &mut self,
        content: String,
        calls: Vec<PastCall>,
        at: &str,
    ) -> Result<String, ApiError> {
        if calls.is_empty() {
            return Ok(content);
        }
        if calls.len() > MAX_CALLS {
            return Err(ApiError::value(at, format!("at most {MAX_CALLS} calls are in a message")));
        }
        let (mut first, mut cut) = (None, None);
        let written =
            calls.into_iter().enumerate().filter_map(|(position, PastCall { id, name, arguments })| {
                if let Some(id) = id {
                    let first: &String = first.get_or_insert_with(|| id.clone());
                    let is_ours = call_position(&id) == Some(position);
                    let ours = if is_ours { id.clone() } else { call_id_of(first, position) };
                    self.0.insert(id, ours);
                }
                match arguments {
                    Ok(arguments) => Some(Call { name, arguments }),
                    Err(arguments) => {
                        cut = Some(write_call(&name, &arguments));
                        None
                    }
                }
            });
        let written: Vec<Call> = written.collect();
        let mut text = write_answer(&content, &written).to_string();
        if let Some(cut) = cut {
            text.push_str(if text.is_empty() { "" } else { "\n" });
            text.push_str(cut.strip_suffix(CUT_END).unwrap_or(&cut));
        }
        Ok(text)
    }

    /// Our id for the id in a tool result.
    pub(crate) fn ours(&self, id: String) -> String {
        self.0.get(&id).cloned().unwrap_or(id)
    }
}

type ToolPredicate = Box<dyn Fn(&str) -> bool + Send>;

/// An answer on its way to a program.
pub(crate) struct AnswerParser {
    reader: AnswerReader<ToolPredicate>,
    /// Seed of the call ids.
    seed: [u8; 8],
    calls: usize,
    /// Calls that the program wants at most.
    max_calls: usize,
    /// Whether the answer is a call.
    is_forced: bool,
    /// The call that the model is writing.
    open: Option<OpenCall>,
}

/// A call of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelCall {
    /// Its place among the answer's calls.
    pub(crate) position: usize,
    pub(crate) id: String,
    pub(crate) name: String,
    /// The text of a JSON object; of a call that a limit cut, as far as it came.
    pub(crate) arguments: String,
}

/// A part of an answer for a program.
pub(crate) enum AnswerPart {
    Text(String),
    /// A call begins, with its arguments as far as they are there.
    CallBegun(ModelCall),
    /// More of the arguments of the call that began last.
    Arguments {
        position: usize,
        text: String,
    },
    /// The call that began last ends: the whole call.
    CallEnded(ModelCall),
}

/// A call whose arguments still come.
struct OpenCall {
    call: ModelCall,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl OpenCall {
    /// Takes the part of a text that belongs to the arguments.
    fn take<'a>(&mut self, text: &'a str) -> &'a str {
        let is_ended = self.depth == 0 && !self.call.arguments.is_empty();
        let end = if is_ended { 0 } else { self.end(text).unwrap_or(text.len()) };
        let taken = text.get(..end).unwrap_or_default();
        self.call.arguments.push_str(taken);
        taken
    }

    /// The place after the end of the arguments, if it is in this text.
    fn end(&mut self, text: &str) -> Option<usize> {
        let place = text.bytes().position(|byte| {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                b'{' | b'[' if !self.in_text => self.depth += 1,
                b'}' | b']' if !self.in_text => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            self.depth == 0
        });
        place.map(|place| place + 1)
    }
}

impl AnswerParser {
    /// An answer of a model that has these tools. With `is_one_call`, calls after the first are left out.
    pub(crate) fn new(tools: Definitions, is_one_call: bool, is_forced: bool) -> Self {
        let is_tool: ToolPredicate = Box::new(move |name| tools.has(name));
        let (reader, seed) = (AnswerReader::new(is_tool), baton_keys::secret::random_bytes());
        let max_calls = if is_one_call { 1 } else { MAX_CALLS };
        Self { reader, seed, calls: 0, max_calls, is_forced, open: None }
    }

    /// Takes more of the answer.
    pub(crate) fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        let mut parts = Vec::new();
        if let Some(open) = &mut self.open {
            let (position, text) = (open.call.position, open.take(text).to_owned());
            if !text.is_empty() {
                parts.push(AnswerPart::Arguments { position, text });
            }
        }
        let pieces = self.reader.push(text);
        self.parts(pieces, &mut parts);
        self.begin_call(&mut parts);
        parts
    }

    /// The answer ends here. A call that is being written stays a call.
    pub(crate) fn finish(&mut self) -> Vec<AnswerPart> {
        let pieces = self.reader.finish();
        let is_whole = pieces.iter().any(|piece| matches!(piece, Piece::Call(_)));
        if let Some(open) = self.open.take_if(|_| !is_whole) {
            return vec![AnswerPart::CallEnded(open.call)];
        }
        let mut parts = Vec::new();
        self.parts(pieces, &mut parts);
        parts
    }

    fn parts(&mut self, pieces: Vec<Piece>, parts: &mut Vec<AnswerPart>) {
        for piece in pieces {
            // A call that proves to be none ends as far as it came.
            let open = self.open.take();
            let is_known = open.is_some();
            parts.extend(open.map(|open| AnswerPart::CallEnded(open.call)));
            match piece {
                Piece::Content(text) => parts.push(AnswerPart::Text(text.to_string())),
                Piece::Call(_) if is_known => {}
                Piece::Call(_) if self.calls >= self.max_calls => {}
                Piece::Call(call) => {
                    let arguments = call.arguments.write().to_string();
                    let call = ModelCall { arguments, ..self.next_call(&call.name) };
                    parts.push(AnswerPart::CallBegun(call.clone()));
                    parts.push(AnswerPart::CallEnded(call));
                }
            }
        }
    }

    /// Begins the call that the model is writing, once its name is there.
    fn begin_call(&mut self, parts: &mut Vec<AnswerPart>) {
        if self.open.is_some() || self.calls >= self.max_calls {
            return;
        }
        let begun = self.reader.open_call(self.is_forced);
        let Some((name, arguments)) = begun.map(|(name, text)| (name.to_owned(), text.to_owned())) else {
            return;
        };
        let call = self.next_call(&name);
        let mut open = OpenCall { call, depth: 0, in_text: false, escaped: false };
        open.take(&arguments);
        parts.push(AnswerPart::CallBegun(open.call.clone()));
        self.open = Some(open);
    }

    /// Counts a call; it has no arguments so far.
    fn next_call(&mut self, name: &str) -> ModelCall {
        let position = self.calls;
        self.calls += 1;
        let id = call_id(self.seed, position);
        ModelCall { position, id, name: name.to_owned(), arguments: String::new() }
    }

    /// The finish reason, given the calls found.
    pub(crate) fn finish_reason(&self, finish: FinishReason) -> FinishReason {
        match finish {
            FinishReason::Length => finish,
            _ if self.calls > 0 => FinishReason::ToolCall,
            FinishReason::ToolCall => FinishReason::Stop,
            _ => finish,
        }
    }
}

/// An ended answer.
pub(crate) struct EndedAnswer {
    /// Its text, without its calls.
    pub(crate) text: String,
    pub(crate) calls: Vec<ModelCall>,
    /// Why it ended, given its calls.
    pub(crate) finish: FinishReason,
}

impl EndedAnswer {
    /// Reads the calls out of an answer, if its model had tools.
    pub(crate) fn read(text: &str, parser: Option<AnswerParser>, finish: FinishReason) -> Self {
        let Some(mut parser) = parser else {
            return Self { text: text.to_owned(), calls: Vec::new(), finish };
        };
        let mut ended = Self { text: String::new(), calls: Vec::new(), finish };
        for part in parser.push(text).into_iter().chain(parser.finish()) {
            match part {
                AnswerPart::Text(more) => ended.text.push_str(&more),
                AnswerPart::CallEnded(call) => ended.calls.push(call),
                AnswerPart::CallBegun(_) | AnswerPart::Arguments { .. } => {}
            }
        }
        ended.finish = parser.finish_reason(finish);
        ended
    }

    /// Whether it has a text of its own. White space around calls is none; an answer without calls always has one.
    pub(crate) fn has_text(&self) -> bool {
        self.calls.is_empty() || !self.text.trim().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::form::fields::with;
    use crate::form::wire::read_chat;

    fn chat(more: Value) -> Result<CompletionRequest, ApiError> {
        let body = with(json!({ "messages": [{ "role": "user", "content": "hi" }] }), more);
        read_chat(body.to_string().as_bytes(), None)
    }

    fn tool(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name } })
    }

    #[test]
    fn tools_are_taken_unless_the_model_may_call_none() {
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
        let other = chat(json!({ "tools": f, "tool_choice": tool("g") })).unwrap_err();
        assert_eq!(other.param(), Some("tool_choice"), "it names no tool of the request");
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
    fn a_call_comes_in_pieces_and_one_that_a_limit_cuts_stays_a_call() {
        let text = "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}{ \\\" é\", \"b\": [1, {}]}}\n</tool_call>";
        let arguments = "{\"a\": \"}{ \\\" é\", \"b\": [1, {}]}";
        let request = chat(json!({ "tools": [tool("f")] })).unwrap();
        for cut in [text.len(), text.len() - 20, text.len() - 30] {
            let mut parser = request.answer_parser().unwrap();
            let (mut said, mut came, mut begun, mut ended) = (String::new(), String::new(), 0, Vec::new());
            let pushed =
                text[..cut].chars().flat_map(|one| parser.push(&one.to_string())).collect::<Vec<_>>();
            let deltas = pushed.len();
            for part in pushed.into_iter().chain(parser.finish()) {
                match part {
                    AnswerPart::Text(more) => said.push_str(&more),
                    AnswerPart::CallBegun(call) => {
                        assert_eq!(call.name, "f");
                        begun += 1;
                        came.push_str(&call.arguments);
                    }
                    AnswerPart::Arguments { position: 0, text } => came.push_str(&text),
                    AnswerPart::Arguments { .. } => panic!("another call"),
                    AnswerPart::CallEnded(call) => ended.push(call),
                }
            }
            assert!(deltas > 10, "{deltas}");
            assert_eq!((said.as_str(), begun, ended.len()), ("I look.", 1, 1), "{cut}");
            assert_eq!(came, ended[0].arguments);
            assert!(arguments.starts_with(&came) && (cut < text.len() || came == arguments));
            let whole = EndedAnswer::read(&text[..cut], request.answer_parser(), FinishReason::Length);
            assert_eq!((whole.text.as_str(), whole.finish), ("I look.", FinishReason::Length));
            assert_eq!(whole.calls.len(), 1, "{cut}");
        }
    }

    #[test]
    fn a_forced_call_comes_in_pieces_and_may_be_cut() {
        let more = json!({ "tools": [tool("f")], "tool_choice": "required" });
        let request = chat(more).unwrap();
        let text = "{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
        for cut in [text.len(), text.len() - 1, text.len() - 3] {
            let ended = EndedAnswer::read(&text[..cut], request.answer_parser(), FinishReason::Length);
            assert_eq!((ended.text.as_str(), ended.calls.len()), ("", 1), "{cut}");
            assert!("{\"a\": 1}".starts_with(&ended.calls[0].arguments));
        }
        let mut parser = request.answer_parser().unwrap();
        let begun = parser.push("{\"name\": \"f\", \"arguments\": {\"a\"");
        assert!(matches!(&begun[..], [AnswerPart::CallBegun(call)] if call.arguments == "{\"a\""));
    }

    #[test]
    fn a_cut_call_goes_back_into_the_text_of_its_answer() {
        let cut = json!([{ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{\"a\": \"x" } }]);
        let message = json!({ "role": "assistant", "content": "I look.", "tool_calls": cut });
        let request = chat(json!({ "messages": [{ "role": "user", "content": "hi" }, message] })).unwrap();
        let written = "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x";
        assert_eq!(request.messages[1].text, written);
    }
}
