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
use clap::{ArgMatches, Args};
use serde_json::json;
use zeroize::Zeroizing;

use super::{Exit, Failure, RunLike, Style, bench::model_file, say};
use crate::{
    config::{RunFlags, Settings},
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
    run: RunLike,
}

pub(super) async fn run(args: ReplayArgs, matches: &ArgMatches) -> Result<(), Failure> {
    let (mut flags, _, json) = args.run.given(matches)?;
    // It may be one of the configured further models.
    let (model, threads) = (flags.model.take(), flags.threads);
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
    let file = tasks.iter().any(|(_, task)| task.is_ok()).then(|| named_model(model, flags)).transpose()?;

    let mut engine = None;
    let mut exits = Vec::new();
    for (seq, task) in tasks {
        let began = Instant::now();
        let verdict = match task {
            Ok(task) => {
                let file = file.as_ref().expect("one turn can be computed, so the file was found above");
                let engine = match &mut engine {
                    Some(engine) => engine,
                    none => none.insert(load(file.clone(), threads).await?),
                };
                let (turn, tokens) = (turn_number(seq), task.input_tokens());
                let spinner = progress::spinner(format!("computing turn {turn} again, of {tokens} tokens"));
                let verdict = replay(engine, &task).await?;
                spinner.finish_and_clear();
                verdict
            }
            Err(why) => Verdict::NotReplayable(why),
        };
        exits.push(exit_of(&verdict));
        tell(seq, &verdict, began.elapsed(), json);
    }
    result_of(&exits)
}

/// How a verdict shows in the exit code, if it does.
fn exit_of(verdict: &Verdict) -> Option<Exit> {
    match verdict {
        Verdict::Same { .. } => None,
        Verdict::Different { .. } => Some(Exit::Different),
        Verdict::NotReplayable(NotReplayable::Model { .. }) => Some(Exit::Model),
        Verdict::NotReplayable(_) => Some(Exit::NotReplayable),
    }
}

/// The result of the command, from what each turn shows.
fn result_of(exits: &[Option<Exit>]) -> Result<(), Failure> {
    let all = exits.len();
    let count = |exit| exits.iter().filter(|shown| **shown == Some(exit)).count();
    let (different, of_other_models) = (count(Exit::Different), count(Exit::Model));
    let not_replayable = of_other_models + count(Exit::NotReplayable);
    if different > 0 {
        return Err(Failure::text(Exit::Different, format!("different: {different} of {all} turns")));
    }
    match not_replayable {
        0 => Ok(()),
        _ if of_other_models == all => {
            let text = "every turn was answered by another model: name its file with --model";
            Err(Failure::text(Exit::Model, text))
        }
        _ => Err(Failure::text(
            Exit::NotReplayable,
            format!("not replayable: {not_replayable} of {all} turns"),
        )),
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
fn named_model(model: Option<String>, flags: RunFlags) -> Result<PathBuf, Failure> {
    let settings = Settings::load(flags)?;
    let path = model_file(&model.unwrap_or_else(|| settings.model()), &settings.model_dir())?;
    if path.is_file() {
        return Ok(path);
    }
    let text = format!("there is no model file {}: name another with --model", path.display());
    Err(Failure::text(Exit::Model, text))
}

async fn load(path: PathBuf, threads: Option<u32>) -> Result<NativeEngine, Failure> {
    let spinner = progress::spinner("loading the model");
    let config = NativeConfig {
        max_context_tokens: u32::MAX,
        slots: 1,
        threads: threads.map(|threads| threads as usize),
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
            let exits: Vec<_> = verdicts.iter().map(|verdict| exit_of(verdict)).collect();
            assert_eq!(result_of(&exits).err().map(|failure| failure.exit), exit, "{exits:?}");
        }
    }
}
