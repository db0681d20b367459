//! `baton-node models`.

use std::path::Path;

use super::{Exit, Failure, ModelsArgs, ModelsCommand, progress::Progress, say, style::Style};
use crate::{
    config::Settings,
    daemon::engines::model_failure,
    models::{Catalogue, ModelStatus},
};

pub(super) fn run(args: ModelsArgs) -> Result<(), Failure> {
    let mut flags = args.places.flags();
    flags.model_dir = args.model_dir;
    let settings = Settings::load(flags)?;
    match args.command {
        ModelsCommand::List => list(&settings.model_dir, &settings.model, args.json),
        ModelsCommand::Pull { name } => pull(&settings.model_dir, &name, args.json)?,
    }
    Ok(())
}

fn pull(folder: &Path, name: &str, json: bool) -> Result<(), Failure> {
    let catalogue = Catalogue::built_in();
    let entry = catalogue.entry(name).map_err(|error| Failure::new(Exit::Usage, error))?;
    let mut progress = Progress::new(entry);
    let pulled = catalogue.pull(name, folder, &mut |step| progress.show(step));
    progress.finish();
    let path = pulled.map_err(model_failure)?;
    if json {
        say(serde_json::json!({ "name": name, "path": path, "sha256": entry.sha256.to_string() }));
    } else {
        say(format!("{name} is in {} (SHA-256 checked)", path.display()));
    }
    Ok(())
}

fn list(folder: &Path, chosen: &str, json: bool) {
    let models = Catalogue::built_in().list(folder);
    if json {
        let models: Vec<_> = models.iter().map(|model| as_json(model, chosen)).collect();
        say(serde_json::json!({ "model_dir": folder, "models": models }));
        return;
    }
    let style = Style::stdout();
    let width = models.iter().map(|model| model.entry.name.len()).max().unwrap_or(0).max(4);
    say(style.strong(&format!("{:width$}  {:>9}  {:19}  {}", "NAME", "SIZE", "STATE", "DESCRIPTION")));
    for model in &models {
        // Padded before it is coloured: escapes have no width.
        let state = format!("{:19}", state(model));
        let state = if model.is_installed() { style.good(&state) } else { state };
        let mark = if model.entry.name == chosen { " (configured)" } else { "" };
        let size = megabytes(model.entry.size);
        let (name, description, licence) =
            (&model.entry.name, &model.entry.description, &model.entry.licence);
        say(format!("{name:width$}  {size:>9}  {state}  {description}. Licence: {licence}{mark}"));
    }
    say(format!("\nModel folder: {}\nFetch one with: baton-node models pull NAME", folder.display()));
}

fn state(model: &ModelStatus) -> &'static str {
    match model.present_bytes {
        Some(_) if model.is_installed() => "here",
        Some(_) => "incomplete or other",
        None => "not fetched",
    }
}

fn as_json(model: &ModelStatus, chosen: &str) -> serde_json::Value {
    serde_json::json!({
        "name": model.entry.name,
        "description": model.entry.description,
        "licence": model.entry.licence,
        "bytes": model.entry.size,
        "sha256": model.entry.sha256.to_string(),
        "path": model.path,
        "installed": model.is_installed(),
        "configured": model.entry.name == chosen,
    })
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}
