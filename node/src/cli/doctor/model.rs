//! Checks the engine and its model.

use std::{
    fs,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    time::Duration,
};

use baton_walrus_client::http_client;
use zeroize::Zeroizing;

use super::{Check, Subject, codes};
use crate::{
    cli::Failure,
    config::{EngineChoice, Settings},
    models::{Catalogue, Shape, check_file},
    progress,
};

/// Timeout of a proxied engine's server.
const PROXY_TIMEOUT: Duration = Duration::from_secs(10);
/// Memory besides model and cache: code, journal, connections.
const OTHER_BYTES: u64 = 256 << 20;

pub(super) async fn check(subject: &Subject) -> Result<Check, Failure> {
    let mut check = Check::new("model");
    let settings = &subject.settings;
    match settings.engine() {
        EngineChoice::Echo => check.found(codes::ECHO_ENGINE, "it is for tests"),
        EngineChoice::Proxied if subject.offline => return Ok(Check::skipped("model", "offline")),
        EngineChoice::Proxied => check_proxy(&mut check, settings).await,
        EngineChoice::Native => check_native(&mut check, subject),
    }
    if let Some(name) = &settings.embedding_model {
        check_embeddings(&mut check, name, &settings.model_dir());
    }
    Ok(check)
}

/// Checks the embedding model, if the node offers embeddings.
fn check_embeddings(check: &mut Check, name: &str, folder: &Path) {
    let files = baton_models::embed::models::status(name, folder).unwrap_or_default();
    match files.iter().find(|file| !file.is_installed()) {
        None => check.saw(format!("embeddings: {name}")),
        Some(missing) => {
            let detail = format!("{name}, for embeddings: {}", missing.path.display());
            check.found_with(codes::MODEL_MISSING, detail, format!("baton-node models pull {name}"), false);
        }
    }
}

fn check_native(check: &mut Check, subject: &Subject) {
    let settings = &subject.settings;
    let mut shapes = Vec::new();
    let mut missing = 0u64;
    for name in settings.models() {
        match find(check, settings, &name) {
            ModelFile::Here(path) => {
                match check_file(&path).and_then(|()| Shape::read(&path).map_err(|error| error.to_string())) {
                    Ok(shape) => {
                        if shape.library_bytes.is_some() {
                            check.saw(format!(
                                "{name} is computed by a general library, so nobody can check its answers"
                            ));
                        }
                        shapes.push((name, shape));
                    }
                    Err(reason) => check.found(codes::MODEL_BROKEN, format!("{}: {reason}", path.display())),
                }
            }
            ModelFile::Missing(bytes) => missing += bytes,
            ModelFile::Wrong => {}
        }
    }
    let budget = u64::from(settings.model_memory_mb()) << 20;
    let sizes = shapes.iter().map(|(name, shape)| (name, shape.footprint(settings.kv_mb())));
    for (name, bytes) in sizes.clone().filter(|(_, bytes)| budget > 0 && *bytes > budget) {
        let detail = format!(
            "{name} takes about {} MB of model_memory_mb = {}",
            bytes.div_ceil(1 << 20),
            settings.model_memory_mb()
        );
        check.found(codes::MODEL_OVER_BUDGET, detail);
    }
    if settings.model_memory_mb() > 0 && shapes.len() > 1 {
        let together = sizes.clone().fold(0u64, |sum, (_, bytes)| sum.saturating_add(bytes));
        let beside = if together <= budget { "fit beside each other" } else { "take turns in memory" };
        check.saw(format!("{} models {beside}", shapes.len()));
    }
    if missing > 0 || !shapes.is_empty() {
        let taken = sizes.clone().fold(missing, |sum, (_, bytes)| sum.saturating_add(bytes));
        let largest = sizes.map(|(_, bytes)| bytes).max().unwrap_or(0);
        // With a memory budget, only the largest model must fit.
        check_memory(check, subject, if budget > 0 { largest } else { taken });
    }
}

/// State of a configured model's file.
enum ModelFile {
    /// The path of its file.
    Here(PathBuf),
    /// It is missing; its size in bytes.
    Missing(u64),
    /// It is unusable, which is already reported.
    Wrong,
}

