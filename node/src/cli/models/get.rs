//! `models pull` and `models add`: bring models into the folder.

use std::{
    io::{self, Write as _},
    path::Path,
};

use baton_kit::prompt;
use baton_models::embed::models as embeddings;
use serde_json::json;

use super::{EMBEDDINGS, args::PullArgs};
use crate::{
    cli::{Exit, Failure, say_result, time::now_ms},
    daemon::engines::model_failure,
    models::{
        AddedFile, Catalogue, HubFile, ModelError, Terms, add_file, check_file, name_of, origin, own_file,
        refuse_reserved,
    },
    progress,
};

pub(super) fn pull(folder: &Path, args: &PullArgs, json: bool) -> Result<(), Failure> {
    let name = args.name.as_str();
    if HubFile::is_named_by(name) {
        return pull_from_hub(folder, args, json);
    }
    if args.local_name.is_some() {
        return Err(Failure::text(Exit::Usage, "--name is for files of the hub: this model has a name"));
    }
    if name == EMBEDDINGS.name {
        return pull_embeddings(folder, json);
    }
    let catalogue = Catalogue::built_in();
    if let (Err(_), Some(path)) = (catalogue.entry(name), own_file(folder, name)) {
        let sha256 = origin(&path).map(|origin| origin.sha256);
        let words = format!("{name} is in {}; it is a file of your own", path.display());
        say_result(json, json!({ "name": name, "path": path, "sha256": sha256 }), words);
        return Ok(());
    }
    let entry = catalogue.entry(name).map_err(|error| Failure::new(Exit::Usage, error))?;
    settle_terms(&catalogue, folder, name, args.accept_licence)?;
    let pulled = progress::shown(&entry.name, entry.size, |show| catalogue.pull(name, folder, show));
    let path = pulled.map_err(model_failure)?;
    let words = format!("{name} is in {} (SHA-256 checked)", path.display());
    say_result(json, json!({ "name": name, "path": path, "sha256": entry.sha256.to_string() }), words);
    Ok(())
}

fn pull_embeddings(folder: &Path, json: bool) -> Result<(), Failure> {
    let name = EMBEDDINGS.name;
    let pulled = progress::shown(name, EMBEDDINGS.bytes(), |show| embeddings::pull(name, folder, show));
    let paths = pulled.map_err(model_failure)?;
    let words = format!("{name} is in {} (SHA-256 checked)", folder.display());
    say_result(json, json!({ "name": name, "path": paths.first(), "paths": paths }), words);
    Ok(())
}

fn pull_from_hub(folder: &Path, args: &PullArgs, json: bool) -> Result<(), Failure> {
    let usage = |error: ModelError| Failure::new(Exit::Usage, error);
    let file: HubFile = args.name.parse().map_err(usage)?;
    let name = args.local_name.clone().or_else(|| file.local_name()).unwrap_or_default();
    refuse_reserved(&name).map_err(usage)?;
    let pulled = progress::shown(&name, 0, |show| file.pull(&args.hub, &name, folder, &check_file, show));
    tell_added(&name, &pulled.map_err(name_is_usage)?, json);
    Ok(())
}

/// `baton-node models add`.
pub(super) fn add(folder: &Path, path: &Path, name: Option<String>, json: bool) -> Result<(), Failure> {
    let usage = |error: ModelError| Failure::new(Exit::Usage, error);
    let name = name.or_else(|| name_of(path)).unwrap_or_default();
    refuse_reserved(&name).map_err(usage)?;
    let size = path.metadata().map_or(0, |metadata| metadata.len());
    let added = progress::shown(&name, size, |show| add_file(path, &name, folder, &check_file, show));
    tell_added(&name, &added.map_err(name_is_usage)?, json);
    Ok(())
}

/// A bad name is a usage error; other errors are not.
fn name_is_usage(error: ModelError) -> Failure {
    match error {
        ModelError::Name { .. } => Failure::new(Exit::Usage, error),
        error => model_failure(error),
    }
}

fn tell_added(name: &str, AddedFile { path, sha256, linked }: &AddedFile, json: bool) {
    let shared = if *linked { ", which shares its bytes with the file that you named" } else { "" };
    let words = format!(
        "{name} is in {}{shared} (SHA-256 {sha256})\nServe it with: baton-node run --model {name}",
        path.display()
    );
    let sha256 = sha256.to_string();
    say_result(json, json!({ "name": name, "path": path, "sha256": sha256, "linked": linked }), words);
}

/// Shows a model's terms if they are not accepted yet. Acceptance comes from the flag or from the terminal.
fn settle_terms(catalogue: &Catalogue, folder: &Path, name: &str, accept: bool) -> Result<(), Failure> {
    let usage = |error: ModelError| Failure::new(Exit::Usage, error);
    let Some(terms) = catalogue.unaccepted(name, folder).map_err(usage)? else { return Ok(()) };
    let licence = catalogue.entry(name).map_err(usage)?.licence.clone();
    let Terms { notice, url, .. } = terms;
    // If standard error is closed, no answer can come either.
    let _ = writeln!(
        io::stderr(),
        "{name} comes under the {licence}:\n\n{}\n\nFull text: {url}\n",
        notice.trim()
    );
    if !accept {
        let refused = ModelError::TermsNotAccepted { name: name.to_owned(), licence };
        let accepted = prompt::confirm_at_terminal("Do you accept these terms?");
        if !accepted.is_ok_and(|accepted| accepted == Some(true)) {
            return Err(usage(refused));
        }
    }
    catalogue.accept(name, folder, now_ms()).map_err(model_failure)
}
