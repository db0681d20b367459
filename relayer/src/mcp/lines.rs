//! Standard input and output for the tools, with one message a line. This module answers a line that is not
//! JSON with JSON-RPC's parse error, since the tools' library silently ignores it.
//!
//! Both tasks send their lines through one queue to the output, so no line is split.

use serde_json::{Value, json};
use tokio::{
    io::{
        AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
        BufReader, DuplexStream, duplex,
    },
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};

/// Longest line of a message: the longest memory with JSON escapes, and its other fields.
const MAX_LINE_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes between the library and this code; a longer message passes in parts.
const PIPE_BYTES: usize = 64 * 1024;
/// Answers that wait for a reader; beyond it, the writers wait.
const MAX_WAITING_LINES: usize = 16;
/// JSON-RPC: the message is not JSON.
const PARSE_ERROR: i32 = -32_700;

/// The library's two ends, and the tasks that move lines.
pub(super) struct Pipes {
    /// The library's input.
    pub(super) input: DuplexStream,
    /// The library's output.
    pub(super) output: DuplexStream,
    /// Reads messages until the input ends, which may be never: abort it once the library has ended.
    pub(super) reader: AbortHandle,
    /// They end once the reader has ended and the library has dropped its ends.
    pub(super) tasks: JoinSet<std::io::Result<()>>,
}

impl Pipes {
    /// Between an agent's input and output and the library.
    pub(super) fn between(
        agent_input: impl AsyncRead + Send + Unpin + 'static,
        agent_output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let (input, to_library) = duplex(PIPE_BYTES);
        let (output, from_library) = duplex(PIPE_BYTES);
        let (lines, queue) = mpsc::channel(MAX_WAITING_LINES);
        let mut tasks = JoinSet::new();
        let reader = tasks.spawn(read_messages(BufReader::new(agent_input), to_library, lines.clone()));
        tasks.spawn(pass_answers(BufReader::new(from_library), lines));
        tasks.spawn(write_lines(agent_output, queue));
        Self { input, output, reader, tasks }
    }
}

/// The error for a line that is not JSON. It has no id, since none could be read.
fn parse_error(why: &str) -> Vec<u8> {
    let error = json!({ "code": PARSE_ERROR, "message": format!("Parse error: {why}") });
    json!({ "jsonrpc": "2.0", "id": Value::Null, "error": error }).to_string().into_bytes()
}

/// The answer to a line that the library must not get; `None` for a message or an empty line.
fn refusal(line: &[u8]) -> Option<Vec<u8>> {
    if line.len() as u64 >= MAX_LINE_BYTES {
        return Some(parse_error("a message has at most 4 MiB"));
    }
    // The parser's error may quote a memory, so it is replaced.
    let is_json =
        line.trim_ascii().is_empty() || serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
    (!is_json).then(|| parse_error("a message is one line of JSON"))
}

async fn read_messages(
    mut agent: impl AsyncBufRead + Unpin,
    mut library: DuplexStream,
    lines: mpsc::Sender<Vec<u8>>,
) -> std::io::Result<()> {
    loop {
        let mut line = Vec::new();
        if (&mut agent).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        match refusal(&line) {
            None => library.write_all(&line).await?,
            Some(answer) => {
                if !line.ends_with(b"\n") {
                    skip_line(&mut agent).await?;
                }
                if lines.send(answer).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
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

async fn pass_answers(
    mut library: impl AsyncBufRead + Unpin,
    lines: mpsc::Sender<Vec<u8>>,
) -> std::io::Result<()> {
    loop {
        let mut line = Vec::new();
        // The relayer's answers bound the library's own.
        if library.read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        let line = line.trim_ascii_end().to_vec();
        if lines.send(line).await.is_err() {
            return Ok(());
        }
    }
}

async fn write_lines(
    mut agent: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Vec<u8>>,
) -> std::io::Result<()> {
    while let Some(mut line) = queue.recv().await {
        line.push(b'\n');
        agent.write_all(&line).await?;
        agent.flush().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_no_json_is_answered_and_the_others_pass() {
        let (mut agent, agent_input) = duplex(1024);
        let (agent_output, heard) = duplex(1024);
        let Pipes { mut input, mut output, mut tasks, .. } = Pipes::between(agent_input, agent_output);
        agent.write_all(b"hello\n{\"jsonrpc\":\"2.0\"}\n\n{\"cut\n").await.unwrap();
        drop(agent);
        let mut passed = String::new();
        input.read_to_string(&mut passed).await.unwrap();
        assert_eq!(passed, "{\"jsonrpc\":\"2.0\"}\n\n");
        output.write_all(b"{\"result\":1}\n").await.unwrap();
        drop((input, output));
        let mut lines = BufReader::new(heard).lines();
        let mut errors = 0;
        let mut results = 0;
        while let Some(line) = lines.next_line().await.unwrap() {
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["result"] == 1 {
                results += 1;
            } else {
                assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(PARSE_ERROR), &Value::Null));
                assert!(!line.contains("hello") && !line.contains("cut"), "nothing is quoted");
                errors += 1;
            }
        }
        assert_eq!((errors, results), (2, 1));
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_answered_and_passed_over() {
        let long = vec![b'1'; usize::try_from(MAX_LINE_BYTES).unwrap() + 100_000];
        let mut bytes = long;
        bytes.extend_from_slice(b"\n{}\n");
        let (agent_output, heard) = duplex(1024);
        let Pipes { mut input, output, tasks: _tasks, .. } =
            Pipes::between(std::io::Cursor::new(bytes), agent_output);
        let mut passed = String::new();
        input.read_to_string(&mut passed).await.unwrap();
        assert_eq!(passed, "{}\n");
        drop((input, output));
        let line = BufReader::new(heard).lines().next_line().await.unwrap().unwrap();
        assert!(line.contains("-32700"), "{line}");
    }
}
