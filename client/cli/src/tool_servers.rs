//! Servers of tools for `baton serve`, over streamable HTTP (Model Context Protocol, version 2025-06-18).

use std::{
    collections::HashMap,
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use baton_client::ClientError;
use baton_command::endpoint::is_protected;
use baton_gateway::{MAX_RESULT_BYTES, RemoteResult, RemoteTool, ToolServer, ToolServers, is_server_label};
use baton_keys::files;
use baton_walrus_client::http_client;
use reqwest::{RequestBuilder, Response, StatusCode, header};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::Failure;

/// The protocol's version.
const VERSION: &str = "2025-06-18";
/// Time for an answer: a tool may work for a while, and a program waits for its result.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time for the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer that is read.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// Most tools that are taken of a server.
const MAX_TOOLS: usize = 64;
/// Most pages of a list.
const MAX_PAGES: usize = 8;
/// Most servers.
const MAX_SERVERS: usize = 16;
/// How long a list holds. Tools that change begin new conversations.
const LIST_AGE: Duration = Duration::from_secs(10 * 60);
/// Largest file with a token.
const MAX_TOKEN_BYTES: u64 = 4096;
/// Ends a result that is too long.
const CUT: &str = "\n[the rest was left out]";

/// The servers that the owner named.
pub(crate) struct NamedServers {
    /// A client for each server, by its label.
    clients: HashMap<String, reqwest::Client>,
    servers: Vec<ToolServer>,
    tokens: HashMap<String, Zeroizing<String>>,
    listed: Mutex<HashMap<String, (Instant, Vec<RemoteTool>)>>,
}

/// Without the tokens, which no log may have.
impl std::fmt::Debug for NamedServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamedServers").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl NamedServers {
    /// Reads pairs of a label and a URL, and of a label and a file with its bearer token; `None` without servers.
    pub(crate) fn read(
        servers: &[String],
        token_files: &[String],
        allow_plain_http: bool,
    ) -> Result<Option<Self>, Failure> {
        if servers.len() > MAX_SERVERS {
            return Err(Failure::Usage(format!("at most {MAX_SERVERS} tool servers are served")));
        }
        let mut named: Vec<ToolServer> = Vec::new();
        for pair in servers {
            let server = server(pair, allow_plain_http)?;
            if named.iter().any(|other| other.label == server.label) {
                return Err(Failure::Usage(format!("two tool servers have the label {}", server.label)));
            }
            named.push(server);
        }
        let mut tokens = HashMap::new();
        for pair in token_files {
            let (label, token) = token(pair)?;
            if !named.iter().any(|server| server.label == label) {
                let message = format!("--tool-server-token {label}=...: no --tool-server has this label");
                return Err(Failure::Usage(message));
            }
            tokens.insert(label, token);
        }
        // A redirect would send the token to another server.
        let clients = named.iter().map(|server| -> Result<_, ClientError> {
            let http =
                http_client::builder_for(&server.url).timeout(TIMEOUT).connect_timeout(CONNECT_TIMEOUT);
            let http = http.redirect(reqwest::redirect::Policy::none()).build();
            Ok((server.label.clone(), http.map_err(|error| ClientError::Config(error.to_string()))?))
        });
        let clients = clients.collect::<Result<HashMap<_, _>, ClientError>>()?;
        Ok((!named.is_empty()).then(|| Self { clients, servers: named, tokens, listed: Mutex::default() }))
    }

    fn server(&self, label: &str) -> Result<&ToolServer, String> {
        let server = self.servers.iter().find(|server| server.label == label);
        server.ok_or_else(|| format!("no tool server is named {label}"))
    }

    fn lists(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Instant, Vec<RemoteTool>)>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn list(&self, label: &str) -> Result<Vec<RemoteTool>, String> {
        if let Some((since, tools)) = self.lists().get(label)
            && since.elapsed() < LIST_AGE
        {
            return Ok(tools.clone());
        }
        let connection = Connection::open(self, self.server(label)?).await?;
        let tools = connection.tools().await;
        connection.close().await;
        let tools = tools?;
        self.lists().insert(label.to_owned(), (Instant::now(), tools.clone()));
        Ok(tools)
    }

    async fn run(&self, label: &str, tool: &str, arguments: &str) -> Result<RemoteResult, String> {
        let arguments: Value =
            serde_json::from_str(arguments).map_err(|_| "the arguments are no JSON".to_owned())?;
        let connection = Connection::open(self, self.server(label)?).await?;
        let result = connection.request("tools/call", json!({ "name": tool, "arguments": arguments })).await;
        connection.close().await;
        let result = result?;
        let is_error = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
        Ok(RemoteResult { text: result_text(&result), is_error })
    }
}

impl ToolServers for NamedServers {
    fn servers(&self) -> &[ToolServer] {
        &self.servers
    }

