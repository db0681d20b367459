//! Memory in `baton chat` and `baton serve`: the relayer's hint, and the exchanges to remember.

use std::pin::Pin;

use baton_client::{AccountKey, ClientError, MemoryHint, TurnInput, TurnOutcome};
use baton_gateway::{
    GatewayMemory, HintExtent, MemoryEntry, MemoryFailure, MemoryFilter, MemoryFuture, MemorySharing,
};
use baton_proto::{
    ids::{SessionId, SuiAddress},
    limits::MAX_HINT_BYTES,
    record::{Message, Role},
    text::{composed, folded, is_same_place},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    args::{HintMode, MemoryArguments},
    failure::Failure,
    out::Out,
    relayer::{
        authority::{self, RequestAuthority},
        client::RelayerClient,
        items::{ItemSelection, PAGE, is_missing, items_of},
    },
    settings::Settings,
};

/// Most words of a hint.
const MAX_KEYWORDS: usize = 12;
/// Shortest word that counts as a keyword.
const MIN_KEYWORD_CHARS: usize = 4;
/// Longer words that are not keywords.
const STOP_WORDS: &[&str] = &[
    "about", "after", "again", "because", "been", "before", "being", "could", "does", "doing", "down",
    "from", "have", "having", "here", "into", "just", "know", "like", "made", "make", "many", "more", "most",
    "much", "only", "other", "over", "please", "really", "same", "should", "some", "such", "tell", "than",
    "that", "their", "them", "then", "there", "these", "they", "thing", "think", "this", "those", "through",
    "under", "until", "very", "want", "well", "were", "what", "when", "where", "which", "while", "will",
    "with", "would", "your", "yours",
];

/// Memory as `--memory` configures it.
pub(crate) struct RelayerMemory {
    key: AccountKey,
    owner: SuiAddress,
    mode: HintMode,
    project: Option<String>,
    persona: Option<String>,
    /// The relayer's HTTP endpoint; `None` without its URL.
    relayer: Option<RelayerClient>,
    /// Whether exchanges are sent there to be remembered.
    writes: bool,
}

impl RelayerMemory {
    /// As the flags say; `None` without `--memory`. The relayer of the turns recalls it.
    pub(crate) fn from(
        settings: &Settings,
        arguments: &MemoryArguments,
        turns: &TurnInput,
    ) -> Result<Option<Self>, Failure> {
        if !arguments.memory {
            return Ok(None);
        }
        if turns.route.relayer.is_none() {
            return Err(Failure::wrong(
                "--memory needs a relayer: --relayer https://HOST, or its libp2p address",
            ));
        }
        let key = authority::load(settings)?;
        let authority = RequestAuthority::from(settings, &key)?;
        let owner = authority.owner.strip_prefix("0x").and_then(|hex| hex.parse::<SuiAddress>().ok());
        let owner =
            owner.ok_or_else(|| ClientError::Config("--owner is 0x and 64 hex characters".to_owned()))?;
        let (mode, writes) = (arguments.memory_hint, arguments.memory_write);
        let relayer = RelayerClient::new(settings, key.clone(), authority);
        let relayer = if writes { Some(relayer?) } else { relayer.ok() };
        let (project, persona) = (arguments.project.clone(), arguments.persona.clone());
        Ok(Some(Self { key, owner, mode, project, persona, relayer, writes }))
    }

    /// The hint for a message; shows its extent to the user too.
    pub(crate) fn hint(&self, session: SessionId, messages: &[Message], out: &Out) -> MemoryHint {
        let text = user_text(messages);
        let words = self.words(&text);
        match self.mode {
            HintMode::Message => out.note("The relayer reads this message, to search memory with it."),
            _ if words.is_empty() => {
                out.note("The relayer gets no words of this message. It recalls your profile alone.")
            }
            _ => out.note(&format!("The relayer searches memory for: {words}")),
        }
        self.hint_of(session, words)
    }

