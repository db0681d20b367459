//! `baton-node bench`: measures the engine's speed with a model on this machine.

use std::{
    num::NonZero,
    path::{Path, PathBuf},
    time::Instant,
};

use baton_engine::{
    LoadError, Model, Options,
    bench::{BenchError, Case, Memory, Plan, Progress, Rate, measure, memory},
    config::Config,
    gguf::GgufFile,
    kernels::Isa,
    kv::{KV_BLOCK, KvShape},
};
use baton_kit::progress::{self, BarStyle, ProgressBar};
use clap::Args;
use serde_json::{Value, json};

use super::{
    Exit, Failure, ModelPlaces, Style, say,
    speed::{self, ModelSpeed},
};
use crate::{config::Settings, models::Catalogue};

pub(super) const AFTER_HELP: &str = "\
A rough first result comes within seconds; `models list` shows the last one of each model. Each length of prompt is measured with each number of threads, and generation after it with each number of
conversations at once. By the clock: other programs that hold the cores make the figures smaller. Of one thread the
own time is shown as well, which leaves the others out. Nothing is sent anywhere, and a running node is not asked.

Examples:
  baton-node bench
  baton-node bench --model smollm2-135m-instruct --threads 1,2 --prompt 512,1800 --gen 128 --batch 1,4,8 --json
  baton-node bench --model ./llama-3.2-1b.Q4_K_M.gguf --prompt 128 --gen 32 --batch 1";

/// Prompt tokens of the first result: on a slow machine with a large model, it comes within ten seconds.
const FIRST_PROMPT: usize = 64;
/// Answer tokens of the first result.
const FIRST_GENERATED: usize = 16;

/// Maximum memory for keys and values in a measurement. More would measure the swap space on disk.
const MAX_KV_BYTES: usize = 32 << 30;

#[derive(Args, Clone, Debug)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    places: ModelPlaces,
    /// Name from `models list`, or the path of a GGUF file [default: the configured model]
    #[arg(long, value_name = "NAME|FILE")]
    model: Option<String>,
    /// Thread counts [default: 1 and the number of cores]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Prompt lengths, in tokens
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,
    /// Tokens to generate after each prompt
    #[arg(long = "gen", value_name = "N", default_value_t = 64)]
    generated: usize,
    /// Numbers of concurrent conversations
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,4,8")]
    batch: Vec<usize>,
    /// Runs of each prompt; the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
}

pub(super) fn run(args: BenchArgs) -> Result<(), Failure> {
    let json = args.places.places.json;
    let settings = Settings::load(args.places.flags())?;
    let name = args.model.unwrap_or_else(|| settings.model());
    let path = model_file(&name, &settings.model_dir())?;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = match args.threads {
        threads if threads.is_empty() && cores > 1 => vec![1, cores],
        threads if threads.is_empty() => vec![1],
        threads => threads,
    };
    let plan = Plan {
        threads,
        prompts: args.prompt,
        batches: args.batch,
        generated: args.generated,
        runs: args.runs,
    };

    let (file, kv_budget) = open(&path, &plan)?;
    let is_of_folder = path.parent() == Some(settings.model_dir().as_path());
    let mut about = json!({ "model": name, "path": path, "isa": Isa::best().name() });
    let mut screen = Screen::new(json, &about);
    let mut load = |threads| {
        let start = Instant::now();
        let model = Model::from_file(&file, &Options { kv_budget, threads, isa: Isa::best() })?;
        about["load_s"] = json!(start.elapsed().as_secs_f64());
        about["weight_bytes"] = json!(model.weight_bytes());
        Ok(model)
    };
    if !json {
        let first = measure(&mut load, &first_plan(&plan), &mut |_| {});
        let first = first.map_err(|error| bench_failure(error, &path))?;
        first.iter().for_each(|case| say(as_first_line(case)));
        screen.head();
    }
    let mut held = None;
    let mut show = |progress: Progress<'_>| {
        // Reads the memory while the model is loaded; it is gone after the measurement.
        if let Progress::Case(_) = progress {
            held = memory();
        }
        screen.show(progress);
    };
    let cases = measure(&mut load, &plan, &mut show).map_err(|error| bench_failure(error, &path))?;
    screen.bar.finish_and_clear();
    let memory = held;
    if is_of_folder && let Some(speed) = speed_of(&cases) {
        // Only `models list` lacks the figure then.
        let _ = speed::note(&settings.model_dir(), &name, speed);
    }
    if json {
        say(as_json(about, &cases, memory));
    } else if let Some(Memory { resident, peak }) = memory {
        say(format!("\nMemory: {} MB now, {} MB at most", resident / 1_000_000, peak / 1_000_000));
    }
    Ok(())
}

