//! Servers of tools that the owner has named (Model Context Protocol).
//!
//! A model gets their tools as functions. A call runs once the program's person has approved it, and at most once for
//! each approval.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Mutex, PoisonError},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use serde_json::Value;

/// Stands between a server's label and a tool's name in the name of a function.
const SEPARATOR: &str = "__";
/// Approvals whose results are remembered. A result has at most [`MAX_RESULT_BYTES`].
const MAX_APPROVALS: usize = 256;
/// Longest text of a result.
pub const MAX_RESULT_BYTES: usize = 64 * 1024;

/// A server of tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolServer {
    /// Its name in requests.
    pub label: String,
    /// Its address.
    pub url: String,
}

/// A tool of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteTool {
    /// Its name at the server.
    pub name: String,
    /// Tells a model when to use it.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub input_schema: Value,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteResult {
    /// For the model; of a failed call, the error. At most [`MAX_RESULT_BYTES`].
    pub text: String,
    /// Whether the call failed.
    pub is_error: bool,
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Reaches the servers of tools.
pub trait ToolServers: std::fmt::Debug + Send + Sync {
    /// The servers, with different labels.
    fn servers(&self) -> &[ToolServer];

    /// The tools of a server.
    ///
    /// # Errors
    /// A sentence for the owner.
    fn tools<'a>(&'a self, label: &'a str) -> Answer<'a, Result<Vec<RemoteTool>, String>>;

    /// Runs a tool with the text of a JSON object as its arguments. A failure is a result, for the model.
    fn call<'a>(&'a self, label: &'a str, tool: &'a str, arguments: &'a str) -> Answer<'a, RemoteResult>;
}

/// The name of a tool as a function.
pub(super) fn function_name(label: &str, tool: &str) -> String {
    format!("{label}{SEPARATOR}{tool}")
}

/// Whether a server can have this label: letters, digits, hyphens and underscores, without the separator.
#[must_use]
pub fn is_server_label(label: &str) -> bool {
    (1..=32).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        && !label.contains(SEPARATOR)
        && !label.ends_with('_')
}

/// The labels of the servers whose tools a model was given.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerLabels(pub(super) Vec<String>);

impl ServerLabels {
    /// The server's label and the tool's name of a function; none for a program's own function.
    pub(super) fn split<'a>(&self, function: &'a str) -> Option<(&'a str, &'a str)> {
        let (label, tool) = function.split_once(SEPARATOR)?;
        self.0.iter().any(|known| known == label).then_some((label, tool))
    }
}

/// A call with the approval that it runs for, and the arguments that were approved.
type ApprovedCall = (String, Shared<BoxFuture<'static, RemoteResult>>);

/// The approved calls. The same approval in a repeated request gets the same result.
#[derive(Debug, Default)]
pub(super) struct ApprovedCalls(Mutex<VecDeque<ApprovedCall>>);

impl ApprovedCalls {
    /// The result of an approval with its arguments. Its call runs once, also after the program hung up, unless [`MAX_APPROVALS`] others
    /// came after it.
    pub(super) async fn result(
        &self,
        approval: &str,
        run: impl Future<Output = RemoteResult> + Send + 'static,
    ) -> RemoteResult {
        let call = {
            let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match calls.iter().find(|(known, _)| known == approval) {
                Some((_, call)) => call.clone(),
                None => {
                    if calls.len() == MAX_APPROVALS {
                        calls.pop_front();
                    }
                    let call = run.boxed().shared();
                    drop(tokio::spawn(call.clone()));
                    calls.push_back((approval.to_owned(), call.clone()));
                    call
                }
            }
        };
        call.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[test]
    fn a_function_names_a_server_and_a_tool() {
        let labels = ServerLabels(vec!["home".to_owned(), "my-wiki".to_owned()]);
        assert_eq!(labels.split(&function_name("home", "a__b")), Some(("home", "a__b")));
        assert_eq!(labels.split("my-wiki__search"), Some(("my-wiki", "search")));
        for own in ["home", "home_search", "garden__search", "__search"] {
            assert_eq!(labels.split(own), None, "{own}");
        }
        for (label, is_label) in [
            ("home", true),
            ("my-wiki", true),
            ("a_b", true),
            ("", false),
            ("a__b", false),
            ("a_", false),
            ("ä", false),
        ] {
            assert_eq!(is_server_label(label), is_label, "{label}");
        }
        assert!(!is_server_label(&"a".repeat(33)));
    }

    #[tokio::test]
    async fn an_approval_runs_its_call_once() {
        let (calls, runs) = (ApprovedCalls::default(), Arc::new(AtomicUsize::new(0)));
        let run = || {
            let runs = runs.clone();
            async move {
                tokio::task::yield_now().await;
                let text = runs.fetch_add(1, Ordering::SeqCst).to_string();
                RemoteResult { text, is_error: false }
            }
        };
        // The first asker hangs up.
        assert_eq!(calls.result("a", run()).now_or_never(), None);
        let both = tokio::join!(calls.result("a", run()), calls.result("a", run()));
        assert_eq!((both.0.text.as_str(), both.1.text.as_str()), ("0", "0"));
        assert_eq!(calls.result("b", run()).await.text, "1");
        for number in 0..MAX_APPROVALS {
            calls.result(&number.to_string(), run()).await;
        }
        assert_eq!(calls.0.lock().unwrap().len(), MAX_APPROVALS);
    }
}