    /// The words that the relayer receives.
    fn words(&self, text: &str) -> String {
        match self.mode {
            HintMode::None => String::new(),
            HintMode::Keywords => keywords(text),
            HintMode::Message => cut(text),
        }
    }

    fn hint_of(&self, session: SessionId, words: String) -> MemoryHint {
        MemoryHint {
            owner: self.owner,
            session: Some(session.to_string()),
            project: self.project.clone(),
            persona: self.persona.clone(),
            ..MemoryHint::new(self.key.clone(), words)
        }
    }

    /// Sends an exchange to be remembered, if the user wants that; in this project or else that of the arguments.
    pub(crate) async fn send(
        &self,
        project: Option<&str>,
        messages: &[Message],
        outcome: &TurnOutcome,
    ) -> Result<(), Failure> {
        let Some(relayer) = self.relayer.as_ref().filter(|_| self.writes) else { return Ok(()) };
        let body = json!({
            "session": outcome.session.to_string(), "turn": outcome.seq, "user": user_text(messages),
            "assistant": outcome.text, "project": project.or(self.project.as_deref()), "persona": self.persona,
        });
        relayer.json(Method::POST, "/api/turns", Some(&body)).await.map(drop)
    }
}

/// For `baton serve`, whose user sees no prompt: it says once, at its start, what the relayer gets.
impl GatewayMemory for RelayerMemory {
    fn hint(&self, project: Option<&str>, session: SessionId, messages: &[Message]) -> MemoryHint {
        let hint = self.hint_of(session, self.words(&user_text(messages)));
        MemoryHint { project: project.map(str::to_owned).or(hint.project), ..hint }
    }

    fn sharing(&self) -> MemorySharing {
        let hint = match self.mode {
            HintMode::None => HintExtent::Nothing,
            HintMode::Keywords => HintExtent::Keywords,
            HintMode::Message => HintExtent::Message,
        };
        let remembers = self.relayer.as_ref().filter(|_| self.writes);
        MemorySharing { hint, remembered_at: remembers.map(RelayerClient::name) }
    }

    fn remember<'a>(
        &'a self,
        project: Option<&'a str>,
        messages: &'a [Message],
        outcome: &'a TurnOutcome,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if let Err(failure) = self.send(project, messages, outcome).await {
                tracing::warn!(name = failure.name(), "an exchange was not remembered");
            }
        })
    }

    fn answer_agent<'a>(
        &'a self,
        message: &'a str,
        version: Option<&'a str>,
    ) -> Pin<Box<dyn Future<Output = Result<Option<String>, String>> + Send + 'a>> {
        Box::pin(async move {
            let relayer = self
                .relayer
                .as_ref()
                .ok_or("memory's tools need the relayer's URL: --relayer https://HOST")?;
            let answer = relayer.agent_message(message, version).await.map_err(|failure| reason(&failure))?;
            Ok(Some(answer).filter(|answer| !answer.is_empty()))
        })
    }

    fn list<'a>(&'a self, filter: &'a MemoryFilter) -> MemoryFuture<'a, Vec<MemoryEntry>> {
        Box::pin(async move {
            let kinds: Vec<&String> = filter.kind.iter().collect();
            let body = json!({
                "everything": filter.project.is_none(), "filters": { "kinds": kinds }, "limit": PAGE,
                "project": filter.project, "words": filter.query,
            });
            let answer = self.relayer()?.json(Method::POST, "/api/list", Some(&body)).await?;
            let entries = items_of(&answer).iter().map(entry);
            Ok(entries.filter(|entry| is_of(entry, filter.project.as_deref())).collect())
        })
    }

    fn edit<'a>(
        &'a self,
        project: Option<&'a str>,
        id: &'a str,
        text: &'a str,
    ) -> MemoryFuture<'a, MemoryEntry> {
        Box::pin(async move {
            let (relayer, id) = (self.relayer()?, self.id_in(project, id).await?);
            let path = format!("/api/items/{id}");
            Ok(entry(&relayer.json(Method::PATCH, &path, Some(&json!({ "text": text }))).await?))
        })
    }

    fn delete<'a>(&'a self, project: Option<&'a str>, id: &'a str) -> MemoryFuture<'a, ()> {
        Box::pin(async move {
            let (relayer, id) = (self.relayer()?, self.id_in(project, id).await?);
            relayer.json(Method::POST, "/api/delete", Some(&json!({ "ids": [id] }))).await?;
            Ok(())
        })
    }

    fn delete_all<'a>(&'a self, filter: &'a MemoryFilter) -> MemoryFuture<'a, u64> {
        Box::pin(async move {
            let selection = ItemSelection {
                project: filter.project.as_deref(),
                kind: filter.kind.as_deref(),
                everything: true,
            };
            Ok(self.relayer()?.delete_items(&selection, None).await?)
        })
    }
}

