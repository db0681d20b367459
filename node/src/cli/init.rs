//! `baton-node init`.

use std::path::absolute;

use super::{Exit, Failure, InitArgs, say, style::Style};
use crate::{
    config::{CONFIG_FILE, default_data_dir},
    daemon::data_dir,
    identity::{NODE_KEY_FILE, load_node_key, peer_id},
};

pub(super) fn run(args: InitArgs) -> Result<(), Failure> {
    let folder = args.places.data_dir.unwrap_or_else(default_data_dir);
    let folder = absolute(&folder).map_err(|error| Failure::new(Exit::Storage, error))?;
    let elsewhere = args.places.config.is_some();
    let config = args.places.config.unwrap_or_else(|| folder.join(CONFIG_FILE));
    let made = data_dir::prepare(&folder, Some(&config), &[]).map_err(data_dir::DataDirError::into_failure)?;
    let key = load_node_key(&folder).map_err(|error| Failure::new(Exit::Storage, error))?;
    let (node, peer) = (key.node_id(), peer_id(key.node_id()));
    if args.json {
        say(serde_json::json!({
            "data_dir": folder, "config": config, "node": node.to_string(), "peer_id": peer.to_string(),
            "created": { "data_dir": made.folder, "key": made.key, "config": made.config },
        }));
        return Ok(());
    }
    let style = Style::stdout();
    let state = |created: bool| if created { style.good("created") } else { "kept as it was".to_owned() };
    let mut next = "baton-node run".to_owned();
    if elsewhere {
        next.push_str(&format!(" --config {}", config.display()));
    } else if folder != default_data_dir() {
        next.push_str(&format!(" --data-dir {}", folder.display()));
    }
    say(format!(
        "Data directory  {}  {}\n\
         Node key        {}  {}\n\
         Configuration   {}  {}\n\
         Node            {node}\n\
         Peer            {peer}\n\n\
         The node key is the node's identity: keep it, and keep it to yourself.\n\
         Next: look at the configuration, then start the node with\n\n  {}",
        folder.display(),
        state(made.folder),
        folder.join(NODE_KEY_FILE).display(),
        state(made.key),
        config.display(),
        state(made.config),
        style.strong(&next),
    ));
    if let Some(mode) = made.open_mode {
        say(format!(
            "\n{} others on this machine can look into {} (mode {mode:o}): run chmod 700 on it",
            style.bad("note:"),
            folder.display()
        ));
    }
    Ok(())
}
