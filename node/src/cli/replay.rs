//! `baton-node replay`: recomputes a disclosed turn, and compares it token by token.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use baton_kit::progress;
use baton_proto::{
    export::{Export, ExportMemory, OpenTurn, open},
    limits::MAX_SCHEMA_BYTES,
    memory::MemoryItem,
};
use clap::Args;
use serde_json::json;
use zeroize::Zeroizing;

use super::{Exit, Failure, ModelPlaces, Style, bench::model_file, say};
use crate::{
    config::Settings,
    engine::native::{NativeConfig, NativeEngine},
    models::template_of,
    turn::replay::{NotReplayable, ReplayTask, Verdict, replay},
};

pub(super) const AFTER_HELP: &str = "\
The client that had the conversation makes the files: `baton session export SESSION --out FILE`, and for a turn that was
answered with memory `baton session export SESSION --memory TURN --out FILE`. All of the export is verified first. An
answer of a server behind a node cannot be computed again, nor one whose settings the export does not have.

A turn that is not replayable is named, and the others are computed all the same.
Exit codes: 0 all the same, 6 one is different, 7 one is not replayable and none different.

Examples:
  baton-node replay --export conversation.json
  baton-node replay 4 --export conversation.json
  baton-node replay 4 --export conversation.json --memory memory.json --json
  baton-node replay 9f86d081 --export conversation.json --model ./llama-3.2-1b.Q4_K_M.gguf";

/// Largest accepted export; clients write no larger ones.
const MAX_EXPORT_BYTES: u64 = 256 << 20;
/// Largest accepted memory file: that of a thousand turns and more.
const MAX_MEMORY_FILE_BYTES: u64 = 256 << 20;
/// Bytes for the keys and values of one turn's window.
const KV_BYTES: usize = 8 << 30;
/// Minimum digits of a receipt hash on the command line.
const MIN_DIGITS: usize = 6;

#[derive(Args, Clone, Debug)]
pub(super) struct ReplayArgs {
    /// Turn numbers from 1, or receipt hashes or prefixes of them [default: all]
    #[arg(value_name = "TURN")]
    receipts: Vec<String>,
    /// Exported conversation
    #[arg(long, value_name = "FILE")]
    export: PathBuf,
    /// Memory that the turn was answered with, if any
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,
    /// JSON schema that the answer had to satisfy, exactly as sent
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    #[command(flatten)]
    places: ModelPlaces,
    /// Name from `models list`, or the path of a GGUF file [default: the configured model]
    #[arg(long, value_name = "NAME|FILE")]
    model: Option<String>,
    /// Compute threads; their number does not change the result
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

pub(super) async fn run(args: ReplayArgs) -> Result<(), Failure> {
    let turns = disclosed(&args.export)?;
    let mut memory: BTreeMap<u64, Vec<MemoryItem>> = match &args.memory {
        Some(path) => memory_of(path)?,
        None => BTreeMap::new(),
    };
    let schema = args.schema.as_deref().map(|path| read(path, MAX_SCHEMA_BYTES as u64)).transpose()?;
    let schema = schema.as_ref().map(|schema| schema.as_str());
    let meant = match &args.receipts[..] {
        [] => turns.iter().map(|turn| turn.link.seq).collect(),
        named => named.iter().map(|named| turn_of(&turns, named)).collect::<Result<Vec<u64>, _>>()?,
    };
    let tasks: Vec<(u64, Result<ReplayTask, NotReplayable>)> = meant
        .into_iter()
        .map(|seq| (seq, ReplayTask::new(&turns, seq, &memory.remove(&seq).unwrap_or_default(), schema)))
        .collect();
    drop(turns);
    // A missing model is no finding about the turns, so it ends the command before the first of them.
    let file = tasks.iter().any(|(_, task)| task.is_ok()).then(|| named_model(&args)).transpose()?;

    let mut engine = None;
    let mut count = ReplayCount::default();
    for (seq, task) in tasks {
        let began = Instant::now();
        let verdict = match task {
            Ok(task) => {
                let file = file.as_ref().expect("one turn can be computed, so the file was found above");
                let engine = match &mut engine {
                    Some(engine) => engine,
                    none => none.insert(load(file.clone(), args.threads).await?),
                };
                let (turn, tokens) = (turn_number(seq), task.input_tokens());
                let spinner = progress::spinner(format!("computing turn {turn} again, of {tokens} tokens"));
                let verdict = replay(engine, &task).await?;
                spinner.finish_and_clear();
                verdict
            }
            Err(why) => Verdict::NotReplayable(why),
        };
        count.add(&verdict);
        tell(seq, &verdict, began.elapsed(), args.places.places.json);
    }
    count.result()
}

/// How many turns had each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReplayCount {
    same: usize,
    different: usize,
    not_replayable: usize,
    /// Of the latter, those of another model.
    of_other_models: usize,
}