impl RelayerMemory {
    fn relayer(&self) -> Result<&RelayerClient, MemoryFailure> {
        let none =
            || MemoryFailure::Refused("memories need the relayer's URL: --relayer https://HOST".to_owned());
        self.relayer.as_ref().ok_or_else(none)
    }

    /// The id of an item, which is of the project if one is given.
    async fn id_in(&self, project: Option<&str>, id: &str) -> Result<String, MemoryFailure> {
        let relayer = self.relayer()?;
        let id = relayer.item_id(id).await?;
        let item = relayer.json(Method::GET, &format!("/api/items/{id}"), None).await?;
        if is_of(&entry(&item), project) { Ok(id) } else { Err(MemoryFailure::Unknown) }
    }
}

fn is_of(item: &MemoryEntry, project: Option<&str>) -> bool {
    project.is_none() || is_same_place(item.project.as_deref(), project)
}

impl From<Failure> for MemoryFailure {
    fn from(failure: Failure) -> Self {
        // A usage error is about an id that no memory has.
        match is_missing(&failure) || failure.is_usage() {
            true => Self::Unknown,
            false => Self::Refused(reason(&failure)),
        }
    }
}

/// An item for the gateway's callers.
fn entry(item: &Value) -> MemoryEntry {
    let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
    MemoryEntry {
        id: text("id"),
        text: text("text"),
        kind: text("kind"),
        created: text("time"),
        project: item["project"].as_str().map(str::to_owned),
    }
}

/// The reason of a failure, with its next step.
pub(crate) fn reason(failure: &Failure) -> String {
    match failure {
        Failure::Described { message, hint: Some(hint), .. } => format!("{message} ({hint})"),
        _ => failure.message().unwrap_or_else(|| "the relayer cannot be asked".to_owned()),
    }
}

impl std::fmt::Debug for RelayerMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayerMemory").field("mode", &self.mode).finish_non_exhaustive()
    }
}

fn user_text(messages: &[Message]) -> String {
    let messages = messages.iter().filter(|message| message.role == Role::User);
    messages.map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// The first keywords of a message, each once.
fn keywords(text: &str) -> String {
    let mut chosen: Vec<String> = Vec::new();
    for word in composed(text).split(|c: char| !c.is_alphanumeric()) {
        let word = folded(word);
        let counts = word.chars().count() >= MIN_KEYWORD_CHARS && !STOP_WORDS.contains(&word.as_str());
        if counts && !chosen.contains(&word) && chosen.len() < MAX_KEYWORDS {
            chosen.push(word);
        }
    }
    cut(&chosen.join(" "))
}

/// The beginning of a text, as long as a hint may be.
fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_HINT_BYTES)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_few_and_say_what_it_is_about() {
        assert_eq!(keywords("What should I tell my sister about the boat? The BOAT!"), "sister boat");
        assert_eq!(keywords("hm, ok"), "");
        assert_eq!(keywords(&"abcd efgh ".repeat(50)), "abcd efgh");
        let many: Vec<String> = (0..40).map(|n| format!("word{n}")).collect();
        assert_eq!(keywords(&many.join(" ")).split(' ').count(), MAX_KEYWORDS);
    }
}
