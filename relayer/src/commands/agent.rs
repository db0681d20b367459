//! `baton-relayer mcp`: the tools of a relayer elsewhere, for an agent on standard input and output.

use std::path::Path;

use anyhow::Context as _;
use baton_keys::account::AccountKey;
use baton_memory::ids::OwnerId;
use zeroize::Zeroizing;

use crate::{cli::McpArgs, delegation::DelegationJson, time::now_ms};

/// Largest passphrase or delegation file.
const MAX_SMALL_FILE: u64 = 8 * 1024;

fn small_file(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    use std::io::Read as _;
    let mut text = Zeroizing::new(String::new());
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_SMALL_FILE).read_to_string(&mut text));
    read.with_context(|| format!("cannot read {}", path.display()))?;
    let line = text.lines().next().unwrap_or_default().trim();
    Ok(Zeroizing::new(line.to_owned()))
}

/// A delegation in header form, from a file in that form or in JSON.
fn delegation_header(path: &Path) -> anyhow::Result<String> {
    let text = small_file(path)?;
    if !text.starts_with('{') {
        return Ok(text.to_string());
    }
    let json: DelegationJson = serde_json::from_str(&text).with_context(|| {
        format!("{} is no delegation; baton account delegate --out writes one", path.display())
    })?;
    Ok(json.to_header())
}

fn account_key(path: &Path, passphrase_file: Option<&Path>) -> anyhow::Result<AccountKey> {
    let passphrase = passphrase_file.map(small_file).transpose()?;
    Ok(AccountKey::load(path, passphrase.as_ref().map(|text| text.as_str()))?)
}

/// Serves the tools to an agent.
pub(crate) async fn mcp(args: McpArgs) -> anyhow::Result<()> {
    use crate::mcp::remote::{self, Remote};
    let key = account_key(&args.account_key, args.passphrase_file.as_deref())?;
    let account: Option<OwnerId> = args
        .account
        .map(|account| account.parse().context("--account is 0x and 64 hex characters"))
        .transpose()?;
    let delegation = args.delegation.as_deref().map(delegation_header).transpose()?;
    let account = account.map(|owner| owner.to_string());
    let remote = Remote::new(&args.url, key, account, delegation, args.insecure, std::sync::Arc::new(now_ms))
        .map_err(anyhow::Error::msg)?;
    remote::serve(remote).await
}
