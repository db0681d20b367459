//! The relayer's program as a process, apart from the nodes of other networks on this machine.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use baton_client::testkit::fake::now_ms;
use baton_keys::account::AccountKey;
use reqwest::StatusCode;
use serde_json::Value;

/// A write beyond a file limit is an error in the process, not a signal that ends it.
const NO_SIGNAL_AT_THE_LIMIT: &str = "trap '' XFSZ; exec \"$0\" \"$@\"";

/// The command on a data folder.
pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", NO_SIGNAL_AT_THE_LIMIT, env!("CARGO_BIN_EXE_baton-relayer"), "--data-dir"]);
    command.arg(folder).env("BATON_RELAYER_MDNS", "false");
    command
}

/// A running relayer.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) url: String,
    /// The relayer's public key, in hex.
    pub(crate) key: String,
    client: reqwest::Client,
}

impl Program {
    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = command(folder)
            .args(["run", "--json", "--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0"])
            .args(["--embedder", "hashing", "--requests-per-minute", "200000"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not ready: {line:?}"));
        let text = |field: &str| ready[field].as_str().unwrap().to_owned();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { child, url: text("http"), key: text("relayer"), client }
    }

    /// The answer to a signed request; `None` if the relayer died before it.
    pub(crate) async fn post(
        &self,
        key: &AccountKey,
        path: &str,
        body: &Value,
    ) -> Option<(StatusCode, String)> {
        let body = body.to_string();
        let mut request = self.client.post(format!("{}{path}", self.url));
        let seconds = now_ms() / 1000;
        for (name, value) in key.request_headers(&key.account_id(), "POST", path, body.as_bytes(), seconds) {
            request = request.header(name, value);
        }
        let answer = request.body(body).send().await.ok()?;
        let status = answer.status();
        Some((status, answer.text().await.ok()?))
    }

    /// The answer of an open route.
    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        let answer = self.client.get(format!("{}{path}", self.url)).send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