/// A short measurement with most threads, as the first result.
fn first_plan(plan: &Plan) -> Plan {
    Plan {
        threads: plan.threads.iter().copied().max().into_iter().collect(),
        prompts: plan
            .prompts
            .iter()
            .copied()
            .min()
            .map(|least| least.min(FIRST_PROMPT))
            .into_iter()
            .collect(),
        batches: vec![1],
        generated: plan.generated.min(FIRST_GENERATED),
        runs: 1,
    }
}

/// The speed of one conversation, by the fastest number of threads.
fn speed_of(cases: &[Case]) -> Option<ModelSpeed> {
    let alone = cases.iter().filter(|case| case.batch == 1);
    let best = alone.max_by(|left, right| left.decode.median.total_cmp(&right.decode.median))?;
    let (threads, reading, generating) = (best.threads, best.prefill.median, best.decode.median);
    Some(ModelSpeed { threads, reading, generating })
}

/// The file of a model: a path, or a name in the catalogue or the model folder.
pub(super) fn model_file(name: &str, folder: &Path) -> Result<PathBuf, Failure> {
    if name.contains(['/', '\\']) || Path::new(name).is_file() {
        return Ok(PathBuf::from(name));
    }
    let (file, listed) = match Catalogue::built_in().entry(name) {
        Ok(entry) => (entry.file.clone(), true),
        Err(_) => (format!("{name}.gguf"), false),
    };
    let path = folder.join(file);
    if path.is_file() {
        return Ok(path);
    }
    let next = if listed {
        format!("run `baton-node models pull {name}`")
    } else {
        "`baton-node models list` shows the names; a path with a / in it is a file".to_owned()
    };
    Err(Failure::text(Exit::Model, format!("there is no {}: {next}", path.display())))
}

/// Opens a model's file, and returns the bytes of keys and values for the plan.
fn open(path: &Path, plan: &Plan) -> Result<(GgufFile, usize), Failure> {
    let failed = |error: LoadError| bench_failure(error.into(), path);
    let file = GgufFile::open(path).map_err(|error| failed(error.into()))?;
    let config = Config::read(file.header()).map_err(|error| failed(error.into()))?;
    plan.check(config.context).map_err(|error| bench_failure(error, path))?;
    let shape = KvShape { layers: config.layers, heads: config.kv_heads, head_dim: config.head_dim };
    let kv_budget = (plan.positions() / KV_BLOCK).saturating_mul(shape.block_bytes());
    if kv_budget > MAX_KV_BYTES {
        let text = format!(
            "keys and values would take {} MB, more than {} MB: measure shorter prompts or fewer at once",
            kv_budget / 1_000_000,
            MAX_KV_BYTES / 1_000_000
        );
        return Err(Failure::text(Exit::Usage, text));
    }
    Ok((file, kv_budget))
}

fn bench_failure(error: BenchError, path: &Path) -> Failure {
    let exit = match error {
        BenchError::Range(_) => Exit::Usage,
        BenchError::Step(_) => Exit::Failure,
        BenchError::Load(error) => {
            let context = format!("{} cannot be measured", path.display());
            return Failure::new(Exit::Model, anyhow::Error::from(error).context(context));
        }
    };
    Failure::new(exit, error)
}

/// The progress display: a bar on a terminal, and lines of a table unless JSON is requested.
struct Screen {
    bar: ProgressBar,
    table: bool,
}

impl Screen {
    fn new(json: bool, about: &Value) -> Self {
        let bar = progress::bar(BarStyle::Percent);
        bar.set_message("measuring");
        bar.set_length(1);
        if !json {
            let text = |key: &str| about[key].as_str().unwrap_or_default().to_owned();
            say(format!(
                "{} by {}, tokens per second (in brackets: by the thread's own time)\n",
                text("model"),
                text("isa")
            ));
        }
        Self { bar, table: !json }
    }

    /// The head of the table.
    fn head(&self) {
        let head = format!(
            "{:>7}  {:>6}  {:>16}  {:>7}  {:>16}",
            "THREADS", "PROMPT", "READING", "AT ONCE", "GENERATING"
        );
        self.bar.suspend(|| say(Style::stdout().strong(&head)));
    }

    fn show(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Tokens { done, total } => {
                self.bar.set_length(total as u64);
                self.bar.set_position(done as u64);
            }
            Progress::Case(case) if self.table => self.bar.suspend(|| say(as_line(case))),
            Progress::Case(_) => {}
        }
    }
}

