//! Delegations: an account's right to its memory for another key. Signed here, listed and revoked at the relayer,
//! and used by the delegate's key. A delegation is no secret: it is useless without that key.

use baton_client::AccountKey;
use baton_keys::{ids::PublicKey, token::AgentToken};
use baton_proto::{
    ErrorCode,
    ids::RightId,
    right::{MemoryAccess, Permissions, Right, RightChain, RightScope},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    args::DelegateArguments,
    clock::{day, now_ms},
    failure::Failure,
    out::{Out, clean},
    relayer::client::RelayerClient,
    settings::Settings,
};

const DAY_MS: u64 = 86_400_000;

/// Lets a key or an agent act for the account; without both, lists the delegations.
pub(crate) async fn run(
    settings: &Settings,
    key: AccountKey,
    arguments: &DelegateArguments,
    out: &Out,
) -> Result<(), Failure> {
    match arguments.key {
        Some(delegate) => delegate_to(settings, key, delegate, arguments, out).await,
        None if arguments.token => make_token(settings, key, arguments, out).await,
        None => list(settings, key, out).await,
    }
}

/// Signs a delegation to a key, and prints or registers it.
async fn delegate_to(
    settings: &Settings,
    key: AccountKey,
    delegate: PublicKey,
    arguments: &DelegateArguments,
    out: &Out,
) -> Result<(), Failure> {
    let chain = sign(&key, delegate, arguments)?;
    if !arguments.register {
        out.note("Its key uses it with --delegation FILE.");
        return Ok(out.answer(&chain.describe(), &chain.to_string())?);
    }
    register(&RelayerClient::of_owner(settings, key)?, &chain).await?;
    out.note("the relayer knows it: the key needs nothing but --owner");
    Ok(out.answer(&chain.describe(), &row(&chain))?)
}

async fn register(relayer: &RelayerClient, chain: &RightChain) -> Result<(), Failure> {
    let body = json!({ "delegation": chain.to_string() });
    relayer.json(Method::POST, "/api/delegations", Some(&body)).await.map(drop)
}

/// Makes a token for an agent: registers a delegation to the token's key, and shows the token once.
async fn make_token(
    settings: &Settings,
    key: AccountKey,
    arguments: &DelegateArguments,
    out: &Out,
) -> Result<(), Failure> {
    let token = AgentToken::generate(&key.account_id());
    let chain = sign(&key, token.key().public_key(), arguments)?;
    let relayer = RelayerClient::of_owner(settings, key)?;
    register(&relayer, &chain).await?;
    let (text, url) = (token.expose(), relayer.agents_url());
    if out.json() {
        let mut fields = chain.last().describe();
        (fields["token"], fields["url"]) = (text.as_str().into(), url.into());
        return Ok(out.value(&fields)?);
    }
    out.line(&text)?;
    out.note("This token is shown once. In an agent's configuration of MCP servers:");
    out.note(&format!("  url     {url}\n  header  Authorization: Bearer TOKEN"));
    out.note(&format!(
        "It allows {} until {}. End it: baton account revoke {}",
        arguments.scopes.join(", "),
        day(chain.last().until_ms),
        chain.last().id
    ));
    Ok(())
}

fn sign(key: &AccountKey, delegate: PublicKey, arguments: &DelegateArguments) -> Result<RightChain, Failure> {
    if delegate == key.public_key() {
        return Err(Failure::wrong("this is the account's own key, which may do everything"));
    }
    let permissions = Permissions::named(arguments.scopes.iter().map(String::as_str));
    let permissions = permissions.ok_or_else(|| Failure::wrong("--scopes names no scope"))?;
    let scope = RightScope::Memory(MemoryAccess { permissions, project: arguments.project.clone() });
    let now_ms = now_ms();
    let valid_ms = now_ms..now_ms + u64::from(arguments.days) * DAY_MS;
    let right = Right::new(key.public_key(), delegate, scope, valid_ms);
    let right = Right { places: arguments.at_relayer.into_iter().collect(), ..right };
    RightChain::issue(right, key.signing_key()).map_err(|code| match code {
        ErrorCode::NonCanonical => {
            Failure::wrong("a project's name has 1 to 256 bytes, not only spaces, and no control characters")
        }
        code => Failure::wrong(code.to_string()),
    })
}

/// Shows the delegations that the relayer knows.
async fn list(settings: &Settings, key: AccountKey, out: &Out) -> Result<(), Failure> {
    let answer = RelayerClient::of_owner(settings, key)?.json(Method::GET, "/api/delegations", None).await?;
    if out.json() {
        return Ok(out.value(&answer)?);
    }
    let listed = answer["delegations"].as_array().map(Vec::as_slice).unwrap_or_default();
    if listed.is_empty() {
        out.note("the relayer knows of none; those that are only shown to it with requests are not listed");
    }
    for known in listed {
        let chain = known["delegation"].as_str().and_then(|text| text.parse::<RightChain>().ok());
        let id = known["id"].as_str().unwrap_or_default();
        out.line(&clean(&chain.map_or_else(|| format!("{id}  taken back"), |chain| row(&chain))))?;
    }
    Ok(())
}

/// One line of a table.
fn row(chain: &RightChain) -> String {
    let right = chain.last();
    let Some(MemoryAccess { permissions, project }) = right.memory() else { return right.id.to_string() };
    let project = project.as_ref().map(|name| format!("  in {name}")).unwrap_or_default();
    let scopes = permissions.names().join(",");
    format!("{}  until {}  {scopes:<21}  {}{project}", right.id, day(right.until_ms), right.holder)
}

/// Revokes a delegation.
pub(crate) async fn revoke(
    settings: &Settings,
    account: AccountKey,
    id: RightId,
    out: &Out,
) -> Result<(), Failure> {
    let path = format!("/api/delegations/{id}");
    RelayerClient::of_owner(settings, account)?.text(Method::DELETE, &path, String::new()).await?;
    let answer: Value = json!({ "revoked": id.to_string() });
    Ok(out.answer(&answer, &format!("{id}  taken back, at once and for good"))?)
}
