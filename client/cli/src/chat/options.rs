//! Options of a conversation's turns: from settings and arguments, and from `/params`.

use std::{path::Path, sync::Arc};

use baton_client::{Client, MODEL_OUTPUT_TOKENS, TurnInput, TurnSettings};
use baton_gateway::GatewayMemory as _;
use baton_proto::{limits::MAX_SCHEMA_BYTES, turn::Sampling};

use crate::{
    args::ChatArguments,
    failure::Failure,
    files::read_bounded,
    out::{Out, Tone},
    relayer::memory::RelayerMemory,
    search::named_node,
    settings::Settings,
};

/// Options of a conversation's turns.
#[derive(Clone)]
pub(crate) struct TurnOptions {
    /// Each turn's input without its messages, hint and seed.
    pub template: TurnInput,
    /// The memory of the conversation, if it uses one.
    pub memory: Option<Arc<RelayerMemory>>,
    /// The seed of each turn, if one is set.
    pub seed: Option<u64>,
    /// System text of new sessions.
    pub system: Option<String>,
    /// The nodes that may answer, for the beginning of a conversation.
    nodes: (Tone, String),
}

impl TurnOptions {
    /// Builds them from settings and arguments.
    pub(crate) async fn from(settings: &Settings, arguments: &ChatArguments) -> Result<Self, Failure> {
        let mut template = settings.turn(&arguments.answering, arguments.memory.memory).await?;
        template.json_schema = arguments.schema.as_deref().map(schema).transpose()?;
        Ok(Self {
            memory: RelayerMemory::from(settings, &arguments.memory, &template)?.map(Arc::new),
            template,
            seed: arguments.seed,
            system: arguments.system.clone().or_else(|| settings.options.system.clone()),
            nodes: answering_nodes(settings),
        })
    }

    /// Says which nodes may answer.
    pub(crate) fn announce_nodes(&self, out: &Out) {
        let (tone, text) = &self.nodes;
        out.say(*tone, text);
    }

    /// Says what the relayer gets of each exchange.
    pub(crate) fn announce_memory(&self, out: &Out) {
        let line = self.memory.as_ref().and_then(|memory| memory.sharing().exchange_line());
        line.into_iter().for_each(|line| out.note(&line));
    }

    /// Names the node of all turns, as `--only` does.
    pub(crate) async fn name_node(&mut self, client: &Client, named: Option<&str>) -> Result<(), Failure> {
        self.template.route.node = named_node(client, named).await?;
        Ok(())
    }

    /// Sets a parameter from `name=value`.
    pub(crate) fn set(&mut self, text: &str) -> Result<(), Failure> {
        let wrong = || {
            Failure::usage(format!("{text} is no parameter"), "temperature=0.7, max_tokens=2048 or seed=1")
        };
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        match name {
            "temperature" => {
                let temperature = value.parse().map_err(|_| wrong())?;
                let sampling = Sampling { temperature, ..Sampling::default() };
                sampling.check().map_err(|_| Failure::wrong("The temperature is from 0 to 5."))?;
                self.template.sampling.temperature = temperature;
            }
            "max_tokens" if value == "auto" => self.template.max_output_tokens = MODEL_OUTPUT_TOKENS,
            "max_tokens" => self.template.max_output_tokens = value.parse().map_err(|_| wrong())?,
            "seed" if value == "random" => self.seed = None,
            "seed" => self.seed = Some(value.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        }
        Ok(())
    }

    /// The parameters, as [`TurnOptions::set`] takes them.
    pub(crate) fn params(&self) -> String {
        let seed = self.seed.map_or_else(|| "random".to_owned(), |seed| seed.to_string());
        let template = &self.template;
        let tokens = match template.max_output_tokens {
            MODEL_OUTPUT_TOKENS => "auto".to_owned(),
            tokens => tokens.to_string(),
        };
        format!("temperature={} max_tokens={tokens} seed={seed}", template.sampling.temperature)
    }

    /// The settings of a turn. Its seed counts if one is set.
    pub(crate) fn settings(&self) -> TurnSettings {
        let mut settings = self.template.settings();
        settings.sampling.seed = self.seed.unwrap_or(settings.sampling.seed);
        settings
    }

    /// The seed of a turn: the set one, or a random one.
    pub(crate) fn seed_of_turn(&self) -> u64 {
        self.seed.unwrap_or_else(|| u64::from_le_bytes(baton_keys::secret::random_bytes()))
    }
}

/// The nodes of the settings that may answer, in words.
fn answering_nodes(settings: &Settings) -> (Tone, String) {
    let (tone, text) = match settings.options.node().len() {
        0 => (
            Tone::Warn,
            "No node is named, so nodes of the local network answer, and read what you send. Name others: --node",
        ),
        _ if settings.options.discover() => (
            Tone::Warn,
            "Nodes that your named nodes introduce may answer, and read what you send. The named ones alone: \
             --discover=false",
        ),
        1 => (Tone::Note, "Only your named node may answer."),
        nodes => return (Tone::Note, format!("Only your {nodes} named nodes may answer.")),
    };
    (tone, text.to_owned())
}

/// The JSON schema in a file.
fn schema(path: &Path) -> Result<String, Failure> {
    let wrong = |what: String| Failure::wrong(format!("--schema {}: {what}", path.display()));
    let text = read_bounded(path, MAX_SCHEMA_BYTES as u64).map_err(|error| wrong(error.to_string()))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if value.is_object() { Ok(text.to_string()) } else { Err(wrong("a schema is a JSON object".to_owned())) }
}
