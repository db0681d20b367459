//! Tools of servers in the Responses API: `mcp` tools, approvals and calls, in OpenAI's form.
//!
//! A model gets the tools as functions. Its calls become requests for approval; the next request's approvals run
//! them, before its turn.

use baton_proto::{
    record::{Message, Role},
    tools::{Definitions, call_position, is_tool_name},
};
use serde_json::{Value, json};

use super::ResponseId;
use crate::{
    ApiError, Gateway,
    fields::Fields,
    keys::caller::Caller,
    tool_servers::{RemoteResult, RemoteTool, ServerLabels, function_name},
    tools::{AnswerParser, EndedAnswer, ModelCall},
};

/// Begins the id of a request for approval. The rest is the id of its call.
const REQUEST_ID: &str = "mcpr_";
/// Tells a model that its call did not run.
const DENIED: &str = "The person did not approve this call.";

/// A server whose tools a request wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WantedServer {
    /// Its place among the request's tools.
    index: usize,
    label: String,
    url: Option<String>,
    /// The tools that it wants; none for all.
    allowed: Option<Vec<String>>,
}

impl WantedServer {
    /// Reads a tool of type `mcp`, whose type is removed already.
    pub(super) fn read(index: usize, mut tool: Fields) -> Result<Self, ApiError> {
        let label = tool.some_text("server_label")?;
        let url = tool.text("server_url")?;
        let allowed = match tool.peek("allowed_tools") {
            Some(Value::Object(_)) => match tool.object("allowed_tools")? {
                Some(mut filter) => {
                    let names = filter.texts("tool_names")?;
                    filter.refuse_rest("allowed_tools")?;
                    names
                }
                None => None,
            },
            _ => tool.texts("allowed_tools")?,
        };
        if tool.take("require_approval").is_some_and(|wish| wish != "always") {
            let message =
                "require_approval is always: a call sends text to a server, so a person approves each";
            return Err(ApiError::unsupported(&tool.at("require_approval"), message));
        }
        // Words for the model, of which the tools have their own.
        tool.take("server_description");
        if let Some((field, _)) = tool.iter().find(|(_, value)| !value.is_null()) {
            let message =
                format!("{field} is not supported: the owner names servers with baton serve --tool-server");
            return Err(ApiError::unsupported(&tool.at(field), message));
        }
        Ok(Self { index, label, url, allowed })
    }

    fn wants(&self, tool: &RemoteTool) -> bool {
        self.allowed.as_ref().is_none_or(|names| names.contains(&tool.name))
            && is_tool_name(&function_name(&self.label, &tool.name))
    }
}

/// A server with the tools that a request gets.
pub(super) struct ListedServer {
    pub(super) label: String,
    pub(super) tools: Vec<RemoteTool>,
}

impl ListedServer {
    /// The tools as functions.
    pub(super) fn functions(&self) -> impl Iterator<Item = Value> {
        self.tools.iter().map(|tool| {
            json!({ "type": "function", "function": {
                "name": function_name(&self.label, &tool.name),
                "description": tool.description.clone().unwrap_or_default(),
                "parameters": tool.input_schema,
            } })
        })
    }

    fn item(&self) -> Value {
        let tools: Vec<Value> = self
            .tools
            .iter()
            .map(|tool| {
                json!({
                    "name": tool.name, "description": tool.description, "input_schema": tool.input_schema,
                    "annotations": null,
                })
            })
            .collect();
        let id = format!("mcpl_{}", hex::encode(baton_keys::secret::random_bytes::<16>()));
        json!({ "id": id, "type": "mcp_list_tools", "server_label": self.label, "tools": tools, "error": null })
    }
}

/// Asks the wanted servers for their tools.
pub(super) async fn list(gateway: &Gateway, wanted: &[WantedServer]) -> Result<Vec<ListedServer>, ApiError> {
    let mut listed = Vec::with_capacity(wanted.len());
    for server in wanted {
        let at = |field: &str| format!("tools[{}].{field}", server.index);
        if matches!(gateway.caller, Caller::Key(_)) {
            return Err(ApiError::owner_only());
        }
        let servers = gateway.config().tool_servers.as_ref();
        let known =
            servers.and_then(|servers| servers.servers().iter().find(|known| known.label == server.label));
        let (Some(servers), Some(known)) = (servers, known) else {
            let message = format!(
                "this endpoint has no tool server {:?}; its owner names one with baton serve --tool-server LABEL=URL",
                server.label
            );
            return Err(ApiError::value(&at("server_label"), message));
        };
        let same = |url: &str| url.trim_end_matches('/') == known.url.trim_end_matches('/');
        if server.url.as_deref().is_some_and(|url| !same(url)) {
            let message =
                format!("the owner named another address for {:?}: leave server_url out", known.label);
            return Err(ApiError::value(&at("server_url"), message));
        }
        let tools = servers.tools(&known.label).await.map_err(ApiError::tool_server)?;
        let tools = tools.into_iter().filter(|tool| server.wants(tool)).collect();
        listed.push(ListedServer { label: known.label.clone(), tools });
    }
    Ok(listed)
}