impl ReplayCount {
    fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Same { .. } => self.same += 1,
            Verdict::Different { .. } => self.different += 1,
            Verdict::NotReplayable(why) => {
                self.not_replayable += 1;
                self.of_other_models += usize::from(matches!(why, NotReplayable::Model { .. }));
            }
        }
    }

    fn all(&self) -> usize {
        self.same + self.different + self.not_replayable
    }

    fn result(&self) -> Result<(), Failure> {
        let all = self.all();
        if self.different > 0 {
            return Err(Failure::text(
                Exit::Different,
                format!("different: {} of {all} turns", self.different),
            ));
        }
        if self.not_replayable == 0 {
            return Ok(());
        }
        if self.of_other_models == all {
            let text = "every turn was answered by another model: name its file with --model";
            return Err(Failure::text(Exit::Model, text));
        }
        Err(Failure::text(
            Exit::NotReplayable,
            format!("not replayable: {} of {all} turns", self.not_replayable),
        ))
    }
}

/// The number of a turn as people and commands name it: from 1.
fn turn_number(seq: u64) -> u64 {
    seq.saturating_add(1)
}

fn tell(seq: u64, verdict: &Verdict, took: Duration, json: bool) {
    let (turn, seconds) = (turn_number(seq), took.as_secs_f64());
    if json {
        let (result, tokens, at, why) = match verdict {
            Verdict::Same { tokens } => ("same", Some(*tokens), None, None),
            Verdict::Different { token } => ("different", None, *token, None),
            Verdict::NotReplayable(why) => ("not-replayable", None, None, Some(why.to_string())),
        };
        return say(json!({
            "turn": turn, "seq": seq, "result": result, "tokens": tokens, "different_at": at, "reason": why, "seconds": seconds,
        }));
    }
    let style = Style::stdout();
    say(match verdict {
        Verdict::Same { tokens } => {
            style.good(&format!("turn {turn}: the same {tokens} tokens ({seconds:.1} s)"))
        }
        Verdict::Different { token: Some(token) } => style.bad(&format!(
            "turn {turn}: different at token {token}, where the model goes on with other words"
        )),
        Verdict::Different { token: None } => {
            style.bad(&format!("turn {turn}: different, the model spells these words with other tokens"))
        }
        Verdict::NotReplayable(why) => format!("turn {turn}: not replayable, {why}"),
    });
}

/// The verified turns of an export.
fn disclosed(path: &Path) -> Result<Vec<OpenTurn>, Failure> {
    let text = read(path, MAX_EXPORT_BYTES)?;
    let wrong = |error: anyhow::Error| {
        Failure::new(Exit::Failure, error.context(format!("{} does not verify", path.display())))
    };
    let export: Export = serde_json::from_str(&text).map_err(|error| wrong(error.into()))?;
    open(&export).map_err(|error| wrong(error.into()))
}

/// The existing file of the model to compute with.
fn named_model(args: &ReplayArgs) -> Result<PathBuf, Failure> {
    let settings = Settings::load(args.places.clone().flags())?;
    let path = model_file(args.model.as_ref().unwrap_or(&settings.model()), &settings.model_dir())?;
    if path.is_file() {
        return Ok(path);
    }
    let text = format!("there is no model file {}: name another with --model", path.display());
    Err(Failure::text(Exit::Model, text))
}