/// The first result. Its short prompt and answer make it less exact than the table.
fn as_first_line(case: &Case) -> String {
    format!(
        "First, roughly: reads {:.0} and generates {:.0} tokens per second with {} threads; the table follows\n",
        case.prefill.median, case.decode.median, case.threads
    )
}

fn as_line(case: &Case) -> String {
    let rate = |rate: &Rate| match rate.own {
        // With several threads, the main thread waits for the others, so its own time is meaningless.
        Some(own) if case.threads == 1 => format!("{:.0} ({own:.0})", rate.median),
        _ => format!("{:.0}", rate.median),
    };
    let (prefill, decode) = (rate(&case.prefill), rate(&case.decode));
    format!("{:7}  {:6}  {prefill:>16}  {:7}  {decode:>16}", case.threads, case.prompt, case.batch)
}

fn as_json(mut about: Value, cases: &[Case], memory: Option<Memory>) -> Value {
    let rate =
        |rate: &Rate| json!({ "tokens_per_s": rate.median, "best": rate.best, "main_thread": rate.own });
    about["cases"] = cases
        .iter()
        .map(|case| {
            json!({
                "threads": case.threads, "prompt": case.prompt, "batch": case.batch,
                "prefill": rate(&case.prefill), "decode": rate(&case.decode),
            })
        })
        .collect();
    about["resident_bytes"] = memory.map(|memory| memory.resident).into();
    about["peak_bytes"] = memory.map(|memory| memory.peak).into();
    about
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { median: 100.4, best: 120.0, own: Some(130.0) };

    fn case(threads: usize) -> Case {
        Case { threads, prompt: 512, batch: 8, prefill: RATE, decode: Rate { own: None, ..RATE } }
    }

    #[test]
    fn own_time_is_shown_of_one_thread() {
        assert_eq!(as_line(&case(1)), "      1     512         100 (130)        8               100");
        assert_eq!(as_line(&case(2)), "      2     512               100        8               100");
    }

    #[test]
    fn the_first_result_is_short_and_within_the_plan() {
        let plan = Plan {
            threads: vec![1, 2],
            prompts: vec![512, 1800],
            batches: vec![4, 8],
            generated: 8,
            runs: 3,
        };
        let first = first_plan(&plan);
        let expected = Plan { threads: vec![2], prompts: vec![64], batches: vec![1], generated: 8, runs: 1 };
        assert_eq!(first, expected);
        assert_eq!(first_plan(&Plan { prompts: vec![3], ..plan }).prompts, [3]);
        assert!(as_first_line(&case(2)).starts_with("First, roughly: reads 100 and generates 100 tokens"));
    }

    #[test]
    fn the_noted_speed_is_of_one_conversation() {
        let fast = Rate { median: 200.0, ..RATE };
        let alone = |threads, decode| Case { batch: 1, decode, ..case(threads) };
        assert_eq!(speed_of(&[case(1)]), None);
        let speed = speed_of(&[alone(1, RATE), alone(2, fast), case(4)]).unwrap();
        assert_eq!((speed.threads, speed.generating), (2, 200.0));
    }

    #[test]
    fn json_has_every_case() {
        let memory = Some(Memory { resident: 5, peak: 7 });
        let found = as_json(json!({ "model": "m" }), &[case(1), case(2)], memory);
        assert_eq!(found["cases"][1]["threads"], 2);
        assert_eq!(found["cases"][0]["prefill"]["main_thread"], 130.0);
        assert_eq!(found["cases"][0]["decode"]["main_thread"], Value::Null);
        assert_eq!((found["model"].as_str(), found["peak_bytes"].as_u64()), (Some("m"), Some(7)));
    }

    #[test]
    fn names_and_paths_of_models() {
        let folder = tempfile::tempdir().unwrap();
        let error = |name: &str| model_file(name, folder.path()).unwrap_err().to_string();
        assert!(error("smollm2-135m-instruct").contains("models pull smollm2-135m-instruct"));
        assert!(error("mine").contains("models list"));
        let own = folder.path().join("mine.gguf");
        std::fs::write(&own, b"GGUF").unwrap();
        assert_eq!(model_file("mine", folder.path()).unwrap(), own);
        assert_eq!(model_file("./mine", folder.path()).unwrap(), Path::new("./mine"));
    }

    #[test]
    fn the_screen_takes_every_step() {
        let mut screen = Screen::new(true, &json!({}));
        screen.show(Progress::Tokens { done: 1, total: 2 });
        screen.show(Progress::Case(&case(1)));
        assert_eq!((screen.bar.position(), screen.bar.length()), (1, Some(2)));
    }
}