    fn tools<'a>(
        &'a self,
        label: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<RemoteTool>, String>> + Send + 'a>> {
        Box::pin(self.list(label))
    }

    fn call<'a>(
        &'a self,
        label: &'a str,
        tool: &'a str,
        arguments: &'a str,
    ) -> Pin<Box<dyn Future<Output = RemoteResult> + Send + 'a>> {
        Box::pin(async move {
            let result = self.run(label, tool, arguments).await;
            result.unwrap_or_else(|reason| RemoteResult { text: cut(reason), is_error: true })
        })
    }
}

/// Reads `LABEL=URL`.
fn server(pair: &str, allow_plain_http: bool) -> Result<ToolServer, Failure> {
    let wrong = |message: &str| Failure::Usage(format!("--tool-server {pair}: {message}"));
    let (label, url) = pair.split_once('=').ok_or_else(|| wrong("it is LABEL=URL"))?;
    if !is_server_label(label) {
        return Err(wrong("a label has at most 32 letters, digits, hyphens and single underscores"));
    }
    let parsed = reqwest::Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let parsed = parsed.ok_or_else(|| wrong("the URL begins with https://"))?;
    if !is_protected(&parsed) && !allow_plain_http {
        return Err(wrong(
            "plain HTTP to another machine lets others on the way read the calls; use https://, or permit it: --insecure",
        ));
    }
    Ok(ToolServer { label: label.to_owned(), url: url.to_owned() })
}

/// Reads `LABEL=FILE`, and the token in the file.
fn token(pair: &str) -> Result<(String, Zeroizing<String>), Failure> {
    let wrong = |message: &str| Failure::Usage(format!("--tool-server-token {pair}: {message}"));
    let (label, path) = pair.split_once('=').ok_or_else(|| wrong("it is LABEL=FILE"))?;
    let read =
        files::read_secret(&PathBuf::from(path), "token", MAX_TOKEN_BYTES).map_err(ClientError::from)?;
    let bytes = read.ok_or_else(|| wrong("the file is not there"))?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("the file holds no token: one line of visible characters"));
    }
    Ok((label.to_owned(), Zeroizing::new(text.to_owned())))
}

fn tool(tool: &Value) -> Option<RemoteTool> {
    let text = |field: &str| tool.get(field).and_then(Value::as_str).map(str::to_owned);
    let input_schema = tool.get("inputSchema").filter(|schema| schema.is_object()).cloned();
    Some(RemoteTool {
        name: text("name")?,
        description: text("description"),
        input_schema: input_schema.unwrap_or_else(|| json!({ "type": "object" })),
    })
}

/// The texts of a result, for a model.
fn result_text(result: &Value) -> String {
    let parts = result.get("content").and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<String> = parts
        .map(|part| {
            let text = part.get("text").or_else(|| part.pointer("/resource/text")).and_then(Value::as_str);
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("unknown");
            text.map_or_else(|| format!("[a part of type {kind} was left out]"), str::to_owned)
        })
        .collect();
    cut(match (texts.is_empty(), result.get("structuredContent")) {
        (true, Some(content)) => content.to_string(),
        _ => texts.join("\n"),
    })
}

/// A text of a server, of the length that a result may have.
fn cut(mut text: String) -> String {
    if text.len() > MAX_RESULT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_RESULT_BYTES - CUT.len()));
        text.push_str(CUT);
    }
    text
}

/// A session with a server.
struct Connection<'a> {
    named: &'a NamedServers,
    server: &'a ToolServer,
    /// Its id, if the server gave one.
    session: Option<String>,
}

impl<'a> Connection<'a> {
    async fn open(named: &'a NamedServers, server: &'a ToolServer) -> Result<Self, String> {
        let mut connection = Self { named, server, session: None };
        let begun = connection.begin().await;
        if begun.is_err() {
            connection.close().await;
        }
        begun.map(|()| connection)
    }

    async fn begin(&mut self) -> Result<(), String> {
        let params = json!({
            "protocolVersion": VERSION, "capabilities": {},
            "clientInfo": { "name": "baton", "version": env!("CARGO_PKG_VERSION") },
        });
        let answer = self.send("initialize", Some(0), params).await?;
        let session = answer.headers().get("mcp-session-id").and_then(|id| id.to_str().ok());
        self.session = session.map(str::to_owned);
        self.result(answer, 0).await?;
        self.send("notifications/initialized", None, json!({})).await?;
        Ok(())
    }

