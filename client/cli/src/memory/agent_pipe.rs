//! `baton memory mcp`: memory's tools over standard input and output. Each line is a message of the Model Context
//! Protocol; the relayer answers it.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use crate::{
    failure::Failure,
    relayer::{client::RelayerClient, memory::reason},
};

/// Longest line of an agent: relayers take no longer bodies.
const MAX_LINE_BYTES: u64 = 2 * 1024 * 1024;
/// JSON-RPC's codes of a message that is no JSON, and of a server's failure.
const PARSE_ERROR: i32 = -32_700;
const INTERNAL_ERROR: i32 = -32_603;

/// Answers messages until the input ends. A longer line ends it with an error.
pub(crate) async fn run(relayer: &RelayerClient) -> Result<(), Failure> {
    let (mut agent, mut output) = (BufReader::new(tokio::io::stdin()), tokio::io::stdout());
    let mut version = None;
    loop {
        let mut line = Vec::new();
        let read = (&mut agent).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await?;
        if read as u64 == MAX_LINE_BYTES {
            return Err(Failure::wrong(format!("a message has less than {MAX_LINE_BYTES} bytes")));
        }
        let answer = match serde_json::from_slice::<Value>(&line) {
            _ if read == 0 => return Ok(()),
            Err(_) if line.trim_ascii().is_empty() => None,
            Err(_) => Some(error(&Value::Null, PARSE_ERROR, "a message is one line of JSON")),
            Ok(message) => match relayer.agent_message(&message.to_string(), version.as_deref()).await {
                Ok(answer) => {
                    version = agreed_version(&answer).or(version);
                    Some(answer).filter(|answer| !answer.is_empty())
                }
                // A notification has no id, and takes no answer.
                Err(failure) => message.get("id").map(|id| error(id, INTERNAL_ERROR, &reason(&failure))),
            },
        };
        if let Some(answer) = answer {
            output.write_all(format!("{}\n", answer.replace('\n', " ")).as_bytes()).await?;
            output.flush().await?;
        }
    }
}

/// The version on which both sides agreed, if this is the answer that says so.
fn agreed_version(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    answer.pointer("/result/protocolVersion").and_then(Value::as_str).map(str::to_owned)
}

fn error(id: &Value, code: i32, message: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } }).to_string()
}
