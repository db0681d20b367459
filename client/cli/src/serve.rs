//! `baton serve`: the endpoint that speaks OpenAI's API.

mod keys;
mod link;

use std::{io::IsTerminal as _, path::Path, sync::Arc, time::Duration};

use baton_client::{Client, RouteOptions, TurnInput};
use baton_gateway::{
    AcmeSettings, Gateway, GatewayConfig, GatewayMemory, NamedKeys, TlsIdentity, generate_key, is_loopback,
};
use baton_kit::{output::quoted, signals::StopSignals};
use serde_json::json;
use tokio::net::TcpListener;
use zeroize::Zeroizing;

use crate::{
    args::{ServeArguments, ServeCommand},
    failure::Failure,
    files::write_private,
    home::with_client,
    interrupt::leave_at_second_interrupt,
    out::{Out, count},
    relayer::memory::RelayerMemory,
    search::{explain_lack_of_nodes, named_node, search_line, served},
    serve::link::{PageAddress, link_to, read_key},
    settings::{Settings, relayer_name},
};

/// The key's file in the home folder.
const KEY_FILE: &str = "serve.key";
/// Interval between two looks at the nodes.
const NODES_CHECK: Duration = Duration::from_secs(3);
/// The directory of Let's Encrypt.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

pub(crate) async fn run(settings: &Settings, arguments: &ServeArguments, out: &Out) -> Result<(), Failure> {
    if let Some(ServeCommand::Keys(arguments)) = &arguments.command {
        return keys::run(settings, arguments, out);
    }
    if arguments.link {
        return link::run(settings, out);
    }
    check_address(settings, arguments)?;
    let template = settings.turn(&arguments.answering, arguments.memory.memory).await?;
    let files = arguments.tls_cert.as_ref().zip(arguments.tls_key.as_ref());
    let identity = files.map(|(certificate, key)| TlsIdentity::read(certificate, key)).transpose();
    let identity = identity.map_err(|error| Failure::wrong(error.to_string()))?;
    let acme = acme(settings, arguments);
    let has_tls = identity.is_some() || acme.is_some();
    let memory = RelayerMemory::from(settings, &arguments.memory, &template)?;
    let memory: Option<Arc<dyn GatewayMemory>> = memory.map(|memory| Arc::new(memory) as _);
    let address = arguments.listen;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::wrong(format!("--listen {address}: {error}; choose another port, or end what uses it"))
    })?;
    Box::pin(with_client(settings, true, async |client| {
        let key_file = arguments.key_file.clone().unwrap_or_else(|| settings.home().join(KEY_FILE));
        let config = GatewayConfig {
            key: if arguments.no_key { None } else { Some(key(&key_file)?) },
            origins: arguments.allow_origin.clone(),
            hosts: arguments.allow_host.iter().chain(&arguments.acme).cloned().collect(),
            template: TurnInput {
                route: RouteOptions {
                    node: named_node(client, arguments.answering.only.as_deref()).await?,
                    ..template.route
                },
                ..template
            },
            relayer: settings.relayer_of_turns(arguments.memory.memory).map(|named| relayer_name(named)),
            memory,
            keys: Some(NamedKeys::open(settings.home()).map_err(keys::failure)?),
        };
        let gateway = Gateway::open(client.clone(), config.clone()).await?;
        for line in gateway.privacy().relayer_lines() {
            out.note(&line);
        }
        let mut signals = StopSignals::listen()?;
        let key_file = (!arguments.no_key).then_some(&*key_file);
        let (name, certified) = (arguments.allow_host.first(), arguments.acme.first());
        let page = PageAddress::of(listener.local_addr()?, has_tls, name, certified, key_file);
        page.save(settings.home())?;
        announce(&page, config.key.as_ref(), out)?;
        let stop = async move {
            signals.next().await;
            leave_at_second_interrupt();
        };
        let serving = async {
            match (identity, acme) {
                (Some(identity), _) => gateway.serve_tls(listener, identity, stop).await,
                (None, Some(acme)) => gateway.serve_acme(listener, acme, stop).await,
                (None, None) => gateway.serve(listener, stop).await,
            }
        };
        tokio::select! {
            biased;
            served = serving => Ok(served?),
            () = watch_nodes(client, settings.options.node().len(), out) => unreachable!("the watch does not end"),
        }
    }))
    .await
}