    async fn tools(&self) -> Result<Vec<RemoteTool>, String> {
        let mut tools = Vec::new();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let params = cursor.map_or_else(|| json!({}), |cursor: Value| json!({ "cursor": cursor }));
            let page = self.request("tools/list", params).await?;
            tools.extend(page.get("tools").and_then(Value::as_array).into_iter().flatten().filter_map(tool));
            cursor = page.get("nextCursor").filter(|cursor| cursor.is_string()).cloned();
            if cursor.is_none() {
                break;
            }
        }
        if cursor.is_some() || tools.len() > MAX_TOOLS {
            return Err(format!("the tool server {} has more than {MAX_TOOLS} tools", self.server.label));
        }
        Ok(tools)
    }

    async fn request(&self, method: &str, params: Value) -> Result<Value, String> {
        let answer = self.send(method, Some(1), params).await?;
        self.result(answer, 1).await
    }

    /// Ends the session; a server may keep it otherwise.
    async fn close(&self) {
        if self.session.is_some() {
            // The server ends it by itself too, later.
            let _ = self.with_headers(self.http().delete(&self.server.url)).send().await;
        }
    }

    fn http(&self) -> &reqwest::Client {
        self.named.clients.get(&self.server.label).expect("each named server has a client")
    }

    fn with_headers(&self, request: RequestBuilder) -> RequestBuilder {
        let mut request = request.header("mcp-protocol-version", VERSION);
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        match self.named.tokens.get(&self.server.label) {
            Some(token) => request.bearer_auth(&**token),
            None => request,
        }
    }

    async fn send(&self, method: &str, id: Option<u32>, params: Value) -> Result<Response, String> {
        let mut message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        if let (Some(id), Value::Object(fields)) = (id, &mut message) {
            fields.insert("id".to_owned(), id.into());
        }
        let request = self.http().post(&self.server.url).header(header::CONTENT_TYPE, "application/json");
        let request = request.header(header::ACCEPT, "application/json, text/event-stream");
        let answer = self.with_headers(request).body(message.to_string()).send().await;
        let answer = answer.map_err(|error| self.failed(&http_client::describe(&error)))?;
        match answer.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(self.failed("it refuses the token; name one with --tool-server-token LABEL=FILE"))
            }
            status if status.is_success() => Ok(answer),
            status => Err(self.failed(&format!("it answers {status}"))),
        }
    }

    fn failed(&self, cause: &str) -> String {
        format!("the tool server {} failed: {cause}", self.server.label)
    }

    /// The result of a request: in a body of JSON, or in an event of a stream.
    async fn result(&self, mut answer: Response, id: u32) -> Result<Value, String> {
        let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let (mut bytes, mut events) = (Vec::new(), EventReader::default());
        let reply = loop {
            let part = answer.chunk().await.map_err(|error| self.failed(&error.without_url().to_string()))?;
            let ended = part.is_none();
            let begin = bytes.len();
            bytes.extend_from_slice(&part.unwrap_or_default());
            if bytes.len() > MAX_ANSWER_BYTES {
                return Err(self.failed("its answer is too long"));
            }
            let found = match (is_stream, ended) {
                (true, _) => events.push(bytes.get(begin..).unwrap_or_default(), id),
                (false, true) => serde_json::from_slice(&bytes).ok().filter(|reply| answers(reply, id)),
                (false, false) => None,
            };
            match found {
                Some(reply) => break reply,
                None if ended => return Err(self.failed("it answers something else than the protocol has")),
                None => {}
            }
        };
        if let Some(error) = reply.get("error") {
            let said = error.get("message").and_then(Value::as_str).unwrap_or("it names no cause");
            return Err(self.failed(said));
        }
        reply.get("result").cloned().ok_or_else(|| self.failed("its answer has no result"))
    }
}

/// Whether a message is the answer to a request.
fn answers(message: &Value, id: u32) -> bool {
    message.get("id").and_then(Value::as_u64) == Some(id.into())
}

/// Reads the events of a stream.
#[derive(Default)]
struct EventReader {
    line: Vec<u8>,
    data: String,
}