/// A call of a server's tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteCall {
    pub(super) label: String,
    pub(super) tool: String,
    /// The text of a JSON object.
    pub(super) arguments: String,
}

/// Most approved calls that run for one request, one after the other.
const MAX_CALLS: usize = 32;

/// A person's answer to a request for approval.
#[derive(Debug)]
pub(super) struct Approval {
    /// Id of the request for approval.
    pub(super) id: String,
    pub(super) approved: bool,
    /// The person's words.
    pub(super) reason: Option<String>,
    /// The message with the result for the model, among the new ones.
    pub(super) message: usize,
    /// The call, if the input has its request.
    pub(super) call: Option<RemoteCall>,
    /// The text of its result, if the input has it.
    pub(super) result: Option<String>,
}

impl Approval {
    /// The id of the call that a request for approval names.
    pub(super) fn call_id(id: &str) -> &str {
        id.strip_prefix(REQUEST_ID).unwrap_or(id)
    }

    /// The message to the model if the call does not run.
    fn denial(&self) -> String {
        match self.reason.as_deref().filter(|reason| !reason.trim().is_empty()) {
            Some(reason) => format!("{DENIED} {reason}"),
            None => DENIED.to_owned(),
        }
    }
}

/// Runs the approved calls, and writes the results into their messages. Returns the items of calls that ran.
pub(super) async fn run_approved(
    gateway: &Gateway,
    labels: &ServerLabels,
    previous: Option<ResponseId>,
    approvals: &[Approval],
    messages: &mut [Message],
) -> Result<Vec<Value>, ApiError> {
    let running = approvals.iter().filter(|approval| approval.approved && approval.result.is_none());
    if running.count() > MAX_CALLS {
        let message =
            format!("at most {MAX_CALLS} approved calls run for one request; approve the others in the next");
        return Err(ApiError::value("input", message));
    }
    let mut items = Vec::new();
    let mut asked: Option<Vec<ModelCall>> = None;
    for approval in approvals {
        let text = match (&approval.result, approval.approved) {
            (Some(result), _) => result.clone(),
            (None, false) => approval.denial(),
            (None, true) => {
                let call = match (&approval.call, previous) {
                    (Some(call), _) => call.clone(),
                    (None, Some(previous)) => {
                        if asked.is_none() {
                            asked = Some(calls_of(gateway, previous).await?);
                        }
                        named_call(&approval.id, asked.as_deref().unwrap_or_default(), labels)?
                    }
                    (None, None) => return Err(unknown_approval()),
                };
                let result = run(gateway, labels, &approval.id, call.clone()).await?;
                items.push(call_item(&approval.id, &call, &result));
                result.text
            }
        };
        if let Some(message) = messages.get_mut(approval.message).filter(|message| message.role == Role::Tool)
        {
            message.text = text;
        }
    }
    Ok(items)
}

fn unknown_approval() -> ApiError {
    let message = "approval_request_id names no call of the response before; send the mcp_approval_request along, or previous_response_id";
    ApiError::value("input", message)
}

/// The calls in a kept response.
async fn calls_of(gateway: &Gateway, previous: ResponseId) -> Result<Vec<ModelCall>, ApiError> {
    let handle = gateway.session(previous.session).await?;
    let tools = Definitions::pinned(&handle.system().await?).flatten();
    let history = handle.history().await?;
    let view = history.into_iter().find(|view| view.turn.link.seq == previous.seq);
    let Some(record) = view.and_then(|view| view.turn.record) else { return Ok(Vec::new()) };
    let parser = tools.map(|tools| AnswerParser::new(tools, previous.is_one_call, false));
    let ended = EndedAnswer::read(record.answer().unwrap_or_default(), parser, record.finish);
    Ok(ended.calls)
}

/// The call that a request for approval names, among the calls of its response.
fn named_call(id: &str, calls: &[ModelCall], labels: &ServerLabels) -> Result<RemoteCall, ApiError> {
    let position = call_position(Approval::call_id(id));
    let call = calls.iter().find(|call| Some(call.position) == position);
    let named = call.and_then(|call| Some((labels.split(&call.name)?, call)));
    let ((label, tool), call) = named.ok_or_else(unknown_approval)?;
    Ok(RemoteCall { label: label.to_owned(), tool: tool.to_owned(), arguments: call.arguments.clone() })
}