fn find(check: &mut Check, settings: &Settings, name: &str) -> ModelFile {
    let catalogue = Catalogue::built_in();
    let pull = format!("baton-node models pull {name}");
    let Some(model) =
        catalogue.list(&settings.model_dir()).into_iter().find(|model| model.entry.name == *name)
    else {
        let path = settings.model_dir().join(format!("{name}.gguf"));
        if name.contains(['/', '\\']) || !path.is_file() {
            check.found(codes::MODEL_UNKNOWN, format!("{name}: there is no {}", path.display()));
            return ModelFile::Wrong;
        }
        check.saw(format!("{name}, a file of your own"));
        return ModelFile::Here(path);
    };
    let Some(bytes) = model.present_bytes else {
        let partial = match model.partial_bytes {
            0 => String::new(),
            bytes => format!("; {} MB of it are here, and are gone on with", bytes / 1_000_000),
        };
        check.found_with(codes::MODEL_MISSING, format!("{name}{partial}"), pull, false);
        return ModelFile::Missing(model.entry.size);
    };
    if !model.is_installed() {
        let detail = format!("{} has {bytes} bytes instead of {}", model.path.display(), model.entry.size);
        check.found_with(codes::MODEL_WRONG, detail, pull, false);
        return ModelFile::Wrong;
    }
    let verified = progress::shown(name, model.entry.size, |show| {
        let show: &mut dyn FnMut(_) = if io::stderr().is_terminal() { show } else { &mut |_| {} };
        catalogue.verify(name, &settings.model_dir(), show)
    });
    let detail = match verified {
        Ok(verified) if verified.is_right() => {
            check.saw(format!("{name} has the right SHA-256"));
            return ModelFile::Here(model.path);
        }
        Ok(verified) => format!("{} has SHA-256 {}", model.path.display(), verified.actual),
        Err(error) => error.to_string(),
    };
    check.found_with(codes::MODEL_WRONG, detail, pull, false);
    ModelFile::Wrong
}

fn check_memory(check: &mut Check, subject: &Subject, models: u64) {
    let megabytes = |bytes: u64| bytes / 1_000_000;
    if let Some(resident) = subject.running.as_ref().and_then(|status| status.resident_bytes) {
        check.saw(format!("the running node takes {} MB", megabytes(resident)));
        return;
    }
    let blobs = subject.settings.cache_bytes() as u64;
    let needed = models.saturating_add(blobs).saturating_add(OTHER_BYTES);
    let Some(available) = available_memory() else { return };
    let detail = format!("about {} MB are needed, {} MB are free", megabytes(needed), megabytes(available));
    if needed > available { check.found(codes::MODEL_LARGE, detail) } else { check.saw(detail) }
}

/// Memory available to a new process, on the machine or in its cgroup.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024;
    let read = |name: &str| {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let group = read("memory.max").map(|most| most.saturating_sub(read("memory.current").unwrap_or(0)));
    Some(group.map_or(machine, |group| group.min(machine)))
}

async fn check_proxy(check: &mut Check, settings: &Settings) {
    let url = settings.proxied_url.clone().unwrap_or_default();
    let url = format!("{}/v1/models", url.trim_end_matches('/'));
    let client = http_client::builder_for(&url).timeout(PROXY_TIMEOUT).build();
    let Ok(client) = client else { return };
    let mut request = client.get(&url);
    if let Some(path) = &settings.proxied_key_file {
        match fs::read_to_string(path).map(Zeroizing::new) {
            Ok(key) => request = request.bearer_auth(key.trim()),
            Err(error) => {
                check.found(codes::PROXY_REFUSES, format!("{}: {error}", path.display()));
                return;
            }
        }
    }
    match request.send().await.map(|answer| answer.status()) {
        Err(error) => check.found(codes::PROXY_SILENT, format!("{url}: {}", http_client::describe(&error))),
        Ok(status) if matches!(status.as_u16(), 401 | 403) => {
            check.found(codes::PROXY_REFUSES, format!("{url} says {status}"));
        }
        Ok(status) if status.is_server_error() => {
            check.found(codes::PROXY_SILENT, format!("{url} says {status}"));
        }
        Ok(_) => check.saw(format!("{url} answers")),
    }
}