async fn load(path: PathBuf, threads: Option<u16>) -> Result<NativeEngine, Failure> {
    let spinner = progress::spinner("loading the model");
    let config = NativeConfig {
        max_context_tokens: u32::MAX,
        slots: 1,
        threads: threads.map(usize::from),
        kv_bytes: KV_BYTES,
        template: template_of(&path),
        ..NativeConfig::new("replay", path)
    };
    let engine = tokio::task::spawn_blocking(move || NativeEngine::load(&config)).await?;
    spinner.finish_and_clear();
    engine.map_err(|error| Failure::new(Exit::Model, error))
}

/// The memory items, by turn.
fn memory_of(path: &Path) -> Result<BTreeMap<u64, Vec<MemoryItem>>, Failure> {
    let all: Result<Vec<ExportMemory>, _> = serde_json::from_str(&read(path, MAX_MEMORY_FILE_BYTES)?);
    let all =
        all.map_err(|error| Failure::text(Exit::Usage, format!("--memory {}: {error}", path.display())))?;
    Ok(all.into_iter().map(|one| (one.seq, one.items)).collect())
}

/// The sequence number of the named turn.
fn turn_of(turns: &[OpenTurn], named: &str) -> Result<u64, Failure> {
    if let Ok(number) = named.parse::<u64>()
        && let Some(turn) = turns.iter().find(|turn| turn_number(turn.link.seq) == number)
    {
        return Ok(turn.link.seq);
    }
    let digits = named.len() >= MIN_DIGITS && named.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_meant = |turn: &&OpenTurn| {
        let hash = turn.receipt.as_ref().map(|receipt| hex::encode(receipt.receipt_hash().0));
        digits && hash.is_some_and(|hash| hash.starts_with(&named.to_ascii_lowercase()))
    };
    match turns.iter().filter(is_meant).collect::<Vec<_>>()[..] {
        [turn] => Ok(turn.link.seq),
        [] => Err(Failure::text(
            Exit::Usage,
            format!(
                "the export has no turn {named}: its turns are 1 to {}; a receipt's hash needs {MIN_DIGITS} digits at least",
                turns.len()
            ),
        )),
        _ => Err(Failure::text(
            Exit::Usage,
            format!("{named} is the beginning of several receipts: give more digits"),
        )),
    }
}

/// Reads a file of the conversation.
fn read(path: &Path, limit: u64) -> Result<Zeroizing<String>, Failure> {
    let failed =
        |error: io::Error| Failure::text(Exit::Usage, format!("cannot read {}: {error}", path.display()));
    let file = File::open(path).map_err(failed)?;
    let mut text = Zeroizing::new(String::new());
    // Reserves the whole size, so that no smaller buffer leaves a copy.
    let expected = file.metadata().map_or(0, |data| data.len()).min(limit);
    text.reserve_exact(usize::try_from(expected).unwrap_or(0) + 1);
    file.take(limit + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > limit {
        return Err(Failure::text(Exit::Usage, format!("{} is larger than {limit} bytes", path.display())));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use baton_proto::ids::ModelId;

    use super::*;

    #[test]
    fn one_turn_that_cannot_be_computed_shows_in_the_exit_code() {
        let (same, different) = (Verdict::Same { tokens: 1 }, Verdict::Different { token: None });
        let schema = Verdict::NotReplayable(NotReplayable::Schema);
        let (wanted, here) = (ModelId([1; 32]), ModelId([2; 32]));
        let model = Verdict::NotReplayable(NotReplayable::Model { wanted, here });
        for (verdicts, exit) in [
            (&[][..], None),
            (&[&same][..], None),
            (&[&same, &schema], Some(Exit::NotReplayable)),
            (&[&same, &model], Some(Exit::NotReplayable)),
            (&[&schema, &different], Some(Exit::Different)),
            (&[&schema, &schema], Some(Exit::NotReplayable)),
            (&[&schema, &model], Some(Exit::NotReplayable)),
            (&[&model, &model], Some(Exit::Model)),
        ] {
            let mut count = ReplayCount::default();
            verdicts.iter().for_each(|verdict| count.add(verdict));
            assert_eq!(count.result().err().map(|failure| failure.exit), exit, "{count:?}");
        }
    }
}