impl EventReader {
    /// Takes more of the stream. Returns the answer to a request, once its event is whole; others are notifications.
    fn push(&mut self, part: &[u8], id: u32) -> Option<Value> {
        for piece in part.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if !piece.ends_with(b"\n") {
                break;
            }
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if let Some(more) = line.strip_prefix("data:") {
                self.data.push_str(more.strip_prefix(' ').unwrap_or(more));
                self.data.push('\n');
            } else if line.is_empty() {
                let data = std::mem::take(&mut self.data);
                let message = serde_json::from_str(&data).ok().filter(|message| answers(message, id));
                if message.is_some() {
                    return message;
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use wiremock::{
        Mock, MockServer, ResponseTemplate,
        matchers::{body_partial_json, header, method},
    };

    use super::*;

    /// A server that gives a session, whose first answer or second one is an error.
    async fn failing_server(at: &str) -> MockServer {
        let server = MockServer::start().await;
        let begins = json!({ "jsonrpc": "2.0", "id": 0, "result": {} });
        let errs = json!({ "jsonrpc": "2.0", "id": 0, "error": { "message": "out of order" } });
        let first = ResponseTemplate::new(200).insert_header("mcp-session-id", "the-session");
        let first = first.set_body_json(if at == "initialize" { errs } else { begins });
        let asked =
            |name: &str| Mock::given(method("POST")).and(body_partial_json(json!({ "method": name })));
        asked("initialize").respond_with(first).expect(1).mount(&server).await;
        let second = ResponseTemplate::new(500);
        asked("notifications/initialized").respond_with(second).mount(&server).await;
        let close = Mock::given(method("DELETE")).and(header("mcp-session-id", "the-session"));
        close.respond_with(ResponseTemplate::new(204)).expect(1).mount(&server).await;
        server
    }

    #[tokio::test]
    async fn a_session_that_fails_at_its_begin_is_closed() {
        for (at, cause) in [("initialize", "out of order"), ("notifications/initialized", "500")] {
            let server = failing_server(at).await;
            let named = NamedServers::read(&[format!("home={}/mcp", server.uri())], &[], false);
            let listed = named.unwrap().unwrap().tools("home").await;
            assert!(listed.as_ref().is_err_and(|error| error.contains(cause)), "{at}: {listed:?}");
            server.verify().await;
        }
    }

    #[test]
    fn servers_are_labels_with_protected_addresses() {
        let read = |servers: &[&str]| {
            let servers: Vec<String> = servers.iter().map(|server| (*server).to_owned()).collect();
            NamedServers::read(&servers, &[], false)
        };
        assert!(read(&[]).unwrap().is_none());
        let both =
            read(&["home=http://127.0.0.1:1/mcp", "wiki=https://wiki.example/mcp?a=b"]).unwrap().unwrap();
        assert_eq!(both.servers()[1].url, "https://wiki.example/mcp?a=b");
        for wrong in [
            &["home"][..],
            &["a__b=https://x/"],
            &["home=file:///etc"],
            &["home=http://wiki.example/mcp"],
            &["home=https://a/", "home=https://b/"],
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        let plain = ["home=http://wiki.example/mcp".to_owned()];
        assert!(NamedServers::read(&plain, &[], true).is_ok());
    }

    #[test]
    fn a_token_is_of_a_named_server_and_its_file_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        files::replace_private(&path, b"secret\n").unwrap();
        let servers = ["home=https://home.example/mcp".to_owned()];
        let tokens = |label: &str| [format!("{label}={}", path.display())];
        let read = NamedServers::read(&servers, &tokens("home"), false).unwrap().unwrap();
        assert_eq!(read.tokens["home"].as_str(), "secret");
        assert!(!format!("{read:?}").contains("secret"));
        assert!(NamedServers::read(&servers, &tokens("wiki"), false).is_err());
        assert!(NamedServers::read(&servers, &["home=/nowhere".to_owned()], false).is_err());
    }

    #[test]
    fn an_answer_is_found_among_the_events_of_a_stream() {
        let stream = b"event: message\r\ndata: {\"method\":\"notifications/progress\"}\r\n\r\n: ping\n\ndata: {\"id\":1,\ndata: \"result\":{}}\n\n";
        let found = Some(json!({ "id": 1, "result": {} }));
        assert_eq!(EventReader::default().push(stream, 1), found);
        assert_eq!(EventReader::default().push(stream, 2), None);
        let (mut reader, last) = (EventReader::default(), stream.len() - 1);
        let pieces = stream.iter().map(|byte| reader.push(std::slice::from_ref(byte), 1));
        let pieces: Vec<Option<Value>> = pieces.collect();
        assert_eq!(pieces.iter().position(Option::is_some), Some(last), "the event is whole at its end");
        assert_eq!(pieces[last], found);
    }

    #[test]
    fn a_result_is_its_texts_and_not_too_long() {
        let parts = json!({ "content": [
            { "type": "text", "text": "a" },
            { "type": "image", "data": "x" },
            { "type": "resource", "resource": { "uri": "u", "text": "b" } },
        ] });
        assert_eq!(result_text(&parts), "a\n[a part of type image was left out]\nb");
        assert_eq!(result_text(&json!({ "content": [], "structuredContent": { "c": 1 } })), "{\"c\":1}");
        assert_eq!(result_text(&json!({})), "");
        let long =
            result_text(&json!({ "content": [{ "type": "text", "text": "ä".repeat(MAX_RESULT_BYTES) }] }));
        assert!(long.len() <= MAX_RESULT_BYTES && long.ends_with(CUT));
        assert!(cut("ä".repeat(MAX_RESULT_BYTES)).len() <= MAX_RESULT_BYTES, "an error too");
    }
}