async fn run(
    gateway: &Gateway,
    labels: &ServerLabels,
    approval: &str,
    call: RemoteCall,
) -> Result<RemoteResult, ApiError> {
    let servers = gateway.config().tool_servers.clone();
    // Only servers of this very request, whose rights were checked.
    let Some(servers) = servers.filter(|_| labels.0.contains(&call.label)) else {
        let message = format!("an approved call of {:?} needs its server among the tools", call.label);
        return Err(ApiError::value("tools", message));
    };
    let approved = json!([approval, call.label, call.tool, call.arguments]).to_string();
    let running = async move { servers.call(&call.label, &call.tool, &call.arguments).await };
    Ok(gateway.inner.approved_calls.result(&approved, running).await)
}

/// The item of a model's call that waits for approval.
pub(super) fn approval_item(call: &ModelCall, label: &str, tool: &str) -> Value {
    json!({
        "id": format!("{REQUEST_ID}{}", call.id), "type": "mcp_approval_request",
        "server_label": label, "name": tool, "arguments": call.arguments,
    })
}

/// The item of a call that ran.
fn call_item(approval: &str, call: &RemoteCall, result: &RemoteResult) -> Value {
    let (output, error) = match result.is_error {
        false => (Some(&result.text), None),
        true => (None, Some(&result.text)),
    };
    json!({
        "id": format!("mcp_{}", Approval::call_id(approval)), "type": "mcp_call",
        "status": if result.is_error { "failed" } else { "completed" },
        "approval_request_id": approval, "server_label": call.label, "name": call.tool,
        "arguments": call.arguments, "output": output, "error": error,
    })
}

/// The items of lists that the program does not have yet.
pub(super) fn list_items(listed: &[ListedServer], known: &[String]) -> Vec<Value> {
    listed.iter().filter(|server| !known.contains(&server.label)).map(ListedServer::item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tool: Value) -> Result<WantedServer, String> {
        let tool = Fields::of(tool, "tools[0]".to_owned()).unwrap();
        WantedServer::read(0, tool).map_err(|error| error.param().unwrap_or_default().to_owned())
    }

    #[test]
    fn a_server_is_named_by_its_label_and_each_call_is_approved() {
        let whole = read(json!({
            "server_label": "home", "server_url": "https://h/mcp", "require_approval": "always",
            "allowed_tools": { "tool_names": ["lamp"] }, "server_description": "the house", "headers": null,
        }));
        let allowed = Some(vec!["lamp".to_owned()]);
        let url = Some("https://h/mcp".to_owned());
        let wanted = WantedServer { index: 0, label: "home".to_owned(), url, allowed: allowed.clone() };
        assert_eq!(whole, Ok(wanted));
        let listed = read(json!({ "server_label": "home", "allowed_tools": ["lamp"] })).unwrap();
        assert_eq!((listed.allowed, listed.url), (allowed, None));
        for (more, param) in [
            (json!({}), "tools[0].server_label"),
            (json!({ "server_label": "h", "server_url": 1 }), "tools[0].server_url"),
            (json!({ "server_label": "h", "allowed_tools": 5 }), "tools[0].allowed_tools"),
            (json!({ "server_label": "h", "require_approval": "never" }), "tools[0].require_approval"),
            (json!({ "server_label": "h", "authorization": "secret" }), "tools[0].authorization"),
            (json!({ "server_label": "h", "connector_id": "x" }), "tools[0].connector_id"),
        ] {
            assert_eq!(read(more.clone()), Err(param.to_owned()), "{more}");
        }
    }

    #[test]
    fn an_approval_names_one_call_of_its_response() {
        let call = |position: usize, name: &str| ModelCall {
            position,
            id: baton_proto::tools::call_id([1; 8], position),
            name: name.to_owned(),
            arguments: "{}".to_owned(),
        };
        let calls = [call(0, "now"), call(1, "home__lamp")];
        let labels = ServerLabels(vec!["home".to_owned()]);
        let id = |call: &ModelCall| approval_item(call, "home", "lamp")["id"].as_str().unwrap().to_owned();
        let found = named_call(&id(&calls[1]), &calls, &labels).unwrap();
        assert_eq!((found.label.as_str(), found.tool.as_str()), ("home", "lamp"));
        for (id, labels) in [
            (id(&calls[0]), labels.clone()),
            (id(&call(2, "home__lamp")), labels.clone()),
            ("mcpr_".to_owned(), labels),
            (id(&calls[1]), ServerLabels::default()),
        ] {
            assert!(named_call(&id, &calls, &labels).is_err(), "{id}");
        }
    }
}