/// Refuses an address that would give the key or the conversations to others.
fn check_address(settings: &Settings, arguments: &ServeArguments) -> Result<(), Failure> {
    let address = arguments.listen;
    if arguments.no_key && !is_loopback(&address) {
        return Err(Failure::wrong(format!(
            "--no-key with --listen {address}: without a key only programs of this machine may be served"
        )));
    }
    let has_tls = arguments.tls_cert.is_some() || !arguments.acme.is_empty();
    if !is_loopback(&address) && !has_tls && !settings.options.insecure() {
        return Err(Failure::wrong(format!(
            "--listen {address}: over plain HTTP, others on the way can read the conversations and the key; serve HTTPS \
             with --acme NAME or --tls-cert and --tls-key, put a proxy with TLS in front of 127.0.0.1, or permit it: \
             --insecure"
        )));
    }
    Ok(())
}

/// The authority that gives the certificate, if one is named.
fn acme(settings: &Settings, arguments: &ServeArguments) -> Option<AcmeSettings> {
    let directory = arguments.acme_directory.clone().unwrap_or_else(|| LETS_ENCRYPT.to_owned());
    (!arguments.acme.is_empty()).then(|| AcmeSettings {
        domains: arguments.acme.iter().map(|name| name.to_ascii_lowercase()).collect(),
        directory,
        root: arguments.acme_root.clone(),
        home: settings.home().to_owned(),
    })
}

/// Says when there are no nodes, with what was tried and what to do, and when there are some.
async fn watch_nodes(client: &Client, named: usize, out: &Out) {
    out.note(&search_line(named, client.uses_multicast()));
    let mut nodes = client.nodes().await;
    let mut were_there = None;
    loop {
        if were_there != Some(!nodes.is_empty()) {
            were_there = Some(!nodes.is_empty());
            if nodes.is_empty() {
                out.warn("No node was found, so requests are answered with 503 no_node until one is there.");
                explain_lack_of_nodes(client, out).await;
            } else {
                let models = served(nodes.iter().flat_map(|node| &node.record.models)).join(", ");
                out.note(&format!("{} with {models}", count(nodes.len() as u64, "node")));
            }
        }
        tokio::time::sleep(NODES_CHECK).await;
        // The table of peers costs nothing; the nodes are asked only after a change.
        let present = client.reported_nodes() > 0;
        if were_there != Some(present) {
            nodes = client.nodes().await;
        }
    }
}

/// The bearer key in a file; a missing file is created.
fn key(path: &Path) -> Result<Zeroizing<String>, Failure> {
    if let Some(key) = read_key(path)? {
        return Ok(key);
    }
    let key = generate_key();
    write_private(path, format!("{}\n", *key).as_bytes())?;
    Ok(key)
}

/// Shows the endpoint's address; programs read the JSON line. A person gets the page's link with the key in
/// its fragment, which browsers do not send.
fn announce(page: &PageAddress, key: Option<&Zeroizing<String>>, out: &Out) -> Result<(), Failure> {
    let url = format!("{}v1", page.local);
    let key_file = page.key_file.as_ref().map(|path| path.display().to_string());
    if out.json() {
        return Ok(out.value(&json!({ "event": "ready", "url": url, "key_file": key_file }))?);
    }
    out.line(&format!("export OPENAI_BASE_URL={url}"))?;
    match key_file {
        Some(path) => out.line(&format!("export OPENAI_API_KEY=\"$(cat {})\"", quoted(&path)))?,
        None => out.line("export OPENAI_API_KEY=none")?,
    }
    if std::io::stderr().is_terminal() {
        let key = key.map(|key| key.as_str());
        out.note(&format!("chat page: {}", *link_to(&page.local, key)));
        if page.shared != page.local {
            out.note(&format!("from other devices: {}", *page.link(key)));
        }
        out.note("programs that speak OpenAI's API need the lines above; Ctrl-C ends this");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use baton_client::ClientError;
    use baton_keys::files;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_may_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("serve.key");
        let made = key(&path).unwrap();
        assert!(made.starts_with("sk-baton-") && made.len() == 73);
        assert_eq!(*key(&path).unwrap(), *made);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(key(&path), Err(Failure::Client(ClientError::KeyFile(_)))));
        let empty = folder.path().join("empty");
        files::write_private(&empty, b"\n").unwrap();
        assert!(key(&empty).unwrap_err().is_usage());
    }
}
