//! `baton memory mcp`: memory's tools over standard input and output. Each line is a message of the Model Context
//! Protocol; the relayer answers it.

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};

use crate::{
    failure::Failure,
    relayer::{client::RelayerClient, memory::reason},
};

/// Longest line of an agent: relayers take no longer bodies.
const MAX_LINE_BYTES: u64 = 2 * 1024 * 1024;
/// JSON-RPC's codes of a message that is no JSON, and of a server's failure.
const PARSE_ERROR: i32 = -32_700;
const INTERNAL_ERROR: i32 = -32_603;

pub(crate) async fn run(relayer: &RelayerClient) -> Result<(), Failure> {
    serve(relayer, BufReader::new(tokio::io::stdin()), tokio::io::stdout()).await
}

/// Answers messages until the input ends.
async fn serve(
    relayer: &RelayerClient,
    mut agent: impl AsyncBufRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
) -> Result<(), Failure> {
    let mut version = None;
    loop {
        let mut line = Vec::new();
        if (&mut agent).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        let too_long = line.len() as u64 >= MAX_LINE_BYTES && !line.ends_with(b"\n");
        let answer = match message(&line) {
            _ if too_long => {
                skip_line(&mut agent).await?;
                Some(error(
                    &Value::Null,
                    PARSE_ERROR,
                    &format!("a message has less than {MAX_LINE_BYTES} bytes"),
                ))
            }
            None if line.trim_ascii().is_empty() => None,
            None => Some(error(&Value::Null, PARSE_ERROR, "a message is one line of JSON")),
            Some((text, id)) => match relayer.agent_message(text, version.as_deref()).await {
                Ok(answer) => {
                    version = agreed_version(&answer).or(version);
                    Some(answer).filter(|answer| !answer.is_empty())
                }
                // A notification has no id, and takes no answer.
                Err(failure) => id.map(|id| error(&id, INTERNAL_ERROR, &reason(&failure))),
            },
        };
        if let Some(answer) = answer {
            output.write_all(format!("{}\n", answer.replace('\n', " ")).as_bytes()).await?;
            output.flush().await?;
        }
    }
}

/// A message with its id; none if the line is no JSON.
fn message(line: &[u8]) -> Option<(&str, Option<Value>)> {
    let text = std::str::from_utf8(line).ok()?.trim();
    let message: Value = serde_json::from_str(text).ok()?;
    Some((text, message.get("id").cloned()))
}

/// The version on which both sides agreed, if this is the answer that says so.
fn agreed_version(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    answer.pointer("/result/protocolVersion").and_then(Value::as_str).map(str::to_owned)
}

fn error(id: &Value, code: i32, message: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } }).to_string()
}

/// Skips the rest of a line.
async fn skip_line(agent: &mut (impl AsyncBufRead + Unpin)) -> std::io::Result<()> {
    loop {
        let bytes = agent.fill_buf().await?;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (passed, ended) = (end.map_or(bytes.len(), |end| end + 1), end.is_some() || bytes.is_empty());
        agent.consume(passed);
        if ended {
            return Ok(());
        }
    }
}
